"""The blocks of the page on PyTorch and JAX make JAX match PyTorch, in float64."""

import math
from functools import partial
from inspect import signature

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from flax import nnx
from support.docs.pages import program_named, sections
from torch import nn
from torch.nn import functional

from plateau_jax import PlateauCurve, optax_schedule
from torch_bridge import lambda_lr

pytestmark = pytest.mark.slow

INTRODUCTION, *SECTIONS = sections(program_named("Clipping gradients").page)
ACCUMULATES_IN_FLOAT32 = "accumulator_dtype" in signature(optax.MultiSteps).parameters
"""True from optax 0.2.8 on; older versions accumulate in the dtype of the gradients."""
LR = 0.01
WEIGHTS, *GRADIENTS = np.random.default_rng(0).normal(size=(9, 50)) * np.logspace(1, -9, 50)

assert_equal_float64 = partial(np.testing.assert_allclose, rtol=1e-12, atol=1e-14)


def run(heading, index=0, **names):
    """Run a block of the page, with these values for names of its first block, and return its names."""
    (section,) = (section for section in SECTIONS if section.heading == heading)
    blocks = [block.code for block in section.blocks if block.language.startswith("py")]
    namespace = {}
    exec(INTRODUCTION.python(), namespace)
    assert names.keys() <= namespace.keys()
    namespace |= names
    exec(blocks[index], namespace)
    return namespace


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


@pytest.mark.parametrize(
    ("index", "optimizer_class", "options"),
    [
        (0, torch.optim.AdamW, {}),
        (1, torch.optim.SGD, {"weight_decay": 0.1}),
        (2, torch.optim.Adam, {"weight_decay": 0.1}),
    ],
)
def test_weight_decay_matches_torch(index, optimizer_class, options):
    assert_equal_float64(
        optax_weights(run("Weight decay", index, lr=LR, **options)["tx"], WEIGHTS, GRADIENTS),
        torch_weights(partial(optimizer_class, lr=LR, **options), WEIGHTS, GRADIENTS),
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

    for max_norm in norm / 2, norm * (1 - 1e-9), norm, norm + 5e-7, 2 * norm:
        tx = run("Clipping gradients")["clip_as_torch"](max_norm)
        clipped, _ = tx.update(gradients, tx.init(gradients))
        jax.tree.map(assert_equal_float64, clipped, clipped_by_torch(max_norm))


def test_micro_batches_match_torch():
    count = 3
    parameter = nn.Parameter(torch.tensor(WEIGHTS))
    for gradient in GRADIENTS[:count]:
        (parameter * torch.tensor(gradient)).sum().backward()
    total = parameter.grad.numpy()

    def accumulate(index, *dtype):
        tx = run("Micro-batches", index)["sum_of_micro_batches"](optax.sgd(-1.0), count, *dtype)
        return optax_weights(tx, np.zeros(50), GRADIENTS[:count])

    np.testing.assert_allclose(accumulate(0), total, rtol=1e-6, atol=1e-6)
    assert_equal_float64(accumulate(1, "float64") if ACCUMULATES_IN_FLOAT32 else accumulate(0), total)


def test_rmsprop_matches_torch():
    """Under a curve: the order of momentum and learning rate matters only if the learning rate changes."""
    curve = PlateauCurve(len(GRADIENTS), warmup_steps=3)
    parameter = nn.Parameter(torch.tensor(WEIGHTS))
    optimizer = torch.optim.RMSprop([parameter], lr=LR, momentum=0.9)
    scheduler = lambda_lr(optimizer, curve)
    for gradient in GRADIENTS:
        parameter.grad = torch.tensor(gradient)
        optimizer.step()
        scheduler.step()
    tx = run("RMSprop", lr=optax_schedule(curve, LR), momentum=0.9)["tx"]
    assert_equal_float64(optax_weights(tx, WEIGHTS, GRADIENTS), parameter.detach().numpy())


def test_norm_layers_match_torch():
    inputs = np.float32(1e-3) * np.tile([1, -1], 4)[None].astype("float32")
    block = run("ε of normalization layers", width=8, groups=2, rngs=nnx.Rngs(0))
    layers = {"layer_norm": nn.LayerNorm(8), "group_norm": nn.GroupNorm(2, 8), "rms_norm": nn.RMSNorm(8)}
    for name, layer in layers.items():
        expected = layer(torch.tensor(inputs)).detach().numpy()
        np.testing.assert_allclose(block[name](inputs), expected, rtol=1e-5)


def test_batch_norm_matches_torch(rng):
    inputs = rng.normal(size=(5, 3)).astype("float32")
    torch_layer, layer = nn.BatchNorm1d(3), run("BatchNorm", width=3, rngs=nnx.Rngs(0))["batch_norm"]
    torch_layer(torch.tensor(inputs))
    layer(inputs)
    np.testing.assert_allclose(layer.mean[...], torch_layer.running_mean.numpy(), rtol=1e-5)
    # Torch's running variance is unbiased, as the page says.
    of_batch, of_torch_batch = (np.asarray(var) - 0.9 for var in (layer.var[...], torch_layer.running_var))
    np.testing.assert_allclose(of_batch, 4 / 5 * of_torch_batch, rtol=1e-4)


def test_gelu_matches_torch():
    x = np.linspace(-5, 5, 101)
    assert_equal_float64(run("GELU")["gelu"](x), functional.gelu(torch.tensor(x)).numpy())


def test_initial_weights_match_torch():
    block = run("Initial weights", width=400, rows=500, rngs=nnx.Rngs(0))
    linear, torch_linear = block["linear"], nn.Linear(400, 500)
    for ours, theirs in ((linear.kernel, torch_linear.weight), (linear.bias, torch_linear.bias)):
        assert ours[...].shape == tuple(theirs.shape)[::-1]
        bound = theirs.abs().max().item()
        assert np.abs(ours[...]).max() == pytest.approx(bound, rel=0.02)
        assert np.std(ours[...]) == pytest.approx(bound / math.sqrt(3), rel=0.05)
    deviation = nn.Embedding(500, 400).weight.std().item()
    assert np.std(block["embedding"].embedding[...]) == pytest.approx(deviation, rel=0.01)


def test_attention_mask_matches_torch(rng):
    mask = np.triu(np.ones((4, 4), bool), 1)
    query, key, value = rng.normal(size=(3, 1, 4, 2, 8))
    attention = nn.MultiheadAttention(16, 2, bias=False, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        attention.in_proj_weight.copy_(torch.eye(16).repeat(3, 1))
        attention.out_proj.weight.copy_(torch.eye(16))
        flat = [torch.tensor(array).flatten(2) for array in (query, key, value)]
        expected = attention(*flat, attn_mask=torch.tensor(mask))[0].unflatten(2, (2, 8)).numpy()
    query, key, value = map(jnp.asarray, (query, key, value))
    # jax.nn.dot_product_attention, which nnx calls, computes the softmax in float32 even with x64 enabled.
    from_page = run("Attention masks")["attention"](query, key, value, mask)
    np.testing.assert_allclose(from_page, expected, rtol=1e-5, atol=1e-6)


def test_losses_match_torch(rng):
    outputs, targets, logits = rng.normal(size=(3, 6, 5))
    classes, block = rng.integers(5, size=6), run("Losses")
    squared = functional.mse_loss(torch.tensor(outputs), torch.tensor(targets)).item()
    assert_equal_float64(block["mse_loss"](outputs, targets), squared)
    entropy = functional.cross_entropy(torch.tensor(logits), torch.tensor(classes)).item()
    assert_equal_float64(block["cross_entropy"](logits, classes), entropy)
