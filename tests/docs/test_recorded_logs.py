"""Logs of the recorded runs: `find_curve` finds the curves, and `compare_log` names planted faults.

    python -m pytest --all tests/docs/test_recorded_logs.py -s

prints the figures of docs/logged_learning_rates.md. The logs have 3, 4 and 6 digits, and all rows
of a run or every tenth. A run with a planted fault has one of these logs.
"""

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from docs.recorded_rows import CASES, RowValues
from numpy.typing import NDArray

from plateau_jax import Curve, PlateauCurve, StagedCurve, compare_log, find_curve
from plateau_jax.logged_lrs.comparison import LogComparison
from plateau_jax.logged_lrs.faults import Fault

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::plateau_jax.CurveWarning"),
]

Floats = NDArray[np.float64]
Steps = NDArray[np.int64]

PRECISIONS = (3, 4, 6)
INTERVALS = (1, 10)
FEWEST_ROWS = 3
"""If fewer rows of a log differ from the curve, no fault is named."""


@dataclass(frozen=True)
class RecordedRun:
    """A run of an original scheduler, and its curve in the tables."""

    original: tuple[str, str]
    curve: Curve
    peak: float
    lrs: Floats

    def lrs_at(self, steps: Steps) -> Floats:
        """Return the recorded learning rates, and those of the curve after the last of them."""
        steps = np.maximum(steps, 0)
        lrs = lrs_of(self.curve, self.peak, steps)
        is_recorded = steps < len(self.lrs)
        lrs[is_recorded] = self.lrs[steps[is_recorded]]
        return lrs


def lrs_of(curve: Curve, peak: float, steps: Steps) -> Floats:
    return curve.learning_rate(steps, peak).astype(np.float64)


def is_recorded_per_update(case: RowValues) -> bool:
    is_momentum = "highest_value" in case.row.definitions
    return case.updates is None and case.counts is None and not is_momentum


@cache
def recorded_runs() -> list[RecordedRun]:
    """Return the runs whose curve counts updates, each up to the step at which the two differ."""
    runs: list[RecordedRun] = []
    for case in filter(is_recorded_per_update, CASES):
        curve = case.curves()[0]
        levels = np.array(case.levels, np.float64)
        if levels.ndim == 2:  # one column for each parameter group
            levels = levels[:, 0]
        if case.row.past_end:
            levels = levels[: curve.total_steps]
        if len(levels) >= 2 and levels.max() > 0:
            original = (case.library, case.original)
            runs.append(RecordedRun(original, curve, case.peak, case.peak * levels))
    return runs


def runs_in(half: str) -> list[RecordedRun]:
    """Return the runs of a random half of the schedules; the search was written with the first."""
    originals = sorted({(case.library, case.original) for case in CASES})
    random.Random(91).shuffle(originals)
    middle = len(originals) // 2
    of_half = {"design": originals[:middle], "held out": originals[middle:]}[half]
    return [run for run in recorded_runs() if run.original in of_half]


@dataclass(frozen=True)
class Log:
    """Printed learning rates."""

    steps: Steps
    texts: list[str]

    @property
    def rows(self) -> list[dict[str, int | str]]:
        steps = self.steps.tolist()
        return [{"step": step, "lr": text} for step, text in zip(steps, self.texts, strict=True)]

    def contains(self, lrs: Floats) -> NDArray[np.bool_]:
        """Return True for each learning rate that may print like its row."""
        printed = np.array(self.texts, np.float64)
        mantissas = [text.partition("e")[0] for text in self.texts]
        exponents = np.array([int(text.partition("e")[2]) for text in self.texts])
        places = exponents - len(mantissas[0]) + len("0.")
        places[printed == 0] = places[printed > 0].min()
        allowed = 0.5 * 10.0**places + 3 * 2.0**-24 * printed + 4 * 2.0**-24 * printed.max()
        return np.abs(printed - lrs) <= allowed * (1 + 1e-9)


def logs_of(lrs: Floats) -> Iterator[Log]:
    for digits in PRECISIONS:
        for interval in INTERVALS:
            steps = np.arange(0, len(lrs), interval)
            texts = [f"{lr:.{digits - 1}e}" for lr in lrs[steps].tolist()]
            if len(steps) > 1 and lrs[steps].max() > 0:
                yield Log(steps, texts)


