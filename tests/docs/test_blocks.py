"""Blocks of the pages, run: JAX matches PyTorch in float64, and recipes fit any lengths."""

import math
from bisect import bisect_right
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import pairwise
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from hypothesis import given, strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from support.docs.pages import program_named, section_named
from support.examples import corners, examples
from torch import nn, tensor

from torch_bridge import lambda_lr

pytestmark = pytest.mark.slow

LR = 1e-3
WEIGHTS, *GRADIENTS = np.random.default_rng(0).normal(size=(9, 50)) * np.logspace(1, -9, 50)

assert_equal_float64 = partial(assert_allclose, rtol=1e-12, atol=1e-14)


def run(heading):
    """Run the first program in a section of the page; return its names."""
    names = {}
    exec(section_named(heading).code_in("python")[0], names)
    return SimpleNamespace(**names)


@pytest.fixture(autouse=True)
def enable_x64():
    with jax.enable_x64(True):
        yield


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def torch_weights(make_optimizer, weights, gradients):
    """Return the weights after one update for each of these gradients."""
    parameter = nn.Parameter(tensor(weights))
    optimizer = make_optimizer([parameter])
    for gradient in gradients:
        parameter.grad = tensor(gradient)
        optimizer.step()
    return parameter.detach().numpy()


def optax_weights(tx, weights, gradients):
    state = tx.init(weights)
    for gradient in gradients:
        updates, state = tx.update(gradient, state, weights)
        weights = np.asarray(optax.apply_updates(weights, updates))
    return weights


@pytest.mark.parametrize(
    ("name", "optimizer_class", "weight_decay"),
    [
        ("adamw", torch.optim.AdamW, 0.01),
        ("sgd", torch.optim.SGD, 0.1),
        ("adam", torch.optim.Adam, 0.1),
    ],
)
def test_weight_decay_matches_torch(name, optimizer_class, weight_decay):
    make_optimizer = partial(optimizer_class, lr=LR, weight_decay=weight_decay)
    expected = torch_weights(make_optimizer, WEIGHTS, GRADIENTS)
    weights = optax_weights(getattr(run("Weight decay"), name), WEIGHTS, GRADIENTS)
    assert_equal_float64(weights, expected)


def clipped_by_torch(gradients, max_norm):
    parameters = {}
    for name, gradient in gradients.items():
        parameter = nn.Parameter(tensor(gradient))
        parameter.grad = tensor(gradient)
        parameters[name] = parameter
    nn.utils.clip_grad_norm_(parameters.values(), max_norm)
    return {name: parameter.grad.numpy() for name, parameter in parameters.items()}


def test_clipping_matches_torch(rng):
    """Also where PyTorch's 1e-6, which it adds to the norm, decides."""
    gradients = {"kernel": rng.normal(size=(3, 4)), "bias": rng.normal(size=4)}
    norm = math.hypot(*gradients["kernel"].flat, *gradients["bias"])
    page = run("Clipping gradients")
    for max_norm in (norm / 2, norm * (1 - 1e-9), norm, norm + 5e-7, 2 * norm):
        tx = page.clip_as_torch(max_norm)
        clipped, _ = tx.update(gradients, tx.init(gradients))
        expected = clipped_by_torch(gradients, max_norm)
        jax.tree.map(assert_equal_float64, clipped, expected)


def test_micro_batches_match_torch():
    """Their sum, in float32."""
    parameter = nn.Parameter(tensor(WEIGHTS))
    optimizer = torch.optim.SGD([parameter], lr=LR)
    for gradient in GRADIENTS[:4]:
        loss = (parameter * tensor(gradient)).sum()
        loss.backward()
    optimizer.step()
    weights = optax_weights(run("Micro-batches").tx, WEIGHTS, GRADIENTS[:4])
    assert_allclose(weights, parameter.detach().numpy(), rtol=1e-6, atol=1e-6)


