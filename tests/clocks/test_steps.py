"""The clock in a training step: the counts of micro-batches and ranks, holds, peaks, followers."""

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from support.clocks.holds import CURVE as STAGES, told
from support.examples import examples
from support.runs.run import Run
from support.runs.step_run import StepRun
from support.runs.torch_run import SchedulerRun
from support.schedulers.runs import learning_rate, optimizer_with
from support.training.models import Net, batches, mean_loss, nonfinite
from support.training.optimizers import make_optimizer
from support.training.steps import CURVE, make_step, through_file, train
from support.trees import equal_trees
from torch.utils import _pytree as pytree

from plateau_jax import DataClock, HoldBelow
from torch_bridge import MetricLog, TrainStep, follow, lambda_lr
from torch_bridge.training.result import StepResult


def test_large_counts_are_exact() -> None:
    """The log reads them differently from a state."""
    step = make_step(clock=DataClock(1))
    log = MetricLog(every=2)
    for batch in batches(2):
        log(step(batch, count=2**61 + 1))
    assert [row["consumed"] for row in log.rows] == [2**61 + 1, 2**62]


@pytest.mark.parametrize(
    ("count", "consumed"),
    [(-7, 0), (2**62 - 1, 2**62 - 1), (2**62, 2**62 - 1), (2**63 - 1, 2**62 - 1)],
)
def test_count_on_the_device_is_clamped(count: int, consumed: int) -> None:
    """There it cannot be rejected."""
    step = make_step(clock=DataClock(2))
    result = step(*batches(1), count=torch.tensor(count))
    assert int(result.consumed) == consumed


@examples(30)
@given(st.lists(st.none() | st.integers(0, 40), min_size=1, max_size=5), st.integers(1, 40))
def test_count_of_the_clock_is_the_default(counts: list[int | None], default: int) -> None:
    clock = DataClock(8, count=default)
    step = make_step(clock=clock)
    optimizer = optimizer_with([0.25])
    scheduler = lambda_lr(optimizer, CURVE, clock=clock)
    consumed = 0
    for count, batch in zip(counts, batches(len(counts)), strict=True):
        result = step(batch, count=count)
        assert result.curve_step == consumed // 8
        optimizer.step()
        scheduler.step(count=count)
        consumed += default if count is None else count
        assert result.consumed == consumed
        assert scheduler.consumed == consumed


def with_doubled_loss(result: StepResult) -> StepResult:
    return result._replace(loss=result.loss * 2)


def pickled(result: StepResult) -> StepResult:
    return pickle.loads(pickle.dumps(result))


def mapped(result: StepResult) -> StepResult:
    return pytree.tree_map(lambda item: item + 0, result)


@pytest.mark.parametrize("rebuild", [with_doubled_loss, copy.copy, copy.deepcopy, pickled, mapped])
def test_rebuilt_result_keeps_its_attributes(rebuild: Any) -> None:
    def loss_fn(model: Any, batch: Any) -> Any:
        return mean_loss(model, batch), model(batch[0]).mean()

    step = make_step(loss_fn=loss_fn, has_aux=True, clock=DataClock(4))
    result = step(*batches(3), count=12)
    rebuilt = rebuild(result)
    assert type(rebuilt) is type(result)
    assert rebuilt.consumed == 12
    assert result.consumed == 12
    assert equal_trees(list(rebuilt.aux), list(result.aux))


