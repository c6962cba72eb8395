"""docs/pytorch_and_jax.md: the libraries have these figures, and its blocks make JAX do as PyTorch."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from flax import linen, nnx
from support.docs.defaults import ACCUMULATES_IN_FLOAT32, by_optax, by_torch, differences
from torch import nn
from torch.nn import functional

from plateau_jax import PlateauCurve, optax_schedule
from torch_bridge import lambda_lr

pytestmark = pytest.mark.slow

DECAY, CLIPPING, MICRO_BATCHES, RMSPROP, NORMS, BATCH_NORM, GELU, LAYERS, MASKS, LOSSES = (
    differences().values()
)
RATE = 0.01
WEIGHTS, *GRADIENTS = np.random.default_rng(0).normal(size=(9, 50)) * np.logspace(1, -9, 50)

same = partial(np.testing.assert_allclose, rtol=1e-12, atol=1e-14)
figures = partial(pytest.approx, rel=1e-3)


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


@pytest.fixture
def random():
    return np.random.default_rng(0)


def differs(one, other):
    return np.abs(np.asarray(one) - np.asarray(other)).max() > 1e-9


def test_weight_decay():
    still = [np.zeros(1)]

    def decay(after):
        return (1 - after[0]) / RATE

    assert DECAY.torch == [figures(decay(by_torch(partial(torch.optim.AdamW, lr=RATE), np.ones(1), still)))]
    assert DECAY.jax == [figures(decay(by_optax(optax.adamw(RATE), np.ones(1), still)))]
    same(
        by_optax(DECAY.run(rate=RATE)["tx"], WEIGHTS, GRADIENTS),
        by_torch(partial(torch.optim.AdamW, lr=RATE), WEIGHTS, GRADIENTS),
    )
    for index, kind in enumerate((torch.optim.SGD, torch.optim.Adam), start=1):
        same(
            by_optax(DECAY.run(index, rate=RATE, decay=0.1)["tx"], WEIGHTS, GRADIENTS),
            by_torch(partial(kind, lr=RATE, weight_decay=0.1), WEIGHTS, GRADIENTS),
        )


def test_clipping(random):
    gradients = {"kernel": random.normal(size=(3, 4)), "bias": random.normal(size=4)}
    norm = math.hypot(*gradients["kernel"].flat, *gradients["bias"])

    def by_torch(most):
        parameters = {name: nn.Parameter(torch.tensor(gradient)) for name, gradient in gradients.items()}
        for parameter in parameters.values():
            parameter.grad = parameter.detach().clone()
        nn.utils.clip_grad_norm_(parameters.values(), most)
        return {name: parameter.grad.numpy() for name, parameter in parameters.items()}

    def by_optax(tx):
        return tx.update(gradients, tx.init(gradients))[0]

    def added(clipped):
        """What was added to the norm before the division by it."""
        return norm / 2 * gradients["bias"][0] / float(clipped["bias"][0]) - norm

    assert CLIPPING.torch == [figures(added(by_torch(norm / 2)))]
    assert CLIPPING.jax == []
    assert abs(added(by_optax(optax.clip_by_global_norm(norm / 2)))) < 1e-12
    for most in norm / 2, norm * (1 - 1e-9), norm, norm + 5e-7, 2 * norm:
        jax.tree.map(same, by_optax(CLIPPING.run()["clip_as_torch"](most)), by_torch(most))


def test_micro_batches():
    k = 3
    parameter = nn.Parameter(torch.tensor(WEIGHTS))
    for gradient in GRADIENTS[:k]:
        (parameter * torch.tensor(gradient)).sum().backward()
    total = parameter.grad.numpy()

    def accumulated(tx):
        return by_optax(tx, np.zeros(50), GRADIENTS[:k])

    tx = optax.sgd(-1.0)
    dtype = ["float64"] if ACCUMULATES_IN_FLOAT32 else []
    summed = MICRO_BATCHES.run(1 if dtype else 0)["sum_of_micro_batches"]
    same(accumulated(summed(tx, k, *dtype)), total)
    in_float32 = MICRO_BATCHES.run()["sum_of_micro_batches"]
    np.testing.assert_allclose(accumulated(in_float32(tx, k)), total, rtol=1e-6, atol=1e-6)
    by_default = accumulated(optax.MultiSteps(tx, k))
    np.testing.assert_allclose(by_default, total / k, rtol=1e-6, atol=1e-6)
    assert differs(by_default, total / k) == ACCUMULATES_IN_FLOAT32


def test_rmsprop():
    def roots(update):
        """What an update divided the gradient by, for a large and for a tiny one."""
        return [-RATE * g / update(np.zeros(1), [np.full(1, g)])[0] for g in (1e6, 1e-9)]

    def torchs(weights, gradients, **settings):
        return by_torch(partial(torch.optim.RMSprop, lr=RATE, **settings), weights, gradients)

    large, tiny = roots(torchs)
    decay = 1 - (large / 1e6) ** 2
    assert RMSPROP.torch == figures([decay, tiny - math.sqrt(1 - decay) * 1e-9])
    large, tiny = roots(partial(by_optax, optax.rmsprop(RATE)))
    decay = 1 - (large / 1e6) ** 2
    assert RMSPROP.jax == figures([decay, tiny**2 - (1 - decay) * 1e-18])

    # Momentum: both orders agree at a constant rate, but not under a curve.
    curve = PlateauCurve(len(GRADIENTS), warmup_steps=3)
    parameter = nn.Parameter(torch.tensor(WEIGHTS))
    optimizer = torch.optim.RMSprop([parameter], lr=RATE, momentum=0.9)
    scheduler = lambda_lr(optimizer, curve)
    for gradient in GRADIENTS:
        parameter.grad = torch.tensor(gradient)
        optimizer.step()
        scheduler.step()
    under_the_curve, schedule = parameter.detach().numpy(), optax_schedule(curve, RATE)
    same(by_optax(RMSPROP.run(rate=schedule, momentum=0.9)["tx"], WEIGHTS, GRADIENTS), under_the_curve)
    other_order = partial(optax.rmsprop, decay=0.99, eps_in_sqrt=False, momentum=0.9)
    assert differs(by_optax(other_order(schedule), WEIGHTS, GRADIENTS), under_the_curve)
    same(by_optax(other_order(RATE), WEIGHTS, GRADIENTS), torchs(WEIGHTS, GRADIENTS, momentum=0.9))


def test_norms():
    inputs = np.float32(1e-3) * np.tile([1, -1], 4)[None].astype("float32")

    def epsilon(outputs):
        return (inputs[0, 0] / np.asarray(outputs, "float64")[0, 0]) ** 2 - inputs[0, 0] ** 2

    torchs = nn.LayerNorm(8), nn.GroupNorm(2, 8), nn.RMSNorm(8)
    expected = [layer(torch.tensor(inputs)).detach().numpy() for layer in torchs]
    assert NORMS.torch == pytest.approx(list(map(epsilon, expected)), rel=0.02)
    rngs = nnx.Rngs(0)
    layers = nnx.LayerNorm(8, rngs=rngs), nnx.GroupNorm(8, 2, rngs=rngs), nnx.RMSNorm(8, rngs=rngs)
    assert NORMS.jax == pytest.approx([epsilon(layer(inputs)) for layer in layers], rel=0.02)
    for layer in linen.LayerNorm(), linen.GroupNorm(2), linen.RMSNorm():
        outputs, _ = layer.init_with_output(jax.random.key(0), inputs)
        assert NORMS.jax[0] == pytest.approx(epsilon(outputs), rel=0.02)
    made = NORMS.run(width=8, groups=2, rngs=rngs)
    for name, outputs in zip(("layer_norm", "group_norm", "rms_norm"), expected, strict=True):
        np.testing.assert_allclose(made[name](inputs), outputs, rtol=1e-5)


def test_batch_norm(random):
    inputs, rngs = random.normal(size=(5, 3)).astype("float32"), nnx.Rngs(0)
    torchs, default, layer = (
        nn.BatchNorm1d(3),
        nnx.BatchNorm(3, rngs=rngs),
        BATCH_NORM.run(width=3, rngs=rngs)["batch_norm"],
    )
    torchs(torch.tensor(inputs))
    layer(inputs)
    default(inputs)
    close = partial(np.testing.assert_allclose, rtol=1e-5)
    new, old = BATCH_NORM.torch[0], BATCH_NORM.jax[0]
    close(torchs.running_mean.numpy(), new * inputs.mean(0))
    close(torchs.running_var.numpy(), 1 - new + new * inputs.var(0, ddof=1))
    close(default.mean[...], (1 - old) * inputs.mean(0))
    close(default.var[...], old + (1 - old) * inputs.var(0))
    close(layer.mean[...], torchs.running_mean.numpy())
    close(layer.var[...], 1 - new + new * inputs.var(0))


def test_gelu():
    x = np.linspace(-5, 5, 101)
    exact = [value * (1 + math.erf(value / math.sqrt(2))) / 2 for value in x]
    tanh = x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2
    same(functional.gelu(torch.tensor(x)).numpy(), exact)
    same(GELU.run()["gelu"](x), exact)
    for by_default in jax.nn.gelu, linen.gelu, nnx.gelu:
        same(by_default(x), tanh)


def test_layers():
    rngs, bound, close = nnx.Rngs(0), 400**-0.5, partial(pytest.approx, rel=0.01)
    torch.manual_seed(0)
    torchs, default = nn.Linear(400, 500), nnx.Linear(400, 500, rngs=rngs)
    alike = LAYERS.run(width=400, rows=500, rngs=rngs)["linear"]
    weight, bias = torchs.weight.detach().numpy(), torchs.bias.detach().numpy()
    assert weight.shape == (500, 400)
    assert default.kernel[...].shape == alike.kernel[...].shape == (400, 500)
    for uniform in weight, bias, alike.kernel[...], alike.bias[...]:
        assert 0.98 * bound < np.abs(uniform).max() <= bound
        assert np.std(uniform) == pytest.approx(bound / math.sqrt(3), rel=0.05)
    assert np.std(default.kernel[...]) == close(bound)
    assert not default.bias[...].any()

    embedding = LAYERS.run(rows=300, width=500, rngs=rngs)["embedding"]
    assert nn.Embedding(300, 500).weight.std().item() == close(1)
    assert np.std(nnx.Embed(300, 500, rngs=rngs).embedding[...]) == close(500**-0.5)
    assert np.std(embedding.embedding[...]) == close(1)


def test_masks(random):
    mask = np.triu(np.ones((4, 4), bool), 1)
    query, key, value = random.normal(size=(3, 1, 4, 2, 8))
    attention = nn.MultiheadAttention(16, 2, bias=False, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        attention.in_proj_weight.copy_(torch.eye(16).repeat(3, 1))
        attention.out_proj.weight.copy_(torch.eye(16))
        parts = [torch.tensor(part).flatten(2) for part in (query, key, value)]
        expected = attention(*parts, attn_mask=torch.tensor(mask))[0].unflatten(2, (2, 8)).numpy()
    heads_first = [torch.tensor(part).transpose(1, 2) for part in (query, key, value)]
    dot_product = functional.scaled_dot_product_attention(*heads_first, attn_mask=torch.tensor(~mask))
    same(dot_product.transpose(1, 2).numpy(), expected)
    query, key, value = map(jnp.asarray, (query, key, value))
    same(linen.dot_product_attention(query, key, value, mask=~mask), expected)
    # jax.nn.dot_product_attention, which nnx calls, takes the softmax in float32, with x64 too.
    by_block = MASKS.run()["attention"](query, key, value, mask)
    np.testing.assert_allclose(by_block, expected, rtol=1e-5, atol=1e-6)


def test_losses(random):
    outputs, targets, logits = random.normal(size=(3, 6, 5))
    classes = random.integers(5, size=6)
    squared = functional.mse_loss(torch.tensor(outputs), torch.tensor(targets)).item()
    same(LOSSES.run()["mse_loss"](outputs, targets), squared)
    same(optax.l2_loss(outputs, targets).mean(), squared / 2)
    assert optax.softmax_cross_entropy_with_integer_labels(logits, classes).shape == (6,)
    entropy = functional.cross_entropy(torch.tensor(logits), torch.tensor(classes)).item()
    same(LOSSES.run()["cross_entropy"](logits, classes), entropy)


def test_what_is_equal_as_it_is(random):
    adam = by_torch(partial(torch.optim.Adam, lr=RATE), WEIGHTS, GRADIENTS)
    same(by_optax(optax.adam(RATE), WEIGHTS, GRADIENTS), adam)
    nesterov = by_torch(partial(torch.optim.SGD, lr=RATE, momentum=0.9, nesterov=True), WEIGHTS, GRADIENTS)
    same(by_optax(optax.sgd(RATE, momentum=0.9, nesterov=True), WEIGHTS, GRADIENTS), nesterov)
    logits, classes = random.normal(size=(6, 5)), random.integers(5, size=6)
    smooth = optax.smooth_labels(jax.nn.one_hot(classes, 5), 0.1)
    same(
        optax.softmax_cross_entropy(logits, smooth).mean(),
        functional.cross_entropy(torch.tensor(logits), torch.tensor(classes), label_smoothing=0.1).item(),
    )
