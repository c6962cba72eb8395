"""`multiplier` in torch: NumPy's bits in every mode and on a GPU, dtypes of steps, compilations."""

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import example, given, strategies as st
from support.curves.descriptions import build, descriptions, descriptions_and_steps
from support.curves.strategies import MAX_STEP
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
from support.wrong import wrong
from torch.torch_version import TorchVersion

from plateau_jax import PlateauCurve, StagedCurve, stack
from torch_bridge import multiplier, tensors
from torch_bridge.clocks import table

SIZE = 48
VERSION = TorchVersion(torch.__version__)
cases = descriptions_and_steps((0, 1, 2, 18, 19, 30), SIZE, scaled=True)
_every_curve = pytest.mark.parametrize(
    "curve", [CURVE, MANY, NESTED], ids=["curve", "many", "nested"]
)
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
    """Return the function's values at the steps, in each mode of torch that does not compile."""
    rows = steps.reshape(6, -1)
    by_vmap = torch.func.vmap(of_step)
    by_vmap_twice = torch.func.vmap(by_vmap)
    by_columns = torch.func.vmap(of_step, in_dims=1, out_dims=1)
    without_gradients = torch.inference_mode()(of_step)
    return {
        "whole": of_step(steps),
        "shaped": of_step(rows.reshape(2, 3, -1)).ravel(),
        "transposed": of_step(rows.T).T.ravel(),
        "one by one": torch.stack([of_step(step) for step in steps]),
        "vmap": by_vmap(steps),
        "vmap twice": by_vmap_twice(rows).ravel(),
        "vmap over columns": by_columns(rows).ravel(),
        "inference": without_gradients(steps),
    }


@_devices
@examples(20)
@given(cases)
def test_table_matches_numpy_bits_in_every_mode(device, case):
    curve, steps = curve_and_steps(case)
    of_step = partial(multiplier, tensors(curve.table, device))
    modes = every_mode(of_step, torch.from_numpy(steps).to(device))
    for values in modes.values():
        assert_equal_bits(values.cpu(), curve(steps))


@_devices
@examples(100)
@given(steps_at_borders().map(around))
def test_table_matches_numpy_bits_at_rounding_borders(device, case):
    curve, steps = curve_and_steps(case)
    table = tensors(curve.table, device)
    values = multiplier(table, torch.from_numpy(steps).to(device))
    assert_equal_bits(values.cpu(), curve(steps))


@_every_curve
def test_table_matches_numpy_bits_at_every_step(curve):
    table = tensors(curve.table)
    assert_equal_bits(multiplier(table, torch.from_numpy(STEPS)), curve(STEPS))
    for no_steps in (torch.zeros(0, 3, dtype=torch.int32), torch.tensor([])):
        values = multiplier(table, no_steps)
        assert values.shape == no_steps.shape
        assert values.dtype == torch.float32


@examples(20)
@given(
    descriptions_and_steps(range(5), scaled=True),
    st.lists(descriptions(range(5), depth=1, scaled=True), max_size=4),
    st.sampled_from((30, 60)),
    st.sampled_from(((), (1,), (3, 2))),
)
def test_stack_adds_leading_axis_of_curves(case, more_descriptions, segments, shape):
    first, steps = curve_and_steps(case)
    more_curves = [build(description) for description in more_descriptions]
    curves = [first, *more_curves, every_shape(segments)]
    steps = np.resize(steps, shape)
    expected = np.stack([curve(steps) for curve in curves])
    table = tensors(stack(curves))
    steps = torch.from_numpy(steps)
    assert_equal_bits(multiplier(table, steps), expected)
    if VERSION >= "2.13":  # an earlier torch has no vmap of a view as another dtype
        first_axis = table.map(lambda _: 0)
        over_curves = torch.func.vmap(multiplier, in_dims=(first_axis, None))
        assert_equal_bits(over_curves(table, steps), expected)


@pytest.mark.parametrize(
    "dtype", ["uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"]
)
def test_step_may_have_any_integer_dtype(dtype):
    limits = np.iinfo(dtype)
    fitting = [limits.min, limits.max]
    for step in (-1, 0, 1, 100, 101, 500, 999, 1000, MAX_STEP - 1, 2**31, 2**32 + 5, 2**63):
        if limits.min <= step <= limits.max:
            fitting.append(step)
    steps = np.array(fitting, dtype)
    for curve in (CURVE, PlateauCurve(MAX_STEP)):
        table = tensors(curve.table)
        assert_equal_bits(multiplier(table, torch.from_numpy(steps)), curve(steps))
        for index, step in enumerate(fitting):
            value = multiplier(table, torch.from_numpy(steps)[index])
            assert_equal_bits(value, np.float32(curve(int(step))))


