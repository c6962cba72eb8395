"""The states of schedulers: those of this library, and what can be used of those of torch."""

from collections.abc import Iterator, Mapping
from typing import Any, TypedDict

from plateau_jax.saved_states.formats import Format, check_is_not_around


class SchedulerState(TypedDict):
    """See `lambda_lr.state_dict`."""

    kind: str
    format: int
    last_epoch: int
    _step_count: int
    base_lrs: list[float]
    _last_lr: list[float]
    offset: int | None
    consumed: int | None
    hold: list[dict[str, int | float]]
    records: list[dict[str, Any]]
    peak_was_set: bool
    in_charge: list[bool]


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
    matches = [inner for inner in _states_in(state) if state_format.is_of(inner)]
    if len(matches) > 1:
        raise ValueError(
            f"state_dict has {len(matches)} states of the kind {state_format.kind!r}: load the one "
            "that continues, such as state_dict['_schedulers'][0]"
        )
    return state_format.read("state_dict", matches[0]) if matches else None


def _states_in(state: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield a state, and those in it: torch's SequentialLR and ChainedScheduler have such."""
    yield state
    for inner in state.get("_schedulers", []):
        yield from _states_in(inner)


def read_scheduler_state(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the state of the `lambda_lr` in a state.

    If there is none, return the steps and the peaks of torch's scheduler.
    """
    saved = find_state(SCHEDULER_FORMAT, state)
    if saved is not None:
        return saved
    states = list(_states_in(state))
    first = next(inner for inner in states if not inner.get("_schedulers"))
    # The state of a ChainedScheduler has no last_epoch.
    updates: Any = next((inner["last_epoch"] for inner in states if "last_epoch" in inner), None)
    if "kind" in first:
        SCHEDULER_FORMAT.read("state_dict", first)  # raises an error that says what it is
    if updates is None:
        check_is_not_around("state_dict", state, _is_of_scheduler)
        raise KeyError("last_epoch")
    # Those of a CyclicLR or OneCycleLR are not the peaks, and a ReduceLROnPlateau has none.
    if "base_lrs" not in first or "max_lrs" in first or "_schedule_phases" in first:
        raise ValueError(
            "state_dict has no peaks, as if a CyclicLR, OneCycleLR or ReduceLROnPlateau had saved "
            "it. Do not load it: build lambda_lr(optimizer, curve, last_epoch=n - 1), where n is "
            "the number of updates so far, and then call scheduler.set_peak(peak)"
        )
    peaks = first["base_lrs"]
    return {
        "last_epoch": updates,
        "_step_count": max(updates, 0) + 1,
        "base_lrs": peaks,
        "offset": 0,
        "hold": [],
        "peak_was_set": False,
        "in_charge": [updates >= 0] * len(peaks),
    }


def _is_of_scheduler(value: Any) -> bool:
    return isinstance(value, Mapping) and ("last_epoch" in value or "_schedulers" in value)
