"""`multiplier` on a GPU: NumPy's bits, no synchronization, streams, CUDA graphs."""

import numpy as np
import pytest
import torch
from hypothesis import given
from support.curves.descriptions import build, descriptions_and_steps
from support.curves.strategies import MAX_STEP
from support.examples import examples
from support.jax.jax_cases import CURVE, MANY, NESTED, STEPS, assert_equal_bits, in_one_of_two_forms
from support.numerics.borders import steps_at_borders
from support.training.cuda_graphs.gpu import no_waiting

from plateau_jax import stack
from torch_bridge import multiplier, tensors

pytestmark = pytest.mark.gpu


@examples(40)
@given(descriptions_and_steps((0, 1, 2, 18, 19, 30), 48, scaled=True))
def test_gpu_matches_numpy_bits(case):
    curve, steps = build(case[0]), np.array(case[1], np.int32)
    table = tensors(curve.segments, "cuda")
    assert_equal_bits(multiplier(table, torch.from_numpy(steps).cuda()).cpu(), curve(steps))


@examples(40)
@given(steps_at_borders())
def test_gpu_matches_numpy_bits_at_rounding_borders(case):
    curve = build(case[0])
    steps = np.clip(case[1] + np.arange(-24, 24), 0, MAX_STEP)
    table = tensors(curve.segments, "cuda")
    assert_equal_bits(multiplier(table, torch.from_numpy(steps).cuda()).cpu(), curve(steps))


def test_multiplier_does_not_synchronize():
    table = tensors(stack([CURVE, NESTED]), "cuda")
    steps = torch.from_numpy(STEPS).cuda()
    with no_waiting():
        values = multiplier(table, steps)
    assert_equal_bits(values.cpu(), np.stack([CURVE(STEPS), NESTED(STEPS)]))


@pytest.mark.parametrize("curve", [CURVE, MANY, NESTED], ids=["curve", "many", "nested"])
def test_cuda_graph_replays_table(curve):
    segments = tensors(curve.segments, "cuda")
    step = torch.zeros((), dtype=torch.int64, device="cuda")
    multiplier(segments, step)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        multipliers = multiplier(segments, step)
    for number in (0, 1, 100, 437, 999, 10**6, 2**40):
        step.fill_(number)
        graph.replay()
        assert multipliers.item() == curve(number)


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.slow
def test_compiled_table_matches_numpy_bits():
    compiled = torch.compile(multiplier, fullgraph=True)
    steps = torch.from_numpy(STEPS).cuda()
    for curve in (CURVE, NESTED):
        table = tensors(in_one_of_two_forms(curve), "cuda")
        assert_equal_bits(compiled(table, steps).cpu(), curve(STEPS))
    torch.compiler.reset()
