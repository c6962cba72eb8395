"""With a unit: consumption and clock equal sums in Python, and learning rates follow the curve."""

import ast
import copy
import pickle
import re
from collections.abc import Callable
from itertools import accumulate
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import example, given, strategies as st
from support.curves.descriptions import build, descriptions
from support.curves.scaled import exact_levels
from support.distributed.processes import run
from support.examples import examples
from support.numerics.oracle import is_nearest_float32
from support.schedulers.runs import learning_rate
from support.training.clock.consumption import (
    counted_on_ranks,
    counts_of,
    scaled_on_ranks,
)
from support.training.models import Net, batches, device_pair_loss, mean_loss, nonfinite
from support.training.reads import reads_of
from support.training.steps import CURVE, check_resume, make_step
from support.training.trees import equal_trees
from torch import Tensor
from torch.utils import _pytree as pytree

from plateau_jax import BatchPlan, Curve, PlateauCurve, StagedCurve
from torch_bridge import MetricLog
from torch_bridge.saved_states import MAX_CONSUMED
from torch_bridge.training.clock import clock as clock_module
from torch_bridge.training.clock.batch_counts import join_words, split_count
from torch_bridge.training.clock.clock import Clock

# Runs may continue past the end of a curve; the warning has separate tests.
pytestmark = pytest.mark.filterwarnings("ignore:the curve has total_steps:plateau_jax.CurveWarning")

_CPU = torch.device("cpu")
_NOT_SKIPPED = torch.tensor(False)


def _lrs(curves: list[Curve], peaks: list[float], clock: int) -> list[np.float32]:
    return [np.float32(curve(clock)) * np.float32(peak) for curve, peak in zip(curves, peaks, strict=True)]


_WITH_OR_WITHOUT_TABLE = pytest.mark.parametrize("most", [0, 2**14], ids=["multiplier", "table"])
"""With room for 0 values the device evaluates the curve; with more, it reads a table of multipliers."""