def num_stages(curve: Curve) -> int:
    """Return how many stages a `StagedCurve` needs for a curve: one for each segment and jump."""
    if isinstance(curve, StagedCurve):
        return sum(stage.steps > 0 or stage.to is not None for stage in curve.stages)
    *segments, _ = curve.segments
    jumps = 0
    for before, after in pairwise(segments):
        jumps += before.end != after.start
    return len(segments) + jumps


@pytest.mark.parametrize("half", ["design", "held out"])
def test_recorded_curves_are_found(half: str) -> None:
    outcomes: Counter[str] = Counter()
    runs = runs_in(half)
    for run in runs:
        for log in logs_of(run.lrs):
            found = find_curve(log.rows)
            if found.curve is None:
                outcomes["nothing"] += 1
                continue
            lrs = lrs_of(found.curve, found.peak_value, log.steps)
            assert log.contains(lrs).all()
            if num_stages(found.curve) <= num_stages(run.curve):
                outcomes["the curve"] += 1
            else:
                outcomes["a curve with more stages"] += 1
    fraction = outcomes["the curve"] / outcomes.total()
    print(f"\nfind_curve, {half}: {len(runs)} runs, {fraction:.1%} of {outcomes.total()}", outcomes)
    assert fraction > 0.95


# Planted faults.


@dataclass(frozen=True)
class PlantedFault:
    """A run with a fault.

    Attributes:
        name: The name of the fault.
        lrs: The learning rate of each update.
        number: The number that a claim has to contain, if the fault has one.
    """

    name: str
    lrs: Floats
    number: int | None = None


GROUP_CURVE = PlateauCurve(40, decay_shape="linear")


