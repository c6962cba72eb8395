"""The clock in a training step: the counts of micro-batches and ranks, holds, peaks, followers."""

import copy
import pickle
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from support.clocks.drivers import Scheduler, Step
from support.clocks.holds import CURVE as STAGES, told
from support.examples import examples
from support.schedulers.driven import Driven
from support.schedulers.runs import learning_rate
from support.training.models import Net, batches, mean_loss, nonfinite
from support.training.optimizers import make_optimizer
from support.training.steps import CURVE, equal_trees, make_step, through_file, train
from torch.utils import _pytree as pytree

from plateau_jax import DataClock, HoldBelow
from torch_bridge import MetricLog, TrainStep, follow


def test_large_counts_are_exact_and_clamped() -> None:
    """The log reads them differently from a state."""
    step, log = make_step(clock=DataClock(1)), MetricLog(every=2)
    for batch in batches(2):
        log(step(batch, count=2**61 + 1))
    assert [row["consumed"] for row in log.rows] == [2**61 + 1, 2**62]
    # On the device, where a count cannot be rejected.
    for count, consumed in ((-7, 0), (2**62, 2**62 - 1), (2**63 - 1, 2**62 - 1), (2**62 - 1, 2**62 - 1)):
        step = make_step(clock=DataClock(2))
        assert int(step(*batches(1), count=torch.tensor(count)).consumed) == consumed


@examples(30)
@given(st.lists(st.none() | st.integers(0, 40), min_size=1, max_size=5), st.integers(1, 40))
def test_count_of_the_clock_is_the_default(counts: list[int | None], default: int) -> None:
    step = make_step(clock=DataClock(8, count=default))
    run = Driven("scheduler", CURVE, clock=DataClock(8, count=default))
    consumed = 0
    for count, batch in zip(counts, batches(len(counts)), strict=True):
        result = step(batch, count=count)
        assert result.curve_step == consumed // 8
        run.optimizer.step()
        run.part.step(count=count)
        consumed += default if count is None else count
        assert result.consumed == run.part.consumed == consumed


def test_rebuilt_result_keeps_its_attributes() -> None:
    def loss_fn(model: Any, batch: Any) -> Any:
        return mean_loss(model, batch), model(batch[0]).mean()

    result = make_step(loss_fn=loss_fn, has_aux=True, clock=DataClock(4))(*batches(3), count=12)
    for rebuilt in (
        result._replace(loss=result.loss * 2),
        copy.copy(result),
        copy.deepcopy(result),
        pickle.loads(pickle.dumps(result)),
        pytree.tree_map(lambda item: item + 0, result),
    ):
        assert type(rebuilt) is type(result)
        assert rebuilt.consumed == result.consumed == 12
        assert equal_trees(list(rebuilt.aux), list(result.aux))


