"""A curve next to torch's own schedulers: in sequences and chains, in `LambdaLR`, and each other's states."""

import copy
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from support.examples import examples
from support.schedulers.runs import advance, lrs_of, optimizer_with
from support.training.steps import through_file
from torch.optim import lr_scheduler as torchs
from torch.optim.lr_scheduler import LambdaLR, _warn_get_lr_called_within_step
from torch.optim.swa_utils import SWALR

from plateau_jax import Curve, CurveWarning, DataClock, PlateauCurve
from torch_bridge import lambda_lr

pytestmark = [
    pytest.mark.filterwarnings("ignore:The epoch parameter"),  # which SequentialLR passes
    pytest.mark.filterwarnings("ignore:the curve stayed at step 0:plateau_jax.CurveWarning"),
]

CURVE = PlateauCurve(100, warmup_steps=10, plateaus=[(50, 20)], min_lr_ratio=0.1)
OTHER = PlateauCurve(200, plateaus=[(10, 20)], decay_shape="linear")


def _constant(optimizer: Any, factor: float = 0.5) -> Any:
    return torchs.ConstantLR(optimizer, factor, total_iters=100)


# In charge from step 0, and from step 20 on.
_COMPOSED: dict[str, Any] = {
    "first": lambda optimizer, ours: [torchs.SequentialLR(optimizer, [ours, _constant(optimizer)], [20])],
    "second": lambda optimizer, ours: [torchs.SequentialLR(optimizer, [_constant(optimizer), ours], [20])],
    "after a curve": lambda optimizer, ours: [
        torchs.SequentialLR(optimizer, [lambda_lr(optimizer, CURVE), ours], [20])
    ],
    "chained": lambda optimizer, ours: [
        torchs.ChainedScheduler([ours, torchs.ExponentialLR(optimizer, 0.9)], optimizer)
    ],
    "then averaging": lambda optimizer, ours: [ours, SWALR(optimizer, swa_lr=0.03, anneal_epochs=10)],
}


@pytest.mark.parametrize("place", _COMPOSED)
@examples(20)
@given(
    saved_at=st.one_of(st.integers(1, 40), st.sampled_from((19, 20, 21))),
    optimizer_first=st.booleans(),
    form=st.sampled_from((float, partial(torch.tensor, dtype=torch.bfloat16))),
    branch=st.sampled_from((CURVE, CURVE.cooldown(45, 9))),
    strict=st.booleans(),
)
def test_resume_with_other_schedulers_matches(
    place: str, saved_at: int, optimizer_first: bool, form: Any, branch: Curve, strict: bool
) -> None:
    """The scheduler that was in charge before the load is in charge afterwards, also under another curve."""

    def start(curve: Curve) -> list[Any]:
        optimizer = optimizer_with([form(0.5), form(0.25)])
        return [optimizer, *_COMPOSED[place](optimizer, lambda_lr(optimizer, curve, strict=strict))]

    def run(parts: Sequence[Any], steps: range) -> list[list[float]]:
        optimizer, *schedulers = parts
        lrs = [lrs_of(optimizer)]
        for step in steps:
            optimizer.step()
            schedulers[-1 if step >= 20 else 0].step()
            lrs.append(lrs_of(optimizer))
        return lrs

    first, uninterrupted, resumed = start(CURVE), start(branch), start(branch)
    run(first, range(saved_at))
    # Copies, because before torch 2.10 the state of a SWALR holds a function.
    saved = copy.deepcopy([part.state_dict() for part in first])
    run(uninterrupted, range(saved_at))
    pairs = list(zip(resumed, saved, strict=True))
    # Under another curve, the optimizer's state comes first.
    for part, state in pairs if optimizer_first or branch != CURVE else pairs[::-1]:
        part.load_state_dict(state)
    steps = range(saved_at, saved_at + 30)
    assert run(resumed, steps) == run(uninterrupted, steps)


def test_second_part_waits_for_its_turn() -> None:
    """Even if the learning rate of the first part happens to equal its own first one; so does a new peak."""

    def start(second: Curve) -> tuple[Any, Any, Any]:
        optimizer = optimizer_with([0.5])
        ours = lambda_lr(optimizer, second)
        return optimizer, torchs.SequentialLR(optimizer, [_constant(optimizer, 1.0), ours], [20]), ours

    optimizer, scheduler, _ = start(PlateauCurve(50))
    advance(optimizer, scheduler, 10)
    resumed, again, ours = start(PlateauCurve(50, warmup_steps=4))
    resumed.load_state_dict(optimizer.state_dict())
    again.load_state_dict(scheduler.state_dict())
    ours.set_peak(0.125)
    lrs: list[float] = []
    for _ in range(13):
        lrs += lrs_of(resumed)
        advance(resumed, again)
    assert lrs == [0.5] * 10 + [0.0, 0.03125, 0.0625]


