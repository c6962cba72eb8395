"""Training past the end of its curve warns once, at learning rate 0 soon and at a floor late."""

import re
import warnings

import pytest
import torch
from hypothesis import given, strategies as st
from support.examples import examples
from support.schedulers.runs import advance, lrs_of, optimizer_with
from support.training.trees import through_file

from plateau_jax import CurveWarning, HoldBelow, PlateauCurve, StagedCurve
from torch_bridge import lambda_lr

PAST = (
    r"^the curve has total_steps = {}, but training continues at step {}, with every learning rate at 0"
    r".*count_upd"
)


def _warnings_by_update(optimizer, step, updates):
    """Return each warning with the number of the update that it followed."""
    messages = []
    for number in range(1, updates + 1):
        optimizer.step()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            step()
        assert all(warning.filename == __file__ for warning in caught)
        messages += [(number, str(warning.message)) for warning in caught]
    return messages


@examples(20)
@given(
    st.one_of(st.integers(1, 50), st.integers(900, 2500)),
    st.booleans(),
    st.sampled_from((float, torch.tensor)),
)
def test_warns_once_after_ten_steps_and_one_percent(total, held, form):
    optimizer = optimizer_with([form(0.1), form(0.2)])
    first = max(0, total - 5)
    hold = HoldBelow(-1.0, 1) if held else None
    scheduler = lambda_lr(optimizer, PlateauCurve(total), first - 1, hold=hold)
    messages = _warnings_by_update(optimizer, lambda: scheduler.step(*[0.5] * held), 80)
    at = next(
        step for step in range(total, 2 * total + 20) if step - total > 10 and step - total > total / 100
    )
    assert [first + number for number, _ in messages] == [at]
    assert f"total_steps = {total}," in messages[0][1]
    assert f"at step {at}," in messages[0][1]


FLOOR = r"^the curve has total_steps = {}, but training continues at step {}, .* final value since step {}:.*"


@pytest.mark.parametrize("total", [1, 112, 300])
@pytest.mark.parametrize("unit", [None, 1, 40])
def test_floor_far_past_the_end_warns_once(total, unit):
    """At ten times the steps, and once more than 1000 updates came after the end."""
    count = 7
    optimizer = optimizer_with([0.1])
    curve = PlateauCurve(total, min_lr_ratio=0.1)
    scheduler = lambda_lr(optimizer, curve, unit=unit, count=None if unit is None else lambda: count)
    messages = _warnings_by_update(optimizer, scheduler.step, 3500)
    clocks = [update if unit is None else update * count // unit for update in range(3501)]
    past = next(update for update, clock in enumerate(clocks) if clock >= total)
    due = [update for update, clock in enumerate(clocks) if clock > 10 * total and update - past > 1000][:1]
    assert len(messages) == len(due)
    for (update, message), expected in zip(messages, due, strict=True):
        assert abs(update - expected) <= 2
        assert re.match(FLOOR.format(total, clocks[update], total), message)
        assert ("in units of" in message) is (unit is not None)


def test_floor_warns_once_over_a_resume_and_jumps():
    optimizer = optimizer_with([0.1])
    scheduler = lambda_lr(optimizer, PlateauCurve(10, min_lr_ratio=0.1))
    advance(optimizer, scheduler, 900)
    scheduler.load_state_dict(through_file(scheduler.state_dict()))
    with pytest.warns(CurveWarning, match="final value since step 10"):
        advance(optimizer, scheduler, 200)
    scheduler.load_state_dict(through_file(scheduler.state_dict()))
    advance(optimizer, scheduler, 50)
    advance(optimizer, lambda_lr(optimizer, PlateauCurve(10, min_lr_ratio=0.1), last_epoch=5000), 50)


@pytest.mark.parametrize(
    "curve",
    [
        StagedCurve([(10, 1.0)]),
        StagedCurve([(10, 0.5), (0, 1.0)], start=0.2),
        [PlateauCurve(10, min_lr_ratio=0.1), StagedCurve([(10, 1.0)])],
        PlateauCurve(10, min_lr_ratio=1.0),
    ],
)
def test_end_at_the_highest_level_does_not_warn(curve):
    optimizer = optimizer_with([0.1, 0.1])
    advance(optimizer, lambda_lr(optimizer, curve), 1500)


def test_last_end_of_several_curves_counts():
    optimizer = optimizer_with([0.1, 0.1])
    scheduler = lambda_lr(optimizer, [PlateauCurve(10), PlateauCurve(40)])
    advance(optimizer, scheduler, 50)
    with pytest.warns(CurveWarning, match=PAST.format(40, 51)):
        advance(optimizer, scheduler)


@pytest.mark.parametrize(
    ("curves", "lrs"),
    [
        (PlateauCurve(10, min_lr_ratio=0.1), [0.1, 0.1]),
        ([PlateauCurve(10), PlateauCurve(10, min_lr_ratio=0.1)], [0.1, 0.1]),
        (PlateauCurve(10), [0.0, 0.0]),
    ],
)
def test_no_warning_if_lr_stays_or_peaks_are_0(curves, lrs):
    optimizer = optimizer_with(lrs)
    advance(optimizer, lambda_lr(optimizer, curves), 100)


@pytest.mark.parametrize("before", [0, 5])
def test_training_after_plotting_warns(before):
    optimizer = optimizer_with([0.1])
    scheduler = lambda_lr(optimizer, PlateauCurve(10))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Detected call of", UserWarning)
        advance(optimizer, scheduler, before)
        for _ in range(60):
            scheduler.step()
    with pytest.warns(CurveWarning, match="total_steps = 10,"):
        advance(optimizer, scheduler)


def test_warning_as_error_changes_nothing():
    optimizer = optimizer_with([0.1])
    scheduler = lambda_lr(optimizer, PlateauCurve(10))
    advance(optimizer, scheduler, 20)
    optimizer.step()
    before = scheduler.state_dict(), lrs_of(optimizer)
    with pytest.raises(CurveWarning):
        scheduler.step()
    assert (scheduler.state_dict(), lrs_of(optimizer)) == before
    advance(optimizer, scheduler, 9)
    assert scheduler.last_epoch == 29


def test_resumed_run_does_not_repeat_warning():
    for updates, expected in ((15, 6), (30, None)):
        optimizer = optimizer_with([0.1])
        scheduler = lambda_lr(optimizer, PlateauCurve(10))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CurveWarning)
            advance(optimizer, scheduler, updates)
        resumed = optimizer_with([0.1])
        again = lambda_lr(resumed, PlateauCurve(10))
        again.load_state_dict(through_file(scheduler.state_dict()))
        messages = _warnings_by_update(resumed, again.step, 30)
        assert [number for number, _ in messages] == ([expected] if expected else [])