def planted_faults(run: RecordedRun, draw: random.Random) -> Iterator[PlantedFault]:
    updates = np.arange(len(run.lrs))
    last = len(run.lrs) - 1
    yield PlantedFault("late", run.lrs_at(updates - 1), 1)
    yield PlantedFault("early", run.lrs_at(updates + 1), 1)
    times = draw.choice([2, 3, 4])
    yield PlantedFault("too fast", run.lrs_at(times * updates), times)
    every = draw.choice([2, 4, 8])
    yield PlantedFault("too slow", run.lrs_at(updates // every), every)
    begin = draw.randint(last // 4 + 1, 3 * last // 4 + 1)
    since_begin = np.where(updates < begin, updates, updates - begin)
    yield PlantedFault("restarted", run.lrs_at(since_begin), begin)
    stop = draw.randint(last // 10 + 1, 3 * last // 4 + 1)
    yield PlantedFault("stopped", run.lrs_at(np.minimum(updates, stop)), stop)
    yield PlantedFault("stopped", run.lrs_at(0 * updates), 0)
    factor = draw.choice([0.1, 0.5, 0.7, 1.2, 2])
    yield PlantedFault("peak", factor * run.lrs)
    yield PlantedFault("group", lrs_of(GROUP_CURVE, run.peak / 3, updates))
    length = warmup_length(run.curve)
    factor = draw.choice([2, 4, 8])
    for steps, rest in ((factor * length, 0), divmod(length, factor)):
        changed = with_warmup(run.curve, steps)
        if changed is not None and not rest:
            yield PlantedFault("warmup", lrs_of(changed, run.peak, updates), steps)
    if run.curve.total_steps < last:
        yield PlantedFault("past the end", run.lrs)


def warmup_length(curve: Curve) -> int:
    """Return the steps of the warmup; 0 without one."""
    warmup = curve.segments[0]
    if warmup.last_step is None or not warmup.start < warmup.end:
        return 0
    return warmup.last_step + 1


def with_warmup(curve: Curve, steps: int) -> Curve | None:
    """Return the curve with a longer or shorter warmup and the same total."""
    if not 1 <= steps < curve.total_steps:
        return None
    try:
        if isinstance(curve, PlateauCurve):
            return replace(curve, warmup_steps=steps)
        if isinstance(curve, StagedCurve):
            return with_longer_first_stage(curve, steps)
    except ValueError:  # a plateau starts within the new warmup
        pass
    return None


def with_longer_first_stage(curve: StagedCurve, steps: int) -> StagedCurve | None:
    stages = list(curve.stages)
    first, second = [place for place, stage in enumerate(stages) if stage.steps][:2]
    rest = stages[first].steps + stages[second].steps - steps
    if rest <= 0:
        return None
    stages[first] = stages[first]._replace(steps=steps)
    stages[second] = stages[second]._replace(steps=rest)
    return replace(curve, stages=stages)


def has_warmup(log: Log, run: RecordedRun, steps: int) -> bool:
    """Return True for a warmup of this length, before the same total or the same rest."""
    warmup = run.curve.segments[0]
    shape = warmup.kind.split()[0]
    new_warmup = StagedCurve([(steps, warmup.end, shape)], start=warmup.start)
    after_warmup = log.steps - steps + warmup_length(run.curve)
    before = lrs_of(new_warmup, run.peak, log.steps)
    after = lrs_of(run.curve, run.peak, after_warmup)
    if log.contains(np.where(log.steps < steps, before, after)).all():
        return True
    changed = with_warmup(run.curve, steps)
    return changed is not None and log.contains(lrs_of(changed, run.peak, log.steps)).all()


def lrs_under(fault: Fault, number: float, run: RecordedRun, updates: Steps) -> Floats:
    """Return the learning rates of a fault with this number, by the table of the page."""
    k = int(number)
    steps = {
        "late": updates - k,
        "early": updates + k,
        "too fast": k * updates,
        "too slow": updates // max(k, 1),
        "restarted": np.where(updates < k, updates, updates - k),
        "stopped": np.minimum(updates, k),
    }
    if fault.name == "peak":
        return lrs_of(run.curve, number, updates)
    if fault.name == "group":
        return lrs_of(GROUP_CURVE, run.peak / 3, updates)
    clipped = np.clip(steps[fault.name], 0, 2**31 - 1)
    return lrs_of(run.curve, run.peak, clipped)


def assert_explains(fault: Fault, log: Log, run: RecordedRun) -> None:
    """Check a fault with both limits of its number; for a peak, the middle is safe to round."""
    if fault.name == "warmup":
        assert has_warmup(log, run, int(fault.most))
        return
    numbers = {fault.least, fault.most}
    if fault.name == "peak":
        numbers = {(fault.least + fault.most) / 2}
    for number in numbers:
        assert log.contains(lrs_under(fault, number, run, log.steps)).all(), fault


def outcome_of(comparison: LogComparison, planted: PlantedFault, num_differing: int) -> str:
    if num_differing < FEWEST_ROWS:
        return "fewer than three rows differ"
    if not comparison.faults:
        return "unknown"
    for fault in comparison.faults:
        is_number = planted.number is None or fault.least <= planted.number <= fault.most
        if fault.name == planted.name and is_number:
            if len(comparison.faults) == 1:
                return "named alone"
            return "named among several"
    return "other faults, which explain every row too"


@pytest.mark.parametrize("half", ["design", "held out"])
def test_planted_faults_are_named(half: str) -> None:
    outcomes: Counter[str] = Counter()
    draw = random.Random(12)
    for run in runs_in(half):
        for planted in planted_faults(run, draw):
            logs = list(logs_of(planted.lrs))
            if not logs:
                continue
            log = draw.choice(logs)
            groups = [(GROUP_CURVE, run.peak / 3)]
            comparison = compare_log(log.rows, run.curve, run.peak, groups=groups)
            for fault in comparison.faults:
                if fault.name != "past the end":
                    assert_explains(fault, log, run)
            is_on = log.contains(lrs_of(run.curve, run.peak, log.steps))
            outcomes[outcome_of(comparison, planted, np.count_nonzero(~is_on))] += 1
    num_decidable = outcomes.total() - outcomes["fewer than three rows differ"]
    num_named = outcomes["named alone"] + outcomes["named among several"]
    fraction = num_named / num_decidable
    print(f"\ncompare_log, {half}: {fraction:.1%} of {num_decidable} named", outcomes)
    assert fraction > 0.95
