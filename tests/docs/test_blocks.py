"""Blocks of the pages, run: JAX matches PyTorch in float64, and recipes fit any lengths."""

import math
import re
from bisect import bisect_right
from fractions import Fraction
from functools import partial
from inspect import signature
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from flax import nnx
from hypothesis import given, strategies as st
from support.docs.pages import program_named, sections
from support.examples import corners, examples
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
    """Run a block of the page, with these values in its first block, and return its names."""
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
        parameters = {
            name: nn.Parameter(torch.tensor(gradient)) for name, gradient in gradients.items()
        }
        for parameter in parameters.values():
            parameter.grad = parameter.detach().clone()
        nn.utils.clip_grad_norm_(parameters.values(), max_norm)
        return {name: parameter.grad.numpy() for name, parameter in parameters.items()}

    for max_norm in norm / 2, norm * (1 - 1e-9), norm, norm + 5e-7, 2 * norm:
        tx = run("Clipping gradients")["clip_as_torch"](max_norm)
        clipped, _ = tx.update(gradients, tx.init(gradients))
        jax.tree.map(assert_equal_float64, clipped, clipped_by_torch(max_norm))


def test_clipping_by_value_matches_torch():
    """As the page says of `optax.clip`, also for elements that are not finite."""
    gradient = np.append(GRADIENTS[0], [np.inf, -np.inf, np.nan, 0.1, -0.0])
    parameter = nn.Parameter(torch.zeros(len(gradient), dtype=torch.float64))
    parameter.grad = torch.tensor(gradient)
    nn.utils.clip_grad_value_([parameter], 0.1)
    tx = optax.clip(0.1)
    clipped, _ = tx.update(gradient, tx.init(gradient))
    np.testing.assert_array_equal(clipped, parameter.grad.numpy())


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
    assert_equal_float64(
        accumulate(1, "float64") if ACCUMULATES_IN_FLOAT32 else accumulate(0), total
    )


def test_rmsprop_matches_torch():
    """Under a curve: momentum before or after the learning rate differs only if that changes."""
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
    layers = {
        "layer_norm": nn.LayerNorm(8),
        "group_norm": nn.GroupNorm(2, 8),
        "rms_norm": nn.RMSNorm(8),
    }
    for name, layer in layers.items():
        expected = layer(torch.tensor(inputs)).detach().numpy()
        np.testing.assert_allclose(block[name](inputs), expected, rtol=1e-5)


def test_batch_norm_matches_torch(rng):
    inputs = rng.normal(size=(5, 3)).astype("float32")
    torch_layer, layer = (
        nn.BatchNorm1d(3),
        run("BatchNorm", width=3, rngs=nnx.Rngs(0))["batch_norm"],
    )
    torch_layer(torch.tensor(inputs))
    layer(inputs)
    np.testing.assert_allclose(layer.mean[...], torch_layer.running_mean.numpy(), rtol=1e-5)
    # Torch's running variance is unbiased, as the page says.
    of_batch, of_torch_batch = (
        np.asarray(var) - 0.9 for var in (layer.var[...], torch_layer.running_var)
    )
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
    # jax.nn.dot_product_attention, which nnx calls, computes the softmax in float32 even with x64
    # enabled.
    from_page = run("Attention masks")["attention"](query, key, value, mask)
    np.testing.assert_allclose(from_page, expected, rtol=1e-5, atol=1e-6)


def test_losses_match_torch(rng):
    outputs, targets, logits = rng.normal(size=(3, 6, 5))
    classes, block = rng.integers(5, size=6), run("Losses")
    squared = functional.mse_loss(torch.tensor(outputs), torch.tensor(targets)).item()
    assert_equal_float64(block["mse_loss"](outputs, targets), squared)
    entropy = functional.cross_entropy(torch.tensor(logits), torch.tensor(classes)).item()
    assert_equal_float64(block["cross_entropy"](logits, classes), entropy)


# Recipes of the pages for any lengths: several lengths from one run, and a decay that is stretched.


def names_after(settings):
    """Return the names that both recipes for several lengths set."""
    names = dict(settings)
    _, *recipes = program_named("Several lengths from one run").blocks
    exec("from plateau_jax import StagedCurve\n" + "\n".join(recipes), names)
    return names


@st.composite
def ladders(draw):
    decay = draw(st.sampled_from((0.1, 0.2, 0.5)))
    warmup = draw(st.integers(0, 20))
    growth = draw(st.lists(st.integers(10, 60), min_size=1, max_size=4))
    lengths = [2 * warmup + sum(growth[: n + 1]) for n in range(len(growth))]
    while not all(round((1 - decay) * b) > round((1 - decay) * a) for a, b in pairwise(lengths)):
        lengths = [10 * length for length in lengths]
    peaks = draw(
        st.lists(st.just(1.0) | st.floats(0.1, 1), min_size=len(growth), max_size=len(growth))
    )
    return {"lengths": lengths, "peaks": peaks, "warmup": warmup, "decay": decay}


@examples(30)
@given(ladders())
def test_each_length_has_its_peak_and_decay(ladder):
    names, peaks, lengths = names_after(ladder), ladder["peaks"], ladder["lengths"]
    starts = names["starts"]

    def rising(step):
        return peaks[0] * min(1.0, step / ladder["warmup"]) if ladder["warmup"] else peaks[0]

    for step in range(lengths[-1]):
        period = bisect_right(starts, step)
        if period < len(peaks):
            level = rising(step) if step < ladder["warmup"] else peaks[period]
            assert names["trunk"](step) == pytest.approx(level, rel=1e-7)
        period = bisect_right(lengths, step)
        begin = lengths[period - 1] if period else 0
        fall = round(ladder["decay"] * (lengths[period] - begin))
        level = rising(step) if step < ladder["warmup"] else peaks[period]
        level *= min(1.0, (lengths[period] - step) / fall)
        assert names["wsds"](step) == pytest.approx(level, rel=1e-6)
    for branch, start, length, peak in zip(names["branches"], starts, lengths, peaks, strict=True):
        assert branch.same_until(names["trunk"], start)
        assert branch([start, length]).tolist() == [np.float32(peak), 0]
        assert branch.total_steps == length
    assert names["save"][1::2] == lengths
    assert [names["wsds"](step) for step in names["save"][::2]] == [
        np.float32(peak) for peak in peaks
    ]


@examples(50)
@given(st.data())
def test_stretched_decay_begins_at_its_level_and_ends_in_time(data):
    warmup = data.draw(st.just(0) | st.integers(1, 300))
    planned = warmup + data.draw(corners(2, 900))
    at = data.draw(corners(warmup + 1, planned - 1))
    total = planned + data.draw(corners(1, 2000))
    build, search, *_ = program_named("Stretch a decay that is running").blocks
    for name, value in {"warmup, planned": (warmup, planned), "at, total": (at, total)}.items():
        build, count = re.subn(
            f"^{name} = [^#\n]+", f"{name} = {value}  ", build, flags=re.MULTILINE
        )
        assert count == 1
    names = {}
    exec(build + search, names)
    assert names["stretched"].total_steps == total
    assert names["stretched"].same_until(names["cosine"], at)
    # The fraction of its decay that each curve has made.
    made = Fraction(at - warmup, planned - warmup)
    assert Fraction(names["first"] - 1 - warmup, names["decay"]) < made
    assert made <= Fraction(names["first"] - warmup, names["decay"])
    longer, level = names["longer"], names["cosine"](at)
    found = np.flatnonzero(names["above"])[-1] + 1
    assert longer(found - 1) > level >= longer(found) >= longer(names["first"])
