"""The page moves any handle of any curve, and the server's handle of the moved curve is there."""

import json
from dataclasses import asdict

import pytest
from design.design import PEAK
from hypothesis import example, given, strategies as st
from support.curve_warnings import ignore_curve_warnings
from support.curves.descriptions import build, descriptions

from plateau_jax import Curve, PlateauCurve
from plateau_jax.tools.design.handles import curve_and_peak_handles

pytestmark = pytest.mark.slow

MOVE = """async ([entry, moves]) => {
    const { movedEntry } = await import("./edits.js");
    return moves.map(([handle, distance]) => movedEntry(entry, handle, distance).curve);
}"""


def handles_of(curve):
    """Return the handles of a curve, without that of the peak."""
    return curve_and_peak_handles(curve, PEAK)[1:]


def move_on_page(design, curve, moves):
    """Return the JSON of the curve after each move, a handle and its new value."""
    entry = {"curve": curve.to_dict(), "peak": PEAK}
    sent = [(asdict(handle), value - handle.value) for handle, value in moves]
    return design.page.evaluate(MOVE, json.loads(json.dumps([entry, sent])))


def name_and_curve(handle):
    """Return a handle's name and the path of its curve, which stay when a plateau moves."""
    path = []
    for key in handle.path:
        if key in ("plateaus", "absolute_plateaus"):
            break
        path.append(key)
    return handle.name, tuple(path)


def curve_after_move(handle, arguments):
    """Return the moved curve; None if it isn't valid, or if its constructor sorted the plateaus."""
    try:
        with ignore_curve_warnings():  # about drawn plateaus
            moved = Curve.from_dict(arguments)
    except ValueError as error:
        # Of a different argument, such as a plateau in steps that the warmup reaches, or the
        # `to` of a later cooldown, if the curve is below it without the plateau.
        name = handle.name.lower()
        arguments_of = {"plateau": "plateau", "stage": ".steps", "warmup": "warmup_steps = "}
        if any(part in name and words in str(error) for part, words in arguments_of.items()):
            raise
        return None
    if moved.to_dict() != arguments:
        return None
    return moved


def aimed_value(handle, aim, total_steps):
    unit = 0.01
    if handle.axis == "step":
        unit = max(1, total_steps // 1000)
    aims = {
        "lowest": handle.low,
        "higher": min(handle.value + unit, handle.high),
        "lower": max(handle.value - unit, handle.low),
        "highest": handle.high,
    }
    return aims[aim]


@given(
    description=descriptions(counts=range(4), depth=2, scaled=True),
    aim=st.sampled_from(["lowest", "higher", "lower", "highest"]),
)
# All decay comes before the plateau, or after it.
@example(description={"kind": "plateau", "total_steps": 100, "plateaus": [(30, 70)]}, aim="lowest")
@example(description={"kind": "plateau", "total_steps": 100, "plateaus": [(0, 70)]}, aim="highest")
# An empty stage has no steps to give.
@example(description={"kind": "staged", "stages": [(10, 1.0), (0, 0.5), (20, 0.2)]}, aim="higher")
def test_handle_moves_to_the_dragged_value(page_of_many_tests, description, aim):
    curve = build(description)
    moves = []
    for handle in handles_of(curve):
        assert handle.low <= handle.value <= handle.high, handle
        assert 0 <= handle.step <= curve.total_steps, handle
        value = aimed_value(handle, aim, curve.total_steps)
        if value != handle.value:
            moves.append((handle, value))
    moved_arguments = move_on_page(page_of_many_tests, curve, moves)
    for (handle, value), arguments in zip(moves, moved_arguments, strict=True):
        moved_curve = curve_after_move(handle, arguments)
        if moved_curve is None:
            continue
        for moved in handles_of(moved_curve):
            if name_and_curve(moved) == name_and_curve(handle):
                check_moved(handle, moved, value)


def check_moved(handle, moved, value):
    """Check that a handle that was moved to a value is there."""
    assert moved.value == pytest.approx(value, rel=1e-9, abs=1e-9)
    if handle.axis == "step":
        distance = moved.value - handle.value
        steps_between = moved.step - handle.step
        assert steps_between == pytest.approx(distance, rel=1e-9, abs=1.001), handle
    else:
        rise = moved.value - handle.value
        assert moved.level - handle.level == pytest.approx(rise, abs=1e-6), handle


@pytest.mark.parametrize("plateaus", [[(10, 20), (50, 7)], [(12, 80)]])
def test_curves_beyond_plateau_limits_are_invalid(undone, plateaus):
    curve = PlateauCurve(100, warmup_steps=10, absolute_plateaus=plateaus)
    moves = []
    for handle in handles_of(curve):
        if handle.name.startswith("Plateau"):
            moves += [(handle, handle.low - 1), (handle, handle.high + 1)]
    assert len(moves) == 6 * len(plateaus)
    for arguments in move_on_page(undone, curve, moves):
        with pytest.raises(ValueError, match="plateau"):
            Curve.from_dict(arguments)


def test_cooldown_may_start_until_it_ends_at_the_last_step(undone):
    curve = PlateauCurve(60, plateaus=[(0, 70)], min_lr_ratio=0.1).cooldown(30, 12)
    (start,) = [handle for handle in handles_of(curve) if handle.name == "Cooldown, start"]
    (arguments,) = move_on_page(undone, curve, [(start, start.high)])
    assert Curve.from_dict(arguments).total_steps == 2**31 - 1


def test_continued_curve_has_the_handles_of_the_first():
    first = PlateauCurve(100, warmup_steps=10)
    handles = handles_of(first.then(PlateauCurve(60, plateaus=[(10, 20)])))
    assert [handle.name for handle in handles] == [handle.name for handle in handles_of(first)]
    for handle in handles:
        assert handle.path[:2] == ("curve", "curve")


def test_last_of_several_cooldowns_has_handles():
    cooled = PlateauCurve(100).cooldown(50, 10).cooldown(55, 4)
    (start,) = [handle for handle in handles_of(cooled) if handle.name == "Cooldown, start"]
    assert start.step == 55
