"""Damaged states: refused without any change, or repaired by loading a sound state."""

import copy
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from support.damage import Change, damage
from support.examples import examples
from support.training.models import Net, batches, counting_loss
from support.training.optimizers import OPTIMIZERS
from support.training.steps import make_step, train
from support.training.trees import equal_trees
from torch import Tensor, nn

from plateau_jax import HoldBelow
from torch_bridge import TrainStep

_CHANGES: list[Change] = [
    lambda value: value.double(),
    lambda value: value.flatten(),
    lambda value: value.transpose(0, 1),
    lambda value: value[:1],
    lambda value: value.to_sparse(),
    lambda value: value.to(torch.complex64),
    lambda value: {**value, "more": torch.ones(2, requires_grad=True) * 2},
    lambda value: {**value, 99: {}},
]


@cache
def _sound(name: str, precision: str) -> Any:
    """Return the state of another step after three updates, and after a fourth."""
    step = make_step(name, Net(seed=1), precision=precision)
    train(step, batches(1) * 3)
    state = step.state_dict()
    step(*batches(1))
    return state, step.state_dict()


@pytest.mark.parametrize("name", OPTIMIZERS)
@examples(25)
@given(data=st.data())
def test_damage_is_refused_or_undone_by_sound_state(name: str, data: st.DataObject) -> None:
    precision = data.draw(st.sampled_from(("fp32", "fp16")))
    step, (batch,) = make_step(name, Net(), precision=precision), batches(1)
    train(step, [batch, batch])
    sound, after = _sound(name, precision)
    damaged, before = damage(data, copy.deepcopy(sound), _CHANGES), step.state_dict()
    try:
        step.load_state_dict(damaged)
    except ValueError:
        assert equal_trees(step.state_dict(), before)
    with suppress(Exception):  # torch may find an entry that it can't use
        step(batch)
    step.load_state_dict(sound)
    step(batch)
    assert equal_trees(step.state_dict(), after)


@pytest.mark.parametrize("strict", [True, False])
@examples(150)
@given(data=st.data())
def test_damaged_hold_is_refused_or_dropped(strict: bool, data: st.DataObject) -> None:
    step = make_step("adamw", Net(), hold=HoldBelow([(3.0, 2), (0.5, 3)], every=2))
    train(step, batches(3))
    before = step.state_dict()
    damaged = before | {"hold": damage(data, [copy.deepcopy(before["hold"])])[0]}
    try:
        step.load_state_dict(damaged, strict=strict)
    except ValueError:
        assert strict
    rest = {"hold": None}
    assert equal_trees(step.state_dict() | rest, before | rest)
    train(step, batches(1))


def _refused(step: TrainStep, state: Any, match: str) -> None:
    before = step.state_dict()
    with pytest.raises(ValueError, match=match):
        step.load_state_dict(state)
    assert equal_trees(step.state_dict(), before)


def _moment(value: Tensor | None) -> Callable[[Any], None]:
    return lambda state: state["state"][1].update(exp_avg=value)


@pytest.mark.parametrize(
    "damage",
    [
        _moment(torch.zeros(7)),
        _moment(torch.zeros(8, dtype=torch.float64)),
        _moment(torch.zeros(8, device="meta")),
        _moment(torch.zeros(8).to_sparse()),
        _moment(None),
        lambda state: state["state"].update({9: state["state"][0]}),
        lambda state: state["state"][2].update(step=torch.tensor(-1.0)),
        lambda state: state["state"][2].update(other=[1]),
        lambda state: state["param_groups"][0].pop("betas"),
        lambda state: state["param_groups"][0]["params"].reverse(),
        lambda state: state["param_groups"][0].update(initial_lr=float("nan")),
        lambda state: state["param_groups"][0].update(unknown=1),
    ],
)
@pytest.mark.parametrize("updates", [0, 2])
@pytest.mark.parametrize("name", ["adamw", "plain adam"])
def test_damaged_optimizer_state_is_refused(name: str, updates: int, damage: Callable[[Any], Any]) -> None:
    step, state = make_step(name), copy.deepcopy(_sound(name, "fp32")[0])
    train(step, batches(updates))
    damage(state["optimizer"])
    _refused(step, state, "state_dict|initial_lr")


