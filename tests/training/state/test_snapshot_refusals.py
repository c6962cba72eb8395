"""States that a training step rejects: of another run, of another object, or damaged. Nothing changes."""

import copy
import itertools
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from support.clocks.holds import CURVE as HELD_CURVE, PATIENT
from support.damage import Change, damage
from support.examples import examples
from support.lines import Lines, Stop
from support.training.kinds_of_run import KINDS
from support.training.models import Net, batches, counting_loss
from support.training.optimizers import OPTIMIZERS
from support.training.steps import equal_trees, is_refused, make_step, train
from torch import nn, tensor

from plateau_jax import CurveWarning, DataClock, HoldBelow, PlateauCurve
from torch_bridge import TrainStep

_COUNTED: dict[str, Any] = {"clock": DataClock(4), "count": lambda batch: len(batch[0])}
_HELD: dict[str, Any] = {"curve": HELD_CURVE, "clock": PATIENT}
_FP16: dict[str, Any] = {"precision": "fp16"}
_LATE = 'Missing key(s) in state_dict: "last.bias"', "Unexpected key(s)"
"""Of torch's errors after it has loaded a part of the model."""


def _check_rejected(step: TrainStep, state: Any, part: str, **options: Any) -> None:
    """Check that nothing has changed, or that the step asks for a state if the error comes late."""
    before = step.state_dict()
    is_of_torch = "key(s)" in part
    with pytest.raises(RuntimeError if is_of_torch else ValueError) as caught:
        step.load_state_dict(state, **options)
    assert part in str(caught.value)
    if part in _LATE:
        with pytest.raises(RuntimeError, match="load a checkpoint"):
            step(*batches(1))
        step.load_state_dict(before)
    assert equal_trees(step.state_dict(), before)


def _layers(width: int) -> TrainStep:
    return make_step(model=nn.Sequential(nn.Linear(3, width), nn.Linear(width, 2)))


def _carried(*shape: int) -> TrainStep:
    return make_step(loss_fn=counting_loss, carry=torch.zeros(shape))


Build = Callable[[], TrainStep]
# `clocks/test_states` has those of other curves and clocks.
_FOREIGN_STATES: dict[str, tuple[Build, Build, str]] = {
    "precision": (make_step, lambda: make_step(precision="bf16"), "precision = "),
    "model": (make_step, lambda: _layers(8), "in group 0, parameter 0 is "),
    "width": (lambda: _layers(8), lambda: _layers(9), "a different model: 0.weight: torch.float32 of"),
    "dtype": (KINDS["plain adam"].build, KINDS["Adam in bfloat16"].build, "a different model: first.weight:"),
    "optimizer": (make_step, lambda: make_step("sgd"), "optimizer_type = "),
    "carry": (make_step, lambda: _carried(3), "a different carry: 0: "),
    "shape of carry": (lambda: _carried(1), lambda: _carried(3), "a different carry: 0: "),
    "groups": (make_step, KINDS["groups"].build, "different parameter groups"),
}


@pytest.mark.parametrize(("build", "build_other", "part"), _FOREIGN_STATES.values(), ids=_FOREIGN_STATES)
def test_state_of_other_run_is_rejected(build: Build, build_other: Build, part: str) -> None:
    steps, (batch,) = (build(), build_other()), batches(1)
    for step in steps:
        train(step, [batch, batch])
    for step, other in (steps, steps[::-1]):
        _check_rejected(step, other.state_dict(), part)
        step(batch)


def _pop_bias(state: Any) -> None:
    del state["model"]["last.bias"]


def _add_unexpected(state: Any) -> None:
    state["model"]["more"] = torch.zeros(2)


def _rename_all(state: Any) -> None:
    state["model"] = {f"net.{name}": value for name, value in state["model"].items()}


def _replace_weight_by_list(state: Any) -> None:
    state["model"]["first.weight"] = [1.0]


def _pop_a_parameter(state: Any) -> None:
    state["optimizer"]["param_groups"][0]["params"].pop()


def _pop_optimizer_state(state: Any) -> None:
    del state["optimizer"]["state"]


def _replace_moments_by_list(state: Any) -> None:
    state["optimizer"]["state"][2] = [1.0]


