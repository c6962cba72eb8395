"""The blocks of the page on PyTorch and JAX make JAX match PyTorch, in float64."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from flax import linen, nnx
from support.docs.defaults import ACCUMULATES_IN_FLOAT32, differences
from torch import nn
from torch.nn import functional

from plateau_jax import PlateauCurve, optax_schedule
from torch_bridge import lambda_lr

pytestmark = pytest.mark.slow

BY_HEADING = differences()
WEIGHT_DECAY, CLIPPING = BY_HEADING["Weight decay"], BY_HEADING["Clipping gradients"]
MICRO_BATCHES, RMSPROP = BY_HEADING["Micro-batches"], BY_HEADING["RMSprop"]
NORMS, BATCH_NORM = BY_HEADING["ε of normalization layers"], BY_HEADING["BatchNorm"]
GELU, LAYERS = BY_HEADING["GELU"], BY_HEADING["Initial weights"]
MASKS, LOSSES = BY_HEADING["Attention masks"], BY_HEADING["Losses"]
LR = 0.01
WEIGHTS, *GRADIENTS = np.random.default_rng(0).normal(size=(9, 50)) * np.logspace(1, -9, 50)

assert_equal_float64 = partial(np.testing.assert_allclose, rtol=1e-12, atol=1e-14)


@pytest.fixture(autouse=True)
def enable_x64():
    with jax.enable_x64(True):
        yield


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def torch_weights(make_optimizer, weights, gradients):
    """Return the weights after one update for each of these gradients."""
    parameter = nn.Parameter(torch.tensor(weights))
    optimizer = make_optimizer([parameter])
    for gradient in gradients:
        parameter.grad = torch.tensor(gradient)
        optimizer.step()
    return parameter.detach().numpy()


def optax_weights(tx, weights, gradients):
    state = tx.init(weights)
    for gradient in gradients:
        updates, state = tx.update(gradient, state, weights)
        weights = np.asarray(optax.apply_updates(weights, updates))
    return weights


def differ(first, second):
    return np.abs(np.asarray(first) - np.asarray(second)).max() > 1e-9


def test_weight_decay_matches_torch():
    assert_equal_float64(
        optax_weights(WEIGHT_DECAY.run(lr=LR)["tx"], WEIGHTS, GRADIENTS),
        torch_weights(partial(torch.optim.AdamW, lr=LR), WEIGHTS, GRADIENTS),
    )
    for index, optimizer_class in enumerate((torch.optim.SGD, torch.optim.Adam), start=1):
        assert_equal_float64(
            optax_weights(WEIGHT_DECAY.run(index, lr=LR, weight_decay=0.1)["tx"], WEIGHTS, GRADIENTS),
            torch_weights(partial(optimizer_class, lr=LR, weight_decay=0.1), WEIGHTS, GRADIENTS),
        )


def test_clipping_matches_torch(rng):
    gradients = {"kernel": rng.normal(size=(3, 4)), "bias": rng.normal(size=4)}
    norm = math.hypot(*gradients["kernel"].flat, *gradients["bias"])

    def clipped_by_torch(max_norm):
        parameters = {name: nn.Parameter(torch.tensor(gradient)) for name, gradient in gradients.items()}
        for parameter in parameters.values():
            parameter.grad = parameter.detach().clone()
        nn.utils.clip_grad_norm_(parameters.values(), max_norm)
        return {name: parameter.grad.numpy() for name, parameter in parameters.items()}

    def clipped_by_optax(tx):
        return tx.update(gradients, tx.init(gradients))[0]

    for max_norm in norm / 2, norm * (1 - 1e-9), norm, norm + 5e-7, 2 * norm:
        tx = CLIPPING.run()["clip_as_torch"](max_norm)
        jax.tree.map(assert_equal_float64, clipped_by_optax(tx), clipped_by_torch(max_norm))


def test_micro_batches_match_torch():
    count = 3
    parameter = nn.Parameter(torch.tensor(WEIGHTS))
    for gradient in GRADIENTS[:count]:
        (parameter * torch.tensor(gradient)).sum().backward()
    total = parameter.grad.numpy()

    def accumulate(tx):
        return optax_weights(tx, np.zeros(50), GRADIENTS[:count])

    tx = optax.sgd(-1.0)
    dtype = ["float64"] if ACCUMULATES_IN_FLOAT32 else []
    sum_in_float64 = MICRO_BATCHES.run(1 if dtype else 0)["sum_of_micro_batches"]
    assert_equal_float64(accumulate(sum_in_float64(tx, count, *dtype)), total)
    sum_in_float32 = MICRO_BATCHES.run()["sum_of_micro_batches"]
    np.testing.assert_allclose(accumulate(sum_in_float32(tx, count)), total, rtol=1e-6, atol=1e-6)
    by_default = accumulate(optax.MultiSteps(tx, count))
    np.testing.assert_allclose(by_default, total / count, rtol=1e-6, atol=1e-6)
    assert differ(by_default, total / count) == ACCUMULATES_IN_FLOAT32


def test_rmsprop_matches_torch():
    def torch_rmsprop(weights, gradients, **settings):
        return torch_weights(partial(torch.optim.RMSprop, lr=LR, **settings), weights, gradients)

    # The order of momentum and learning rate matters only if the learning rate changes.
    curve = PlateauCurve(len(GRADIENTS), warmup_steps=3)
    parameter = nn.Parameter(torch.tensor(WEIGHTS))
    optimizer = torch.optim.RMSprop([parameter], lr=LR, momentum=0.9)
    scheduler = lambda_lr(optimizer, curve)
    for gradient in GRADIENTS:
        parameter.grad = torch.tensor(gradient)
        optimizer.step()
        scheduler.step()
    under_the_curve, schedule = parameter.detach().numpy(), optax_schedule(curve, LR)
    assert_equal_float64(
        optax_weights(RMSPROP.run(lr=schedule, momentum=0.9)["tx"], WEIGHTS, GRADIENTS), under_the_curve
    )
    other_order = partial(optax.rmsprop, decay=0.99, eps_in_sqrt=False, momentum=0.9)
    assert differ(optax_weights(other_order(schedule), WEIGHTS, GRADIENTS), under_the_curve)
    assert_equal_float64(
        optax_weights(other_order(LR), WEIGHTS, GRADIENTS), torch_rmsprop(WEIGHTS, GRADIENTS, momentum=0.9)
    )


def test_norm_layers_match_torch():
    inputs = np.float32(1e-3) * np.tile([1, -1], 4)[None].astype("float32")

    torch_layers = nn.LayerNorm(8), nn.GroupNorm(2, 8), nn.RMSNorm(8)
    expected = [layer(torch.tensor(inputs)).detach().numpy() for layer in torch_layers]
    rngs = nnx.Rngs(0)
    block = NORMS.run(width=8, groups=2, rngs=rngs)
    for name, outputs in zip(("layer_norm", "group_norm", "rms_norm"), expected, strict=True):
        np.testing.assert_allclose(block[name](inputs), outputs, rtol=1e-5)


def test_batch_norm_matches_torch(rng):
    inputs, rngs = rng.normal(size=(5, 3)).astype("float32"), nnx.Rngs(0)
    torch_layer, layer = nn.BatchNorm1d(3), BATCH_NORM.run(width=3, rngs=rngs)["batch_norm"]
    torch_layer(torch.tensor(inputs))
    layer(inputs)
    np.testing.assert_allclose(layer.mean[...], torch_layer.running_mean.numpy(), rtol=1e-5)
    # Torch's running variance is unbiased, as the page says.
    momentum = 0.1
    unbiased, biased = (1 - momentum + momentum * inputs.var(0, ddof=ddof) for ddof in (1, 0))
    np.testing.assert_allclose(torch_layer.running_var.numpy(), unbiased, rtol=1e-5)
    np.testing.assert_allclose(layer.var[...], biased, rtol=1e-5)


def test_gelu_matches_torch():
    x = np.linspace(-5, 5, 101)
    exact = [value * (1 + math.erf(value / math.sqrt(2))) / 2 for value in x]
    tanh = x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2
    assert_equal_float64(functional.gelu(torch.tensor(x)).numpy(), exact)
    assert_equal_float64(GELU.run()["gelu"](x), exact)
    for by_default in jax.nn.gelu, linen.gelu, nnx.gelu:
        assert_equal_float64(by_default(x), tanh)


def test_initial_weights_match_torch():
    rngs, bound, close = nnx.Rngs(0), 400**-0.5, partial(pytest.approx, rel=0.01)
    torch.manual_seed(0)
    torch_layer, default = nn.Linear(400, 500), nnx.Linear(400, 500, rngs=rngs)
    layer = LAYERS.run(width=400, rows=500, rngs=rngs)["linear"]
    weight, bias = torch_layer.weight.detach().numpy(), torch_layer.bias.detach().numpy()
    assert weight.shape == (500, 400)
    assert default.kernel[...].shape == layer.kernel[...].shape == (400, 500)
    for uniform in weight, bias, layer.kernel[...], layer.bias[...]:
        assert 0.98 * bound < np.abs(uniform).max() <= bound
        assert np.std(uniform) == pytest.approx(bound / math.sqrt(3), rel=0.05)
    assert np.std(default.kernel[...]) == close(bound)
    assert not default.bias[...].any()

    embedding = LAYERS.run(rows=300, width=500, rngs=rngs)["embedding"]
    assert nn.Embedding(300, 500).weight.std().item() == close(1)
    assert np.std(nnx.Embed(300, 500, rngs=rngs).embedding[...]) == close(500**-0.5)
    assert np.std(embedding.embedding[...]) == close(1)


def test_attention_mask_matches_torch(rng):
    mask = np.triu(np.ones((4, 4), bool), 1)
    query, key, value = rng.normal(size=(3, 1, 4, 2, 8))
    attention = nn.MultiheadAttention(16, 2, bias=False, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        attention.in_proj_weight.copy_(torch.eye(16).repeat(3, 1))
        attention.out_proj.weight.copy_(torch.eye(16))
        flat = [torch.tensor(array).flatten(2) for array in (query, key, value)]
        expected = attention(*flat, attn_mask=torch.tensor(mask))[0].unflatten(2, (2, 8)).numpy()
    heads_first = [torch.tensor(array).transpose(1, 2) for array in (query, key, value)]
    dot_product = functional.scaled_dot_product_attention(*heads_first, attn_mask=torch.tensor(~mask))
    assert_equal_float64(dot_product.transpose(1, 2).numpy(), expected)
    query, key, value = map(jnp.asarray, (query, key, value))
    assert_equal_float64(linen.dot_product_attention(query, key, value, mask=~mask), expected)
    # jax.nn.dot_product_attention, which nnx calls, computes the softmax in float32 even with x64 enabled.
    from_page = MASKS.run()["attention"](query, key, value, mask)
    np.testing.assert_allclose(from_page, expected, rtol=1e-5, atol=1e-6)


def test_losses_match_torch(rng):
    outputs, targets, logits = rng.normal(size=(3, 6, 5))
    classes = rng.integers(5, size=6)
    squared = functional.mse_loss(torch.tensor(outputs), torch.tensor(targets)).item()
    assert_equal_float64(LOSSES.run()["mse_loss"](outputs, targets), squared)
    assert_equal_float64(optax.l2_loss(outputs, targets).mean(), squared / 2)
    assert optax.softmax_cross_entropy_with_integer_labels(logits, classes).shape == (6,)
    entropy = functional.cross_entropy(torch.tensor(logits), torch.tensor(classes)).item()
    assert_equal_float64(LOSSES.run()["cross_entropy"](logits, classes), entropy)
