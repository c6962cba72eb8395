"""Clocks of schedulers and training steps: large and pending counts, metrics, starts in mid-run."""

import numpy as np
import pytest
import torch
from support.clocks.holds import THREE_PLATEAUS, batch_as_loss
from support.runs.scheduler_run import SchedulerRun
from support.schedulers.runs import learning_rate
from support.training.models import batches
from support.training.steps import CURVE, make_step
from support.trees import assert_equal_trees

from plateau_jax import DataClock, HoldBelow
from torch_bridge import MetricLog


def test_large_counts_are_exact():
    """The log reads them differently from a state."""
    step = make_step(clock=DataClock(1))
    log = MetricLog(every=3)
    count = 2**53 - 1
    for batch in batches(3):
        log(step(batch, count=count))
    assert [row["consumed"] for row in log.rows] == [count, 2 * count, 3 * count]


def test_sum_is_exact_up_to_2_to_the_62():
    run = SchedulerRun(CURVE, [0.25], DataClock(2**61 // 15 + 1))
    run.run([(2**58 - 1, 1.0)] * 16)
    for count in (16, 0):
        lr = learning_rate(0.25, CURVE, run.curve_step())
        assert run.update(count, 1.0) == [lr]
        assert run.consumed() == 2**62
        assert run.curve_step() == 29
        run.restart()


@pytest.fixture
def scheduler():
    run = SchedulerRun(CURVE, [0.25], DataClock(8))
    run.optimizer.step()
    return run.scheduler


@pytest.mark.parametrize("form", [int, np.int64, np.array, torch.tensor])
def test_pending_count_is_used_once(scheduler, form):
    scheduler.count = form(20)
    scheduler.step()
    assert scheduler.consumed == 20
    assert scheduler.count is None
    with pytest.raises(TypeError, match=r"scheduler\.count = n before it"):
        scheduler.step()


def test_step_that_raises_leaves_the_pending_count(scheduler):
    scheduler.count = 20
    with pytest.raises(TypeError):
        scheduler.step(metric=0.5)
    scheduler.step()
    assert scheduler.consumed == 20


def test_loaded_state_has_no_pending_count(scheduler):
    """The program goes back, and counts again."""
    scheduler.count = 10_000
    scheduler.load_state_dict(scheduler.state_dict())
    assert scheduler.count is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_metric_may_be_a_loss_with_a_gradient(dtype):
    run = SchedulerRun(CURVE, [0.25], HoldBelow(0.1, 3))
    loss = torch.tensor(0.05, dtype=dtype, requires_grad=True) * 1
    run.update(metric=loss)
    assert run.curve_step() == 0


LARGE = float(np.float32(0.19))
SUM = float(np.float32(0.2))


@pytest.mark.usefixtures("float64_by_default")
@pytest.mark.parametrize(
    ("every", "losses", "curve_steps"),
    [
        (1, [0.1 + 2e-9] * 5, [0, 0, 0, 0, 1]),
        (2, [LARGE, SUM - LARGE + 2e-9, 1.0, 1.0, 1.0, 1.0], [0, 1, 1, 1, 1, 2]),
    ],
)
def test_float64_losses_and_their_sums_are_rounded_to_float32(every, losses, curve_steps):
    """In float64 they would be above the threshold."""
    clock = HoldBelow(0.1, 3, every=every)
    step = make_step("sgd", loss_fn=batch_as_loss, curve=THREE_PLATEAUS, clock=clock)
    results = [step(torch.tensor(loss)) for loss in losses]
    assert [int(result.curve_step) for result in results] == curve_steps


def test_initial_updates_set_held_clock():
    """The curve starts there, is held for three updates, and continues from a saved state."""

    def build():
        return make_step(loss_fn=batch_as_loss, initial_updates=7, clock=HoldBelow(0.1, 3))

    losses = [torch.tensor(0.75)] * 4 + [torch.tensor(0.05)] * 6
    step = build()
    results = [step(loss) for loss in losses]
    curve_steps = [int(result.curve_step) for result in results]
    assert curve_steps == [7, 8, 9, 10, 11, 11, 11, 11, 12, 13]
    for result, curve_step in zip(results, curve_steps, strict=True):
        assert result.lr.item() == learning_rate(0.01, CURVE, curve_step)
    assert int(results[-1].applied) == 17
    resumed = build()
    resumed.load_state_dict(step.state_dict())
    for loss in losses:
        assert_equal_trees(resumed(loss), step(loss))


def test_start_in_mid_run_counts_what_updates_consumed():
    clock = DataClock(8, count=20)
    run = SchedulerRun(THREE_PLATEAUS, [0.25], clock, last_epoch=6)
    assert run.consumed() == 140
    assert run.curve_step() == 17
    step = make_step(curve=THREE_PLATEAUS, clock=clock, initial_updates=7)
    state = step.state_dict()
    assert (state["applied"], state["skipped"], state["consumed"]) == (7, 0, 140)
    assert step(*batches(1)).curve_step == 17