def test_rmsprop_matches_torch():
    """In the warmup: the order of momentum and learning rate matters only if that changes."""
    page = run("RMSprop")
    parameter = nn.Parameter(tensor(WEIGHTS))
    optimizer = torch.optim.RMSprop([parameter], lr=LR, momentum=0.9)
    scheduler = lambda_lr(optimizer, page.curve)
    for gradient in GRADIENTS:
        parameter.grad = tensor(gradient)
        optimizer.step()
        scheduler.step()
    weights = optax_weights(page.tx, WEIGHTS, GRADIENTS)
    assert_equal_float64(weights, parameter.detach().numpy())


def test_norm_layers_match_torch():
    inputs = np.array([[1e-3, -1e-3] * 32], np.float32)
    page = run("ε of normalization layers")

    def assert_equal_outputs(layer, torch_layer):
        expected = torch_layer(tensor(inputs)).detach().numpy()
        assert_allclose(layer(inputs), expected, rtol=1e-5)

    assert_equal_outputs(page.layer_norm, nn.LayerNorm(64))
    assert_equal_outputs(page.group_norm, nn.GroupNorm(8, 64))
    assert_equal_outputs(page.rms_norm, nn.RMSNorm(64))


def test_batch_norm_matches_torch(rng):
    """But for the running variance, which is unbiased in PyTorch, as the page says."""
    inputs = rng.normal(size=(5, 64)).astype("float32")
    torch_layer = nn.BatchNorm1d(64)
    torch_layer(tensor(inputs))
    layer = run("BatchNorm").batch_norm
    layer(inputs)
    running_mean = torch_layer.running_mean.numpy()
    assert_allclose(layer.mean[...], running_mean, rtol=1e-5)
    # Both are 0.9 times the initial 1, plus 0.1 times the variance of the batch.
    variance = layer.var[...] - 0.9
    unbiased_variance = torch_layer.running_var.numpy() - 0.9
    assert_allclose(variance, 4 / 5 * unbiased_variance, rtol=1e-4)


def assert_same_distribution(values, torch_values):
    """Check that both are uniform within the same bound."""
    assert values.shape == tuple(torch_values.shape)[::-1]
    bound = torch_values.abs().max().item()
    assert np.abs(values).max() == pytest.approx(bound, rel=0.02)
    assert np.std(values) == pytest.approx(bound / math.sqrt(3), rel=0.05)


def test_initial_weights_match_torch():
    page = run("Initial weights")
    torch_linear = nn.Linear(400, 500)
    assert_same_distribution(page.linear.kernel[...], torch_linear.weight)
    assert_same_distribution(page.linear.bias[...], torch_linear.bias)
    embedding = page.embedding.embedding[...]
    torch_embedding = nn.Embedding(500, 400).weight
    deviation = torch_embedding.std().item()
    assert np.std(embedding) == pytest.approx(deviation, rel=0.01)


def test_attention_mask_matches_torch(rng):
    """Two heads with 8 numbers each. JAX computes the softmax in float32, even with x64 enabled."""
    excluded = np.triu(np.ones((4, 4), bool), 1)
    query, key, value = rng.normal(size=(3, 1, 4, 2, 8))
    attention = nn.MultiheadAttention(16, 2, bias=False, batch_first=True, dtype=torch.float64)
    identity = torch.eye(16)
    with torch.no_grad():
        attention.in_proj_weight.copy_(identity.repeat(3, 1))
        attention.out_proj.weight.copy_(identity)
        flat = [tensor(array).flatten(2) for array in (query, key, value)]
        expected, _ = attention(*flat, attn_mask=tensor(excluded))
    outputs = run("Attention masks").attention(*map(jnp.asarray, (query, key, value)), excluded)
    assert_allclose(outputs.reshape(1, 4, 16), expected, rtol=1e-5, atol=1e-6)


# Recipes of the pages for any lengths: several lengths from one run, and a decay that is stretched.


SEVERAL_LENGTHS = program_named("Several lengths from one run")
STRETCHED_DECAY = program_named("Stretch a decay that is running")


def run_recipe(program, **settings):
    """Run the blocks after the first, which has the settings; return all names."""
    first, *recipe = program.blocks
    names = {}
    exec(first, names)
    assert settings.keys() <= names.keys()
    names |= settings
    exec("\n".join(recipe), names)
    return SimpleNamespace(**names)


