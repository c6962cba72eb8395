"""The clock of a training step on its device: exact counts, tables of learning rates, no reads."""

from random import Random
from unittest.mock import patch

import pytest
import torch
from hypothesis import example, given, strategies as st
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
from torch_bridge.training.device_clocks import learning_rates
from torch_bridge.training.device_clocks.device_clock import Counters, DeviceClock
from torch_bridge.training.train_step.loss_normalizer import join_count, split_count

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


@pytest.mark.parametrize("room", [0, 2**11, 2**14])
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
def test_clock_follows_its_curves(room, groups, skips, unit, begin, random):
    """Groups may share a curve, in any order; if there is less room, tables are left out."""
    pairs = []
    for description, peaks_of_curve in groups:
        curve = build(description)
        pairs.extend((curve, peak) for peak in peaks_of_curve)
    random.shuffle(pairs)
    curves = [curve for curve, _ in pairs]
    with patch.object(learning_rates, "MAX_TABLE_VALUES", room):
        run = CheckedDeviceClock(curves, [peak for _, peak in pairs], unit)
    for skip in skips:
        run.update(skip, random.randrange(2 ** random.randrange(42)))

    size_of_unit = unit or 1
    most_units = MAX_CONSUMED // size_of_unit - 18  # the updates below consume 18 units
    last_step = max(curve.total_steps for curve in curves) - 1
    for start in (min(begin, most_units), min(last_step, 2**20)):  # and past the table
        run.go_to(start)
        for skip in [*skips[:3], False, False, False]:
            run.update(skip, 3 * size_of_unit)
    run.clock.set_peaks([0.25, *run.clock.peaks[1:]])
    run.update(False, 0)


@example([2**61, 2**61])
@example([2**62 - 1] * 9)
@given(st.lists(st.integers(0, MAX_CONSUMED - 1), min_size=1, max_size=9))
def test_words_of_rank_counts_add_up_in_float64(counts):
    words = [split_count(torch.tensor(count)) for count in counts]
    sums = torch.stack(words).sum(0)
    assert int(join_count(sums)) == min(sum(counts), MAX_CONSUMED - 1)


def tensors_of(clock):
    """Return the tensors of a clock, each once."""
    values = [*vars(clock).values(), *vars(clock._learning_rates).values()]
    tensors = {id(value): value for value in values if isinstance(value, Tensor)}
    return list(tensors.values())


def curves_after(warmups, total_steps):
    return [PlateauCurve(total_steps, warmup_steps=warmup_steps) for warmup_steps in warmups]


@pytest.mark.parametrize(
    ("curves", "at_least"),
    [
        # A table of learning rates for all groups.
        (curves_after([10] * 30, 130), 3900),
        # Too many: no table.
        (curves_after([10] * 30, 140), 0),
        (curves_after([10], 5000), 0),
    ],
)
def test_memory_stays_below_the_limit(curves, at_least, monkeypatch):
    monkeypatch.setattr(learning_rates, "MAX_TABLE_VALUES", 2**12)
    peaks_of_groups = [(index + 1) / 64 for index in range(len(curves))]
    run = CheckedDeviceClock(curves, peaks_of_groups, unit=1)
    num_values = sum(value.numel() for value in tensors_of(run.clock))
    assert at_least < num_values < 2**12 + 200
    run.update(False, 400)
    run.update(False, 1)


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


@pytest.mark.parametrize("room", [0, 2**14])
def test_clock_reads_nothing_and_keeps_its_tensors(room, monkeypatch):
    """A captured graph refers to the memory of the tensors."""
    monkeypatch.setattr(learning_rates, "MAX_TABLE_VALUES", room)
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
