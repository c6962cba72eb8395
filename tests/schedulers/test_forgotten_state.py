"""A scheduler that starts anew next to a loaded optimizer warns, but not in legitimate programs."""

import copy
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from support.schedulers import runs
from support.schedulers.runs import advance, lrs_of, optimizer_with
from support.training.trees import through_file
from torch.optim import Adagrad, AdamW, Optimizer
from torch.optim.lr_scheduler import ChainedScheduler, ConstantLR, LinearLR, SequentialLR

from plateau_jax import CurveWarning, HoldUntilFlat, PlateauCurve
from torch_bridge import lambda_lr

CURVE = PlateauCurve(100, warmup_steps=10, plateaus=[(50, 20)], min_lr_ratio=0.1)
MOMENTUM: Any = partial(torch.optim.SGD, momentum=0.9)

Start = Callable[[Optimizer], Any]


def _held(optimizer: Optimizer) -> Any:
    scheduler = lambda_lr(optimizer, CURVE, hold=HoldUntilFlat(2, limit=5))
    scheduler.step = partial(scheduler.step, 0.5)  # so that it is stepped like the others
    return scheduler


def _sequence(optimizer: Optimizer, curve_first: bool = True) -> Any:
    schedulers = [lambda_lr(optimizer, CURVE), LinearLR(optimizer, 0.5, total_iters=9)]
    return SequentialLR(optimizer, schedulers if curve_first else schedulers[::-1], [15])


STARTS: dict[str, Start] = {
    "plain": lambda optimizer: lambda_lr(optimizer, CURVE),
    "unit": lambda optimizer: lambda_lr(optimizer, CURVE, unit=8, count=lambda: 9),
    "hold": _held,
    "chained": lambda optimizer: ChainedScheduler(
        [lambda_lr(optimizer, CURVE), ConstantLR(optimizer, 1.0, 1)], optimizer
    ),
    "sequence": _sequence,
}
every_start = pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
every_optimizer = pytest.mark.parametrize("kind", [AdamW, Adagrad, MOMENTUM], ids=["adamw", "adagrad", "sgd"])


def _saved(start: Start, kind: Any, updates: int = 20) -> list[Any]:
    optimizer = optimizer_with([0.1, 0.2], kind)
    scheduler = start(optimizer)
    advance(optimizer, scheduler, updates)
    return through_file([optimizer.state_dict(), scheduler.state_dict()])


@every_start
@every_optimizer
@pytest.mark.parametrize("loaded_first", [True, False])
def test_forgotten_state_warns_once(start: Start, kind: Any, loaded_first: bool) -> None:
    if kind is MOMENTUM and not loaded_first:
        pytest.skip("its state does not tell one update from twenty")
    optimizer = optimizer_with([0.1, 0.2], kind)
    state = _saved(start, kind)[0]
    if loaded_first:
        optimizer.load_state_dict(state)
    scheduler = start(optimizer)
    if not loaded_first:
        optimizer.load_state_dict(state)
    number = "updates" if kind is MOMENTUM else "20 updates"
    message = rf"^the optimizer has made {number}, but .* scheduler\.load_state_dict\(state\)"
    with pytest.warns(CurveWarning, match=message) as caught:
        advance(optimizer, scheduler, 30)
    assert len(caught) == 1
    resumes_by_number = kind is not MOMENTUM and start is not STARTS["unit"]
    assert ("; or pass last_epoch=19. If" in str(caught[0].message)) is resumes_by_number


def test_warning_points_at_the_users_line() -> None:
    optimizer = optimizer_with([0.1], AdamW)
    optimizer.load_state_dict(
        _saved(STARTS["plain"], AdamW)[0] | {"param_groups": optimizer.state_dict()["param_groups"]}
    )
    scheduler = lambda_lr(optimizer, CURVE)
    with pytest.warns(CurveWarning) as caught:
        advance(optimizer, scheduler)
    assert [warning.filename for warning in caught] == [runs.__file__]


