"""A scheduler whose clock rules hold: its rates, its states, and what is refused."""

import copy
import json
import pickle
import re
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.held import CURVE, PATIENT, clocks_of, curves, holds
from support.hold_cases import metrics
from support.runs import optimizer_with, rates_of, through_a_file
from torch.optim.lr_scheduler import LambdaLR, SequentialLR

from plateau_jax import Curve, HoldBelow, HoldUntilFlat, PlateauCurve, StagedCurve
from torch_bridge import get_cosine_plateau_schedule_with_warmup, lambda_lr

SIZE = 40
_FORMS: dict[str, Any] = {
    "float": float,
    "numpy": lambda metric: metric,
    "tensor": torch.tensor,
    "wide tensor": lambda metric: torch.tensor(float(metric), dtype=torch.float64),
    "of autograd": lambda metric: torch.tensor(metric, requires_grad=True) * 1,
}


class _Run:
    def __init__(self, curve: Curve, hold: Any, rates: tuple[Any, ...] = (0.1, 0.7), **options: Any) -> None:
        self.build = lambda: optimizer_with(rates)
        self.curve, self.hold, self.options = curve, hold, options
        self.optimizer = self.build()
        self.scheduler = lambda_lr(self.optimizer, curve, hold=hold, **options)

    def update(self, metric: Any) -> None:
        self.optimizer.step()
        self.scheduler.step(metric)

    def check(self, clock: int, updates: int) -> None:
        assert self.scheduler.clock == clock
        assert self.scheduler.last_epoch == updates
        wanted = [float(np.float32(rate)) * self.curve(clock) for rate in (0.1, 0.7)]
        assert rates_of(self.optimizer) == self.scheduler.get_last_lr() == wanted

    def by_file(self) -> None:
        saved = through_a_file([self.optimizer.state_dict(), self.scheduler.state_dict()])
        self.optimizer = self.build()
        self.scheduler = lambda_lr(self.optimizer, self.curve, hold=self.hold, **self.options)
        self.optimizer.load_state_dict(saved[0])
        self.scheduler.load_state_dict(saved[1])

    def by_json(self) -> None:
        saved = json.loads(json.dumps(self.scheduler.state_dict()))
        self.optimizer = self.build()
        self.scheduler = lambda_lr(self.optimizer, self.curve, hold=self.hold, **self.options)
        self.scheduler.load_state_dict(saved)

    def into_itself_later(self) -> None:
        saved = through_a_file([self.optimizer.state_dict(), self.scheduler.state_dict()])
        for metric in (0.1, 0.7, 0.7, float("nan")):
            self.update(metric)
        self.optimizer.load_state_dict(saved[0])
        self.scheduler.load_state_dict(saved[1])

    def by_copy(self) -> None:
        self.optimizer, self.scheduler = copy.deepcopy((self.optimizer, self.scheduler))

    def by_pickle(self) -> None:
        self.optimizer, self.scheduler = pickle.loads(pickle.dumps((self.optimizer, self.scheduler)))


@pytest.mark.parametrize("form", _FORMS.values(), ids=_FORMS)
@settings(max_examples=60)
@given(curves, holds, metrics(SIZE))
def test_the_rate_is_that_of_the_clock(form: Any, curve: Curve, hold: Any, given_metrics: list[Any]) -> None:
    run = _Run(curve, hold)
    expected = clocks_of(hold, curve, given_metrics)
    for updates, (clock, metric) in enumerate(zip(expected, given_metrics, strict=False)):
        run.check(clock, updates)
        run.update(form(metric))
    run.check(expected[-1], SIZE)


