"""A scheduler whose clock rules hold: its rates, and what is refused."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from support.examples import examples
from support.held import CURVE, PATIENT, HeldRun, clocks_of, curves, holds
from support.hold_cases import metrics
from support.runs import optimizer_with, rates_of
from torch.optim.lr_scheduler import SequentialLR

from plateau_jax import Curve, HoldBelow, PlateauCurve
from torch_bridge import lambda_lr

pytestmark = [
    pytest.mark.usefixtures("short_windows"),
    # Short curves, far past their ends.
    pytest.mark.filterwarnings("ignore:the curve has total_steps:plateau_jax.CurveWarning"),
]

SIZE = 40


_FORMS: dict[str, Any] = {
    "float": float,
    "numpy": lambda metric: metric,
    "tensor": torch.tensor,
    "wide tensor": lambda metric: torch.tensor(float(metric), dtype=torch.float64),
    "of autograd": lambda metric: torch.tensor(metric, requires_grad=True) * 1,
}


@pytest.mark.parametrize("form", _FORMS.values(), ids=_FORMS)
@examples(60)
@given(curves, holds, metrics(SIZE))
def test_the_rate_is_that_of_the_clock(form: Any, curve: Curve, hold: Any, given_metrics: list[Any]) -> None:
    run = HeldRun(curve, hold)
    expected = clocks_of(hold, curve, given_metrics)
    for updates, (clock, metric) in enumerate(zip(expected, given_metrics, strict=False)):
        run.check(clock, updates)
        run.update(form(metric))
    run.check(expected[-1], SIZE)


def test_a_metric_is_rounded_to_float32() -> None:
    """In float64 these would lie on the other side of the threshold."""
    rule = HoldBelow(0.1, 2)
    above = float(np.nextafter(np.float32(0.1), np.float32(1)))
    for metric, held in ((0.1, True), (0.1 + 2e-9, True), (above, False), (above - 1e-12, False)):
        for form in (float, lambda value: torch.tensor(value, dtype=torch.float64)):
            run = HeldRun(CURVE, rule)
            run.update(form(metric))
            assert run.scheduler.clock == (not held)


def test_from_a_last_epoch_the_clock_goes_on_and_the_rules_begin() -> None:
    for last_epoch, clocks in ((2, [3, 3, 3, 3, 4]), (3, [4, 5, 6, 7, 8])):
        optimizer = optimizer_with([0.1])
        scheduler = lambda_lr(optimizer, CURVE, last_epoch, hold=PATIENT)
        found = []
        for _ in clocks:
            found.append(scheduler.clock)
            optimizer.step()
            scheduler.step(0.5)
        assert found == clocks


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_tensor_rate_is_filled(dtype: torch.dtype) -> None:
    rate = torch.tensor(0.5, dtype=dtype)
    optimizer = optimizer_with([rate])
    scheduler = lambda_lr(optimizer, CURVE, hold=PATIENT)
    for clock in [0, 1, 2, 3, 3, 3, 3, 4, 5]:
        assert optimizer.param_groups[0]["lr"] is rate
        assert rate == torch.tensor(0.5 * CURVE(clock), dtype=dtype)
        optimizer.step()
        scheduler.step(1.0)


_NO_SCALARS: list[Any] = [
    None,
    "0.5",
    True,
    1j,
    [0.5],
    (),
    np.ones(1),
    np.True_,
    torch.ones(1),
    torch.ones(2, requires_grad=True),
    torch.tensor(True),
    torch.tensor(1j),
]


@pytest.mark.parametrize("metric", _NO_SCALARS, ids=repr)
@pytest.mark.parametrize("updates", [0, 5])
def test_a_metric_that_is_none_changes_nothing(metric: Any, updates: int) -> None:
    run, straight = (HeldRun(CURVE, [PATIENT, HoldBelow(0.7, 3)]) for _ in range(2))
    for _ in range(updates):
        run.update(0.7)
        straight.update(0.7)
    run.optimizer.step()
    before = run.scheduler.state_dict()
    with pytest.raises(TypeError, match="metric"):
        run.scheduler.step(metric)
    assert run.scheduler.state_dict() == before
    for _ in range(9):
        run.update(0.7)
        straight.update(0.7)
        assert run.scheduler.state_dict() == straight.scheduler.state_dict()


def test_a_step_whose_warning_is_an_error_changes_nothing() -> None:
    run = HeldRun(CURVE, HoldBelow(0.7, 3))
    before = run.scheduler.state_dict()
    with pytest.raises(UserWarning, match=r"before `optimizer.step\(\)`"):
        run.scheduler.step(0.5)
    assert run.scheduler.state_dict() == before


@pytest.mark.parametrize(
    ("curve", "hold", "error", "message"),
    [
        ([CURVE, PlateauCurve(30)], PATIENT, ValueError, "the same curve"),
        (PlateauCurve(30), PATIENT, ValueError, "needs a flat part to hold at"),
        (CURVE, [PATIENT, "wait"], TypeError, "must be a HoldUntilFlat, a HoldBelow"),
        (CURVE, 3, TypeError, "hold = 3 must be"),
        (CURVE, True, TypeError, "hold = True must be"),
        (CURVE, [], ValueError, "no rule"),
    ],
)
def test_what_is_refused(curve: Any, hold: Any, error: type[Exception], message: str) -> None:
    optimizer = optimizer_with([0.1, 0.2])
    before = str(optimizer.param_groups)
    with pytest.raises(error, match=message):
        lambda_lr(optimizer, curve, hold=hold)
    assert str(optimizer.param_groups) == before
    lambda_lr(optimizer, [CURVE, CURVE], hold=PATIENT)


def test_a_scheduler_that_steps_without_a_metric_is_told() -> None:
    optimizer = optimizer_with([0.1])
    parts = [lambda_lr(optimizer, CURVE, hold=PATIENT), lambda_lr(optimizer, CURVE)]
    scheduler = SequentialLR(optimizer, parts, [5])
    assert rates_of(optimizer) == [float(np.float32(0.1)) * CURVE(0)]
    optimizer.step()
    with pytest.raises(TypeError, match="needs the metric"):
        scheduler.step()
