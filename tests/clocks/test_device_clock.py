"""The clock of a training step on its device: exact counts, tables of learning rates, and no reads."""

from random import Random
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import example, given, strategies as st
from support.curves.descriptions import build, descriptions
from support.examples import examples
from support.schedulers.runs import learning_rate, peaks
from support.training.models import batches
from support.training.reads import reads_of
from support.training.steps import make_step, skip_patterns
from torch import Tensor

from plateau_jax import Curve, CurveWarning, DataClock, HoldBelow, HoldUntilFlat, PlateauCurve, StagedCurve
from plateau_jax.clocks.clock import MAX_CONSUMED, CheckedClock
from torch_bridge.clocks import learning_rates
from torch_bridge.clocks.device_clock import Clock, Counters
from torch_bridge.training.loss_normalizer import join_words, split_count

CPU = torch.device("cpu")
LOSS, APPLIED = torch.tensor(0.5), torch.tensor(False)


class Run:
    """A clock, and what it must count."""

    def __init__(self, curves: list[Curve], peaks: list[float], unit: int | None) -> None:
        self.clock, self.unit = Clock(curves, peaks, CPU, CheckedClock(unit)), unit
        self.applied = self.skipped = self.consumed = 0

    def step(self) -> int:
        return self.applied if self.unit is None else self.consumed // self.unit

    def update(self, skip: bool, count: int) -> None:
        clock, step = self.clock, self.step()
        clock.prepare()
        clock.fill_lrs()
        if self.unit is not None:
            clock.set_count(count, rank=0, size=1)
        expected = [
            learning_rate(peak, curve, step) for peak, curve in zip(clock.peaks, clock.curves, strict=True)
        ]
        assert clock.lrs.tolist() == list(clock.lrs_at(step)) == expected
        counters = clock.count_update(torch.tensor(skip), LOSS)
        self.applied += not skip
        self.skipped += skip
        self.consumed = self.consumed + count * (not skip) if self.unit else self.applied
        assert counters.tolist() == [self.applied, self.skipped, step, self.consumed]
        assert clock.read_counters() == (self.applied, self.skipped, self.step(), self.consumed)