@pytest.mark.filterwarnings(
    "ignore:Seems like `optimizer.step:UserWarning"
)  # of a copy before the first step
@settings(max_examples=150)
@given(
    curves,
    holds,
    metrics(SIZE),
    st.dictionaries(
        st.integers(0, SIZE),
        st.sampled_from([name for name in vars(_Run) if name.startswith(("by_", "into_"))]),
        max_size=4,
    ),
)
def test_resumed_is_as_if_it_had_never_stopped(
    curve: Curve, hold: Any, given_metrics: list[Any], stops: dict[int, str]
) -> None:
    run = _Run(curve, hold)
    expected = clocks_of(hold, curve, given_metrics)
    for updates, (clock, metric) in enumerate(zip(expected, given_metrics, strict=False)):
        if updates in stops:
            getattr(run, stops[updates])()
        run.check(clock, updates)
        run.update(metric)
    run.check(expected[-1], SIZE)


def test_a_metric_is_rounded_to_float32() -> None:
    """In float64 these would be another side of the border."""
    rule = HoldBelow(0.1, 2)
    above = float(np.nextafter(np.float32(0.1), np.float32(1)))
    for metric, held in ((0.1, True), (0.1 + 1e-10, True), (above, False), (above - 1e-12, False)):
        for form in (float, lambda value: torch.tensor(value, dtype=torch.float64)):
            run = _Run(CURVE, rule)
            run.update(form(metric))
            assert run.scheduler.clock == (not held)


def test_without_a_hold_the_clock_is_the_step() -> None:
    optimizer = optimizer_with([0.1])
    scheduler = lambda_lr(optimizer, CURVE, last_epoch=4)
    for step in range(5, 9):
        assert scheduler.clock == scheduler.last_epoch == scheduler.state_dict()["clock"] == step
        optimizer.step()
        scheduler.step()
    assert scheduler.state_dict()["hold"] is None


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
    run, straight = (_Run(CURVE, [PATIENT, HoldBelow(0.7, 3)]) for _ in range(2))
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


def test_a_missing_metric_is_named() -> None:
    run = _Run(CURVE, PATIENT)
    run.optimizer.step()
    with pytest.raises(TypeError, match=r"with hold, step\(\) needs the metric of the update"):
        run.scheduler.step()


def test_a_step_whose_warning_is_an_error_changes_nothing() -> None:
    run = _Run(CURVE, HoldBelow(0.7, 3))
    before = run.scheduler.state_dict()
    with pytest.raises(UserWarning, match=r"before `optimizer.step\(\)`"):
        run.scheduler.step(0.5)
    assert run.scheduler.state_dict() == before


