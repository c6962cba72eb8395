"""What the state of a scheduler consists of."""

from collections.abc import Mapping
from typing import Any, TypedDict

from torch_bridge.schedulers.hold_state import HoldState


class CurveLRState(TypedDict):
    """What `CurveLR.state_dict` returns: plain numbers, lists and dictionaries.

    >>> import torch
    >>> from plateau_jax import PlateauCurve
    >>> from torch_bridge import CurveLR, CurveLRState
    >>> optimizer = torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=0.5)
    >>> state: CurveLRState = CurveLR(optimizer, PlateauCurve(100)).state_dict()
    >>> state["clock"], state["base_lrs"], state["rates"]
    (0, [0.5], [0.5])
    """

    last_epoch: int
    """The updates so far."""
    clock: int
    """The step of the curve that gives the rates."""
    _step_count: int
    base_lrs: list[float]
    """Each group's peak, in float32."""
    rates: list[float]
    """The rates in the groups, which another scheduler may have written."""
    curves: list[Mapping[str, Any]]
    """Each group's curve, as its `to_dict` gives it."""
    hold: list[HoldState] | None
    """The rules that hold the clock, and what they remember."""
    warned: bool
    """Whether the user was warned that the scheduler is not stepped once an update."""
    _last_lr: list[float]
    """The rates once more, for a `LambdaLR` of torch's that loads this state."""
    lr_lambdas: list[None]
    """None for each group, for a `LambdaLR` of torch's, which keeps its own functions then."""
