"""The saved state of a `CurveLR`: its entries, and the learning rates that another scheduler left in it."""

from collections.abc import Mapping
from typing import Any, NotRequired, TypedDict

from torch_bridge.curve_api import checks
from torch_bridge.schedulers.hold_state import HoldState
from torch_bridge.schedulers.unit_clocks import Position


class CurveLRState(TypedDict):
    """The state that `CurveLR.state_dict` returns: plain numbers, lists and dictionaries.

    >>> import torch
    >>> from plateau_jax import PlateauCurve
    >>> from torch_bridge import CurveLR, CurveLRState
    >>> optimizer = torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=0.5)
    >>> state: CurveLRState = CurveLR(optimizer, PlateauCurve(100)).state_dict()
    >>> state["clock"], state["base_lrs"], state["rates"]
    (0, [0.5], [0.5])
    """

    last_epoch: int
    """The number of updates so far, that is, of calls of `step`."""
    clock: int
    """The step of the curve that gives the learning rates."""
    consumed: int
    """The samples or tokens of all updates; without a unit, the number of updates."""
    unit: int | None
    """The number of samples or tokens in one step of the curve."""
    _step_count: int
    base_lrs: list[float]
    """Each group's peak, in float32."""
    rates: list[float]
    """The learning rates in the groups, which another scheduler may have written."""
    curves: list[Mapping[str, Any]]
    """Each group's curve, as its `to_dict` returns it."""
    hold: list[HoldState] | None
    """The rules that hold the clock, and their states."""
    warned: bool
    """True if the warning about too few or too many scheduler steps was given; it comes once."""
    _last_lr: list[float]
    """The learning rates that this scheduler wrote last."""
    lr_lambdas: NotRequired[list[None]]
    """None for each group, so that torch's own `LambdaLR`, if it loads this state, keeps its functions.

    Missing with a unit or rules: torch would resume at `last_epoch`, which is not the clock, so it raises an
    error.
    """


def is_of_lambda_lr(state_dict: Mapping[str, Any]) -> bool:
    """Return True if torch's own `LambdaLR` saved this state."""
    # LambdaLR saves its whole __dict__, and with it the entries of a CurveLR's state that it once loaded.
    # Those are out of date, so `curves` in a state does not show that a CurveLR saved it; this name does.
    return "_get_lr_called_within_step" in state_dict


def lrs_of_another_scheduler(
    state_dict: Mapping[str, Any], position: Position, group_count: int
) -> list[float] | None:
    """Return the saved learning rates if another scheduler or the user wrote them, None if this one did."""
    if "curves" not in state_dict:  # torch's own LambdaLR saved it
        return None
    lrs = [float(checks.number(f"rates[{i}]", lr)) for i, lr in enumerate(state_dict["rates"])]
    if len(lrs) != group_count or min(lrs, default=0.0) < 0:
        raise ValueError(
            f"state_dict has rates = {checks.short_repr(lrs)} for {group_count} parameter groups"
        )
    # In a SequentialLR, before its turn, a scheduler is not in charge even if its values happen to be equal.
    is_waiting = position.last_epoch < 0
    # Formats other than torch's may turn a list into a tuple.
    return None if not is_waiting and lrs == list(state_dict["_last_lr"]) else lrs