# A change of the state's entries, and what the message names.
_DAMAGE: list[tuple[dict[str, Any], Callable[[Any], Any], str]] = [
    ({}, lambda state: state.clear(), "not the state of a TrainStep"),
    ({}, lambda state: state.pop("curve_step"), "not the state of a TrainStep"),
    ({}, lambda state: state.update(random={"cpu": torch.zeros(3, dtype=torch.uint8)}), "RNG state size"),
    ({}, lambda state: state.update(random={}), "random state of the CPU"),
    ({}, lambda state: state.update(applied=-5), "applied"),
    ({}, lambda state: state.update(skipped=-1), "skipped"),
    (
        {},
        lambda state: state.update(optimizer={"param_groups": []}),
        "has 0 items; the number of parameter groups is 1",
    ),
    ({}, lambda state: state.update(model={}), "Missing key(s)"),
    ({}, _rename_all, "Missing key(s)"),
    ({}, _pop_bias, 'Missing key(s) in state_dict: "last.bias"'),
    ({}, _add_unexpected, "Unexpected key(s)"),
    ({}, _replace_weight_by_list, "first.weight: list in the state, torch.float32 of"),
    ({}, _pop_a_parameter, "not the state of AdamW with groups of [4] parameters"),
    ({}, _pop_optimizer_state, "not the state of AdamW with groups of [4] parameters"),
    ({}, _replace_moments_by_list, "['state'][2] = [1.0] must be a dictionary"),
    ({}, lambda state: state.update(carry=3), "not iterable"),
    ({}, lambda state: state.update(carry=[3]), "a different carry: 0: int in the state, missing here"),
    ({}, lambda state: state.update(records=[]), "records"),
    ({}, lambda state: state.update(records=[{}]), "records[0]"),
    ({}, lambda state: state.update(parameters=[["first.weight"]]), "parameter 1 is missing in the state"),
    ({}, lambda state: state.update(precision=None), "precision"),
    ({}, lambda state: state.update(loss_scale=[tensor(1.0), tensor(1.0)]), "loss_scale"),
    (_FP16, lambda state: state.update(loss_scale=None), "loss_scale"),
    (_FP16, lambda state: state.update(loss_scale=[1.0, 0]), "loss_scale"),
    (_FP16, lambda state: state.update(loss_scale=[tensor(1.0), torch.zeros(3)]), "loss_scale"),
    (_FP16, lambda state: state.update(loss_scale=[tensor(torch.nan), tensor(0)]), "loss_scale"),
    (_FP16, lambda state: state.update(loss_scale=[tensor(0.0), tensor(0)]), "loss_scale"),
    (_FP16, lambda state: state.update(loss_scale=[tensor(1.0), tensor(0), tensor(torch.inf)]), "loss_scale"),
    ({}, lambda state: state["optimizer"]["param_groups"][0].update(initial_lr=torch.nan), "initial_lr"),
    (
        {},
        lambda state: state["optimizer"]["state"][1].update(exp_avg=torch.zeros(7)),
        "exp_avg of parameter 1 has the shape (7,), and the parameter (8,)",
    ),
    (_COUNTED, lambda state: state.update(consumed=-1), "consumed"),
    (_COUNTED, lambda state: state.update(consumed=2**62 + 1), "consumed"),
    (_COUNTED, lambda state: state.update(consumed=100), "consumed"),
    (_COUNTED, lambda state: state["records"][0]["clock"].update(unit=0), "unit"),
    (_HELD, lambda state: state.update(curve_step=-1), "curve_step"),
    (_HELD, lambda state: state.update(hold=None), "hold"),
    (_HELD, lambda state: state.update(hold=[{}]), "rule"),
]


@pytest.mark.parametrize(("options", "change", "part"), _DAMAGE, ids=range(len(_DAMAGE)))
def test_damaged_state_changes_nothing(
    options: dict[str, Any], change: Callable[[Any], Any], part: str
) -> None:
    step, reference, other = (make_step(model=Net(seed), **options) for seed in (0, 0, 1))
    (batch,) = batches(1)
    train(other, [batch] * 3)
    assert equal_trees(step(batch), reference(batch))
    state: Any = other.state_dict()
    change(state)
    for strict in (True, False):
        _check_rejected(step, state, part, strict=strict)
    assert equal_trees(step(batch), reference(batch))


def _normalized() -> TrainStep:
    return make_step(model=nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)))


def test_empty_model_state_changes_nothing_under_batch_norm() -> None:
    """Torch's BatchNorm counts its batches in a buffer; if a state lacks it, it writes its own value."""
    step, reference = _normalized(), _normalized()
    (batch,) = batches(1)
    step(batch)
    reference.load_state_dict(step.state_dict())
    _check_rejected(step, {**step.state_dict(), "model": {}}, "Missing key(s)")
    assert equal_trees(step(batch), reference(batch))


def test_late_error_under_batch_norm_asks_for_a_state() -> None:
    step, (batch,) = _normalized(), batches(1)
    sound = step.state_dict()
    with pytest.raises(RuntimeError, match="Missing key"):
        step.load_state_dict({**sound, "model": {"1.num_batches_tracked": tensor(7)}})
    assert is_refused(step)
    step.load_state_dict(sound)
    step(batch)


