"""Torch's own `LambdaLR` with a curve as its function, and with the state of a `CurveLR`."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from support.curves.descriptions import build, descriptions
from support.examples import examples
from support.schedulers.runs import advance, lrs_of, modest_peaks, optimizer_with
from support.training.trees import through_file
from torch.optim.lr_scheduler import LambdaLR

from plateau_jax import HoldUntilFlat, PlateauCurve
from torch_bridge import lambda_lr

CURVE = PlateauCurve(100, warmup_steps=10, plateaus=[(50, 20)], min_lr_ratio=0.1)
OTHER = PlateauCurve(200, plateaus=[(10, 20)], decay_shape="linear")


@examples(30)
@given(
    st.lists(st.tuples(descriptions(range(5)), modest_peaks), min_size=1, max_size=3),
    st.integers(0, 12),
    st.integers(0, 12),
)
def test_resume_matches_uninterrupted_run(cases, saved_at, more):
    def start():
        optimizer = optimizer_with([peak for _, peak in cases])
        return optimizer, LambdaLR(optimizer, [build(description) for description, _ in cases])

    uninterrupted, scheduler = start()
    advance(uninterrupted, scheduler, saved_at)
    saved = through_file([uninterrupted.state_dict(), scheduler.state_dict()])
    assert saved == [uninterrupted.state_dict(), scheduler.state_dict()]
    resumed, again = start()
    resumed.load_state_dict(saved[0])
    again.load_state_dict(saved[1])
    for step in range(saved_at, saved_at + more):
        assert lrs_of(resumed) == lrs_of(uninterrupted)
        assert lrs_of(uninterrupted) == [peak * build(description)(step) for description, peak in cases]
        advance(uninterrupted, scheduler)
        advance(resumed, again)


def _old_state(curve):
    """Return a state as torch saves it for a callable object, whose attributes it copies."""
    attributes = {name: getattr(curve, name) for name in ("total_steps", "plateaus", "warmup_steps")}
    attributes |= {"segments": curve.segments, "rows": curve.rows, "anything": np.float32(1)}
    optimizer = optimizer_with([0.1])
    state = LambdaLR(optimizer, curve).state_dict()
    return state | {"lr_lambdas": [attributes], "last_epoch": 7}


@pytest.mark.parametrize("old", [CURVE, OTHER], ids=["the same", "another"])
def test_old_state_gives_step_and_keeps_curve(old):
    curve = PlateauCurve.from_dict(CURVE.to_dict())
    optimizer = optimizer_with([0.1])
    scheduler = LambdaLR(optimizer, curve)
    attributes = dict(vars(curve))
    scheduler.load_state_dict(_old_state(old))
    assert curve == CURVE
    assert hash(curve) == hash(CURVE)
    assert dict(vars(curve)) == attributes
    assert curve.segments is attributes["segments"]
    advance(optimizer, scheduler)
    assert lrs_of(optimizer) == [0.1 * CURVE(8)]
    state = scheduler.state_dict()
    assert through_file(state) == state


# torch's compiler imports deprecated parts of torch.
torch_deprecates = pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")


@pytest.mark.slow
@torch_deprecates
@pytest.mark.parametrize("build", [LambdaLR, lambda_lr], ids=["LambdaLR", "lambda_lr"])
@pytest.mark.parametrize("form", [float, torch.tensor], ids=["number", "tensor"])
def test_optimizer_and_scheduler_compile_together(build, form):
    # As torch's documentation does it; its scheduler breaks the graph.
    optimizer = optimizer_with([form(0.5)])
    scheduler = build(optimizer, CURVE)

    @torch.compile(backend="eager")
    def update():
        optimizer.step()
        scheduler.step()

    for step in range(25):
        assert lrs_of(optimizer) == [0.5 * CURVE(step)]
        update()


@pytest.mark.slow
@torch_deprecates
@pytest.mark.parametrize("fullgraph", [False, True])
def test_compiled_function_may_call_the_curve(fullgraph):
    torch.compiler.reset()
    # Tracing also works for a curve that was never called.
    curve = PlateauCurve.from_dict(CURVE.to_dict())
    with_number = torch.compile(lambda x, factor: x * factor, backend="eager", fullgraph=True)
    with_curve = torch.compile(lambda x, step: x * curve(step), backend="eager", fullgraph=fullgraph)
    one = torch.ones((), dtype=torch.float64)
    # torch compiles each step anew; past its limit of 8 the function runs uncompiled, in parts.
    for step in range(0, 110, 20 if fullgraph else 5):
        assert with_number(one, CURVE(step)).item() == CURVE(step)
        assert with_curve(one, step).item() == CURVE(step)


def _function(step: int) -> float:
    return 1 / (1 + step)


def _partial(scale: float, step: int) -> float:
    return scale / (1 + step)


@given(st.integers(0, 20), st.sampled_from((_function, partial(_partial, 1.0), lambda step: 1 / (1 + step))))
def test_lambda_lr_loads_state_of_curve_lr(steps: int, function: Any) -> None:
    optimizer = optimizer_with([0.5, 0.25])
    scheduler = lambda_lr(optimizer, CURVE)
    advance(optimizer, scheduler, steps)
    saved = through_file([optimizer.state_dict(), scheduler.state_dict()])
    other = optimizer_with([0.5, 0.25])
    torch_scheduler = LambdaLR(other, function)
    other.load_state_dict(saved[0])
    torch_scheduler.load_state_dict(saved[1])
    assert torch_scheduler.last_epoch == steps
    assert torch_scheduler.get_last_lr() == lrs_of(other) == lrs_of(optimizer)
    for step in range(steps + 1, steps + 4):
        advance(other, torch_scheduler)
        assert (
            lrs_of(other) == torch_scheduler.get_last_lr() == [peak * function(step) for peak in (0.5, 0.25)]
        )
    # The load left the state unchanged, so a CurveLR loads it again.
    again = lambda_lr(optimizer_with([0.5, 0.25]), CURVE)
    again.load_state_dict(saved[1])
    assert again.state_dict() == scheduler.state_dict()


@pytest.mark.parametrize(
    "arguments", [{"hold": HoldUntilFlat(3, limit=9)}, {"unit": 4}], ids=["hold", "unit"]
)
def test_lambda_lr_rejects_a_clock_that_it_lacks(arguments: Any) -> None:
    """It would resume at the number of updates, which is not the step of the curve."""
    optimizer = optimizer_with([0.5])
    scheduler = lambda_lr(optimizer, CURVE, **arguments)
    torch_scheduler = LambdaLR(optimizer_with([0.5]), _function)
    before = torch_scheduler.state_dict()
    with pytest.raises(KeyError, match="lr_lambdas"):
        torch_scheduler.load_state_dict(through_file(scheduler.state_dict()))
    assert torch_scheduler.state_dict() == before


def test_curve_lr_reads_state_saved_by_lambda_lr() -> None:
    optimizer = optimizer_with([0.5])
    scheduler = lambda_lr(optimizer, CURVE)
    advance(optimizer, scheduler, 5)
    other = optimizer_with([0.5])
    torch_scheduler = LambdaLR(other, _function)
    torch_scheduler.load_state_dict(scheduler.state_dict())
    advance(other, torch_scheduler, 7)
    back = optimizer_with([0.5])
    again = lambda_lr(back, CURVE)
    state = through_file(torch_scheduler.state_dict())
    with pytest.raises(ValueError, match=r"saved by another scheduler.* strict=False"):
        again.load_state_dict(state)
    again.load_state_dict(state, strict=False)
    assert (again.clock, again.last_epoch) == (12, 12)
    assert lrs_of(back) == [0.5 * CURVE(12)]


@pytest.mark.slow
def test_transformers_scheduler_loads_curve_lr_state() -> None:
    import transformers

    optimizer = optimizer_with([0.5, 0.25])
    scheduler = lambda_lr(optimizer, CURVE)
    advance(optimizer, scheduler, 30)
    other = optimizer_with([0.5, 0.25], torch.optim.SGD)
    torch_scheduler = transformers.get_cosine_schedule_with_warmup(other, 10, 100)
    torch_scheduler.load_state_dict(through_file(scheduler.state_dict()))
    uninterrupted = optimizer_with([0.5, 0.25])
    uninterrupted_scheduler = transformers.get_cosine_schedule_with_warmup(uninterrupted, 10, 100)
    advance(uninterrupted, uninterrupted_scheduler, 31)
    advance(other, torch_scheduler)
    assert lrs_of(other) == lrs_of(uninterrupted)
