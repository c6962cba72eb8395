"""The state of a scheduler, and the states of other schedulers that one can continue from."""

from collections.abc import Mapping
from typing import Any, NotRequired, TypedDict, cast

from torch_bridge.curve_api import Format, checks


class _SchedulerState(TypedDict):
    """See `lambda_lr.state_dict`."""

    kind: str
    format: int
    last_epoch: int
    curve_step: int
    consumed: int
    hold: list[dict[str, int | float]]
    records: list[dict[str, Any]]
    base_lrs: list[float]
    peak_was_set: bool
    _last_lr: list[float]
    in_charge: bool
    _step_count: int
    lr_lambdas: NotRequired[list[None]]
    """Only without a clock: see `lambda_lr.state_dict`."""
    base_lrs_are_new: NotRequired[bool]
    """Only if True: see `lambda_lr.state_dict`."""


SCHEDULER = Format(
    "scheduler",
    _SchedulerState,
    defaults={"base_lrs_are_new": False},
    advice={
        "train_step": (
            "it is the state of a TrainStep. Load its 'model' and 'optimizer', then build "
            "lambda_lr(optimizer, curve, last_epoch=state['curve_step'] - 1); with clock=, see "
            "docs/training_step.md, From a TrainStep to a scheduler"
        )
    },
)


def read_scheduler_state(state_dict: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the state of a `lambda_lr`, or that of a different scheduler in its form."""
    # Torch's LambdaLR saves its whole __dict__, including outdated entries of a `lambda_lr`'s state
    # that it once loaded, such as its kind.
    is_torchs = "_get_lr_called_within_step" in state_dict or "_schedulers" in state_dict
    if is_torchs or not ("kind" in state_dict or "records" in state_dict):
        return _read_foreign_state(state_dict)
    return cast("Any", SCHEDULER.read("state_dict", state_dict))


def _read_foreign_state(state_dict: Mapping[str, Any]) -> Mapping[str, Any]:
    first = state_dict
    updates = state_dict.get("last_epoch")
    while "_schedulers" in first:  # a SequentialLR, or a ChainedScheduler
        first = first["_schedulers"][0]
        if updates is None:  # a ChainedScheduler saves none
            updates = first.get("last_epoch")
    if "max_lrs" in first or "_schedule_phases" in first:
        raise ValueError(
            "state_dict was saved by a CyclicLR or OneCycleLR, whose base_lrs are not the peaks. "
            "Do not load it: build lambda_lr(optimizer, curve, "
            f"last_epoch={first['last_epoch'] - 1}), and then call scheduler.set_peak(peak)"
        )
    if updates is None:
        updates = first["last_epoch"]  # a KeyError that names what the state lacks
    return {
        **SCHEDULER.defaults,
        "last_epoch": updates,
        "curve_step": updates,
        "base_lrs": first["base_lrs"],
        "_last_lr": state_dict["_last_lr"],
        "peak_was_set": False,
        "in_charge": updates >= 0,  # this scheduler takes over from that one
        "_step_count": state_dict.get("_step_count", updates + 1),
    }


def read_bases(name: str, saved: Any, group_count: int) -> list[float]:
    """Check the bases in a state's entry `name`, one for each of the first parameter groups."""
    bases = [float(checks.peak(f"{name}[{index}]", base)) for index, base in enumerate(saved)]
    if not min(1, group_count) <= len(bases) <= group_count:
        raise ValueError(f"state_dict has {len(bases)} {name} for {group_count} parameter groups")
    return bases


def read_flag(state: Mapping[str, Any], name: str) -> bool:
    """Check an entry of a state that is True or False."""
    flag = state[name]
    if not isinstance(flag, bool):
        raise ValueError(f"state_dict has {name} = {checks.short_repr(flag)}, not True or False")
    return flag


def read_last_lrs(state: Mapping[str, Any], group_count: int) -> list[float]:
    """Check the learning rates that were written last, one for each group."""
    lrs: list[float] = []
    for index, lr in enumerate(state["_last_lr"]):
        lrs.append(float(checks.number(f"_last_lr[{index}]", lr)))
    if len(lrs) != group_count or min(lrs, default=0.0) < 0:
        raise ValueError(
            f"state_dict has _last_lr = {checks.short_repr(lrs)} for {group_count} parameter groups"
        )
    return lrs
