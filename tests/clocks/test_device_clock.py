"""The clock of a training step on its device: exact counts, tables of learning rates, no reads."""

import re
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given, strategies as st
from support.clocks.rules import SAMPLES
from support.curves.descriptions import build, descriptions
from support.curves.strategies import randoms
from support.examples import examples
from support.schedulers.runs import learning_rate, peaks
from support.training.models import batches
from support.training.reads import reads_of
from support.training.steps import make_step
from torch import Tensor

from plateau_jax import DataClock, PlateauCurve, StagedCurve
from plateau_jax.clocks.clock import MAX_CONSUMED, CheckedClock
from plateau_jax.clocks.position import Position
from torch_bridge.training.device_clocks import device_clock
from torch_bridge.training.device_clocks.device_clock import Counters, DeviceClock

CPU = torch.device("cpu")
LOSS = torch.tensor(0.5)


class CheckedDeviceClock:
    """A clock, and what it must count.

    Args:
        curves: The curve of each group.
        peaks: The peak of each group.
        unit: The unit of a clock that counts data; None counts updates.
    """

    def __init__(self, curves, peaks, unit):
        self.clock = DeviceClock(curves, peaks, CPU, CheckedClock(unit))
        self.unit = unit
        self.applied = 0
        self.skipped = 0
        self.consumed = 0

    def step(self):
        if self.unit is None:
            return self.applied
        return self.consumed // self.unit

    def learning_rates(self):
        lrs = []
        for peak, curve in zip(self.clock.peaks, self.clock.curves, strict=True):
            lrs.append(learning_rate(peak, curve, self.step()))
        return lrs

    def update(self, skip, count):
        clock = self.clock
        step = self.step()
        clock.fill_lrs()
        if self.unit is not None:
            clock.set_count(count, rank=0, size=1)
        assert clock.lrs.tolist() == self.learning_rates()
        assert list(clock.lrs_at(step)) == self.learning_rates()

        counters = clock.count_update(torch.tensor(skip), LOSS)
        if skip:
            self.skipped += 1
        else:
            self.applied += 1
            if self.unit is None:
                self.consumed += 1
            else:
                self.consumed += count
        assert counters.tolist() == [self.applied, self.skipped, step, self.consumed]
        expected = Counters(self.applied, self.skipped, self.step(), self.consumed)
        assert clock.read_counters() == expected

    def go_to(self, units):
        """Set the counters: each update has consumed one unit."""
        self.applied = units
        self.skipped = 7
        self.consumed = units * (self.unit or 1)
        position = Position(self.applied, units)
        self.clock.write_state(position, self.clock.peaks, self.skipped)


groups_of_curves = st.lists(
    st.tuples(descriptions(range(5), scaled=True), st.lists(peaks, min_size=1, max_size=2)),
    min_size=1,
    max_size=3,
)
"""Descriptions of curves, each with the peaks of its groups."""


def skip_patterns(size):
    """Draw runs of skipped and of applied updates, from none skipped to all."""

    def pattern(runs):
        skips = []
        for is_skipped, length in runs:
            skips += [is_skipped] * length
        return skips[:size]

    return st.lists(st.tuples(st.booleans(), st.integers(1, 12)), min_size=1).map(pattern)


@examples(30)
@example([({"kind": "plateau", "total_steps": 9}, [0.5])], [False], 4, 0, Random(0))
@example([({"kind": "plateau", "total_steps": 9}, [0.5])], [False], 2**40, 2**31 - 200, Random(0))
@given(
    groups_of_curves,
    skip_patterns(18),
    st.none() | st.integers(1, 2**40),
    st.integers(0, 100) | st.integers(0, 2**31 - 200),
    randoms,
)
def test_clock_follows_its_curves(groups, skips, unit, begin, random):
    """Groups may share a curve, in any order."""
    pairs = []
    for description, peaks_of_curve in groups:
        curve = build(description)
        pairs.extend((curve, peak) for peak in peaks_of_curve)
    random.shuffle(pairs)
    curves = [curve for curve, _ in pairs]
    longest = max(curve.total_steps for curve in curves)
    assume((longest + 1) * len(curves) <= device_clock.MAX_TABLE_VALUES)
    run = CheckedDeviceClock(curves, [peak for _, peak in pairs], unit)
    for skip in skips:
        run.update(skip, random.randrange(2 ** random.randrange(42)))

    size_of_unit = unit or 1
    most_units = MAX_CONSUMED // size_of_unit - 18  # the updates below consume 18 units
    for start in (min(begin, most_units), longest - 1):  # and past the table
        run.go_to(start)
        for skip in [*skips[:3], False, False, False]:
            run.update(skip, 3 * size_of_unit)
    run.clock.set_peaks([0.25, *run.clock.peaks[1:]])
    run.update(False, 0)