@pytest.mark.parametrize("driver", [Scheduler, Step])
def test_sum_is_exact_up_to_2_to_the_62(driver: Any) -> None:
    run = driver(CURVE, 0.25, DataClock(2**61 // 15 + 1))
    run.run([(2**58 - 1, 1.0)] * 16)
    for count in (16, 0):
        assert run.update(count, 1.0) == learning_rate(0.25, CURVE, run.curve_step())
        assert (run.consumed(), run.curve_step()) == (2**62, 29)
        state = run.save()
        run.start()
        run.load(state)


def test_pending_count_is_used_once() -> None:
    """A count in the call comes before it, and a step that raises an error leaves it."""
    run = Driven("scheduler", CURVE, clock=DataClock(8))
    run.part.count = 20
    with pytest.raises(TypeError):
        run.part.step(metric=0.5)
    run.optimizer.step()
    run.part.step()
    assert (run.part.consumed, run.part.count) == (20, None)
    with pytest.raises(TypeError, match=r"scheduler\.count = n before it"):
        run.part.step()
    run.part.count = 5
    run.part.step(count=4)
    assert (run.part.consumed, run.part.count) == (24, None)
    run.part.count = 10_000
    run.part.load_state_dict(run.part.state_dict())
    assert run.part.count is None, "the program goes back, and counts again"


LARGE, SUM = float(np.float32(0.19)), float(np.float32(0.2))


@pytest.mark.parametrize(
    ("every", "losses", "steps"),
    [
        (1, [0.1 + 2e-9] * 5, [0, 0, 0, 0, 1]),
        (2, [LARGE, SUM - LARGE + 2e-9, 1.0, 1.0, 1.0, 1.0], [0, 1, 1, 1, 1, 2]),
    ],
)
def test_float64_losses_and_their_sums_are_rounded_to_float32(
    every: int, losses: list[float], steps: list[int], request: pytest.FixtureRequest
) -> None:
    """In float64 they would be above the threshold."""
    request.addfinalizer(partial(torch.set_default_dtype, torch.get_default_dtype()))
    torch.set_default_dtype(torch.float64)
    step = make_step("sgd", loss_fn=told, curve=STAGES, clock=HoldBelow(0.1, 3, every=every))
    assert [int(result.curve_step) for result in train(step, list(map(torch.tensor, losses)))] == steps


def test_initial_updates_set_held_clock() -> None:
    """The curve starts there, is held for three updates, and continues from a saved state."""

    def build() -> TrainStep:
        return make_step(loss_fn=told, initial_updates=7, clock=HoldBelow(0.1, 3))

    losses = [torch.tensor(loss) for loss in [0.75] * 4 + [0.05] * 6]
    step = build()
    results = train(step, losses)
    curve_steps = [int(result.curve_step) for result in results]
    assert curve_steps == [7, 8, 9, 10, 11, 11, 11, 11, 12, 13]
    assert [result.lr.item() for result in results] == [learning_rate(0.01, CURVE, at) for at in curve_steps]
    assert int(results[-1].applied) == 17
    resumed = build()
    resumed.load_state_dict(step.state_dict())
    assert equal_trees(train(resumed, losses), train(step, losses))


@pytest.mark.parametrize("name", ["adamw", "momentum", "plain adam"])
def test_tensor_lr_in_defaults_stays_the_peak(name: str) -> None:
    """A group that is added after the run takes it, so it must not hold a decayed learning rate."""
    model, lr = Net(), torch.tensor(0.01)
    options = {"foreach": False} if name == "plain adam" else {}  # torch has no foreach for a tensor lr
    step = make_step(name, model, optimizer=make_optimizer(name, model, lr=lr, **options))
    train(step, batches(3))
    step.load_state_dict(step.state_dict())
    step.set_peak(0.5)
    train(step, batches(1))
    assert step.optimizer.param_groups[0]["lr"] is lr
    assert equal_trees(step.optimizer.defaults["lr"], torch.tensor(0.01))


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("step_first", [True, False])
def test_training_step_uses_followed_values(fused: bool, step_first: bool) -> None:
    """Each update uses the value that is in the group when the step is called, also after a resume."""

    def optimizer_of(model: Net) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.5, fused=fused)

    def start() -> list[Any]:
        model = Net()
        step = make_step(model=model, optimizer=optimizer_of(model), curve=STAGES)
        keys: Any = ("weight_decay", ("betas", 0))
        return [step, *(follow(step.optimizer, key, CURVE) for key in keys)]

    by_hand = Net()
    reference = optimizer_of(by_hand)
    parts, applied = start(), 0
    for number, batch in enumerate(batches(20)):
        if number == 8:
            saved = through_file([part.state_dict() for part in parts])
            parts = start()
            for part, state in list(zip(parts, saved, strict=True))[:: 1 if step_first else -1]:
                part.load_state_dict(state)
        step, *followers = parts
        is_bad = number in (0, 7, 8, 15)
        step(nonfinite(batch) if is_bad else batch)
        for follower in followers:
            follower.step()
        if is_bad:
            continue
        (group,) = reference.param_groups
        lr = learning_rate(0.01, STAGES, applied)
        group["lr"] = torch.tensor(lr, dtype=torch.float32) if fused else lr
        group["weight_decay"] = 0.5 * CURVE(number)
        group["betas"] = (learning_rate(0.9, CURVE, number), 0.999)
        by_hand.zero_grad()
        mean_loss(by_hand, batch).backward()
        reference.step()
        applied += 1
    assert equal_trees(step.model.state_dict(), by_hand.state_dict())
