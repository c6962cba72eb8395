"""States that a training step refuses: of another run, of another object, or damaged."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.holds.held import CURVE as HELD_CURVE, PATIENT
from support.training.models import Net, batches, counting_loss, mean_loss
from support.training.steps import CURVE, make_step, train
from support.training.trees import equal_trees
from torch import nn

from plateau_jax import PlateauCurve
from torch_bridge import TrainStep


def _half() -> TrainStep:
    return make_step(
        "adamw", Net().bfloat16(), loss_fn=lambda model, batch: model(batch[0].bfloat16()).mean()
    )


_OTHER_STATES: dict[str, tuple[Callable[[], TrainStep], str]] = {
    "curve": (lambda: make_step(curve=PlateauCurve(41)), "differ from step"),
    "plateau": (lambda: make_step(curve=PlateauCurve(40, warmup_steps=4)), "differ from step"),
    "precision": (lambda: make_step(precision="bf16"), "precision"),
    "fp16": (lambda: make_step(precision="fp16"), "precision"),
    "model": (lambda: make_step(model=nn.Sequential(nn.Linear(3, 8), nn.Linear(8, 2))), "model"),
    "wider model": (lambda: make_step(model=nn.Linear(3, 2)), "model"),
    "dtype": (_half, "model"),
    "optimizer": (lambda: make_step("sgd"), "optimizer"),
    "near optimizer": (lambda: make_step("adam"), "optimizer"),
    "carry": (lambda: make_step(loss_fn=counting_loss, carry=torch.zeros(3)), "carry"),
    "groups": (lambda: TrainStep(model := Net(), _two_groups(model), mean_loss, CURVE), "groups"),
}


def _two_groups(model: Net) -> torch.optim.Optimizer:
    groups = [{"params": module.parameters()} for module in (model.first, model.last)]
    return torch.optim.AdamW(groups, lr=0.01, fused=True)


@pytest.mark.parametrize(("build", "named"), _OTHER_STATES.values(), ids=_OTHER_STATES)
def test_state_of_other_run_is_refused(build: Callable[[], TrainStep], named: str) -> None:
    steps = make_step(), build()
    (batch,) = batches(1)
    for step in steps:
        step(batch)
        step(batch)
    for step, other in (steps, steps[::-1]):
        before, foreign = step.state_dict(), other.state_dict()
        with pytest.raises(ValueError, match=named):
            step.load_state_dict(foreign)
        assert equal_trees(step.state_dict(), before)
        step(batch)


@pytest.mark.parametrize("state", [None, [], {"model": {}}, Net().state_dict()], ids=range(4))
def test_invalid_state_is_refused(state: Any) -> None:
    step = make_step()
    before = step.state_dict()
    with pytest.raises(ValueError, match="not a state of a TrainStep"):
        step.load_state_dict(state)
    assert equal_trees(step.state_dict(), before)


def test_carry_of_other_shape_is_refused() -> None:
    step, other = (make_step(loss_fn=counting_loss, carry=torch.zeros(n)) for n in (2, 3))
    with pytest.raises(ValueError, match="another carry"):
        step.load_state_dict(other.state_dict())


_HELD: dict[str, Any] = {"curve": HELD_CURVE, "hold": PATIENT}
_COUNTED: dict[str, Any] = {"unit": 4, "count": lambda batch: len(batch[0])}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("random", {"cpu": torch.zeros(3, dtype=torch.uint8)}),
        ("random", {"cpu": torch.zeros(5056)}),
        ("applied", -5),
        ("applied", 1.0),
        ("skipped", -1),
        ("optimizer", {"param_groups": []}),
        ("optimizer", {"state": {}, "param_groups": [None]}),
        ("model", {}),
        ("carry", 3),
        ("loss_scale", [1.0]),
        ("curves", None),
        ("parameters", None),
        ("parameters", [["first.weight"]]),
        ("precision", None),
        ("consumed", -1),
        ("consumed", 2**62 + 1),
        ("consumed", 1.5),
        ("consumed", 100),
        ("unit", 0),
        ("unit", True),
        ("clock", -1),
        ("clock", 6),
        ("clock", 1.0),
        ("hold", None),
        ("hold", [{}]),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_damaged_state_changes_nothing(name: str, value: Any) -> None:
    options = _COUNTED if name in ("consumed", "unit") else _HELD if name in ("clock", "hold") else {}
    step, reference = (make_step(**options) for _ in range(2))
    other = make_step("adamw", Net(seed=1), **options)
    (batch,) = batches(1)
    train(other, [batch] * 3)
    assert equal_trees(step(batch), reference(batch))
    before = step.state_dict()
    # Without `strict`, other curves and rules are accepted.
    for strict in (True,) if name in ("curves", "hold") else (True, False):
        with pytest.raises(ValueError, match=f"{name}|state_dict"):
            step.load_state_dict(other.state_dict() | {name: value}, strict=strict)
        assert equal_trees(step.state_dict(), before)
    assert equal_trees(step(batch), reference(batch))