@pytest.mark.parametrize("form", [int, torch.tensor])
@pytest.mark.parametrize("size", [1, 3])
def test_largest_count_of_an_update(form, size):
    """More is an error, or, on the device, which nothing reads, counts as the largest.

    A negative count, which an error rejects too, is 0 there.
    """
    clock = DeviceClock([PlateauCurve(9)], [0.5], CPU, CheckedClock(1))
    most = 2**53 // size
    clock.set_count(form(most), rank=0, size=size)
    assert clock.count == most
    if form is int:
        with pytest.raises(ValueError, match=f"count = {most + 1}"):
            clock.set_count(most + 1, rank=0, size=size)
    else:
        clock.set_count(form(-7), rank=0, size=size)
        assert clock.count == 0
        for too_large in (most + 1, 2**63 - 1):
            clock.set_count(form(too_large), rank=0, size=size)
            assert clock.count == most


def test_sum_of_counts_is_exact_up_to_2_to_the_62():
    run = CheckedDeviceClock([PlateauCurve(9)], [0.5], 1)
    run.go_to(MAX_CONSUMED - 20)
    run.update(False, 19)
    run.clock.set_count(2**53, rank=0, size=1)
    assert run.clock.count_update(torch.tensor(False), LOSS)[3] == MAX_CONSUMED


def tensors_of(clock):
    """Return the tensors of a clock, each once."""
    values = vars(clock).values()
    tensors = {id(value): value for value in values if isinstance(value, Tensor)}
    return list(tensors.values())


@pytest.mark.parametrize("unit", [None, 1, 7])
@pytest.mark.parametrize("groups", [1, 30])
def test_curve_too_long_for_the_device(unit, groups, monkeypatch):
    """The error names a unit of which a curve over as many samples is accepted, and no less is."""
    monkeypatch.setattr(device_clock, "MAX_TABLE_VALUES", 2**12)
    peaks_of_groups = [0.5] * groups

    def clock_of(total_steps, unit):
        curves = [PlateauCurve(total_steps)] * groups
        return DeviceClock(curves, peaks_of_groups, CPU, CheckedClock(unit))

    most = 2**12 // groups - 1
    num_values = sum(value.numel() for value in tensors_of(clock_of(most, unit)))
    assert num_values < 2**12 + 200
    with pytest.raises(ValueError, match=r"lambda_lr$") as caught:
        clock_of(most + 1, unit)
    named = re.search(r"a unit of at least (\d+)", str(caught.value))
    if unit is None:
        assert named is None
        return
    assert named is not None
    least = int(named[1])
    samples = (most + 1) * unit
    clock_of(-(-samples // least), least)
    assert -(-samples // (least - 1)) > most


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
def test_compiled_rules_decide_as_uncompiled_ones():
    """Counters and states have the same bits, also after skipped updates and a resumed state."""
    curve = StagedCurve([(3, 1.0), (4,), (2, 0.5), (5,), (200, 0.0)])
    checked = CheckedClock(rules=SAMPLES)
    eager = DeviceClock([curve], [0.5], CPU, checked)
    compiled = DeviceClock([curve], [0.5], CPU, checked, is_compiled=True)
    random = Random(0)
    for update in range(150):
        skip = torch.tensor(random.random() < 0.1)
        loss = torch.tensor(random.random() * 0.97**update)
        counters = eager.count_update(skip, loss)
        assert torch.equal(compiled.count_update(skip, loss), counters)
        last = eager.read_counters()
        assert compiled.position_of(last) == eager.position_of(last)
        if update == 75:
            compiled.write_state(eager.position_of(last), eager.peaks, last.skipped)
    assert 0 < last.applied - last.curve_step < last.applied  # the rules have held the curve


class Previous(NamedTuple):
    now: Any
    before: Any


class RuleWithPrevious:
    """Its next state contains a scalar of the one before."""

    def _initial_state(self):
        return Previous(np.float32(0), np.float32(0))

    def _update(self, xp, state, starts_plateau, metric, is_finite):
        return Previous(metric, state.now), metric < 0

    def _after_step(self, xp, state, stays_held):
        return state


@pytest.mark.parametrize("is_compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_rule_may_move_a_scalar_of_its_state(is_compiled):
    checked = CheckedClock(rules=(RuleWithPrevious(),))
    clock = DeviceClock([PlateauCurve(10)], [0.5], CPU, checked, is_compiled=is_compiled)
    for loss in (3.0, 2.0, 1.0):
        clock.count_update(torch.tensor(False), torch.tensor(loss))
    position = clock.position_of(clock.read_counters())
    assert position.rule_states == (Previous(1.0, 2.0),)


def test_clock_reads_nothing_and_keeps_its_tensors():
    """A captured graph refers to the memory of the tensors."""
    step = make_step(clock=DataClock(3))
    clock = step._clock
    (batch,) = batches(1)

    def addresses():
        return [value.data_ptr() for value in tensors_of(clock)]

    def update():
        step(batch, batch, count=(batch[1] > 0).sum())

    def updates():
        for _ in range(5):
            update()

    update()
    before = addresses()
    assert reads_of(updates) == []
    clock.write_state(Position(updates=3, step=3), clock.peaks, skipped=1)
    clock.set_peaks([0.5])
    assert addresses() == before
