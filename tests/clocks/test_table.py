"""`multiplier` in torch: NumPy's bits in every mode and on a GPU, dtypes of steps, number of compilations."""

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import example, given, strategies as st
from support.curves.descriptions import build, descriptions, descriptions_and_steps
from support.curves.strategies import MAX_STEP
from support.errors import check_error, each, each_row
from support.examples import examples
from support.jax.jax_cases import (
    CURVE,
    MANY,
    NESTED,
    STEPS,
    assert_equal_bits,
    every_shape,
    in_one_of_two_forms,
)
from support.numerics.borders import steps_at_borders
from support.training.cuda_graphs.graphs import no_waiting
from torch.torch_version import TorchVersion

from plateau_jax import PlateauCurve, StagedCurve, stack
from torch_bridge import multiplier, tensors
from torch_bridge.clocks import table

SIZE = 48
VERSION = TorchVersion(torch.__version__)
cases = descriptions_and_steps((0, 1, 2, 18, 19, 30), SIZE, scaled=True)
_each = pytest.mark.parametrize("curve", [CURVE, MANY, NESTED], ids=["curve", "many", "nested"])
_devices = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
_compiles = pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
"""The import of torch's compiler gives this warning."""


def curve_and_steps(case):
    description, steps = case
    return build(description), np.array(steps, np.int32)


