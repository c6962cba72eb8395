"""Damaged states, and objects that are not states, are rejected and change nothing."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from support.damage import damage
from support.examples import examples
from support.holds.held import CURVE, PATIENT
from support.schedulers.driven import Driven

_CLOCKS: dict[str, dict[str, Any]] = {
    "plain": {},
    "held": {"hold": PATIENT},
    "counted": {"unit": 8, "asked": True},
    "follower": {},
}


def _run(kind: str) -> Driven:
    return Driven("follower" if kind == "follower" else "scheduler", CURVE, **_CLOCKS[kind])


NAN = float("nan")
RULE = PATIENT.to_dict()
_DAMAGE: dict[str, dict[str, list[Any]]] = {
    "plain": {
        "last_epoch": [2.5, None, -2, 7, ...],
        "_step_count": ["3"],
        "base_lrs": [None, [None] * 2, [0.1, -0.1], [0.1, NAN], [], [0.1], [0.1] * 3, ...],
        "rates": [None, 0.1, [], [0.1], [0.1] * 3, [0.1, None], [0.1, NAN], [0.1, -1.0], ...],
    },
    "held": {
        "clock": [-1, 6, 1.5, None, ...],
    },
    "counted": {
        "consumed": [-1, 2.0, None, True, 1, 2**62 + 8, ...],
        "unit": [0, 8.0, "8", 5],
        "clock": [3, 2.0, ...],
    },
    "follower": {
        "last_epoch": [-1, 1.5, None, ...],
        "key": ["momentum", ["weight_decay", 0], None, ...],
        "base_values": [None, [0.5], [0.5, None], [0.5, -0.5], ...],
        "new_values": [None, [0.5] * 3, [-0.5], [NAN], ["0.5"]],
    },
}
_CASES = [
    (kind, name, value)
    for kind, names in _DAMAGE.items()
    for name, values in names.items()
    for value in values
]
# With strict=False these entries are not read.
_CURVES: list[Any] = [5, [5] * 2, [{}] * 2, [], [CURVE.to_dict()]]
_UNREAD = [(kind, "curves", curves) for kind in _DAMAGE for curves in _CURVES]
_HOLDS: list[Any] = [None, 5, [], [{}], [{"rule": RULE}], [{"rule": RULE, "state": {}}]]
_CASES += [("held", "hold", hold) for hold in _HOLDS]
_HOLD_ENTRIES = {"updates": 1.0, "filled": -1, "stale": 2**31, "best": "0.1", "total": 1, "more": 1}
_CASES += [("held", name, value) for name, value in _HOLD_ENTRIES.items()]


def _damaged(run: Driven, name: str, value: Any) -> Any:
    state = copy.deepcopy(run.part.state_dict())
    if name in _HOLD_ENTRIES:
        state["hold"][0]["state"][name] = value
    elif value is ...:
        del state[name]
    else:
        state[name] = value
    return state


@pytest.mark.parametrize(("kind", "name", "value"), [*_CASES, *_UNREAD], ids=str)
def test_damaged_state_is_rejected(kind: str, name: str, value: Any) -> None:
    run = _run(kind)
    run.advance(5)
    state = _damaged(run, name, value)
    run.advance(1)
    before = run.shown()
    for strict in (True, False):
        if not strict and (kind, name, value) in _UNREAD:
            run.part.load_state_dict(state, strict=False)
            assert run.part.last_epoch == 5
        else:
            with pytest.raises(ValueError):  # noqa: PT011 - the messages differ
                run.part.load_state_dict(state, strict=strict)
            assert run.shown() == before


@pytest.mark.parametrize("kind", _DAMAGE)
@pytest.mark.parametrize("strict", [True, False])
@examples(100)
@given(data=st.data())
def test_any_damage_is_rejected_or_harmless(kind: str, strict: bool, data: st.DataObject) -> None:
    run = _run(kind)
    run.advance(5)
    holder = damage(data, [copy.deepcopy(run.part.state_dict())])
    run.advance(1)
    before = run.shown()
    try:
        run.part.load_state_dict(holder[0], strict=strict)
    except ValueError:
        assert run.shown() == before
    else:
        run.advance(1)
        assert np.isfinite([group["lr"] for group in run.optimizer.param_groups]).all()


@pytest.mark.parametrize("kind", _DAMAGE)
@pytest.mark.parametrize("strict", [True, False])
def test_path_or_foreign_state_is_rejected(kind: str, strict: bool) -> None:
    run, other = _run(kind), _run("plain" if kind == "follower" else "follower")
    before = run.shown()
    for path in ("a/state.pt", b"state.pt", Path("state.pt")):
        with pytest.raises(ValueError, match=r"is a path, .*load the file first, load_state_dict\(torch"):
            run.part.load_state_dict(path, strict=strict)
    for state in (None, {}, [], {"last_epoch": 3}, 5, other.part.state_dict()):
        with pytest.raises(ValueError, match=r"state_dict (is not the state of|was saved)"):
            run.part.load_state_dict(state, strict=strict)
    assert run.shown() == before
