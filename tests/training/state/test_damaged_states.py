"""After a failed load nothing has changed, or the step makes no update until a sound one."""

import copy
from contextlib import suppress
from functools import cache

import pytest
import torch
from hypothesis import given, strategies as st
from support.damage import any_change, damage
from support.examples import examples
from support.training.models import Net, batches
from support.training.steps import is_refused, make_step, train
from support.trees import assert_equal_trees

from plateau_jax import HoldBelow

CHANGES = [
    lambda value: value.double(),
    lambda value: value.flatten(),
    lambda value: value.transpose(0, 1),
    lambda value: value[:1],
    lambda value: value.to(torch.complex64),
    lambda value: {**value, "more": torch.ones(2, requires_grad=True) * 2},
    lambda value: {**value, 99: {}},
]


changes = st.sampled_from(CHANGES) | any_change
HOLD = HoldBelow(3.0, 2, every=2)


@cache
def sound_states(name, precision):
    """Return the state of another step after three updates, and after a fourth."""
    step = make_step(name, Net(seed=1), precision=precision, clock=HOLD)
    train(step, batches(1) * 3)
    state = step.state_dict()
    step(*batches(1))
    return state, step.state_dict()


@cache
def state_without_loads(name, precision):
    """Return the state after three updates of a step that never loads."""
    step = make_step(name, precision=precision, clock=HOLD)
    train(step, batches(1) * 3)
    return step.state_dict()


def remove_added_options(state, expected):
    """Remove options of groups that only a damaged state had: they stay, as in torch."""
    groups = state["optimizer"]["param_groups"]
    expected_groups = expected["optimizer"]["param_groups"]
    for group, expected_group in zip(groups, expected_groups, strict=True):
        for option in group.keys() - expected_group.keys():
            del group[option]


# Those with different entries in their states, of both kinds: fused, and others.
@pytest.mark.parametrize(
    "name",
    [
        "adamw",
        "amsgrad",
        "sgd",
        "momentum",
        "adagrad",
        "plain adam",
        "rmsprop",
        "adafactor",
        "muon",
    ],
)
@examples(25)
@given(data=st.data())
def test_damage_is_rejected_or_undone_by_sound_state(name, data):
    precision = data.draw(st.sampled_from(("fp32", "fp16")))
    step = make_step(name, precision=precision, clock=HOLD)
    (batch,) = batches(1)
    train(step, [batch, batch])
    before = step.state_dict()
    sound, sound_after_update = sound_states(name, precision)
    damaged = damage(data.draw, copy.deepcopy(sound), changes)
    error = None
    try:
        step.load_state_dict(damaged)
    except Exception as caught:  # this library's or torch's
        error = caught
    if error is not None and is_refused(step):
        message = str(error)
        assert not message.startswith("state_dict"), "this library rejects before it writes"
    elif error is not None:
        assert_equal_trees(step.state_dict(), before)
        step(batch)
        expected = state_without_loads(name, precision) | {"random": before["random"]}
        assert_equal_trees(step.state_dict(), expected)
    with suppress(Exception):  # torch may find an entry that it can't use
        step(batch)
    step.load_state_dict(sound)
    step(batch)
    state = step.state_dict()
    remove_added_options(state, sound_after_update)
    assert_equal_trees(state, sound_after_update)
