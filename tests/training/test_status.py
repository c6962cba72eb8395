"""Interrupted updates and loads, and what the step rejects then, on one rank or several."""

from contextlib import suppress

import pytest
from support.distributed.processes import error_of
from support.lines import Stop
from support.training.models import batches
from support.training.steps import make_step

from torch_bridge.training.train_step.status import Status

NOTHING = ""
LOAD = "load a checkpoint, by load_state_dict"
RESTART = "restart the program from its last checkpoint"


def forward_fails(status):
    status.begin_update()


def optimizer_fails(status):
    status.begin_update()
    status.begin_writing()


def update(status):
    status.begin_update()
    status.begin_writing()
    status.complete()


def load_fails(status):
    with suppress(Stop), status.loading():
        raise Stop


def load(status):
    with status.loading():
        pass


def status_after(*events, is_distributed):
    status = Status(is_distributed=is_distributed)
    for event in events:
        event(status)
    return status


def rejection_by(check):
    error = error_of(check)
    for advice in (LOAD, RESTART):
        if advice in error:
            return advice
    return error


# Events, and what the error of the next update says on one rank and on several.
EVENTS = [
    ([], NOTHING, NOTHING),
    ([update], NOTHING, NOTHING),
    ([forward_fails], NOTHING, RESTART),
    ([optimizer_fails], LOAD, RESTART),
    ([load], NOTHING, NOTHING),
    ([load_fails], LOAD, LOAD),
    ([load_fails, load], NOTHING, NOTHING),
]


@pytest.mark.parametrize(("events", "alone", "on_several"), EVENTS)
def test_next_update_after_events(events, alone, on_several):
    """Only on several ranks, after an interrupted update, is a load rejected as well."""
    status = status_after(*events, is_distributed=False)
    assert rejection_by(status.check) == alone
    assert rejection_by(status.check_loadable) == NOTHING

    status = status_after(*events, is_distributed=True)
    assert rejection_by(status.check) == on_several
    assert (rejection_by(status.check_loadable) == RESTART) == (on_several == RESTART)


def test_interrupted_update_takes_no_peak_either():
    """Part of the parameters may have been updated, whatever the peak is."""

    def interrupt(*_):
        raise Stop

    step = make_step()
    (batch,) = batches(1)
    step(batch)
    hook = step.optimizer.register_step_pre_hook(interrupt)
    with pytest.raises(Stop):
        step(batch)
    hook.remove()
    for action in (lambda: step.set_peak(0.5), lambda: step(batch)):
        with pytest.raises(RuntimeError, match=LOAD):
            action()