def test_strict_of_the_step_is_the_default_of_a_load() -> None:
    saved = make_step()
    train(saved, batches(3))
    step = make_step(curve=PlateauCurve(9), strict=False)
    with pytest.warns(CurveWarning, match="belongs to a different curve: .* differ from step 0 on"):
        step.load_state_dict(saved.state_dict())
    assert step.state_dict()["applied"] == 3


@pytest.mark.parametrize("state", [None, [], {"model": {}}, Net().state_dict()], ids=range(4))
def test_invalid_state_is_rejected(state: Any) -> None:
    _check_rejected(make_step(), state, "not the state of a TrainStep")


# Failed loads: nothing has changed, or the step makes no update until it loads a sound state.


_CHANGES: list[Change] = [
    lambda value: value.double(),
    lambda value: value.flatten(),
    lambda value: value.transpose(0, 1),
    lambda value: value[:1],
    lambda value: value.to(torch.complex64),
    lambda value: {**value, "more": torch.ones(2, requires_grad=True) * 2},
    lambda value: {**value, 99: {}},
]


_HOLD = HoldBelow([(3.0, 2), (0.5, 3)], every=2)


@cache
def _sound(name: str, precision: str) -> Any:
    """Return the state of another step after three updates, and after a fourth."""
    step = make_step(name, Net(seed=1), precision=precision, clock=_HOLD)
    train(step, batches(1) * 3)
    state = step.state_dict()
    step(*batches(1))
    return state, step.state_dict()


@cache
def _untouched(name: str, precision: str) -> Any:
    """Return the state after three updates of a step that never loads."""
    step = make_step(name, precision=precision, clock=_HOLD)
    train(step, batches(1) * 3)
    return step.state_dict()


@pytest.mark.parametrize("name", OPTIMIZERS)
@examples(25)
@given(data=st.data())
def test_damage_is_rejected_or_undone_by_sound_state(name: str, data: st.DataObject) -> None:
    precision = data.draw(st.sampled_from(("fp32", "fp16")))
    step, (batch,) = make_step(name, precision=precision, clock=_HOLD), batches(1)
    train(step, [batch, batch])
    sound, after = _sound(name, precision)
    damaged, before = damage(data, copy.deepcopy(sound), _CHANGES), step.state_dict()
    error: Exception | None = None
    try:
        step.load_state_dict(damaged)
    except Exception as caught:  # this library's or torch's
        error = caught
    if error is not None and is_refused(step):
        assert not str(error).startswith("state_dict"), "this library rejects a state before it writes"
    elif error is not None:
        assert equal_trees(step.state_dict(), before)
        step(batch)
        undisturbed = _untouched(name, precision) | {"random": before["random"]}
        assert equal_trees(step.state_dict(), undisturbed)
    with suppress(Exception):  # torch may find an entry that it can't use
        step(batch)
    step.load_state_dict(sound)
    step(batch)
    undone = step.state_dict()
    # An option that only the damaged state had stays, as in torch.
    for group, wanted in zip(
        undone["optimizer"]["param_groups"], after["optimizer"]["param_groups"], strict=True
    ):
        for name in group.keys() - wanted.keys():
            del group[name]
    assert equal_trees(undone, after)


def _trained(updates: int) -> TrainStep:
    """Return a trained step with two optimizers, fp16, a carry and a hold."""
    model = Net()
    optimizers: list[Any] = [
        torch.optim.AdamW(model.first.parameters(), lr=0.1, fused=True),
        torch.optim.SGD(model.last.parameters(), lr=0.1, momentum=0.9),
    ]
    options: dict[str, Any] = {"precision": "fp16", "carry": torch.zeros(2), "clock": PATIENT}
    step = make_step(model=model, optimizer=optimizers, loss_fn=counting_loss, curve=HELD_CURVE, **options)
    train(step, batches(updates))
    return step


@pytest.mark.slow
def test_load_interrupted_at_any_line() -> None:
    """In this library, in torch's optimizers or its modules."""
    files = Path(torch.optim.__file__).parent, Path(torch.nn.modules.module.__file__)
    state, reference = _trained(5).state_dict(), _trained(3)
    before, batch = reference.state_dict(), batches(1)[0]
    after = reference(batch), reference.state_dict()
    step = _trained(3)
    step.load_state_dict(before)
    for stop_at in itertools.count(1):
        try:
            with Lines(stop_at, *map(str, files)):
                step.load_state_dict(state)
        except Stop:
            if is_refused(step):
                step.load_state_dict(before)
            assert equal_trees(step.state_dict(), before), f"at line {stop_at}"
        else:
            break
        if stop_at % 50 == 0:
            assert equal_trees((step(batch), step.state_dict()), after), f"after line {stop_at}"
            step.load_state_dict(before)
    assert equal_trees(step.state_dict(), state)
