"""Failed loads: nothing has changed, or the step makes no update until it loads a sound state."""

import copy
import itertools
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from support.clocks.held import CURVE as HELD_CURVE, PATIENT
from support.damage import Change, damage
from support.examples import examples
from support.lines import Lines, Stop
from support.training.models import Net, batches, counting_loss
from support.training.optimizers import OPTIMIZERS
from support.training.steps import make_step, train
from support.training.trees import equal_trees

from plateau_jax import HoldBelow
from torch_bridge import TrainStep


def is_refused(step: TrainStep) -> bool:
    """Return True if the step asks for a state; neither an update nor its own state is to be had then."""
    with suppress(RuntimeError):
        step.state_dict()
        return False
    for call in (lambda: step(*batches(1)), step.state_dict):
        with pytest.raises(RuntimeError, match="load a checkpoint"):
            call()
    return True


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


@pytest.mark.parametrize("name", OPTIMIZERS)
@examples(25)
@given(data=st.data())
def test_damage_is_rejected_or_undone_by_sound_state(name: str, data: st.DataObject) -> None:
    precision = data.draw(st.sampled_from(("fp32", "fp16")))
    step, (batch,) = make_step(name, precision=precision, clock=_HOLD), batches(1)
    train(step, [batch, batch])
    sound, after = _sound(name, precision)
    damaged, before = damage(data, copy.deepcopy(sound), _CHANGES), step.state_dict()
    try:
        step.load_state_dict(damaged)
    except Exception:  # this library's or torch's
        assert is_refused(step) or equal_trees(step.state_dict(), before)
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