@dataclass(frozen=True)
class Ladder:
    """Several lengths, each with its peak; a decay takes a fraction of a length or period."""

    lengths: list[int]
    peaks: list[float]
    warmup: int
    decay: float

    def level_before_decay(self, step, period):
        """Return the level of a step in a period, such as 0 up to the first length."""
        if step < self.warmup:
            return self.peaks[0] * step / self.warmup
        return self.peaks[period]


@st.composite
def ladders(draw):
    decay = draw(st.sampled_from((0.1, 0.2, 0.5)))
    warmup = draw(st.integers(0, 20))
    growth = draw(st.lists(st.integers(10, 60), min_size=1, max_size=4))
    count = len(growth)
    peak = st.just(1.0) | st.floats(0.1, 1)
    peaks = draw(st.lists(peak, min_size=count, max_size=count))
    lengths = (2 * warmup + np.cumsum(growth)).tolist()

    def starts_rise():
        starts = [round((1 - decay) * length) for length in lengths]
        return all(start < following for start, following in pairwise(starts))

    while not starts_rise():
        lengths = [10 * length for length in lengths]
    return Ladder(lengths, peaks, warmup, decay)


def recipes_for_several_lengths(ladder):
    return run_recipe(
        SEVERAL_LENGTHS,
        lengths=ladder.lengths,
        peaks=ladder.peaks,
        warmup=ladder.warmup,
        decay=ladder.decay,
    )


@examples(30)
@given(ladders())
def test_branches_have_their_peak_and_length(ladder):
    page = recipes_for_several_lengths(ladder)
    for step in range(page.starts[-1]):
        period = bisect_right(page.starts, step)
        level = ladder.level_before_decay(step, period)
        assert page.main(step) == pytest.approx(level, rel=1e-7)
    ends = zip(page.branches, page.starts, ladder.lengths, ladder.peaks, strict=True)
    for branch, start, length, peak in ends:
        assert branch.same_until(page.main, start)
        assert branch([start, length]).tolist() == [np.float32(peak), 0]
        assert branch.total_steps == length


@examples(30)
@given(ladders())
def test_wsds_decays_at_the_end_of_each_length(ladder):
    page = recipes_for_several_lengths(ladder)
    begins = [0, *ladder.lengths[:-1]]
    for step in range(ladder.lengths[-1]):
        period = bisect_right(ladder.lengths, step)
        length = ladder.lengths[period]
        decay_steps = round(ladder.decay * (length - begins[period]))
        level = ladder.level_before_decay(step, period)
        level *= min(1.0, (length - step) / decay_steps)
        assert page.wsds(step) == pytest.approx(level, rel=1e-6)
    # It saves at the peak, before each decay, and after it.
    saved_before_decay = page.save[::2]
    saved_after_decay = page.save[1::2]
    assert saved_after_decay == ladder.lengths
    levels_before_decay = page.wsds(saved_before_decay)
    assert_array_equal(levels_before_decay, np.float32(ladder.peaks))


@examples(50)
@given(st.data())
def test_stretched_decay_begins_at_its_level_and_ends_in_time(data):
    warmup = data.draw(st.just(0) | st.integers(1, 300))
    planned = warmup + data.draw(corners(2, 900))
    at = data.draw(corners(warmup + 1, planned - 1))
    total = planned + data.draw(corners(1, 2000))
    page = run_recipe(STRETCHED_DECAY, warmup=warmup, planned=planned, at=at, total=total)
    assert page.stretched.total_steps == total
    assert page.stretched.same_until(page.cosine, at)
    # The fraction of the decay that the cosine has made lies between those of two steps.
    fraction = Fraction(at - warmup, planned - warmup)
    fraction_before_first = Fraction(page.first - 1 - warmup, page.decay)
    fraction_at_first = Fraction(page.first - warmup, page.decay)
    assert fraction_before_first < fraction <= fraction_at_first
    # So does the level, in float32.
    level = page.cosine(at)
    first_below = np.flatnonzero(page.above)[-1] + 1
    assert page.longer(first_below - 1) > level
    assert level >= page.longer(first_below) >= page.longer(page.first)