@pytest.mark.parametrize(
    ("curve", "hold", "error", "message"),
    [
        ([CURVE, PlateauCurve(30)], PATIENT, ValueError, "the same curve"),
        (PlateauCurve(30), PATIENT, ValueError, "finds no flat part to hold at"),
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


_OTHERS: list[Any] = [None, HoldUntilFlat(4, limit=9), HoldBelow(0.5, 3), [PATIENT, HoldBelow(0.5, 3)]]


@pytest.mark.parametrize("other", _OTHERS, ids=str)
@pytest.mark.parametrize("swapped", [False, True])
@given(updates=st.integers(0, 20))
def test_the_state_of_other_rules(other: Any, swapped: bool, updates: int) -> None:
    """Refused; told to, the run goes on from the clock, and the rules begin."""
    first, second = (other, PATIENT) if swapped else (PATIENT, other)
    saved, run = _Run(CURVE, first), _Run(CURVE, second)
    for _ in range(updates):
        saved.update(None if first is None else 0.5)
    state, before = through_a_file(saved.scheduler.state_dict()), run.scheduler.state_dict()
    with pytest.raises(ValueError, match=r"saved with hold = .*, and here it is .* pass strict=False"):
        run.scheduler.load_state_dict(state)
    assert run.scheduler.state_dict() == before
    run.scheduler.load_state_dict(state, strict=False)
    clock = saved.scheduler.clock
    run.check(clock, clock if second is None else updates)
    fresh = lambda_lr(optimizer_with([0.1, 0.7]), CURVE, clock - 1, hold=second)
    for _ in range(12):
        assert run.scheduler.state_dict()["hold"] == fresh.state_dict()["hold"]
        assert run.scheduler.clock == fresh.clock
        for scheduler in (run.scheduler, fresh):
            scheduler.optimizer.step()
            scheduler.step(None if second is None else 0.5)


@pytest.mark.parametrize("strict", [True, False])
def test_the_same_rules_keep_their_state(strict: bool) -> None:
    saved, run = _Run(CURVE, PATIENT), _Run(CURVE, [PATIENT], strict=strict)
    for _ in range(5):
        saved.update(0.5)
    run.scheduler.load_state_dict(through_a_file(saved.scheduler.state_dict()))
    assert run.scheduler.state_dict() == saved.scheduler.state_dict()


def test_a_state_from_before_there_were_rules() -> None:
    saved = _Run(CURVE, None)
    for _ in range(5):
        saved.update(None)
    state: Any = saved.scheduler.state_dict()
    del state["clock"], state["hold"]
    run = _Run(CURVE, None)
    run.scheduler.load_state_dict(state)
    run.check(5, 5)
    held = _Run(CURVE, PATIENT)
    with pytest.raises(ValueError, match="saved with hold = None"):
        held.scheduler.load_state_dict(state)
    held.scheduler.load_state_dict(state, strict=False)
    held.check(5, 5)


def test_a_plain_lambda_lr_can_be_taken_over() -> None:
    optimizer = optimizer_with([0.1, 0.7])
    plain = LambdaLR(optimizer, lambda step: 1.0)
    for _ in range(3):
        optimizer.step()
        plain.step()
    run = _Run(CURVE, PATIENT)
    run.scheduler.load_state_dict(through_a_file(plain.state_dict()), strict=False)
    for updates, clock in enumerate([3, 3, 3, 3, 4], 3):
        run.check(clock, updates)
        run.update(0.5)


@pytest.mark.parametrize(
    "change",
    [
        {"clock": -1},
        {"clock": 6},
        {"clock": 1.5},
        {"clock": None},
        {"hold": None},
        {"hold": 5},
        {"hold": []},
        {"hold": [{}]},
        {"hold": [{"rule": PATIENT.to_dict()}]},
        {"hold": [{"rule": PATIENT.to_dict(), "state": {}}]},
        {"hold": [{"rule": PATIENT.to_dict(), "state": None}]},
        {"updates": 1.0},
        {"updates": -1},
        {"filled": -1},
        {"stale": 2**31},
        {"best": 1},
        {"best": None},
        {"best": float("nan")},
        {"best": 0.1},
        {"total": 1e39},
        {"more": 1},
    ],
    ids=str,
)
def test_a_damaged_state_is_refused(change: dict[str, Any]) -> None:
    run = _Run(CURVE, PATIENT)
    for _ in range(5):
        run.update(0.5)
    state = copy.deepcopy(run.scheduler.state_dict())
    if change.keys() <= {"clock", "hold"}:
        state |= change
    else:
        state["hold"][0]["state"] |= change
    run.update(0.4)
    before = run.scheduler.state_dict()
    with pytest.raises(ValueError, match=r"state_dict|clock|updates"):
        run.scheduler.load_state_dict(state)
    assert run.scheduler.state_dict() == before
    if "clock" not in change:
        run.scheduler.load_state_dict(state, strict=False)
        run.check(3, 5)


@pytest.mark.parametrize("strict", [True, False])
def test_beside_a_rule_the_updates_do_not_stand_for_the_clock(strict: bool) -> None:
    saved, run = _Run(CURVE, PATIENT), _Run(CURVE, PATIENT)
    for _ in range(5):
        saved.update(0.5)
    state: Any = saved.scheduler.state_dict()
    del state["clock"]
    before = run.scheduler.state_dict()
    with pytest.raises(ValueError, match="it has no 'clock'"):
        run.scheduler.load_state_dict(state, strict)
    assert run.scheduler.state_dict() == before


def test_a_metric_is_read_whatever_torchs_own_count_was() -> None:
    """Torch tells its first step, which has none, by that count."""
    saved, run = _Run(CURVE, HoldBelow(0.7, 3)), _Run(CURVE, HoldBelow(0.7, 3))
    run.scheduler.load_state_dict(saved.scheduler.state_dict() | {"_step_count": 0})
    run.update(0.5)
    run.check(0, 1)


LONG = StagedCurve([(3, 1.0), (40,), (10, 0.0)])


@pytest.mark.parametrize("hold", [PATIENT, None], ids=["held", "let go"])
def test_another_plan_is_asked_for_its_past_up_to_the_clock(hold: Any) -> None:
    """Not up to the count of updates, which a hold makes larger."""
    saved = _Run(LONG, HoldUntilFlat(30, limit=1000))
    for _ in range(20):
        saved.update(0.5)
    assert (saved.scheduler.clock, saved.scheduler.last_epoch) == (3, 20)
    state = through_a_file(saved.scheduler.state_dict())
    branch = LONG.cooldown(5, 4) if hold is None else StagedCurve([(3, 1.0), (2,), (4, 0.0)])
    run = _Run(branch, HoldUntilFlat(30, limit=1000))
    run.scheduler.load_state_dict(state)
    for updates in range(20, 30):
        run.check(3, updates)
        run.update(0.5)
    other = _Run(StagedCurve([(2, 1.0), (40,)]), HoldUntilFlat(30, limit=1000))
    with pytest.raises(ValueError, match=re.escape("same_until is True up to step")):
        other.scheduler.load_state_dict(state)
    let_go = _Run(branch, hold)
    let_go.scheduler.load_state_dict(state, strict=False)
    let_go.check(3, 20 if hold else 3)


def test_the_factory_takes_a_hold() -> None:
    optimizer = optimizer_with([0.1])
    scheduler = get_cosine_plateau_schedule_with_warmup(optimizer, 2, 12, [(0, 50)], hold=PATIENT)
    reference = lambda_lr(
        optimizer_with([0.1]), PlateauCurve(12, warmup_steps=2, plateaus=[(0, 50)]), hold=PATIENT
    )
    for clock in [0, 1, 2, 2, 2, 2, 3, 4]:
        assert scheduler.clock == clock
        assert scheduler.state_dict() == reference.state_dict()
        for each in (scheduler, reference):
            each.optimizer.step()
            each.step(0.5)
    arguments = 2, 12, [(0, 50)]
    get_cosine_plateau_schedule_with_warmup(optimizer_with([0.1, 0.1]), *arguments, min_lr=0.01, hold=PATIENT)
    with pytest.raises(ValueError, match="the same curve"):
        get_cosine_plateau_schedule_with_warmup(
            optimizer_with([0.1, 0.2]), *arguments, min_lr=0.01, hold=PATIENT
        )


def test_a_hold_is_by_keyword_alone() -> None:
    with pytest.raises(TypeError, match="positional"):
        lambda_lr(optimizer_with([0.1]), CURVE, -1, PATIENT)  # type: ignore[call-overload]  # what is refused


def test_a_scheduler_that_steps_without_a_metric_is_told() -> None:
    optimizer = optimizer_with([0.1])
    parts = [lambda_lr(optimizer, CURVE, hold=PATIENT), lambda_lr(optimizer, CURVE)]
    scheduler = SequentialLR(optimizer, parts, [5])
    assert rates_of(optimizer) == [float(np.float32(0.1)) * CURVE(0)]
    optimizer.step()
    with pytest.raises(TypeError, match="needs the metric"):
        scheduler.step()


def test_a_state_stays_small() -> None:
    run = _Run(CURVE, [PATIENT, HoldBelow(0.7, 3, every=4)])
    for _ in range(300):
        run.update(0.5)
    assert len(pickle.dumps(run.scheduler.state_dict())) < 3000
    assert len(pickle.dumps(run.scheduler)) < 10_000