def test_unknown_and_missing_options_are_named() -> None:
    step = make_step()
    state = step.state_dict()
    state["optimizer"]["param_groups"][0]["unknown"] = state["optimizer"]["param_groups"][0].pop("betas")
    _refused(step, state, r"param_groups\[0\].*betas: missing in the state.*unknown: .* missing here")


@pytest.mark.parametrize("scale", [0.0, -1.0, float("inf"), float("nan")])
def test_useless_loss_scale_is_refused(scale: float) -> None:
    step = make_step(precision="fp16")
    before = step.state_dict()
    _refused(step, before | {"loss_scale": [torch.tensor(scale), before["loss_scale"][1]]}, "loss_scale")


class _Extra(nn.Linear):
    """Saves a number as extra state, and accepts only this number."""

    kept = 1

    def get_extra_state(self) -> Any:
        return {"kept": self.kept}

    def set_extra_state(self, state: Any) -> None:
        if state["kept"] != self.kept:
            raise LookupError("another number")


def test_missing_or_unknown_extra_state_is_refused() -> None:
    with_it, without = make_step(model=_Extra(3, 2)), make_step(model=nn.Linear(3, 2))
    for step, other in ((with_it, without), (without, with_it)):
        _refused(step, step.state_dict() | {"model": other.state_dict()["model"]}, "another model")


class _Refusing(torch.optim.SGD):
    """Not torch's own: its `load_state_dict` changes the settings, and then fails once or always."""

    failures = 0

    def load_state_dict(self, state_dict: Any) -> None:
        super().load_state_dict(state_dict)
        if self.failures:
            self.failures -= 1
            raise LookupError("another optimizer")


def _trained(updates: int, kept: int = 1) -> TrainStep:
    """Return a trained step with two optimizers, fp16, a carry and a module with an extra state."""
    model = nn.Sequential(nn.Linear(3, 4), _Extra(4, 2))
    model[1].kept = kept
    optimizers: list[Any] = [
        torch.optim.AdamW(model[0].parameters(), lr=0.1, fused=True),
        _Refusing(model[1].parameters(), lr=0.1, momentum=0.9),
    ]
    options: dict[str, Any] = {"precision": "fp16", "carry": torch.zeros(2)}
    step = make_step(model=model, optimizer=optimizers, loss_fn=counting_loss, **options)
    train(step, batches(updates))
    return step


@pytest.mark.parametrize("part", ["model", "optimizer"])
def test_error_of_component_restores_old_state(part: str) -> None:
    step, other = _trained(3), _trained(5, kept=2 if part == "model" else 1)
    reference = _trained(3)
    reference.load_state_dict(step.state_dict())
    step.optimizers[1].failures = int(part == "optimizer")
    state, before = other.state_dict(), step.state_dict()
    with pytest.raises(LookupError, match="another"):
        step.load_state_dict(state)
    assert equal_trees(step.state_dict(), before)
    assert equal_trees(train(step, batches(4)), train(reference, batches(4)))
    assert equal_trees(step.state_dict(), reference.state_dict() | {"random": step.state_dict()["random"]})


def test_unrestored_step_needs_state() -> None:
    step, state = _trained(3), _trained(5).state_dict()
    step.optimizers[1].failures = 2
    with pytest.raises(LookupError):
        step.load_state_dict(state)
    for call in (lambda: step(*batches(1)), step.state_dict):
        with pytest.raises(RuntimeError, match="load a checkpoint"):
            call()
    step.load_state_dict(state)
    assert equal_trees(step.state_dict(), state)
    step(*batches(1))
