"""The log of results: it holds every value, and is flushed every `every` updates."""

import gc
import math
import weakref

import pytest
import torch
from hypothesis import given, strategies as st
from support.raises import raises
from support.training.cuda_graphs.graphs import Tape
from support.training.models import batches
from support.training.reads import Reads
from support.training.steps import make_step

from plateau_jax import CurveWarning
from torch_bridge import MetricLog
from torch_bridge.training.train_step.result import StepResult

_COUNTERS = ("applied", "skipped", "curve_step", "consumed")


def _result(loss, norm, lrs, *counts):
    """Return a result with a loss in float64, which a log must not round."""
    return StepResult(
        torch.tensor(loss, dtype=torch.float64),
        torch.tensor(norm),
        torch.tensor(lrs),
        torch.tensor(counts),
    )


@st.composite
def updates_of_a_run(draw):
    """Draw the loss, the gradient norm, the learning rates and the counters of each update."""
    groups = draw(st.integers(1, 3))
    floats = st.floats(width=32, allow_nan=False)
    lrs = st.lists(floats, min_size=groups, max_size=groups)
    counts = st.integers(0, 2**53)
    update = st.tuples(st.floats(allow_nan=False), floats, lrs, *[counts] * 4)
    return draw(st.lists(update, max_size=20))


def _row_of(loss, norm, lrs, *counts):
    lr = lrs
    if len(lrs) == 1:
        (lr,) = lrs
    row = {"loss": loss, "grad_norm": norm, "lr": lr}
    return row | dict(zip(_COUNTERS, counts, strict=True))


@pytest.mark.filterwarnings("ignore:the last .* updates were all skipped:plateau_jax.CurveWarning")
@given(updates_of_a_run(), st.integers(1, 7), st.integers(1, 25))
def test_rows_hold_every_value(updates, every, keep):
    """The newest `keep`; each call returns the newest row if it added rows."""
    log = MetricLog(every, keep=keep)
    logged = []
    flushed = 0
    newest = None
    for number, update in enumerate(updates, 1):
        newest = _row_of(*update)
        logged.append(newest)
        returned = log(_result(*update))
        if number % every == 0:
            flushed = number
            assert returned == newest
        else:
            assert returned is None
        assert log.rows == logged[:flushed][-keep:]
    assert log.flush() == newest
    assert log.rows == logged[-keep:]
    for row in log.rows:
        for count in _COUNTERS:
            assert type(row[count]) is int
        floats = [row["loss"], row["grad_norm"]]
        if isinstance(row["lr"], list):
            floats += row["lr"]
        else:
            floats.append(row["lr"])
        for value in floats:
            assert type(value) is float
    assert log.flush() == newest, "nothing new to flush"
    assert log.rows == logged[-keep:]
    shorter = MetricLog(keep=1)
    shorter.load_state_dict(log.state_dict())
    assert shorter.rows == logged[-1:]


@given(st.integers(1, 7), st.lists(st.sampled_from(["", "save", "resume"]), max_size=30))
def test_saving_does_not_change_when_rows_come(every, actions):
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


def test_log_is_bounded_and_drops_aux():
    log = MetricLog(every=10)
    aux = torch.ones(3)
    kept = weakref.ref(aux)
    for number in range(1501):
        log(_result(0.5, 0.5, [0.5], number, 0, number, number)._replace(aux=(aux,)))
    assert [row["applied"] for row in log.rows] == list(range(500, 1500))
    del aux
    gc.collect()
    assert kept() is None


@pytest.fixture
def log():
    return MetricLog()


def test_wrong_argument():
    with raises(ValueError, "every = 0"):
        MetricLog(every=0)
    with raises(ValueError, "keep = 0"):
        MetricLog(keep=0)


@pytest.mark.parametrize("entry", [{"rows": 3}, {"since_flush": 0.5}])
@raises(ValueError, "not the state of a MetricLog")
def test_state_with_a_wrong_entry(log, entry):
    log.load_state_dict({**log.state_dict(), **entry})


@raises(TypeError, "the whole result of an update", "log(result)")
def test_log_of_a_part_of_a_result(log):
    log(_result(0.5, 0.5, [0.5], 1, 0, 1).loss)


def test_flush_copies_each_column_once():
    """The number of operators does not depend on the number of updates."""
    counts = []
    for every in (10, 100):
        step, log = make_step(), MetricLog(every)
        results = [step(batch) for batch in batches(every)]
        with Reads() as reads, Tape() as tape:
            for result in results:
                log(result)
        assert reads.names == ["tolist"] * 4
        counts.append(len(tape.operators))
    assert counts[0] == counts[1] < 40


def _log_results(log, skips):
    """Log an update per letter: applied ("a"), skipped for its loss ("l") or its norm ("n")."""
    for number, letter in enumerate(skips):
        loss = norm = 0.5
        if letter == "l":
            loss = math.nan
        if letter == "n":
            norm = math.inf
        log(_result(loss, norm, [0.5], number, 0, number, number))


@pytest.mark.parametrize("skips", ["l", "n", "ln"])
@pytest.mark.parametrize(("every", "warned_after"), [(1, 10), (4, 12), (10, 10), (25, 25)])
def test_skipped_window_warns_once(skips, every, warned_after):
    log = MetricLog(every, keep=1)
    _log_results(log, (skips * 25)[: warned_after - 1])
    message = f"the last {warned_after} updates were all skipped, .*no weight changed"
    with pytest.warns(CurveWarning, match=message) as caught:
        _log_results(log, skips * 40)
    assert len(caught) == 1
    assert caught[0].filename == __file__, "the line of the call"


def test_windows_with_an_applied_update_do_not_warn():
    _log_results(MetricLog(every=1), "lllllnnnna" * 5)  # as fp16 until its loss scale fits
    _log_results(MetricLog(every=20), "l" * 19 + "a" + "a" + "n" * 19)
    log = MetricLog(every=10)
    _log_results(log, "l" * 9)
    log.load_state_dict(log.state_dict())
    _log_results(log, "l" * 9 + "a")


def test_skipped_updates_count_across_saves():
    log = MetricLog(every=12)
    _log_results(log, "l" * 11)
    log.state_dict()
    with pytest.warns(CurveWarning, match="the last 12 updates"):
        _log_results(log, "l")