@pytest.mark.parametrize("kind", [SchedulerRun, StepRun])
def test_sum_is_exact_up_to_2_to_the_62(kind: type[Run]) -> None:
    run = kind(CURVE, [0.25], DataClock(2**61 // 15 + 1))
    run.run([(2**58 - 1, 1.0)] * 16)
    for count in (16, 0):
        lr = learning_rate(0.25, CURVE, run.curve_step())
        assert run.update(count, 1.0) == [lr]
        assert run.consumed() == 2**62
        assert run.curve_step() == 29
        run.restart()


@pytest.fixture
def scheduler() -> lambda_lr:
    scheduler = lambda_lr(optimizer_with([0.25]), CURVE, clock=DataClock(8))
    scheduler.optimizer.step()
    return scheduler


def test_pending_count_is_used_once(scheduler: lambda_lr) -> None:
    scheduler.count = 20
    scheduler.step()
    assert scheduler.consumed == 20
    assert scheduler.count is None
    with pytest.raises(TypeError, match=r"scheduler\.count = n before it"):
        scheduler.step()


def test_step_that_raises_leaves_the_pending_count(scheduler: lambda_lr) -> None:
    scheduler.count = 20
    with pytest.raises(TypeError):
        scheduler.step(metric=0.5)
    scheduler.step()
    assert scheduler.consumed == 20


def test_count_in_the_call_replaces_the_pending_count(scheduler: lambda_lr) -> None:
    scheduler.count = 5
    scheduler.step(count=4)
    assert scheduler.consumed == 4
    assert scheduler.count is None


def test_loaded_state_has_no_pending_count(scheduler: lambda_lr) -> None:
    """The program goes back, and counts again."""
    scheduler.count = 10_000
    scheduler.load_state_dict(scheduler.state_dict())
    assert scheduler.count is None


@pytest.fixture
def float64_by_default() -> Iterator[None]:
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(default)


LARGE = float(np.float32(0.19))
SUM = float(np.float32(0.2))


@pytest.mark.parametrize(
    ("every", "losses", "curve_steps"),
    [
        (1, [0.1 + 2e-9] * 5, [0, 0, 0, 0, 1]),
        (2, [LARGE, SUM - LARGE + 2e-9, 1.0, 1.0, 1.0, 1.0], [0, 1, 1, 1, 1, 2]),
    ],
)
def test_float64_losses_and_their_sums_are_rounded_to_float32(
    every: int, losses: list[float], curve_steps: list[int], float64_by_default: None
) -> None:
    """In float64 they would be above the threshold."""
    step = make_step("sgd", loss_fn=told, curve=STAGES, clock=HoldBelow(0.1, 3, every=every))
    results = train(step, [torch.tensor(loss) for loss in losses])
    assert [int(result.curve_step) for result in results] == curve_steps


def test_initial_updates_set_held_clock() -> None:
    """The curve starts there, is held for three updates, and continues from a saved state."""

    def build() -> TrainStep:
        return make_step(loss_fn=told, initial_updates=7, clock=HoldBelow(0.1, 3))

    losses = [torch.tensor(0.75)] * 4 + [torch.tensor(0.05)] * 6
    step = build()
    results = train(step, losses)
    curve_steps = [int(result.curve_step) for result in results]
    assert curve_steps == [7, 8, 9, 10, 11, 11, 11, 11, 12, 13]
    for result, curve_step in zip(results, curve_steps, strict=True):
        assert result.lr.item() == learning_rate(0.01, CURVE, curve_step)
    assert int(results[-1].applied) == 17
    resumed = build()
    resumed.load_state_dict(step.state_dict())
    assert equal_trees(train(resumed, losses), train(step, losses))


@pytest.mark.parametrize("name", ["adamw", "momentum", "plain adam"])
def test_tensor_lr_in_defaults_stays_the_peak(name: str) -> None:
    """A group that is added after the run takes it, so it must not hold a decayed learning rate."""
    model = Net()
    lr = torch.tensor(0.01)
    options: dict[str, Any] = {}
    if name == "plain adam":
        options["foreach"] = False  # torch has no foreach for a tensor lr
    optimizer = make_optimizer(name, model, lr=lr, **options)
    step = make_step(name, model, optimizer=optimizer)
    train(step, batches(3))
    step.load_state_dict(step.state_dict())
    step.set_peak(0.5)
    train(step, batches(1))
    assert step.optimizer.param_groups[0]["lr"] is lr
    assert equal_trees(step.optimizer.defaults["lr"], torch.tensor(0.01))


def step_with_followers(fused: bool) -> list[Any]:
    """Return a training step, and followers of its weight decay and of a beta."""
    model = Net()
    step = make_step(model=model, optimizer=adamw(model, fused), curve=STAGES)
    decay = follow(step.optimizer, "weight_decay", CURVE)
    return [step, decay, follow(step.optimizer, ("betas", 0), CURVE)]


def adamw(model: Net, fused: bool) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.5, fused=fused)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("loading_order", [(0, 2, 1), (2, 1, 0)])
def test_training_step_uses_followed_values(fused: bool, loading_order: tuple[int, ...]) -> None:
    """Each update uses the value that is in the group when it is made, also after a resume."""
    model = Net()
    optimizer = adamw(model, fused)
    (group,) = optimizer.param_groups
    parts = step_with_followers(fused)
    applied = 0
    for number, batch in enumerate(batches(20)):
        if number == 8:
            states = through_file([part.state_dict() for part in parts])
            parts = step_with_followers(fused)
            for index in loading_order:
                parts[index].load_state_dict(states[index])
        is_skipped = number in (0, 7, 8, 15)
        if is_skipped:
            batch = nonfinite(batch)
        step, *followers = parts
        step(batch)
        for follower in followers:
            follower.step()
        if is_skipped:
            continue
        lr = learning_rate(0.01, STAGES, applied)
        if fused:
            group["lr"] = torch.tensor(lr, dtype=torch.float32)
        else:
            group["lr"] = lr
        group["weight_decay"] = 0.5 * CURVE(number)
        group["betas"] = (learning_rate(0.9, CURVE, number), 0.999)
        model.zero_grad()
        mean_loss(model, batch).backward()
        optimizer.step()
        applied += 1
    assert equal_trees(parts[0].model.state_dict(), model.state_dict())
