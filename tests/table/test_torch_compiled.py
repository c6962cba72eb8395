"""`multiplier` compiled by torch: NumPy's bits, and no compilation for other steps or tables."""

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from support.curves.descriptions import curves_and_steps
from support.examples import examples
from support.jax.jax_cases import STEPS, assert_equal_bits, in_one_form, in_one_of_two_sizes

from plateau_jax import StagedCurve
from torch_bridge import multiplier, tensor_table, tensors

_compiles = pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
"""The import of torch's compiler gives this warning."""

cases = curves_and_steps((0, 1, 2, 16), scaled=True)


@pytest.fixture
def compilations():
    """The list of compiled graphs, and a backend that adds to it and runs each graph as traced."""
    torch.compiler.reset()
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph

    yield graphs, backend
    torch.compiler.reset()


def shifted_curve(shift):
    """Return a curve whose table has the same shapes for every shift."""
    stages = [
        (10 + shift, 0.5, "cosine"),
        (20,),
        (9 * shift, 0.1, "1-sqrt"),
        (20, 0.08, f"1-x^0.{shift}"),
        (20, 0.3, f"t^-{shift}"),
        (20, 0.2, f"(1-x)^{shift}.3"),
    ]
    return StagedCurve(stages)


@pytest.mark.slow
def test_other_steps_and_tensor_tables_do_not_recompile(compilations):
    graphs, backend = compilations
    of_table = torch.compile(multiplier, fullgraph=True, backend=backend)
    curves = [shifted_curve(shift) for shift in range(1, 5)]
    for curve, padded in zip(curves, in_one_form(curves), strict=True):
        table = tensors(padded)
        for steps in (STEPS, STEPS + 3):
            values = of_table(table, torch.from_numpy(steps))
            assert_equal_bits(values, curve(steps))
    assert len(graphs) == 1


@pytest.fixture(scope="module")
def compiled():
    """`multiplier` compiled by Inductor for this machine."""
    torch.compiler.reset()
    yield torch.compile(multiplier, fullgraph=True, dynamic=False)
    torch.compiler.reset()


@_compiles
@pytest.mark.slow
@examples(100)
@given(cases)
def test_compiled_table_matches_numpy_bits(compiled, case):
    curve, steps = case
    if len(curve.table.begin) <= 32:
        table = tensors(in_one_of_two_sizes(curve))
        multipliers = compiled(table, torch.from_numpy(steps))
        assert_equal_bits(multipliers, curve(steps))


@_compiles
@pytest.mark.slow
def test_256_bit_vectors_round_once_at_borders():
    """256-bit vectors have no conversion of int64 to float32: torch converts through float64."""
    from torch._inductor import config

    torch.compiler.reset()
    distances = np.arange(-2, 3)[:, None, None]
    orders = np.arange(31, 38, dtype=np.int64)[:, None]
    digits = 2 * np.linspace(2**23, 2**24 - 1, 500).astype(np.int64) + 1
    values = np.minimum((digits << orders) + distances, 2**62)

    @partial(torch.compile, fullgraph=True)
    def as_float32(levels):
        exponent = torch.tensor([61], dtype=torch.int32)
        return tensor_table.to_float32(levels + 1 - 1, exponent, torch.zeros_like(levels))

    with config.patch({"cpp.simdlen": 256}):
        rounded = as_float32(torch.from_numpy(values))
    assert_equal_bits(rounded, values.astype(np.float32) / np.float32(2.0**61))
    torch.compiler.reset()