@pytest.mark.filterwarnings("ignore:the curve has total_steps:plateau_jax.CurveWarning")
@pytest.mark.parametrize("room", [0, 2**11, 2**14])
@examples(30)
@example([({"total_steps": 9}, [0.5])], [False], 4, 0, Random(0))
@example([({"total_steps": 9}, [0.5])], [False], 2**40, 2**31 - 200, Random(0))
@given(
    st.lists(
        st.tuples(descriptions(range(5), scaled=True), st.lists(peaks, min_size=1, max_size=2)),
        min_size=1,
        max_size=3,
    ),
    skip_patterns(18),
    st.none() | st.integers(1, 2**40),
    st.integers(0, 100) | st.integers(0, 2**31 - 200),
    st.randoms(use_true_random=False),
)
def test_clock_follows_its_curves(
    room: int, groups: Any, skips: list[bool], unit: int | None, begin: int, random: Random
) -> None:
    """Groups may share a curve, in any order; with less room there are multipliers alone, or no table."""
    pairs = [(build(description), peak) for description, drawn in groups for peak in drawn]
    random.shuffle(pairs)
    with patch.object(learning_rates, "MAX_TABLE_VALUES", room):
        run = Run([curve for curve, _ in pairs], [peak for _, peak in pairs], unit)
    for skip in skips:
        run.update(skip, random.randrange(2 ** random.randrange(42)))
    begin = min(begin, MAX_CONSUMED // (unit or 1) - 18)  # the updates below consume 18 units
    end = min(max(curve.total_steps for curve, _ in pairs) - 1, 2**20)
    for start in (begin, end):  # and past the table
        run.applied, run.skipped, run.consumed = start, 7, start * (unit or 1)
        run.clock.write_state(Counters(start, 7, start, run.consumed), run.clock.peaks)
        for skip in [*skips[:3], False, False, False]:
            run.update(skip, 3 * (unit or 1))
    run.clock.set_peaks([0.25, *run.clock.peaks[1:]])
    run.update(False, 0)


@example([2**61, 2**61])
@example([2**62 - 1] * 9)
@given(st.lists(st.integers(0, MAX_CONSUMED - 1), min_size=1, max_size=9))
def test_words_of_rank_counts_add_up_in_float64(counts: list[int]) -> None:
    sums = torch.stack([split_count(torch.tensor(count)) for count in counts]).sum(0)
    assert int(join_words(sums)) == min(sum(counts), MAX_CONSUMED - 1)


def tensors_of(clock: Clock) -> list[Tensor]:
    """Return the tensors of a clock, each once."""
    values = [*vars(clock).values(), *vars(clock._learning_rates).values()]
    return list({id(value): value for value in values if isinstance(value, Tensor)}.values())


@pytest.mark.parametrize(
    ("curves", "least"),
    [
        ([PlateauCurve(3000, warmup_steps=10)] * 30, 3000),  # multipliers, in one row for all groups
        ([PlateauCurve(3000, warmup_steps=10 * i) for i in range(1, 31)], 0),  # too many: no table
        ([PlateauCurve(1000, warmup_steps=steps) for steps in (10, 20, 10)], 2000),  # two rows
        ([PlateauCurve(500, warmup_steps=steps) for steps in (10, 20, 10)], 2500),  # and learning rates
    ],
)
def test_memory_stays_below_the_limit(curves: Any, least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning_rates, "MAX_TABLE_VALUES", 2**12)
    run = Run(curves, [(index + 1) / 64 for index in range(len(curves))], unit=1)
    held = sum(value.numel() for value in tensors_of(run.clock))
    assert least < held < 2**12 + 200
    for count in (400, 1):
        run.update(False, count)


RULES = [
    HoldUntilFlat(2, threshold=0.1, every=3, limit=30),
    HoldUntilFlat(3, threshold=0.05, threshold_mode="abs", limit=9),
    HoldBelow([(0.7, 5), (0.2, 3)], every=2),
]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
def test_compiled_rules_decide_as_uncompiled_ones() -> None:
    """Counters and states have the same bits, also after skipped updates and a resumed state."""
    curve = StagedCurve([(3, 1.0), (4,), (2, 0.5), (5,), (200, 0.0)])
    checked = CheckedClock(rules=tuple(RULES))
    eager = Clock([curve], [0.5], CPU, checked)
    compiled = Clock([curve], [0.5], CPU, checked, is_compiled=True)
    random = Random(0)
    for update in range(150):
        skip = torch.tensor(random.random() < 0.1)
        loss = torch.tensor(random.random() * 0.97**update)
        counters = eager.count_update(skip, loss)
        assert torch.equal(compiled.count_update(skip, loss), counters)
        assert compiled.read_hold_states() == eager.read_hold_states()
        if update == 75:
            compiled.resume(eager.read_counters(), [0.5], eager.read_hold_states())
    last = eager.read_counters()
    assert 0 < last.applied - last.curve_step < last.applied  # the rules have held the curve


@pytest.mark.parametrize("room", [0, 2**14])
def test_clock_reads_nothing_and_keeps_its_tensors(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A captured graph refers to the memory of the tensors."""
    monkeypatch.setattr(learning_rates, "MAX_TABLE_VALUES", room)
    step, (batch,) = make_step(clock=DataClock(3), count=lambda batch: (batch[1] > 0).sum()), batches(1)
    clock = step._clock

    def places() -> list[int]:
        return [value.data_ptr() for value in tensors_of(clock)]

    step(batch)
    before = places()

    def updates() -> None:
        for _ in range(18):  # past a copy of the counters
            step(batch, batch)

    assert reads_of(updates, [clock._host_counters]) == 0
    clock.write_state(Counters(3, 1, 3, 3), clock.peaks)
    clock.set_peaks([0.5])
    assert places() == before


def train(clock: Clock, updates: int) -> None:
    for _ in range(updates):
        clock.prepare()
        clock.count_update(APPLIED, LOSS)


def test_start_past_the_end_is_noticed() -> None:
    """Unlike a saved run, one that begins there has not warned."""
    clock, resumed = (
        Clock([PlateauCurve(100)], [1.0], CPU, CheckedClock(), initial_updates=n) for n in (500, 0)
    )
    with pytest.warns(CurveWarning, match="training continues at step 516"):
        train(clock, 17)
    resumed.resume(clock.read_counters(), clock.peaks, ())
    train(resumed, 33)  # warnings are errors
