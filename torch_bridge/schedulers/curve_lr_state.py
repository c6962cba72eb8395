"""What the state of a scheduler consists of, and how it is read."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypedDict

from torch_bridge.core import Curve, Rule, checks
from torch_bridge.schedulers.hold_state import HoldState, States, from_plain
from torch_bridge.schedulers.resume import (
    bases_in,
    check_no_path,
    check_past,
    curves_in,
    way_out,
)
from torch_bridge.schedulers.unit_clocks import Place, UnitClock, place_in


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
    """The updates so far, that is the calls of `step`."""
    clock: int
    """The step of the curve that gives the rates."""
    consumed: int
    """What all updates consumed, in samples or tokens; without a unit the number of updates."""
    unit: int | None
    """How many samples or tokens make one step of the curve."""
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
    """Whether the warning about too few or too many scheduler steps was given; it comes once."""
    _last_lr: list[float]
    """The rates once more, for a `LambdaLR` of torch's that loads this state."""
    lr_lambdas: list[None]
    """None for each group, for a `LambdaLR` of torch's, which keeps its own functions then."""


class Loaded(NamedTuple):
    """A state that was checked."""

    place: Place
    step_count: int
    peaks: list[float]
    states: States
    rates: list[float] | None
    """The rates to write into the groups; None where the scheduler's own curves give them."""
    warned: bool


def read(
    state_dict: Mapping[str, Any],
    curves: Sequence[Curve],
    rules: Sequence[Rule],
    units: UnitClock | None,
    strict: bool,
) -> Loaded:
    """The state of a scheduler, checked against the curve of each group, the rules and the unit of now.

    Raises:
        ValueError: As `CurveLR.load_state_dict`.
    """
    try:
        check_no_path(state_dict)
        if "_get_lr_called_within_step" in state_dict:
            # torch's own LambdaLR saved it. What it had loaded from here, it has kept as it was then.
            state_dict = {name: state_dict[name] for name in ("last_epoch", "_step_count", "base_lrs")}
        place = place_in(state_dict, units, not rules, strict, "lambda_lr")
        peaks = bases_in("base_lrs", state_dict["base_lrs"], len(curves))
        return Loaded(
            place,
            checks.integer("_step_count", state_dict.get("_step_count", place.last_epoch + 1)),
            peaks,
            from_plain(state_dict.get("hold"), rules, strict, "lambda_lr"),
            _rates_in(state_dict, place, peaks, curves, strict),
            bool(state_dict.get("warned")),
        )
    except KeyError as error:
        raise ValueError(f"state_dict is not the state of a LambdaLR: it has no {error}") from None
    except (OverflowError, TypeError) as error:
        raise ValueError(f"state_dict is not the state of a LambdaLR: {error}") from None


def _rates_in(
    state_dict: Mapping[str, Any], place: Place, peaks: Sequence[float], own: Sequence[Curve], strict: bool
) -> list[float] | None:
    """The saved rates, where they are to be kept; None where this scheduler's curve gives the rates.

    They are kept if the curve is the same, or if another scheduler had written them.
    """
    try:
        if (saved := state_dict.get("curves")) is None:
            raise ValueError(f"state_dict has no curve; to load it anyway, {way_out('lambda_lr')}")
        curves = curves_in(saved, own)
        saved = state_dict["rates"]
        rates = [float(checks.number(f"rates[{i}]", rate)) for i, rate in enumerate(saved)]
        if len(rates) != len(own) or min(rates, default=0.0) < 0:
            found = checks.shown(rates)
            raise ValueError(f"state_dict has the rates {found} for {len(own)} parameter groups")
    except (KeyError, OverflowError, TypeError, ValueError):
        if strict:
            raise
        return None
    if strict:
        check_past(curves, own, place.clock, "lambda_lr")
    if place.last_epoch < 0:  # this scheduler waits for its turn in a SequentialLR
        return rates
    # Compared by their arguments, since a curve of a subclass never equals one of the class itself.
    if [curve.to_dict() for curve in curves] == [curve.to_dict() for curve in own]:
        return rates
    by_curve = [peak * curve(place.clock) for peak, curve in zip(peaks, curves, strict=True)]
    # To the precision of bfloat16, the narrowest type of a rate.
    by_another = not all(math.isclose(*pair, rel_tol=2**-8) for pair in zip(rates, by_curve, strict=True))
    return rates if by_another else None