def around(case):
    """Return the description of a curve, and steps around a step."""
    description, step = case
    return description, np.clip(step + np.arange(SIZE) - SIZE // 2, 0, MAX_STEP)


def every_mode(of_step, steps):
    """Return the function's values at the steps, in each mode in which torch runs it without compiling."""
    rows = steps.reshape(6, -1)
    return {
        "whole": of_step(steps),
        "shaped": of_step(rows.reshape(2, 3, -1)).ravel(),
        "transposed": of_step(rows.T).T.ravel(),
        "one by one": torch.stack([of_step(step) for step in steps]),
        "vmap": torch.func.vmap(of_step)(steps),
        "vmap twice": torch.func.vmap(torch.func.vmap(of_step))(rows).ravel(),
        "vmap over columns": torch.func.vmap(of_step, in_dims=1, out_dims=1)(rows).ravel(),
        "inference": torch.inference_mode()(of_step)(steps),
    }


@_devices
@examples(20)
@given(cases)
def test_table_matches_numpy_bits_in_every_mode(device, case):
    curve, steps = curve_and_steps(case)
    of_step = partial(multiplier, tensors(curve.table, device))
    for values in every_mode(of_step, torch.from_numpy(steps).to(device)).values():
        assert_equal_bits(values.cpu(), curve(steps))


@_devices
@examples(100)
@given(steps_at_borders().map(around))
def test_table_matches_numpy_bits_at_rounding_borders(device, case):
    curve, steps = curve_and_steps(case)
    table = tensors(curve.table, device)
    assert_equal_bits(multiplier(table, torch.from_numpy(steps).to(device)).cpu(), curve(steps))


@_each
def test_table_matches_numpy_bits_at_every_step(curve):
    steps = torch.from_numpy(STEPS)
    assert_equal_bits(multiplier(tensors(curve.table), steps), curve(STEPS))
    for nothing in (steps[:0].reshape(0, 3), torch.tensor([])):
        values = multiplier(tensors(curve.table), nothing)
        assert (values.shape, values.dtype) == (nothing.shape, torch.float32)


@examples(20)
@given(
    descriptions_and_steps(range(5), scaled=True),
    st.lists(descriptions(range(5), depth=1, scaled=True), max_size=4),
    st.sampled_from((30, 60)),
    st.sampled_from(((), (1,), (3, 2))),
)
def test_stack_adds_leading_axis_of_curves(case, others, rows, shape):
    first, steps = curve_and_steps(case)
    curves = [first, *map(build, others), every_shape(rows)]
    steps = np.resize(steps, shape)
    expected = np.stack([curve(steps) for curve in curves])
    table, steps = tensors(stack(curves)), torch.from_numpy(steps)
    assert_equal_bits(multiplier(table, steps), expected)
    if VERSION >= "2.13":  # an earlier torch has no vmap of a view as another dtype
        over_curves = torch.func.vmap(multiplier, in_dims=(table.map(lambda _: 0), None))
        assert_equal_bits(over_curves(table, steps), expected)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"])
def test_step_may_have_any_integer_dtype(dtype):
    limits = np.iinfo(dtype)
    wide = [limits.min, limits.max, -1, 0, 1, 100, 101, 500, 999, 1000, MAX_STEP - 1, 2**31, 2**32 + 5, 2**63]
    steps = np.array([step for step in wide if limits.min <= step <= limits.max], dtype)
    for curve in (CURVE, PlateauCurve(MAX_STEP)):
        assert_equal_bits(multiplier(tensors(curve.table), torch.from_numpy(steps)), curve(steps))
        for step, tensor in zip(steps, torch.from_numpy(steps), strict=True):
            assert_equal_bits(multiplier(tensors(curve.table), tensor), np.float32(curve(int(step))))


def with_dtype(dtype, *names):
    """Return a table some of whose columns have another dtype."""
    table = tensors(NESTED.table)
    if not names:
        return table.map(lambda column: column.to(dtype))
    return table._replace(**{name: getattr(table, name).to(dtype) for name in names})


STEP, TABLE = torch.tensor(3), tensors(CURVE.table)
ERRORS = [
    *each(lambda value: multiplier(TABLE, torch.ones(3, dtype=value)),
          [torch.bool, torch.float32, torch.bfloat16, torch.float64, torch.complex64], TypeError, "step ",
          "{}"),
    *each(lambda value: multiplier(TABLE, value), [3, 3.0, np.arange(3), None], TypeError, "step = ",
          "must be a tensor of integers; write"),
    *(row for call in (lambda value: multiplier(value, STEP), lambda value: tensors(value))
      for row in each(call, [CURVE, CURVE.table.begin, None], TypeError, "table = ", "must be a table")),
    (lambda: multiplier(CURVE.table, STEP), TypeError, "table.begin", "int32", "write tensors"),
    *(row for names, column in (((), "begin"), (("start_low",), "start_low"))
      for row in each(lambda value, names=names: multiplier(with_dtype(value, *names), STEP),
                      [torch.int64, torch.float64, torch.float32, torch.int16], TypeError,
                      f"table.{column}", "int32")),
]  # fmt: skip


@each_row(ERRORS)
def test_errors(row):
    check_error(row)


def test_tensors_copies_every_column():
    for original in (CURVE.table, stack([CURVE, NESTED])):
        copied = tensors(original)
        assert copied.columns().keys() == original.columns().keys()
        for name, column in copied.columns().items():
            assert column.dtype == torch.int32
            np.testing.assert_array_equal(column.numpy(), original.columns()[name])
            assert not original.columns()[name].flags.writeable
            column.zero_()
        assert original.length.any()
        again = tensors(copied)
        assert again.begin.data_ptr() != copied.begin.data_ptr()
    assert tensors(CURVE.table, "meta").begin.device.type == "meta"


_below_64_bits = st.integers(0, 2**62)
_borders = st.builds(
    lambda digits, order, beside: min(max(((2 * digits + 1) << order) + beside, 0), 2**62),
    st.integers(2**23, 2**24 - 1),
    st.integers(0, 37),
    st.integers(-2, 2),
)


@given(st.lists(_below_64_bits | _borders, min_size=1))
@example([0, 1, 2**53 - 1, 2**53, 2**53 + 1, 2**61 + 2**37 + 1, 2**62])
def test_level_is_rounded_once_even_through_float64(values):
    """On a CPU with 256-bit vectors compiled code converts through float64, which would round twice."""
    levels = torch.tensor(values)
    expected = np.array(values, np.int64).astype(np.float32)
    assert_equal_bits(table._to_float(levels, torch.float32), expected)
    assert_equal_bits(table._to_float(levels, torch.float64).to(torch.float32), expected)


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
    """Return a curve whose table has the same rows and columns for every shift."""
    powers = [(20, 0.08, f"1-x^0.{shift}"), (20, 0.3, f"t^-{shift}"), (20, 0.2, f"(1-x)^{shift}.3")]
    return StagedCurve([(10 + shift, 0.5, "cosine"), (20,), (9 * shift, 0.1, "1-sqrt"), *powers])


@pytest.mark.slow
def test_other_steps_and_tensor_tables_do_not_recompile(compilations):
    graphs, backend = compilations
    of_table = torch.compile(multiplier, fullgraph=True, backend=backend)
    for shift in range(1, 5):
        curve = shifted_curve(shift)
        assert_equal_bits(of_table(tensors(curve.table), torch.from_numpy(STEPS)), curve(STEPS))
        assert_equal_bits(of_table(tensors(curve.table), torch.from_numpy(STEPS + 3)), curve(STEPS + 3))
    assert len(graphs) == 1


@pytest.mark.slow
def test_compiled_vmap_matches_numpy_bits(compilations):
    _, backend = compilations
    over_steps = torch.func.vmap(partial(multiplier, tensors(NESTED.table)))
    compiled = torch.compile(over_steps, fullgraph=True, backend=backend)
    assert_equal_bits(compiled(torch.from_numpy(STEPS)), NESTED(STEPS))


@pytest.fixture(scope="module")
def compiled():
    """`multiplier` compiled by Inductor for this machine."""
    torch.compiler.reset()
    yield torch.compile(multiplier, fullgraph=True, dynamic=False)
    torch.compiler.reset()


@_compiles
@pytest.mark.slow
@examples(100)
@given(descriptions_and_steps((0, 1, 2, 16), SIZE, scaled=True) | steps_at_borders().map(around))
def test_compiled_table_matches_numpy_bits(compiled, case):
    curve, steps = curve_and_steps(case)
    if len(curve.table.begin) < 40:
        multipliers = compiled(tensors(in_one_of_two_forms(curve)), torch.from_numpy(steps))
        assert_equal_bits(multipliers, curve(steps))


@_compiles
@pytest.mark.slow
def test_256_bit_vectors_round_once_at_borders():
    """256-bit vectors have no conversion of int64 to float32: torch converts through float64."""
    from torch._inductor import config

    torch.compiler.reset()
    orders = np.arange(38, dtype=np.int64)[:, None]
    digits = (2 * np.linspace(2**23, 2**24 - 1, 500).astype(np.int64) + 1)[None]
    values = np.minimum((digits << orders) + np.arange(-2, 3)[:, None, None], 2**62)
    as_float32 = torch.compile(lambda levels: table._to_float(levels + 1 - 1, torch.float32), fullgraph=True)
    with config.patch({"cpp.simdlen": 256}):
        assert_equal_bits(as_float32(torch.from_numpy(values)), values.astype(np.float32))
    torch.compiler.reset()


@pytest.mark.gpu
def test_multiplier_does_not_synchronize():
    table = tensors(stack([CURVE, NESTED]), "cuda")
    steps = torch.from_numpy(STEPS).cuda()
    with no_waiting():
        values = multiplier(table, steps)
    assert_equal_bits(values.cpu(), np.stack([CURVE(STEPS), NESTED(STEPS)]))


@pytest.mark.gpu
@_each
def test_cuda_graph_replays_table(curve):
    table = tensors(curve.table, "cuda")
    step = torch.zeros((), dtype=torch.int64, device="cuda")
    multiplier(table, step)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        multipliers = multiplier(table, step)
    for number in (0, 1, 100, 437, 999, 10**6, 2**40):
        step.fill_(number)
        graph.replay()
        assert multipliers.item() == curve(number)


@pytest.mark.gpu
@_compiles
@pytest.mark.slow
def test_table_compiled_for_gpu_matches_numpy_bits():
    compiled = torch.compile(multiplier, fullgraph=True)
    steps = torch.from_numpy(STEPS).cuda()
    for curve in (CURVE, NESTED):
        table = tensors(in_one_of_two_forms(curve), "cuda")
        assert_equal_bits(compiled(table, steps).cpu(), curve(STEPS))
    torch.compiler.reset()
