"""What a training step consumes: the counts of its micro-batches and ranks, in results, logs and states."""

import copy
import pickle
from itertools import accumulate
from typing import Any

import pytest
import torch
from support.clocks.consumption import counted_on_ranks, counts_of
from support.clocks.drivers import Follower, Scheduler, Step
from support.distributed.processes import run
from support.schedulers.driven import Driven
from support.schedulers.runs import learning_rate
from support.training.models import batches, mean_loss
from support.training.steps import CURVE, make_step
from support.training.trees import equal_trees
from torch.utils import _pytree as pytree

from torch_bridge import MetricLog


def test_large_counts_are_exact_and_clamped() -> None:
    """The log reads them differently from a state."""
    step, log = make_step(unit=1, count=lambda batch: 2**61 + 1), MetricLog(every=2)
    for batch in batches(2):
        log(step(batch))
    assert [row["consumed"] for row in log.rows] == [2**61 + 1, 2**62]
    # On the device, where a count cannot be rejected.
    for count, micro_batches, consumed in ((-7, 1, 0), (2**62, 3, 2**62 - 1), (2**62 - 1, 2, 2**62 - 1)):
        step = make_step(unit=2, count=lambda batch, count=count: torch.tensor(count))
        assert int(step(*batches(micro_batches)).consumed) == consumed
    # On the host, in sum.
    step = make_step(unit=2, count=lambda batch: 2**62 - 1)
    assert int(step(*batches(2)).consumed) == 2**62 - 1


def test_count_is_called_once_per_micro_batch() -> None:
    seen: list[tuple[int, bool]] = []

    def count(batch: Any) -> int:
        seen.append((id(batch), torch.is_grad_enabled()))
        return 1

    data = batches(3)
    make_step(unit=1, count=count)(*data)
    assert seen == [(id(batch), False) for batch in data]


def test_rebuilt_result_keeps_its_attributes() -> None:
    def loss_fn(model: Any, batch: Any) -> Any:
        return mean_loss(model, batch), model(batch[0]).mean()

    result = make_step(loss_fn=loss_fn, has_aux=True, unit=4, count=lambda batch: len(batch[0]))(*batches(3))
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


@pytest.mark.parametrize("driver", [Scheduler, Follower, Step])
def test_sum_is_exact_up_to_2_to_the_62(driver: Any) -> None:
    run = driver(CURVE, 0.25, unit=2**61 // 15 + 1)
    run.run([(2**58 - 1, 1.0)] * 16)
    for count in (16, 0):
        assert run.update(count, 1.0) == learning_rate(0.25, CURVE, run.clock())
        assert (run.consumed(), run.clock()) == (2**62, 29)
        state = run.save()
        run.start()
        run.load(state)


def test_count_may_be_given_in_place_of_the_function() -> None:
    run = Driven("scheduler", CURVE, unit=8, asked=True)
    run.advance(2)
    run.part.step(count=4)
    assert run.part.consumed == 20 + 20 + 4


@pytest.mark.slow
@pytest.mark.parametrize("wrapper", ["ddp", "fsdp"])
@pytest.mark.parametrize("loss", ["mean", "pair"])
def test_ranks_add_up_their_counts(wrapper: str, loss: str) -> None:
    """The run resumes on fewer ranks: the learning rate is that of the samples so far."""
    (first, state), (other, _) = run(counted_on_ranks, wrapper, loss, 0, 6, None)
    assert first == other
    counts = [0 if update == 3 else sum(counts_of(update)) for update in range(6)]  # update 3 is skipped
    if wrapper == "ddp":
        ((rest, _),) = run(counted_on_ranks, wrapper, loss, 6, 9, state, processes=1)
        first += rest
        counts += [sum(counts_of(update, ranks=1)) for update in range(6, 9)]
    consumed = [*accumulate(counts, initial=0)]
    clocks = [number // 5 for number in consumed[:-1]]
    wanted = [learning_rate(0.01, CURVE, clock) for clock in clocks]
    assert first == list(zip(consumed[1:], clocks, wanted, strict=True))
