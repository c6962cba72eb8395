"""The states of schedulers: those of this library, and what can be used of those of torch."""

from collections.abc import Mapping
from typing import Any, TypedDict

from plateau_jax.saved_states.formats import Format


class SchedulerState(TypedDict):
    """See `lambda_lr.state_dict`."""

    kind: str
    format: int
    last_epoch: int
    offset: int | None
    consumed: int | None
    hold: list[dict[str, int | float]]
    records: list[dict[str, Any]]
    peak_was_set: bool
    in_charge: bool


class FollowerState(SchedulerState):
    """See `follow.state_dict`."""

    key: str | list[str | int]
    groups: list[int]


SCHEDULER_FORMAT = Format(
    "scheduler",
    SchedulerState,
    advice={
        "train_step": (
            "it is the state of a TrainStep. Load its 'model' and 'optimizer', then build "
            "lambda_lr(optimizer, curve, last_epoch=state['applied'] - 1); with clock=, see "
            "docs/training_step.md, From a TrainStep to a scheduler"
        )
    },
)
FOLLOWER_FORMAT = Format("follower", FollowerState)


def find_state(state_format: Format[Any], state: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return a state of this format: the state itself, or the only one in that of a chain.

    None if there is none.

    Raises:
        ValueError: There are several; or a different version saved it.
    """
    if state_format.is_of(state):
        return state_format.read("state_dict", state)
    # Torch's SequentialLR and ChainedScheduler have this entry.
    states = [find_state(state_format, inner) for inner in state.get("_schedulers", [])]
    matches = [inner for inner in states if inner is not None]
    if len(matches) > 1:
        raise ValueError(
            f"state_dict has {len(matches)} states of the kind {state_format.kind!r}: load the one "
            "that continues, such as state_dict['_schedulers'][0]"
        )
    if not matches:
        return None
    return matches[0]


def read_scheduler_state(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the state of the `lambda_lr` in a state.

    If there is none, return the steps of torch's scheduler, and its `base_lrs` as `peaks`.
    """
    saved = find_state(SCHEDULER_FORMAT, state)
    if saved is not None:
        return saved
    updates: Any = state.get("last_epoch")  # a ChainedScheduler has none
    first = state
    while first.get("_schedulers"):
        first = first["_schedulers"][0]
        if updates is None:
            updates = first.get("last_epoch")
    if "kind" in first:
        SCHEDULER_FORMAT.read("state_dict", first)  # raises an error that says what it is
    if "max_lrs" in first or "_schedule_phases" in first:
        raise ValueError(
            "state_dict was saved by a CyclicLR or OneCycleLR, whose base_lrs are not the peaks. "
            "Do not load it: build lambda_lr(optimizer, curve, "
            f"last_epoch={first['last_epoch'] - 1}), and then call scheduler.set_peak(peak)"
        )
    if updates is None:
        raise KeyError("last_epoch")
    return {
        "last_epoch": updates,
        "offset": 0,
        "hold": [],
        "peaks": first["base_lrs"],
        "peak_was_set": False,
        "in_charge": updates >= 0,
    }
