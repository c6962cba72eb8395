"""States that a training step rejects: of another run, of another object, or damaged. Nothing changes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.holds.held import CURVE as HELD_CURVE, PATIENT
from support.training.models import Net, batches, counting_loss, mean_loss
from support.training.steps import CURVE, make_step, train
from support.training.trees import equal_trees
from torch import Tensor, nn

from plateau_jax import PlateauCurve
from torch_bridge import TrainStep

Build = Callable[[], TrainStep]


def _check_rejected(step: TrainStep, state: Any, message: str, **options: Any) -> None:
    """Check that the error is this library's ValueError or torch's RuntimeError, which may come late."""
    before = step.state_dict()
    with pytest.raises((ValueError, RuntimeError), match=message):
        step.load_state_dict(state, **options)
    if any(late in message for late in _LATE):
        with pytest.raises(RuntimeError, match="load a checkpoint"):
            step(*batches(1))
        step.load_state_dict(before)
    assert equal_trees(step.state_dict(), before)


_LATE = "RNG state size", "Missing", "exp_avg"


def _half() -> TrainStep:
    return make_step(
        "adamw", Net().bfloat16(), loss_fn=lambda model, batch: model(batch[0].bfloat16()).mean()
    )


class _Extra(nn.Linear):
    """Saves a number as extra state."""

    def get_extra_state(self) -> Any:
        return {"kept": 1}

    def set_extra_state(self, state: Any) -> None:
        pass


def _layers(width: int) -> TrainStep:
    return make_step(model=nn.Sequential(nn.Linear(3, width), nn.Linear(width, 2)))


def _with_carry(*shape: int) -> TrainStep:
    return make_step(loss_fn=counting_loss, carry=torch.zeros(shape))


def _two_groups() -> TrainStep:
    model = Net()
    groups = [{"params": module.parameters()} for module in (model.first, model.last)]
    return TrainStep(model, torch.optim.AdamW(groups, lr=0.01, fused=True), mean_loss, CURVE)


def _frozen() -> TrainStep:
    model = Net()
    model.last.bias.requires_grad_(False)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return make_step(model=model, optimizer=torch.optim.AdamW(trained, fused=True))


class _Scaled(Net):
    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(shape))


def _scaled_loss(model: Any, batch: Any) -> Tensor:
    return mean_loss(model, batch) * model.scale.sum()


_OTHER_STATES: dict[str, tuple[Build, Build, str]] = {
    "curve": (make_step, lambda: make_step(curve=PlateauCurve(41)), "differ from step"),
    "plateau": (make_step, lambda: make_step(curve=PlateauCurve(40, warmup_steps=4)), "differ from step"),
    "precision": (make_step, lambda: make_step(precision="bf16"), "precision"),
    "fp16": (make_step, lambda: make_step(precision="fp16"), "precision"),
    "model": (make_step, lambda: _layers(8), "in group 0, parameter 0 is "),
    "width": (lambda: _layers(8), lambda: _layers(9), "a different model: 0.weight: torch.float32 of"),
    "scalar": (
        lambda: make_step(model=_Scaled(()), loss_fn=_scaled_loss),
        lambda: make_step(model=_Scaled((1,)), loss_fn=_scaled_loss),
        r"a different model: scale: torch.float32 of \(1?,?\) in",
    ),
    "extra state": (
        lambda: make_step(model=_Extra(3, 2)),
        lambda: make_step(model=nn.Linear(3, 2)),
        r"(Missing|Unexpected) key\(s\) in state_dict: \"_extra_state\"",
    ),
    "dtype": (make_step, _half, "a different model: first.weight: torch.(float32|bfloat16) of .* in"),
    "optimizer": (make_step, lambda: make_step("sgd"), "optimizer"),
    "near optimizer": (make_step, lambda: make_step("adam"), "optimizer"),
    "carry": (make_step, lambda: _with_carry(3), "a different carry: 0: "),
    "carry's shape": (lambda: _with_carry(1), lambda: _with_carry(3), "a different carry: 0: "),
    "groups": (make_step, _two_groups, "groups"),
    "frozen": (make_step, _frozen, "in group 0, parameter 3 is (missing|last.bias) in the state"),
    "unit": (make_step, lambda: make_step(unit=4, count=lambda batch: len(batch[0])), "unit"),
    "hold": (
        lambda: make_step(curve=HELD_CURVE),
        lambda: make_step(curve=HELD_CURVE, hold=PATIENT),
        "saved with hold",
    ),
}


@pytest.mark.parametrize(("build", "build_other", "message"), _OTHER_STATES.values(), ids=_OTHER_STATES)
def test_state_of_other_run_is_rejected(build: Build, build_other: Build, message: str) -> None:
    steps = build(), build_other()
    (batch,) = batches(1)
    for step in steps:
        train(step, [batch, batch])
    for step, other in (steps, steps[::-1]):
        _check_rejected(step, other.state_dict(), message)
        step(batch)


def _options(**changes: Any) -> Callable[[Any], Any]:
    return lambda state: state["optimizer"]["param_groups"][0].update(changes)


def _entry(**changes: Any) -> Callable[[Any], Any]:
    return lambda state: state.update(changes)


def _moment(value: Any) -> Callable[[Any], Any]:
    return lambda state: state["optimizer"]["state"][1].update(exp_avg=value)


_COUNTED: dict[str, Any] = {"unit": 4, "count": lambda batch: len(batch[0])}
_HELD: dict[str, Any] = {"curve": HELD_CURVE, "hold": PATIENT}
_DAMAGED: list[tuple[dict[str, Any], Callable[[Any], Any], str]] = [
    ({}, lambda state: state.clear(), "not the state of a TrainStep"),
    ({}, lambda state: state.pop("clock"), "not the state of a TrainStep"),
    ({}, _entry(random={"cpu": torch.zeros(3, dtype=torch.uint8)}), "RNG state size"),
    ({}, _entry(random={}), "random state of the CPU"),
    ({}, _entry(applied=-5), "applied"),
    ({}, _entry(applied=1.0), "applied"),
    ({}, _entry(skipped=-1), "skipped"),
    ({}, _entry(optimizer={"param_groups": []}), "has 0 parameter groups"),
    ({}, _entry(model={}), "Missing key"),
    ({}, _entry(carry=3), "not iterable"),
    ({}, _entry(curves=None), "not iterable"),
    ({}, _entry(parameters=None), "not iterable"),
    ({}, _entry(parameters=[["first.weight"]]), "parameter 1 is missing in the state"),
    ({}, _entry(precision=None), "precision"),
    ({}, _entry(loss_scale=[torch.ones(())] * 2), "loss_scale"),
    ({"precision": "fp16"}, _entry(loss_scale=None), "loss_scale"),
    ({"precision": "fp16"}, _entry(loss_scale=[torch.tensor(float("nan")), torch.tensor(0)]), "loss_scale"),
    ({}, _options(initial_lr=float("nan")), "initial_lr"),
    ({}, _moment(torch.zeros(7)), r"exp_avg of parameter 1 has the shape \(7,\), and the parameter \(8,\)"),
    (_COUNTED, _entry(consumed=-1), "consumed"),
    (_COUNTED, _entry(consumed=2**62 + 1), "consumed"),
    (_COUNTED, _entry(consumed=1.5), "consumed"),
    (_COUNTED, _entry(consumed=100), "consumed"),
    (_COUNTED, _entry(unit=0), "unit"),
    (_COUNTED, _entry(unit=True), "unit"),
    (_HELD, _entry(clock=-1), "clock"),
    (_HELD, _entry(clock=6), "clock"),
    (_HELD, _entry(clock=1.0), "clock"),
    (_HELD, _entry(hold=None), "hold"),
    (_HELD, _entry(hold=[{}]), "rule"),
]


@pytest.mark.parametrize(("options", "damage", "message"), _DAMAGED)
def test_damaged_state_changes_nothing(
    options: dict[str, Any], damage: Callable[[Any], Any], message: str
) -> None:
    step, reference, other = (make_step(model=Net(seed), **options) for seed in (0, 0, 1))
    (batch,) = batches(1)
    train(other, [batch] * 3)
    assert equal_trees(step(batch), reference(batch))
    state: Any = other.state_dict()
    damage(state)
    # Without `strict`, different curves are accepted.
    for strict in (True,) if state.get("curves", 1) is None else (True, False):
        _check_rejected(step, state, message, strict=strict)
    assert equal_trees(step(batch), reference(batch))


@pytest.mark.parametrize("state", [None, [], {"model": {}}, Net().state_dict()], ids=range(4))
def test_invalid_state_is_rejected(state: Any) -> None:
    _check_rejected(make_step(), state, "not the state of a TrainStep")
