"""Through any pattern of skips, the learning rate on the device is peak · curve(applied)."""

from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.curves.descriptions import build, descriptions
from support.examples import examples
from support.numerics.oracle import Description
from support.training.reads import reads_of
from support.training.steps import skip_patterns

from plateau_jax import Curve, PlateauCurve
from torch_bridge.training.clock import clock as clock_module
from torch_bridge.training.clock.clock import Clock, Counters

# Runs may continue past the end of a curve; the warning has separate tests.
pytestmark = pytest.mark.filterwarnings("ignore:the curve has total_steps:plateau_jax.CurveWarning")

_CPU = torch.device("cpu")
_LOSS = torch.tensor(0.5)
_peaks = st.one_of(st.sampled_from((0.0, 2.0**-126, 3e-4, 1.0, 3.4e38)), st.floats(1e-6, 10))


def _expected(curves: list[Curve], peaks: list[float], applied: int) -> list[float]:
    return [
        float(np.float32(float(curve(applied)) * float(np.float32(peak))))
        for curve, peak in zip(curves, peaks, strict=True)
    ]


def _run(clock: Clock, skips: list[bool], applied: int) -> int:
    for skip in skips:
        clock.prepare()
        clock.fill_lrs()
        assert clock.lrs.tolist() == _expected(clock.curves, clock.peaks, applied)
        clock.count_update(torch.tensor(skip), _LOSS)
        applied += not skip
    return applied


@examples(60)
@given(
    st.lists(st.tuples(descriptions(range(5)), _peaks), min_size=1, max_size=3),
    skip_patterns(120),
    st.integers(1, 9),
    st.integers(0, 2**31 - 200),
)
def test_lr_is_the_curve_at_applied(
    groups: list[tuple[Description, float]], skips: list[bool], interval: int, begin: int
) -> None:
    curves = [build(description) for description, _ in groups]
    with patch.object(clock_module, "INTERVAL", interval):
        clock = Clock(curves, [peak for _, peak in groups], _CPU)
        applied = _run(clock, skips, 0)
        assert clock.read_counters() == (applied, len(skips) - applied, applied, applied)
        clock.write_state(Counters(begin, 7, begin, begin), clock.peaks)
        applied = _run(clock, skips, begin)
    assert clock.read_counters() == (applied, 7 + begin + len(skips) - applied, applied, applied)


def test_lr_is_exact_over_many_real_windows() -> None:
    curve = PlateauCurve(6000, warmup_steps=300, plateaus=[(10, 20)])
    clock = Clock([curve], [0.1], _CPU)
    skips = (np.random.default_rng(0).random(7 * clock_module.INTERVAL) < 0.4).tolist()
    assert _run(clock, skips, 0) > 4 * clock_module.INTERVAL


def _run_quietly(clock: Clock, updates: int = 9) -> None:
    skip = torch.tensor(False)
    for _ in range(updates):
        clock.prepare()
        clock.fill_lrs()
        clock.count_update(skip, _LOSS)


def _host_buffers(clock: Clock) -> list[torch.Tensor]:
    return [clock._host_window, clock._host_counters]


def test_clock_reads_nothing_and_keeps_its_tensors() -> None:
    with patch.object(clock_module, "INTERVAL", 2):
        clock = Clock([PlateauCurve(9)], [1.0], _CPU)
        places = [value.data_ptr() for value in vars(clock).values() if isinstance(value, torch.Tensor)]
        assert reads_of(lambda: _run_quietly(clock), _host_buffers(clock)) == 0
        clock.write_state(Counters(3, 1, 3, 3), clock.peaks)
    assert places == [value.data_ptr() for value in vars(clock).values() if isinstance(value, torch.Tensor)]


@given(skip_patterns(80), st.integers(1, 9), st.integers(0, 1000))
def test_window_begins_at_count_copied_one_move_before(skips: list[bool], interval: int, begin: int) -> None:
    with patch.object(clock_module, "INTERVAL", interval):
        clock = Clock([PlateauCurve(50)], [1.0], _CPU)
        clock.write_state(Counters(begin, 0, begin, begin), clock.peaks)
        asked, applied = begin, begin
        for number, skip in enumerate(skips):
            if number and number % interval == 0:
                expected, asked = asked, applied
            else:
                expected = int(clock.now - clock._position)
            clock.prepare()
            assert clock.now - clock._position == expected
            assert 0 <= applied - expected <= 2 * interval
            clock.fill_lrs()
            clock.count_update(torch.tensor(skip), _LOSS)
            applied += not skip


@pytest.mark.parametrize("at", ["_window_array", "_window", "_position", "_host_counters"])
def test_interrupted_window_move_is_repeated(at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    curve = PlateauCurve(60, warmup_steps=5)
    with patch.object(clock_module, "INTERVAL", 4):
        clock = Clock([curve], [0.1], _CPU)
        applied = _run(clock, [False] * 12, 0)
        for _ in range(3):  # the first of these moves the window, and is interrupted
            with monkeypatch.context() as patched:
                patched.delattr(clock, at)
                with pytest.raises(AttributeError):
                    clock.prepare()
        assert _run(clock, [False] * 30, applied) == 42
