"""Through any pattern of skips, the learning rate on the device is peak · curve(applied)."""

import warnings
from random import Random
from unittest.mock import patch

import pytest
import torch
from hypothesis import example, given, strategies as st
from support.curves.descriptions import build, descriptions
from support.examples import examples
from support.numerics.oracle import Description
from support.schedulers.runs import learning_rate
from support.training.reads import reads_of
from support.training.steps import skip_patterns

from plateau_jax import Curve, CurveWarning, PlateauCurve
from torch_bridge.training.clock import clock as clock_module
from torch_bridge.training.clock.clock import Clock, Counters

# Runs may continue past the end of a curve; the warning has separate tests.
pytestmark = pytest.mark.filterwarnings("ignore:the curve has total_steps:plateau_jax.CurveWarning")

_CPU = torch.device("cpu")
_LOSS = torch.tensor(0.5)
_peaks = st.one_of(st.sampled_from((0.0, 2.0**-126, 3e-4, 1.0, 3.4e38)), st.floats(1e-6, 10))


def _expected(curves: list[Curve], peaks: list[float], applied: int) -> list[float]:
    return [learning_rate(peak, curve, applied) for curve, peak in zip(curves, peaks, strict=True)]


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
    st.lists(
        st.tuples(descriptions(range(5)), st.lists(_peaks, min_size=1, max_size=2)), min_size=1, max_size=3
    ),
    skip_patterns(60),
    st.integers(0, 100) | st.integers(0, 2**31 - 200),
    st.sampled_from((0, 2**11, 2**14)),
    st.randoms(use_true_random=False),
)
def test_lr_is_the_curve_at_applied(
    groups: list[tuple[Description, list[float]]], skips: list[bool], begin: int, most: int, order: Random
) -> None:
    """Groups may share a curve, in any order; with less room there are multipliers alone, or no table."""
    pairs = [(build(description), peak) for description, peaks in groups for peak in peaks]
    order.shuffle(pairs)
    curves, peaks = [curve for curve, _ in pairs], [peak for _, peak in pairs]
    with patch.object(clock_module, "MAX_TABLE_VALUES", most):
        clock = Clock(curves, peaks, _CPU)
    applied = _run(clock, skips, 0)
    assert clock.read_counters() == (applied, len(skips) - applied, applied, applied)
    clock.write_state(Counters(begin, 7, begin, begin), clock.peaks)
    applied = _run(clock, skips, begin)
    clock.set_peaks([0.25, *peaks[1:]])
    applied = _run(clock, [False], applied)
    assert clock.read_counters() == (applied, 8 + begin + len(skips) - applied, applied, applied)


def test_clock_reads_nothing_and_keeps_its_tensors() -> None:
    clock = Clock([PlateauCurve(9)], [1.0], _CPU)
    places = [value.data_ptr() for value in vars(clock).values() if isinstance(value, torch.Tensor)]

    def updates() -> None:
        for _ in range(40):  # past two copies of the counters
            clock.prepare()
            clock.fill_lrs()
            clock.count_update(torch.tensor(False), _LOSS)

    assert reads_of(updates, [clock._host_counters]) == 0
    clock.write_state(Counters(3, 1, 3, 3), clock.peaks)
    clock.set_peaks([0.5])
    assert places == [value.data_ptr() for value in vars(clock).values() if isinstance(value, torch.Tensor)]


@example(3000)
@examples(10)
@given(st.integers(1, 4000))
def test_end_is_noticed_in_time(total: int) -> None:
    """After at most twice as many updates, and at most 1024 more."""
    clock = Clock([PlateauCurve(total)], [1.0], _CPU)
    silent = total + max(10, total // 100)
    skip, latest = torch.tensor(False), max(16, silent + 1 + min(silent + 1, 1024))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for number in range(latest + 1):
            assert not caught or number > silent
            clock.prepare()
            clock.count_update(skip, _LOSS)
    assert [f"total_steps = {total}, but" in str(warning.message) for warning in caught] == [True]


def test_start_past_the_end_is_noticed() -> None:
    """Unlike a saved run, one that begins there has not warned."""

    def train(clock: Clock, updates: int) -> None:
        for _ in range(updates):
            clock.prepare()
            clock.count_update(torch.tensor(False), _LOSS)

    clock, resumed = (Clock([PlateauCurve(100)], [1.0], _CPU, initial_updates=n) for n in (500, 0))
    with pytest.warns(CurveWarning, match="training continues at step 516"):
        train(clock, 17)
    resumed.resume(clock.read_counters(), clock.peaks, ())
    train(resumed, 33)  # warnings are errors