# Errors.

TABLE = tensors(CURVE.table)
STEP = torch.tensor(3)


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.float32, torch.bfloat16, torch.float64, torch.complex64]
)
@wrong(TypeError, "step ", "{dtype}")
def test_steps_that_are_not_integers(dtype):
    multiplier(TABLE, torch.ones(3, dtype=dtype))


@pytest.mark.parametrize("step", [3, 3.0, np.arange(3), None])
@wrong(TypeError, "step = ", "must be a tensor of integers; write")
def test_step_that_is_not_a_tensor(step):
    multiplier(TABLE, step)


not_a_table = pytest.mark.parametrize("table", [CURVE, CURVE.table.begin, None])


@not_a_table
@wrong(TypeError, "table = ", "must be a table")
def test_multiplier_of_something_else(table):
    multiplier(table, STEP)


@not_a_table
@wrong(TypeError, "table = ", "must be a table")
def test_tensors_of_something_else(table):
    tensors(table)


@wrong(TypeError, "table.begin", "int32", "write tensors")
def test_table_of_numpy_arrays():
    multiplier(CURVE.table, STEP)


wrong_dtypes = pytest.mark.parametrize(
    "dtype", [torch.int64, torch.float64, torch.float32, torch.int16]
)


@wrong_dtypes
@wrong(TypeError, "table.begin", "int32")
def test_table_of_another_dtype(dtype):
    table = tensors(NESTED.table).map(lambda column: column.to(dtype))
    multiplier(table, STEP)


@wrong_dtypes
@wrong(TypeError, "table.start_low", "int32")
def test_column_of_another_dtype(dtype):
    table = tensors(NESTED.table)
    multiplier(table._replace(start_low=table.start_low.to(dtype)), STEP)


# More about tables.


@pytest.mark.parametrize("original", [CURVE.table, stack([CURVE, NESTED])], ids=["one", "stack"])
def test_tensors_copies_every_column(original):
    table = tensors(original)
    assert table.columns().keys() == original.columns().keys()
    for name, column in table.columns().items():
        assert column.dtype == torch.int32
        np.testing.assert_array_equal(column.numpy(), original.columns()[name])
        assert not original.columns()[name].flags.writeable
        column.zero_()
    assert original.length.any()
    copied_again = tensors(table)
    assert copied_again.begin.data_ptr() != table.begin.data_ptr()


def test_tensors_copies_to_a_device():
    assert tensors(CURVE.table, "meta").begin.device.type == "meta"


def _next_to_a_border(digits, order, distance):
    """Return an integer next to the middle between two float32."""
    border = (2 * digits + 1) << order
    return min(max(border + distance, 0), 2**62)


_below_64_bits = st.integers(0, 2**62)
_borders = st.builds(
    _next_to_a_border,
    st.integers(2**23, 2**24 - 1),
    st.integers(0, 37),
    st.integers(-2, 2),
)


@given(st.lists(_below_64_bits | _borders, min_size=1))
@example([0, 1, 2**53 - 1, 2**53, 2**53 + 1, 2**61 + 2**37 + 1, 2**62])
def test_level_is_rounded_once_even_through_float64(values):
    """With 256-bit vectors, compiled code converts through float64, which would round twice."""
    levels = torch.tensor(values)
    expected = np.array(values, np.int64).astype(np.float32)
    assert_equal_bits(table.to_float(levels, torch.float32), expected)
    assert_equal_bits(table.to_float(levels, torch.float64).to(torch.float32), expected)


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
    for shift in range(1, 5):
        curve = shifted_curve(shift)
        for steps in (STEPS, STEPS + 3):
            values = of_table(tensors(curve.table), torch.from_numpy(steps))
            assert_equal_bits(values, curve(steps))
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
    distances = np.arange(-2, 3)[:, None, None]
    orders = np.arange(38, dtype=np.int64)[:, None]
    digits = 2 * np.linspace(2**23, 2**24 - 1, 500).astype(np.int64) + 1
    values = np.minimum((digits << orders) + distances, 2**62)

    @partial(torch.compile, fullgraph=True)
    def as_float32(levels):
        return table.to_float(levels + 1 - 1, torch.float32)

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
@_every_curve
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
