"""The log of results: it holds every value, and is flushed every `every` updates."""

import gc
import math
import weakref
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from support.errors import check_error, each, each_row
from support.training.cuda_graphs.graphs import Tape
from support.training.models import batches
from support.training.reads import Reads
from support.training.steps import make_step

from plateau_jax import CurveWarning
from torch_bridge import MetricLog
from torch_bridge.training.result import StepResult

_floats = st.floats(width=32, allow_nan=False)
_counts = st.integers(0, 2**53)


def _result(loss: float, norm: float, lrs: list[float], *counts: int) -> StepResult:
    """Return a result with a loss in float64, which a log must not round."""
    return StepResult(
        torch.tensor(loss, dtype=torch.float64), *map(torch.tensor, (norm, lrs, counts))
    )


@pytest.mark.filterwarnings("ignore:the last .* updates were all skipped:plateau_jax.CurveWarning")
@given(
    st.integers(1, 3).flatmap(
        lambda groups: st.lists(
            st.tuples(
                *(
                    st.floats(allow_nan=False),
                    _floats,
                    st.lists(_floats, min_size=groups, max_size=groups),
                ),
                *[_counts] * 4,
            ),
            max_size=20,
        )
    ),
    st.integers(1, 7),
    st.none() | st.integers(1, 25),
)
def test_rows_hold_every_value(rows: list[Any], every: int, keep: int | None) -> None:
    """All rows, or the newest `keep`; each call returns the newest row if it made rows."""
    log, kept = MetricLog(every, keep=keep), slice(-keep if keep else None, None)
    expected = []
    for number, (loss, norm, lrs, *counts) in enumerate(rows, 1):
        lr = lrs[0] if len(lrs) == 1 else lrs
        names = "applied", "skipped", "curve_step", "consumed"
        expected.append(
            {"loss": loss, "grad_norm": norm, "lr": lr} | dict(zip(names, counts, strict=True))
        )
        assert log(_result(loss, norm, lrs, *counts)) == (
            expected[-1] if number % every == 0 else None
        )
        assert log.rows == expected[: number - number % every][kept]
    assert log.flush() == (expected[-1] if rows else None)
    assert log.rows == expected[kept]
    for row in log.rows:
        lrs = row["lr"] if isinstance(row["lr"], list) else [row["lr"]]
        assert {type(value) for value in (row["loss"], row["grad_norm"], *lrs)} == {float}
        assert {type(row[name]) for name in ("applied", "skipped", "curve_step", "consumed")} == {
            int
        }
    assert log.flush() == (expected[-1] if rows else None), "nothing new to flush"
    assert log.rows == expected[kept]


@given(st.integers(1, 7), st.lists(st.sampled_from(["", "save", "resume"]), max_size=30))
def test_saving_does_not_change_when_rows_come(every: int, actions: list[str]) -> None:
    log, unsaved = MetricLog(every), MetricLog(every)
    for number, action in enumerate(actions):
        result = _result(float(number), 1.0, [0.5], number, 0, number, number)
        assert log(result) == unsaved(result)
        if action:
            state = log.state_dict()
            assert [row["applied"] for row in state["rows"]] == list(range(number + 1))
            if action == "resume":
                log = MetricLog(every)
                log(result)  # dropped by the load
                log.load_state_dict(state)
                state["rows"][0]["loss"] = 7.0  # the log has copies
    assert log.flush() == unsaved.flush()
    assert log.rows == unsaved.rows


def test_log_is_bounded_and_drops_aux() -> None:
    log = MetricLog(every=10)
    kept = weakref.ref(aux := torch.ones(3))
    for number in range(1501):
        log(_result(0.5, 0.5, [0.5], number, 0, number, number)._replace(aux=(aux,)))
    assert [row["applied"] for row in log.rows] == list(range(500, 1500))
    del aux
    gc.collect()
    assert kept() is None


RESULT = _result(0.5, 0.5, [0.5], 1, 0, 1)
SAVED = MetricLog().state_dict()

ERRORS: list[Any] = [
    *each(lambda value: MetricLog(every=value), [0, -1], ValueError, "every = {}"),
    *each(lambda value: MetricLog(every=value), [1.5, "2"], TypeError, "every = {}"),
    *each(lambda value: MetricLog(keep=value), [0, -1], ValueError, "keep = {}"),
    *each(lambda value: MetricLog(keep=value), [1.5, "2"], TypeError, "keep = {}"),
    *each(lambda log, value: log.load_state_dict(value),
          [{}, {"rows": 3}, {"rows": [3]}, {"rows": []}, SAVED | {"rows": 3}, SAVED | {"rows": [3]},
           SAVED | {"since_flush": 0.5}, SAVED | {"since_flush": "1"}, SAVED | {"since_flush": True}],
          ValueError, "not the state of a MetricLog"),
    (lambda log: log.load_state_dict(SAVED | {"since_flush": -1}), ValueError, "since_flush = -1"),
    (lambda log: log.load_state_dict("log.pt"), ValueError, "'log.pt' is a path"),
    *each(lambda log, value: log(value), [RESULT.loss, 0.5, tuple(RESULT), None], TypeError,
          "the whole result of an update", "log(result)"),
]  # fmt: skip


@each_row(ERRORS)
def test_errors(row: Any) -> None:
    check_error(row, log=MetricLog())


def test_flush_copies_each_column_once() -> None:
    """The number of operators does not depend on the number of updates."""
    counts: list[int] = []
    for every in (10, 100):
        step, log = make_step(), MetricLog(every)
        results = [step(batch) for batch in batches(every)]
        with Reads() as reads, Tape() as tape:
            for result in results:
                log(result)
        assert reads.names == ["tolist"] * 4
        counts.append(len(tape.operators))
    assert counts[0] == counts[1] < 40


def _log_results(log: MetricLog, skips: str) -> None:
    """Log an update for each letter: applied ("a"), skipped for its loss ("l") or for its norm ("n")."""
    for number, letter in enumerate(skips):
        loss, norm = {"a": (0.5, 0.5), "l": (math.nan, 0.5), "n": (0.5, math.inf)}[letter]
        log(_result(loss, norm, [0.5], number, 0, number, number))


@pytest.mark.parametrize("skips", ["l", "n", "ln"])
@pytest.mark.parametrize(("every", "warned_after"), [(1, 10), (4, 12), (10, 10), (25, 25)])
def test_skipped_window_warns_once(skips: str, every: int, warned_after: int) -> None:
    log = MetricLog(every, keep=1)
    _log_results(log, (skips * 25)[: warned_after - 1])
    message = f"the last {warned_after} updates were all skipped, .*no weight changed"
    with pytest.warns(CurveWarning, match=message) as caught:
        _log_results(log, skips * 40)
    assert len(caught) == 1
    assert caught[0].filename == __file__, "the line of the call"


def test_windows_with_an_applied_update_do_not_warn() -> None:
    _log_results(MetricLog(every=1), "lllllnnnna" * 5)  # as fp16 until its loss scale fits
    _log_results(MetricLog(every=20), "l" * 19 + "a" + "a" + "n" * 19)
    log = MetricLog(every=10)
    _log_results(log, "l" * 9)
    log.load_state_dict(log.state_dict())
    _log_results(log, "l" * 9 + "a")


def test_skipped_updates_count_across_saves() -> None:
    log = MetricLog(every=12)
    _log_results(log, "l" * 11)
    log.state_dict()
    with pytest.warns(CurveWarning, match="the last 12 updates"):
        _log_results(log, "l")
