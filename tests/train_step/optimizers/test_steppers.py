"""Who steps an optimizer, and when: kernels that skip on the device, changed settings, momentum."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, strategies as st
from support.examples import examples
from support.training.by_hand import ByHand
from support.training.kind import Kind
from support.training.models import batches, nonfinite
from support.training.optimizers import ADAGRAD_RECREATES_STATES, FUSED, by_layer
from support.training.reads import Reads
from support.trees import assert_equal_trees


def states_of(optimizer):
    """Return copies of an optimizer's states, with tensors for the counts that are numbers."""
    copies = {}
    for key, state in optimizer.state_dict()["state"].items():
        copies[key] = {name: torch.as_tensor(value).clone() for name, value in state.items()}
    return copies


@dataclass
class Change:
    """A change before an update."""

    action: str
    """The new setting of these groups, or `clear` the states."""
    groups: list[int]
    is_bad: bool
    """The update is skipped."""


SETTINGS = {"fused": True, "not fused": False, "default": None}

changes = st.builds(
    Change,
    action=st.sampled_from(["fused", "fused", *SETTINGS, "clear"]),
    groups=st.sampled_from([[0], [1], [0, 1]]),
    is_bad=st.booleans(),
)


def apply_change(change, name, optimizer):
    if change.action == "clear":
        if name != "adagrad" or ADAGRAD_RECREATES_STATES:
            optimizer.state.clear()
        return
    for index in change.groups:
        optimizer.param_groups[index]["fused"] = SETTINGS[change.action]


@pytest.mark.parametrize("name", FUSED)
@examples(8)
@given(st.lists(changes, min_size=8, max_size=12))
def test_changes_between_updates_take_effect(name, changes):
    """The first momentum may come after any of them. Nothing is read if all groups are fused."""
    kind = Kind(by_layer(name))
    step = kind.build()
    by_hand = ByHand(kind)
    (reference,) = by_hand.optimizers
    for change, batch in zip(changes, batches(len(changes)), strict=True):
        apply_change(change, name, step.optimizer)
        apply_change(change, name, reference)
        if change.is_bad:
            batch = nonfinite(batch)
        with Reads() as reads:
            result = step(batch)
        is_fused = all(group["fused"] for group in step.optimizer.param_groups)
        assert (reads.names == []) == is_fused
        assert_equal_trees(tuple(result), by_hand.update([batch]))
        assert_equal_trees(step.model.state_dict(), by_hand.model.state_dict())
        if not change.is_bad:  # a skipped step may have created states, as zeros
            assert_equal_trees(states_of(step.optimizer), states_of(reference))


@pytest.mark.parametrize("name", ["adamw", "momentum", "nesterov", "plain momentum", "rmsprop"])
def test_frozen_parameters_may_join_later(name):
    """The updates are those of an optimizer that is not fused."""
    kind = Kind(name)
    step, by_hand = kind.build(), ByHand(kind)
    by_hand.groups[0]["fused"] = False
    for number, batch in enumerate(batches(8)):
        for model in (step.model, by_hand.model):
            model.last.weight.requires_grad_(number in (3, 4, 7))
            model.first.bias.requires_grad_(number not in (5, 6))
        if number == 3:
            batch = nonfinite(batch)
        assert_equal_trees(step(batch).counters, by_hand.update([batch]).counters)
        expected = by_hand.model.state_dict()
        torch.testing.assert_close(step.model.state_dict(), expected, rtol=1e-5, atol=1e-6)