@pytest.mark.parametrize("place", ["first", "second", "chained"])
@examples(20)
@given(st.lists(st.integers(0, 60), min_size=41, max_size=41), st.integers(0, 39), st.booleans())
def test_clock_inside_torchs_schedulers(
    place: str, counts: list[int], saved_at: int, optimizer_first: bool
) -> None:
    """A count is used by the next step, and what came before its turn is discarded."""

    def start() -> tuple[Any, Any, Any]:
        optimizer = optimizer_with([0.5])
        ours = lambda_lr(optimizer, CURVE, clock=DataClock(8))
        if place == "chained":
            return optimizer, ours, torchs.ChainedScheduler([ours], optimizer)
        return optimizer, ours, _COMPOSED[place](optimizer, ours)[0]

    since, until = {"first": (0, 19), "second": (20, 41), "chained": (0, 41)}[place]
    optimizer, ours, scheduler = start()
    for update in range(41):
        consumed = sum(counts[since : min(update, until)])
        is_in_turn = since <= update <= until
        assert lrs_of(optimizer) == [0.5 * CURVE(consumed // 8) if is_in_turn else 0.25]
        assert not is_in_turn or (ours.consumed, ours.curve_step) == (consumed, consumed // 8)
        if update == saved_at:
            saved = through_file([optimizer.state_dict(), scheduler.state_dict()])
            before, (optimizer, ours, scheduler) = (ours.consumed, ours.last_epoch), start()
            pairs = list(zip((optimizer, scheduler), saved, strict=True))
            for part, state in pairs if optimizer_first else pairs[::-1]:
                part.load_state_dict(state)
            assert (ours.consumed, ours.last_epoch) == before
            assert lrs_of(optimizer) == [0.5 * CURVE(consumed // 8) if is_in_turn else 0.25]
        optimizer.step()
        ours.count = counts[update]
        scheduler.step()


class _InTorchsPattern(lambda_lr):
    def get_lr(self) -> Any:
        _warn_get_lr_called_within_step(self)
        return super().get_lr()


def test_get_lr_in_torchs_pattern_does_not_warn() -> None:
    optimizer = optimizer_with([0.1])
    scheduler = _InTorchsPattern(optimizer, CURVE)
    advance(optimizer, scheduler, 3)
    assert isinstance(scheduler, LambdaLR)
    assert scheduler.lr_lambdas == [CURVE]


def test_old_state_gives_step_and_keeps_curve() -> None:
    """Torch saves the attributes of a callable object, and writes them back."""
    curve = PlateauCurve.from_dict(CURVE.to_dict())
    optimizer = optimizer_with([0.1])
    scheduler = LambdaLR(optimizer, curve)
    attributes = dict(vars(curve))
    saved = {name: getattr(OTHER, name) for name in ("total_steps", "plateaus", "table")}
    state = scheduler.state_dict() | {"lr_lambdas": [saved | {"anything": np.float32(1)}], "last_epoch": 7}
    scheduler.load_state_dict(state)
    assert curve == CURVE
    assert dict(vars(curve)) == attributes
    assert curve.table is attributes["table"]
    advance(optimizer, scheduler)
    assert lrs_of(optimizer) == [0.1 * CURVE(8)]
    assert through_file(scheduler.state_dict()) == scheduler.state_dict()


@examples(30)
@given(st.integers(0, 20))
def test_state_of_ours_loads_into_torchs(steps: int) -> None:
    def function(step: int) -> float:
        return 1 / (1 + step)

    optimizer = optimizer_with([0.5, 0.25])
    scheduler = lambda_lr(optimizer, CURVE)
    advance(optimizer, scheduler, steps)
    saved = through_file([optimizer.state_dict(), scheduler.state_dict()])
    other = optimizer_with([0.5, 0.25])
    torchs_own = LambdaLR(other, function)
    other.load_state_dict(saved[0])
    torchs_own.load_state_dict(saved[1])
    assert torchs_own.last_epoch == steps
    assert torchs_own.get_last_lr() == lrs_of(other) == lrs_of(optimizer)
    for step in range(steps + 1, steps + 4):
        advance(other, torchs_own)
        assert lrs_of(other) == torchs_own.get_last_lr() == [peak * function(step) for peak in (0.5, 0.25)]
    # The load left the state unchanged.
    again = lambda_lr(optimizer_with([0.5, 0.25]), CURVE)
    again.load_state_dict(saved[1])
    assert again.state_dict() == scheduler.state_dict()


# torch's compiler imports deprecated parts of torch.
torch_deprecates = pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")


@pytest.mark.slow
@torch_deprecates
@pytest.mark.parametrize("form", [float, torch.tensor], ids=["number", "tensor"])
def test_optimizer_and_scheduler_compile_together(form: Any) -> None:
    """As torch's documentation does it; its scheduler breaks the graph."""
    optimizer = optimizer_with([form(0.5)])
    scheduler = lambda_lr(optimizer, CURVE)

    @torch.compile(backend="eager")
    def update() -> None:
        optimizer.step()
        scheduler.step()

    for step in range(25):
        assert lrs_of(optimizer) == [0.5 * CURVE(step)]
        update()


@pytest.mark.slow
@torch_deprecates
@pytest.mark.parametrize("fullgraph", [False, True])
def test_compiled_function_may_call_the_curve(fullgraph: bool) -> None:
    torch.compiler.reset()
    # Tracing also works for a curve that was never called.
    curve = PlateauCurve.from_dict(CURVE.to_dict())
    with_curve = torch.compile(lambda x, step: x * curve(step), backend="eager", fullgraph=fullgraph)
    one = torch.ones((), dtype=torch.float64)
    # torch compiles each step anew; past its limit of 8 the function runs uncompiled, in parts.
    for step in range(0, 110, 20 if fullgraph else 5):
        assert with_curve(one, step).item() == CURVE(step)


def test_waiting_scheduler_waits_under_a_different_clock() -> None:
    def start(clock: Any) -> tuple[Any, Any]:
        optimizer = optimizer_with([0.5])
        parts = [lambda_lr(optimizer, curve, clock=clock, strict=False) for curve in (CURVE, CURVE.part(50))]
        return optimizer, torchs.SequentialLR(optimizer, [*parts], [20])

    optimizer, saved = start(DataClock(64, count=64))
    advance(optimizer, saved, 7)
    resumed_optimizer, resumed = start(None)
    with pytest.warns(CurveWarning, match="a different clock"):
        resumed.load_state_dict(through_file(saved.state_dict()))
    assert lrs_of(resumed_optimizer) == lrs_of(optimizer) == [0.5 * CURVE(7)]