def test_what_the_warning_advises_works() -> None:
    saved = _saved(STARTS["plain"], AdamW)
    for advice in ("state", "last_epoch", "filter"):
        optimizer = optimizer_with([0.1, 0.2], AdamW)
        optimizer.load_state_dict(saved[0])
        scheduler = lambda_lr(optimizer, CURVE, last_epoch=19 if advice == "last_epoch" else -1)
        if advice == "state":
            scheduler.load_state_dict(saved[1])
        with warnings.catch_warnings():
            if advice == "filter":
                warnings.filterwarnings("ignore", "the optimizer has made")
            advance(optimizer, scheduler, 5)
        assert scheduler.clock == (5 if advice == "filter" else 25)


# Legitimate programs, with every warning an error.


@every_start
@every_optimizer
@pytest.mark.parametrize("updates", [0, 1, 20])
@pytest.mark.parametrize("order", ["ob s", "b os", "b so", "bo1s"])
def test_loaded_state_is_silent(start: Start, kind: Any, updates: int, order: str) -> None:
    """Load the optimizer (o) and the scheduler (s) before or after the scheduler is built (b)."""
    saved = _saved(start, kind, updates)
    optimizer = optimizer_with([0.1, 0.2], kind)
    scheduler: Any = None
    for event in order:
        if event == "b":
            scheduler = start(optimizer)
        elif event in "os":
            part = optimizer if event == "o" else scheduler
            part.load_state_dict(saved["os".index(event)])
        elif event == "1":
            optimizer.step()
    advance(optimizer, scheduler, 5)


def _fresh(optimizer: Optimizer) -> None:
    for start in STARTS.values():
        other = optimizer_with([0.1], AdamW)
        advance(other, start(other), 5)
    advance(optimizer, lambda_lr(optimizer, CURVE), 5)


def _second_part_of_a_sequence(optimizer: Optimizer) -> None:
    advance(optimizer, _sequence(optimizer, curve_first=False), 30)


def _second_curve_in_one_program(optimizer: Optimizer) -> None:
    for _ in range(3):
        advance(optimizer, lambda_lr(optimizer, CURVE), 20)


def _several_updates_first(optimizer: Optimizer) -> None:
    """As in a range test, or with an optimizer that makes several updates in a step of the curve."""
    scheduler = lambda_lr(optimizer, PlateauCurve(100))
    for _ in range(30):
        optimizer.step()
    scheduler.step()


def _fast_forward(optimizer: Optimizer) -> None:
    optimizer.load_state_dict(_saved(STARTS["plain"], AdamW)[0])
    scheduler = lambda_lr(optimizer, CURVE)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Detected call of", UserWarning)  # torch's
        for _ in range(20):
            scheduler.step()
    advance(optimizer, scheduler, 5)
    other = optimizer_with([0.1, 0.2], AdamW)
    other.load_state_dict(optimizer.state_dict())
    again = lambda_lr(other, CURVE)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Detected call of|The epoch parameter", UserWarning)  # torch's
        again.step(20)
    advance(other, again, 5)
    assert lrs_of(other) == lrs_of(optimizer)


def _last_epoch_set_by_hand(optimizer: Optimizer) -> None:
    """Resume as scripts do that save no scheduler."""
    optimizer.load_state_dict(_saved(STARTS["plain"], AdamW)[0])
    scheduler = lambda_lr(optimizer, CURVE)
    scheduler.last_epoch = 19
    advance(optimizer, scheduler, 5)
    assert scheduler.clock == 24


def _copies(optimizer: Optimizer) -> None:
    optimizer.load_state_dict(_saved(STARTS["plain"], AdamW)[0])
    advance(*copy.deepcopy((optimizer, lambda_lr(optimizer, CURVE))), 3)


def _rollback(optimizer: Optimizer) -> None:
    """Load an optimizer again in mid-run, while the curve continues on purpose."""
    scheduler = lambda_lr(optimizer, CURVE)
    advance(optimizer, scheduler, 5)
    state = through_file(optimizer.state_dict())
    advance(optimizer, scheduler, 5)
    optimizer.load_state_dict(state)
    advance(optimizer, scheduler, 5)


@pytest.mark.parametrize(
    "program",
    [
        _fresh, _second_part_of_a_sequence, _second_curve_in_one_program, _several_updates_first,
        _fast_forward, _last_epoch_set_by_hand, _copies, _rollback,
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:The epoch parameter in")  # which SequentialLR passes
def test_legitimate_programs_do_not_warn(program: Any) -> None:
    program(optimizer_with([0.1, 0.2], AdamW))
