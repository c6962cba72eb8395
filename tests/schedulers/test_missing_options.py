"""A follower of an option that only some parameter groups have, such as Muon's momentum."""

import copy

import pytest
import torch
from support.raises import raises
from support.schedulers.runs import learning_rate
from torch.optim import Optimizer

from plateau_jax import StagedCurve
from torch_bridge import follow

RISING = StagedCurve([(10, 1.0)], start=0.5)
FALLING = StagedCurve([(8, 0.0, "linear")], start=1.0)


def new_group(**options):
    return {"params": [torch.nn.Parameter(torch.ones(1))], **options}


class MuonWithAdam(Optimizer):
    """Its groups have either a momentum, or Adam's betas."""

    def __init__(self, *momenta):
        groups = []
        for momentum in momenta:
            if momentum is None:
                groups.append(new_group(betas=(0.9, 0.95)))
            else:
                groups.append(new_group(momentum=momentum))
        super().__init__(groups, {"lr": 0.1})

    def step(self, closure=None):
        pass


def momenta(optimizer):
    """Return the momentum of each group that has one; the others must be untouched."""
    values = []
    for group in optimizer.param_groups:
        if "momentum" in group:
            values.append(group["momentum"])
        else:
            assert group.keys() == {"params", "lr", "betas"}
    return values


def resumed(optimizer, follower):
    fresh = MuonWithAdam(0.5, None, 0.25)
    new = follow(fresh, "momentum", (RISING, None, FALLING))
    new.load_state_dict(follower.state_dict())
    fresh.load_state_dict(optimizer.state_dict())
    return fresh, new


def copied(optimizer, follower):
    return copy.deepcopy((optimizer, follower))


def with_one_group_more(optimizer, follower):
    optimizer.add_param_group(new_group(betas=(0.5, 0.5)))
    return optimizer, follower


def with_one_group_less(optimizer, follower):
    del optimizer.param_groups[1]
    return optimizer, follower


@pytest.mark.parametrize("change", [resumed, copied, with_one_group_more, with_one_group_less])
def test_groups_without_the_option_do_not_matter(change):
    optimizer = MuonWithAdam(0.5, None, 0.25)
    follower = follow(optimizer, "momentum", [RISING, None, FALLING])
    for update in range(6):
        if update == 3:
            optimizer, follower = change(optimizer, follower)
        expected = [learning_rate(0.5, RISING, update), learning_rate(0.25, FALLING, update)]
        assert momenta(optimizer) == expected
        optimizer.step()
        follower.step()
    optimizer.param_groups.reverse()
    follower.step()
    expected = [learning_rate(0.25, FALLING, 7), learning_rate(0.5, RISING, 7)]
    assert momenta(optimizer) == expected
    assert len(follower.state_dict()["groups"]) == 2


@pytest.fixture
def optimizer():
    return MuonWithAdam(0.95, None)


def test_one_curve_for_the_groups_with_the_option(optimizer):
    follow(optimizer, "momentum", RISING).step()
    assert momenta(optimizer) == [learning_rate(0.95, RISING, 1)]


@raises(ValueError, "curve[1] = ", "a curve is None if, and only if, the group has no momentum")
def test_curve_of_a_group_without_the_option(optimizer):
    follow(optimizer, "momentum", [RISING, FALLING])


@raises(ValueError, "curve[0] = None", "the group has no momentum", "StagedCurve([(1,)]")
def test_none_for_a_group_with_the_option(optimizer):
    follow(optimizer, "momentum", [None, None])


@raises(ValueError, "curve has length 1; the number of parameter groups is 2")
def test_curve_for_the_groups_with_the_option_alone(optimizer):
    follow(optimizer, "momentum", [RISING])