@_WITH_OR_WITHOUT_TABLE
@examples(60)
@given(
    st.lists(
        st.tuples(descriptions(range(5), scaled=True), st.floats(2**-20, 10, width=32)),
        min_size=1,
        max_size=3,
    ),
    st.lists(st.tuples(st.integers(0, 2**40), st.booleans()), max_size=30),
    st.integers(1, 2**40),
)
def test_lr_is_the_curve_at_consumed(
    most: int, groups: list[Any], updates: list[tuple[int, bool]], unit: int
) -> None:
    curves, peaks = [build(description) for description, _ in groups], [peak for _, peak in groups]
    with patch.object(clock_module, "MAX_TABLE_VALUES", most):
        clock, consumed, applied = Clock(curves, peaks, _CPU, unit=unit), 0, 0
    for number, (count, skip) in enumerate(updates, 1):
        clock.prepare()
        clock.fill_lrs()
        assert clock.lrs.tolist() == _lrs(curves, peaks, consumed // unit)
        assert list(clock.lrs_at(consumed // unit)) == clock.lrs.tolist()
        clock.count_update(torch.tensor(skip), torch.tensor(0.5), torch.tensor(count))
        consumed, applied = consumed + count * (not skip), applied + (not skip)
        assert clock.read_counters() == (applied, number - applied, consumed // unit, consumed)


@given(st.lists(st.integers(0, MAX_CONSUMED - 1), min_size=1, max_size=6), st.integers(1, MAX_CONSUMED))
def test_consumed_is_exact_and_stops_at_its_maximum(counts: list[int], unit: int) -> None:
    clock = Clock([CURVE], [1.0], _CPU, unit=unit)
    for count in counts:
        clock.count_update(_NOT_SKIPPED, torch.tensor(0.5), torch.tensor(count))
    consumed = min(sum(counts), MAX_CONSUMED)
    assert clock.read_counters() == (len(counts), 0, consumed // unit, consumed)


@example([2**61, 2**61])
@given(st.lists(st.integers(0, MAX_CONSUMED - 1), min_size=1, max_size=9))
def test_words_of_rank_counts_add_up_in_float64(counts: list[int]) -> None:
    sums = torch.stack([split_count(torch.tensor(count)) for count in counts]).sum(0)
    assert int(join_words(sums)) == min(sum(counts), MAX_CONSUMED - 1)


def _count_rows(batch: Any) -> int:
    return len(batch[0])


def _count_positive(batch: Any) -> Tensor:
    return (batch[1] > 0).sum()


def _count_as_int16(batch: Any) -> Tensor:
    return torch.tensor(len(batch[0]), dtype=torch.int16)


@pytest.mark.parametrize("loss_fn", [mean_loss, device_pair_loss])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("name", ["adamw", "momentum", "plain adam", "two"])
@pytest.mark.parametrize("count", [_count_rows, _count_positive, _count_as_int16])
def test_updates_count_their_consumption(name: str, precision: Any, loss_fn: Any, count: Any) -> None:
    step = _step(name, loss_fn=loss_fn, precision=precision, unit=7, count=count)
    log, consumed, skipped = MetricLog(every=1), 0, 0
    for number in range(8):
        micro = [batch for size in range(number % 3 + 1) for batch in batches(1, 2 + size, seed=number)]
        if number % 5 == 4:
            micro[-1] = nonfinite(micro[-1])
        result = step(*micro)
        row = log(result)
        assert row is not None
        assert int(result.clock) == consumed // 7
        assert result.lr.tolist() == _lrs([CURVE] * len(result.lr), step._clock.peaks, consumed // 7)
        # Under fp16 the first updates may be skipped too, until the scale fits.
        if result.skipped == skipped:
            consumed += sum(int(count(batch)) for batch in micro)
        skipped = int(result.skipped)
        assert int(result.consumed) == row["consumed"] == consumed
    assert skipped < 5
    state = step.state_dict()
    assert (state["consumed"], state["clock"], state["unit"]) == (consumed, consumed // 7, 7)


def _step(name: str, **options: Any) -> Any:
    if name != "two":
        return make_step(name, **options)
    model = Net()
    optimizers = [
        torch.optim.AdamW(model.first.parameters(), lr=0.1, fused=True),
        torch.optim.SGD(model.last.parameters(), lr=0.2),
    ]
    return make_step(model=model, optimizer=optimizers, **options)


def test_without_a_unit_consumed_is_applied() -> None:
    step, log = make_step(), MetricLog(every=1)
    for number, batch in enumerate(batches(5)):
        result = step(nonfinite(batch) if number == 2 else batch)
        row = log(result)
        assert row is not None
        assert result.consumed == result.applied
        assert row["consumed"] == row["applied"] == number + (number < 2)
    state = step.state_dict()
    assert (state["consumed"], state["unit"]) == (4, None)


def test_metric_log_holds_large_counts_exactly() -> None:
    step, log = make_step(unit=1, count=lambda batch: 2**61 + 1), MetricLog(every=2)
    rows = [log(step(batch)) for batch in batches(2)]
    assert [row["consumed"] for row in log.rows] == [2**61 + 1, 2**62]
    assert rows[1] is log.rows[1]


@pytest.mark.parametrize("count", [_count_rows, _count_positive])
@_WITH_OR_WITHOUT_TABLE
def test_counted_updates_do_not_synchronize(count: Any, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock_module, "MAX_TABLE_VALUES", most)
    step, (batch,) = make_step(unit=3, count=count), batches(1)
    step(batch)

    def updates() -> None:
        for _ in range(18):  # past a copy of the counters
            step(batch, batch)

    assert reads_of(updates, [step._clock._host_counters]) == 0


def test_unit_works_with_aux_carry_and_new_peak() -> None:
    def loss_fn(model: Any, batch: Any, carry: Tensor) -> Any:
        loss = mean_loss(model, batch)
        return (loss, {"loss": loss}), carry + 1

    step = make_step(loss_fn=loss_fn, has_aux=True, carry=torch.zeros(()), unit=4, count=_count_rows)
    for number, batch in enumerate(batches(6, 5)):
        if number == 3:
            step.set_peak(0.25)
        result = step(batch)
        peak = np.float32(0.25 if number >= 3 else 0.01)
        assert result.lr.item() == np.float32(CURVE(number * 5 // 4)) * peak
        assert equal_trees(result.aux[0]["loss"], result.loss)
        assert int(result.consumed) == 5 * number + 5


def test_resume_matches_uninterrupted_run() -> None:
    data = [micro for rows in (3, 3, 5, 5, 5, 9, 9, 9, 9, 9, 5, 5, 5, 5) for micro in batches(1, rows)]
    curve = BatchPlan([(0, 3), (8, 5), (20, 9), (64, 5)]).scale(CURVE, 4, reference=9)
    check_resume(lambda: make_step(curve=curve, unit=4, count=_count_rows), data, (0, 1, 5, 9))


@given(st.sampled_from((None, 1, 3, 64)), st.sampled_from((None, 1, 3, 64)), st.integers(0, 6), st.booleans())
def test_state_of_another_unit_is_rejected(
    saved_unit: int | None, unit: int | None, updates: int, strict: bool
) -> None:
    """The message says how to start at the step of the curve, and that works."""

    def build_step(step_unit: int | None, curve: Any = CURVE, **options: Any) -> Any:
        return make_step(curve=curve, unit=step_unit, count=step_unit and _count_rows, **options)

    saved = build_step(saved_unit)
    for batch in batches(updates, 9):
        saved(batch)
    state, step = saved.state_dict(), build_step(unit)
    clock = state["clock"]
    if unit == saved_unit:
        step.load_state_dict(state, strict=strict)
        assert equal_trees(step.state_dict(), state)
    else:
        before = step.state_dict()
        message = (
            rf"unit = {saved_unit}, but here it is {unit}\. .* step {clock} of .*load state_dict \| (.*)$"
        )
        with pytest.raises(ValueError, match=message) as error:
            step.load_state_dict(state, strict=strict)
        assert equal_trees(step.state_dict(), before)
        advice = re.search(message, str(error.value))
        step.load_state_dict(state | ast.literal_eval(advice[1] if advice else ""))
    assert equal_trees(step.state_dict()["model"], state["model"])
    (batch,) = batches(1)
    result = step(batch)
    assert result.clock == clock
    assert result.lr.tolist() == [learning_rate(0.01, CURVE, clock)]


def test_other_curve_must_agree_up_to_the_clock() -> None:
    old, new = (StagedCurve([(10, 1.0), (20,), (length, 0.0)]) for length in (10, 5))
    for updates, is_rejected in ((10, False), (11, True)):
        saved = make_step(curve=old, unit=2, count=_count_rows)
        for batch in batches(updates, 6):
            saved(batch)
        step = make_step(curve=new, unit=2, count=_count_rows)
        if is_rejected:
            with pytest.raises(ValueError, match="differ from step 31 on"):
                step.load_state_dict(saved.state_dict())
        else:
            step.load_state_dict(saved.state_dict())
            assert step.state_dict()["clock"] == 30


def test_step_of_a_partly_consumed_unit_is_compared() -> None:
    for updates, is_rejected in ((0, False), (1, True), (2, False)):
        old = StagedCurve([(10, 1.0)], start=0.1)
        saved = make_step(curve=old, unit=12, count=_count_rows)
        for batch in batches(updates, 6):
            saved(batch)
        curve = old.cooldown(1, 9) if updates == 2 else StagedCurve([(10, 1.0)], start=0.9)
        step = make_step(curve=curve, unit=12, count=_count_rows)
        if is_rejected:
            with pytest.raises(ValueError, match="differ from step 0 on"):
                step.load_state_dict(saved.state_dict())
        else:
            step.load_state_dict(saved.state_dict())


def test_memory_stays_below_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal curves share a row of the table; too many curves have none."""
    monkeypatch.setattr(clock_module, "MAX_TABLE_VALUES", 2**16)
    curves: list[Curve] = [PlateauCurve(50_000, warmup_steps=10 * i) for i in range(1, 31)]
    peaks = [i / 64 for i in range(30)]
    for groups, least in (([PlateauCurve(50_000, warmup_steps=10) for _ in curves], 50_000), (curves, 0)):
        clock = Clock(groups, peaks, _CPU, unit=1)
        held = sum(value.numel() for value in vars(clock).values() if isinstance(value, Tensor))
        assert least < held < 2**16
        clock.count_update(_NOT_SKIPPED, torch.tensor(1.0), torch.tensor(777))
        clock.fill_lrs()
        assert clock.lrs.tolist() == _lrs(groups, peaks, 777)


def test_negative_count_on_device_counts_as_zero() -> None:
    step = make_step(unit=2, count=lambda batch: torch.tensor(-7))
    results = [step(batch) for batch in batches(3)]
    assert [int(result.consumed) for result in results] == [0, 0, 0]


def test_run_past_the_end_warns() -> None:
    curve = StagedCurve([(10, 1.0), (10, 0.0)])
    step = make_step(curve=curve, unit=4, count=_count_rows)
    for batch in batches(31, 4):
        step(batch)
    with pytest.warns(UserWarning, match=r"at step 31, .*as the training consumes, in units of 4;"):
        step.state_dict()


@pytest.mark.parametrize(
    "rebuild",
    [
        lambda result: result._replace(loss=result.loss * 2),
        copy.copy,
        copy.deepcopy,
        lambda result: pickle.loads(pickle.dumps(result)),
        lambda result: pytree.tree_map(lambda item: item + 0, result),
    ],
    ids=("replaced", "copied", "deeply copied", "pickled", "mapped"),
)
def test_rebuilt_result_keeps_its_attributes(rebuild: Callable[[Any], Any]) -> None:
    step = make_step(
        loss_fn=lambda model, batch: (mean_loss(model, batch), model(batch[0]).mean()),
        has_aux=True,
        unit=4,
        count=_count_rows,
    )
    result = step(*batches(3))
    assert result.consumed == 12
    rebuilt = rebuild(result)
    assert type(rebuilt) is type(result)
    assert equal_trees(rebuilt.consumed, result.consumed)
    assert equal_trees(list(rebuilt.aux), list(result.aux))


def test_count_is_called_once_per_micro_batch() -> None:
    seen: list[tuple[int, bool]] = []

    def count(batch: Any) -> int:
        seen.append((id(batch), torch.is_grad_enabled()))
        return 1

    data = batches(3)
    step = make_step(unit=1, count=count)
    step(*data)
    assert seen == [(id(batch), False) for batch in data]


@pytest.mark.slow
@pytest.mark.parametrize("wrapper", ["ddp", "fsdp"])
@pytest.mark.parametrize("loss", ["mean", "pair"])
def test_two_ranks_add_up_their_counts(wrapper: str, loss: str) -> None:
    rows, other_rows = run(counted_on_ranks, wrapper, loss)
    assert rows == other_rows
    counts = [0 if update == 3 else sum(counts_of(update)) for update in range(6)]  # update 3 is skipped
    before, after = [0, *accumulate(counts[:-1])], [*accumulate(counts)]
    assert [row[0] for row in rows] == after
    assert [row[1] for row in rows] == [consumed // 5 for consumed in before]


@pytest.mark.slow
def test_scaled_curve_resumes_on_fewer_ranks() -> None:
    """The learning rate is that of the samples so far, however many ranks have consumed them."""
    (first, state), (other, _) = run(scaled_on_ranks, 0, 20, None)
    ((rest, _),) = run(scaled_on_ranks, 20, 50, state, processes=1)
    assert first == other
    for (consumed, lr), (expected, level) in zip(first + rest, exact_levels(), strict=True):
        assert consumed == expected
        assert is_nearest_float32(np.float32(4 * lr), level)


def test_count_on_another_device_changes_nothing() -> None:
    step = make_step(unit=2, count=lambda batch: torch.tensor(3, device="meta"))
    before = step.state_dict()
    with pytest.raises(ValueError, match="a tensor on meta, not on cpu"):
        step(*batches(1))
    assert equal_trees(step.state_dict(), before)
