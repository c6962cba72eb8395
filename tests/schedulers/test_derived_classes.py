"""Classes that users derive from curves and schedulers."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import pytest
import torch
from support.schedulers.runs import advance, optimizer_with
from torch.optim.lr_scheduler import _warn_get_lr_called_within_step

from plateau_jax import Curve, HoldBelow, PlateauCurve
from torch_bridge import CurveLR, TrainStep, follow, lambda_lr


@dataclass(frozen=True, kw_only=True)
class Noted(PlateauCurve):
    """A curve without a hash, because lists have none."""

    notes: list[str] = field(default_factory=list[str])


class Weeks(PlateauCurve):
    """A curve with its own form of `to_dict` and `from_dict`."""

    def to_dict(self) -> Any:
        return {"weeks": self.total_steps / 7, "plateaus": [list(pair) for pair in self.plateaus]}

    @classmethod
    def from_dict(cls, arguments: Mapping[str, Any]) -> Self:
        return cls(round(arguments["weeks"] * 7), plateaus=arguments["plateaus"])


def _optimizer(groups: int = 2) -> torch.optim.Optimizer:
    parameters = [torch.nn.Parameter(torch.ones(1)) for _ in range(groups)]
    return torch.optim.SGD([{"params": [parameter]} for parameter in parameters], lr=0.5, weight_decay=0.1)


def _train(optimizer: torch.optim.Optimizer, *steps: Any) -> list[Any]:
    optimizer.step()
    for step in steps:
        step()
    return [(group["lr"], group["weight_decay"]) for group in optimizer.param_groups]


def test_unhashable_curve_drives_every_option() -> None:
    curve, other = Noted(50, notes=["a"]), Noted(60, notes=["b"])
    optimizer = _optimizer()
    steps = lambda_lr(optimizer, [curve, other]).step, follow(optimizer, "weight_decay", curve).step
    plain = _optimizer()
    plain_steps = (
        lambda_lr(plain, [PlateauCurve(50), PlateauCurve(60)]).step,
        follow(plain, "weight_decay", PlateauCurve(50)).step,
    )
    for _ in range(70):
        assert _train(optimizer, *steps) == _train(plain, *plain_steps)


def test_training_step_takes_unhashable_curve() -> None:
    lrs: list[list[float]] = []
    for curve in (Noted(5), PlateauCurve(5)):
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        step = TrainStep(model, optimizer, lambda model, batch: model(batch).sum(), curve)
        lrs.append([float(step(torch.ones(3, 2)).lr) for _ in range(8)])
    assert lrs[0] == lrs[1]


@pytest.mark.parametrize("hold", [None, HoldBelow(0.5, 3)], ids=str)
def test_custom_to_dict_is_read_by_its_from_dict(hold: HoldBelow | None) -> None:
    curve = Weeks(70, plateaus=[(50, 30)])
    optimizer = _optimizer()
    scheduler, follower = lambda_lr(optimizer, curve, hold=hold), follow(optimizer, "weight_decay", curve)
    for _ in range(12):
        _train(optimizer, lambda: scheduler.step(*[0.7] * bool(hold)), follower.step)
    states = copy.deepcopy((optimizer.state_dict(), scheduler.state_dict(), follower.state_dict()))

    again = _optimizer()
    parts = again, lambda_lr(again, curve, hold=hold), follow(again, "weight_decay", curve)
    for part, state in zip(parts, states, strict=True):
        part.load_state_dict(state)
    assert again.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]
    assert parts[1].clock == scheduler.clock

    other = lambda_lr(_optimizer(), Weeks(77, plateaus=[(50, 30)]), hold=hold)
    with pytest.raises(ValueError, match="differ from step 1 on"):
        other.load_state_dict(states[1])


def test_derived_curve_reads_state_of_base_curve() -> None:
    saved: Curve = PlateauCurve(70, plateaus=[(0, 50)])
    scheduler = lambda_lr(_optimizer(), saved)
    other = lambda_lr(_optimizer(), Weeks(70, plateaus=[(0, 50)]))
    other.load_state_dict(scheduler.state_dict())
    with pytest.raises(ValueError, match="not the arguments of a PlateauCurve"):
        other.load_state_dict({**scheduler.state_dict(), "curves": [{"weeks": "x"}] * 2})
    assert other.last_epoch == 0


CURVE = PlateauCurve(20, warmup_steps=5, plateaus=[(50, 20)])


class _TooFew(CurveLR):
    def get_lr(self) -> Any:
        return super().get_lr()[:1]


def test_get_lr_with_too_few_values_is_refused() -> None:
    with pytest.raises(ValueError, match=r"1 learning rates for 2 parameter groups"):
        _TooFew(optimizer_with([0.1, 0.2]), CURVE)


class _InTorchsPattern(CurveLR):
    def get_lr(self) -> Any:
        _warn_get_lr_called_within_step(self)
        return super().get_lr()


def test_get_lr_in_torchs_pattern_does_not_warn() -> None:
    optimizer = optimizer_with([0.1])
    advance(optimizer, _InTorchsPattern(optimizer, CURVE), 3)
