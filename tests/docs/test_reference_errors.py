"""Some public names raise the errors that their `Raises` sections document."""

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import plateau_jax as pj
import torch_bridge as tb

CURVE = pj.PlateauCurve(100, warmup_steps=10, plateaus=[(50, 20)])


def optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)


# The public name, a wrong call, and the error that the docstring documents for it.
WRONG_CALLS: list[tuple[Any, Callable[[], object], type[Exception]]] = [
    (pj.PlateauCurve, lambda: pj.PlateauCurve(100, plateaus=[(50, 60)]), ValueError),
    (pj.PlateauCurve, lambda: pj.PlateauCurve("100"), TypeError),
    (pj.StagedCurve, lambda: pj.StagedCurve([(0, 1.0)]), ValueError),
    (pj.Curve.cooldown, lambda: CURVE.cooldown(at=-1, steps=9), ValueError),
    (pj.Curve.from_dict, lambda: pj.Curve.from_dict({"no": 1}), ValueError),
    (pj.BatchPlan, lambda: pj.BatchPlan([(8, 8)]), ValueError),
    (pj.HoldBelow, lambda: pj.HoldBelow(0.5, -1), ValueError),
    (pj.optax_schedule, lambda: pj.optax_schedule(CURVE, float("nan")), ValueError),
    (pj.optax_schedule, lambda: pj.optax_schedule(0.1, 0.1), TypeError),
    (tb.lambda_lr, lambda: tb.lambda_lr(optimizer(), [CURVE, CURVE]), ValueError),
    (tb.follow, lambda: tb.follow(optimizer(), "no such key", CURVE), ValueError),
    (tb.count_updates, lambda: tb.count_updates(9, -1), ValueError),
]


@pytest.mark.parametrize(
    ("public", "call", "error"), WRONG_CALLS, ids=lambda part: getattr(part, "__name__", "")
)
def test_documented_errors_are_raised(
    public: Any, call: Callable[[], object], error: type[Exception]
) -> None:
    _, _, raises = inspect.getdoc(public).partition("\nRaises:\n")
    documented = re.findall(r"^ {4}(\w+):", raises, re.MULTILINE)
    assert error.__name__ in documented
    with pytest.raises(error) as caught:
        call()
    assert type(caught.value) is error
