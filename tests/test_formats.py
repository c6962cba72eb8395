"""A saved state names its kind and format. A state of a different version is rejected."""

from itertools import pairwise

import pytest
import torch
from support.raises import raises
from support.training.models import square_loss
from torch import nn
from torch.utils.data import TensorDataset

from plateau_jax import (
    CurveScheduler,
    DataClock,
    HoldUntilFlat,
    PlateauCurve,
    check_resume,
    resume_record,
)
from torch_bridge import MetricLog, TrainStep, follow, lambda_lr, make_loader

DIFFERENT = "saved by a different version of plateau-jax"
CURVE = PlateauCurve(64, warmup_steps=4, plateaus=[(0, 50)])
SAMPLES = torch.arange(24.0)


def new_optimizer():
    return torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.5, momentum=0.9)


def scheduler():
    return lambda_lr(new_optimizer(), CURVE)


def follower():
    return follow(new_optimizer(), "momentum", CURVE)


def step():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
    return TrainStep(model, optimizer, square_loss, CURVE)


def log():
    return MetricLog(every=3)


def loader():
    return make_loader(TensorDataset(SAMPLES), 4, device="cpu", num_workers=0)


def curve_scheduler():
    return CurveScheduler(CURVE, 0.5, clock=DataClock(8, count=16))


PARTS = [scheduler, follower, curve_scheduler, step, log, loader]


def check_rejected(part, state):
    """Load a state that is rejected, and changes nothing; return the message."""
    names = "^(state_dict|hold|records|arguments) "
    with raises(ValueError, match=names, unchanged=[part]) as caught:
        part.load_state_dict(state)
    return str(caught.value)


def check_different_version(part, state, problem):
    """The same for a state of a different version, whose message names the problem."""
    message = check_rejected(part, state)
    assert problem in message
    assert DIFFERENT in message


# The kind, the number and the entries of a state.


@pytest.mark.parametrize("build", PARTS)
def test_state_names_its_kind_and_format(build):
    state = build().state_dict()
    assert list(state)[:2] == ["kind", "format"]
    assert isinstance(state["kind"], str)
    assert type(state["format"]) is int


def test_kinds_differ():
    kinds = {build().state_dict()["kind"] for build in PARTS}
    kinds.add(resume_record(CURVE)["kind"])
    assert len(kinds) == 7


@pytest.mark.parametrize("build", PARTS)
def test_number_of_a_different_format_is_rejected(build):
    part = build()
    state = part.state_dict()
    check_different_version(part, state | {"format": 99}, "format 99")


def test_unknown_entry_is_rejected():
    part = scheduler()
    state = part.state_dict()
    check_different_version(part, state | {"compressed": True}, "entry 'compressed'")


def test_each_missing_entry_is_rejected():
    part = scheduler()
    state = part.state_dict()
    for entry in state.keys() - {"kind", "format"}:
        damaged = dict(state)
        del damaged[entry]
        check_different_version(part, damaged, f"no entry '{entry}'")


# States of something else.


def test_state_without_a_kind_is_rejected():
    part = step()
    state = part.state_dict()
    del state["kind"]
    message = check_rejected(part, state)
    assert message.startswith("state_dict is not the state of ")
    assert ": it has no '" in message


@pytest.mark.parametrize(("build", "build_other"), [*pairwise([*PARTS, scheduler])])
def test_state_of_another_kind_is_named(build, build_other):
    state = build_other().state_dict()
    message = check_rejected(build(), state)
    assert message.startswith("state_dict is not the state of ")
    assert DIFFERENT not in message


def test_value_that_is_not_a_state_is_shown():
    for value in (5, "checkpoint.pt"):
        message = check_rejected(scheduler(), value)
        assert message.startswith(f"state_dict = {value!r} is not the state of ")


# Rules, records and curves.


def test_rule_of_a_different_version():
    part = lambda_lr(new_optimizer(), CURVE, clock=HoldUntilFlat(2, limit=9))
    state = part.state_dict()
    (rule_state,) = state["hold"]
    different = state | {"hold": [rule_state | {"cooldown": 3}]}
    check_different_version(part, different, "entry 'cooldown'")


def test_record_of_a_different_version():
    record = resume_record(CURVE, 0.5)
    with raises(ValueError, "is not from resume_record: saved has ", DIFFERENT):
        check_resume(record | {"format": 2}, record, 3)


def test_curve_of_a_different_version_in_a_state():
    part = scheduler()
    state = part.state_dict()
    (record,) = state["records"]
    later_curve = CURVE.to_dict() | {"format": 2}
    message = check_rejected(part, state | {"records": [record | {"curve": later_curve}]})
    assert "is not from resume_record: " in message
    assert DIFFERENT in message


# Loaders.


def test_loader_of_a_different_version():
    state = loader().state_dict()
    state["arguments"]["sampler"] = "weighted"
    check_different_version(loader(), state, "entry 'sampler'")
