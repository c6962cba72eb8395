"""Curves of every shape have the bits of NumPy on a GPU, in every mode of both frameworks."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import assume, example, given, strategies as st
from numpy.typing import NDArray
from support.curves.descriptions import curves_and_steps
from support.curves.strategies import SMALLEST_NORMAL
from support.examples import examples
from support.jax import jax_cases
from support.jax.jax_cases import assert_equal_bits
from support.training.models import square_loss
from torch import nn

import torch_bridge
from plateau_jax import multiplier, optax_schedule
from torch_bridge import TrainStep, tensors
from torch_bridge.training.device_clocks import device_clock

pytestmark = pytest.mark.slow

SIZE = 192
UPDATES = 32
SOME_STEPS = jax_cases.STEPS[300 : 300 + SIZE]

numbers_of_plateaus = (0, 1, 2, 18, 30)
cases = curves_and_steps(numbers_of_plateaus, SIZE, scaled=True)
cases_in_updates = curves_and_steps(numbers_of_plateaus, SIZE)
every_shape = example((jax_cases.NESTED, SOME_STEPS))
many_rows = example((jax_cases.MANY, SOME_STEPS))


# torch.


def captured(table, steps):
    """Return the multipliers of a replay; before it, the captured tensor holds different ones."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch_bridge.multiplier(table, steps)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        multipliers = torch_bridge.multiplier(table, steps)
    multipliers.fill_(-1)
    graph.replay()
    return multipliers.cpu()  # waits, before the graph is freed


@pytest.mark.gpu
@pytest.mark.parametrize("of_table", [torch_bridge.multiplier, captured])
@examples(100)
@given(cases)
@every_shape
@many_rows
def test_torch(of_table, case):
    curve, steps = case
    table = tensors(curve.table, "cuda")
    multipliers = of_table(table, torch.from_numpy(steps).cuda())
    assert_equal_bits(multipliers.cpu(), curve(steps))


@pytest.fixture(scope="module")
def compiled():
    torch.compiler.reset()
    yield torch.compile(torch_bridge.multiplier, fullgraph=True, dynamic=False)
    torch.compiler.reset()


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
@examples(100)
@given(cases)
@every_shape
@many_rows
def test_torch_compiled(compiled, case):
    curve, steps = case
    in_one_form = jax_cases.in_one_of_two_sizes(curve)  # each form is compiled, for seconds
    table = tensors(in_one_form, "cuda")
    multipliers = compiled(table, torch.from_numpy(steps).cuda())
    assert_equal_bits(multipliers.cpu(), curve(steps))


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:the curve has total_steps:plateau_jax.CurveWarning")
@pytest.mark.parametrize("cuda_graph", [False, True])
@examples(10)
@given(curves_and_steps((0, 1, 2, 18), 4), st.sampled_from((3e-4, 0.1, 1.0)))
@example((jax_cases.NESTED, jax_cases.STEPS[300::200]), 3e-4)
def test_train_step(cuda_graph, case, peak):
    curve, steps = case
    assume(curve.total_steps < device_clock.MAX_TABLE_VALUES)
    batch = torch.ones(2, 4, device="cuda")
    for start in np.maximum(steps, 0).tolist():
        model = nn.Linear(4, 1, device="cuda")
        groups = [{"params": list(model.parameters()), "initial_lr": peak}]
        optimizer = torch.optim.AdamW(groups, lr=peak, fused=True, capturable=cuda_graph)
        step = TrainStep(
            model, optimizer, square_loss, curve, cuda_graph=cuda_graph, initial_updates=start
        )
        lrs = torch.cat([step(batch).lr for _ in range(UPDATES)])
        expected = curve.learning_rate(range(start, start + UPDATES), peak)
        assert_equal_bits(lrs.cpu(), expected)


# JAX.


@jax.jit
def every_mode_of_a_traced_table(table, steps):
    def at_step(carry, step):
        return carry, multiplier(table, step)

    _, scanned = jax.lax.scan(at_step, None, steps)
    return {
        "jit of a traced table": multiplier(table, steps),
        "vmap": jax.vmap(partial(multiplier, table))(steps),
        "scan": scanned,
    }


@pytest.mark.gpu("jax")
@jax_cases.x64_both_ways
@examples(50)
@given(cases)
@every_shape
@many_rows
def test_jax_compiled(x64, case):
    curve, steps = case
    table = jax_cases.in_one_of_two_sizes(curve)
    with jax.enable_x64(x64):
        modes: dict[str, Any] = every_mode_of_a_traced_table(table, jnp.asarray(steps))
        for multipliers in modes.values():
            assert_equal_bits(multipliers, curve(steps))


@pytest.mark.gpu("jax")
@jax_cases.x64_both_ways
@examples(8)  # every number of rows is compiled
@given(cases)
@every_shape
@many_rows
def test_jax_eager(x64, case):
    curve, steps = case
    with jax.enable_x64(x64):
        multipliers = multiplier(curve.table, jnp.asarray(steps))
        assert_equal_bits(multipliers, curve(steps))


@pytest.mark.gpu("jax")
@jax_cases.x64_both_ways
@examples(8)
@given(cases_in_updates)
@every_shape
@many_rows
def test_jax_optax_schedule(x64, case):
    curve, steps = case
    expected = jax_cases.product(curve, 3e-4, steps)
    # XLA flushes float32 below 2⁻¹²⁶ to zero.
    is_promised: NDArray[np.bool] = (expected == 0) | (expected >= SMALLEST_NORMAL)
    with jax.enable_x64(x64):
        schedule = optax_schedule(curve, 3e-4)
        lrs = np.asarray(schedule(jnp.asarray(steps)))
    assert_equal_bits(lrs[is_promised], expected[is_promised])
