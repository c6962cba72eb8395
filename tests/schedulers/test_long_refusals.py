"""A scheduler's refusal prints no more than a line of a value, however long the value is."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.schedulers.runs import optimizer_with
from torch.optim import AdamW

from plateau_jax import PlateauCurve
from torch_bridge import count_updates, follow, lambda_lr, multiplier

_CURVE = PlateauCurve(100)
_LONG: Any = list(range(10_000))
_LOSSES: Any = torch.rand(1000, 100)


def _scheduler(**options: Any) -> Any:
    return lambda_lr(optimizer_with([0.1], AdamW), _CURVE, **options)


_REFUSED: dict[str, Callable[[], Any]] = {
    "losses as epoch": lambda: _scheduler().step(_LOSSES),
    "losses as epoch with a unit": lambda: _scheduler(unit=8).step(_LOSSES),
    "count without a unit": lambda: _scheduler().step(count=_LOSSES),
    "count": lambda: _scheduler(unit=8).step(count=_LOSSES),
    "flags as count": lambda: _scheduler(unit=8).step(count=_LOSSES > 0),
    "count function": lambda: _scheduler(unit=8, count=_LOSSES),
    "set_peak": lambda: _scheduler().set_peak("1" * 10_000),
    "state": lambda: _scheduler().load_state_dict(dict.fromkeys(_LONG)),
    "key": lambda: follow(optimizer_with([0.1], AdamW), _LONG, _CURVE),
    "name of a key": lambda: follow(optimizer_with([0.1], AdamW), "k" * 100_000, _CURVE),
    "name and index": lambda: follow(optimizer_with([0.1], AdamW), ("k" * 100_000, 1), _CURVE),
    "step of a table": lambda: multiplier(_CURVE.segments, _LONG),
    "table": lambda: multiplier(_LONG, torch.tensor(1)),
    "loader": lambda: count_updates(_LOSSES.sum(), 1),
    "mapping": lambda: PlateauCurve.from_dict({str(number): 0 for number in _LONG}),
}


@pytest.mark.parametrize("call", _REFUSED.values(), ids=_REFUSED)
def test_refusal_by_a_scheduler_is_a_line(call: Callable[[], Any]) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        call()
    message = str(caught.value)
    assert len(message) < 600, message
    assert "\n" not in message
