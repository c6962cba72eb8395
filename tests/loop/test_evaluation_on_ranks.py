"""Evaluation on several ranks: the mean over all of them, and the same passes on each."""

import itertools

import pytest
from support.distributed.processes import error_of
from support.distributed.threads import on_ranks
from support.training.models import Net, Recurrent, batches, carried_loss, mean_loss, pair_loss
from support.training.reads import reads_of
from torch.distributed.fsdp import fully_shard

from torch_bridge import evaluate
from torch_bridge.training.distributed import processes

SPLITS = [
    [[3, 2], [4, 1], [5, 2]],
    [[3, 2, 6], [4], [1, 1]],
]
"""The rows of each batch, by rank."""


def batches_of(split):
    """Return batches of these sizes, all with different numbers."""
    by_rank = []
    for number, sizes in enumerate(split):
        local = []
        for index, rows in enumerate(sizes):
            (batch,) = batches(1, rows, seed=10 * number + index)
            local.append(batch)
        by_rank.append(local)
    return by_rank


def named_loss(model, batch):
    """Return a pair, a mean, and the fraction of rows in which the first output is too large."""
    inputs, targets = batch
    outputs = model(inputs)
    errors = (outputs - targets).square()
    return {
        "pair": (errors.sum(), errors.numel()),
        "mean": errors.mean(),
        "large": ((outputs[:, 0] > targets[:, 0]).sum(), len(inputs)),
    }


@pytest.mark.parametrize("split", SPLITS, ids=str)
def test_evaluation_is_the_mean_over_all_ranks(split):
    by_rank = batches_of(split)
    expected = evaluate(Net(), list(itertools.chain(*by_rank)), named_loss)
    models = [Net() for _ in by_rank]

    def evaluate_rank():
        return evaluate(models[processes.rank()], by_rank[processes.rank()], named_loss)

    for means in on_ranks(evaluate_rank, len(split)):
        assert means == pytest.approx(expected)


def sharded_loss(local):
    """Evaluate a model with FSDP on the batches of this rank."""
    model = fully_shard(Net())
    return evaluate(model, local, pair_loss)


@pytest.mark.slow
@pytest.mark.ranks(3)
@pytest.mark.parametrize("split", SPLITS)
def test_ranks_make_the_same_passes(split):
    """With an uncounted filler; without it, a rank would wait for the shards of the others."""
    by_rank = batches_of(split)
    expected = evaluate(Net(), list(itertools.chain(*by_rank)), pair_loss)

    local = by_rank[processes.rank()]
    assert sharded_loss(local) == pytest.approx(expected)
    one_without_length = local
    if processes.rank() == 1:
        one_without_length = iter(local)
    assert sharded_loss(one_without_length) == pytest.approx(expected)


class Restarting:
    """An iterator that begins again after its end, as those of some libraries do."""

    def __init__(self, items):
        self.items = items
        self.begin()

    def begin(self):
        self.rest = iter(self.items)

    def __iter__(self):
        return self

    def __next__(self):
        for item in self.rest:
            return item
        self.begin()
        raise StopIteration


def test_no_batch_counts_twice():
    by_rank = batches_of([[3, 2, 6], [4]])
    expected = evaluate(Net(), list(itertools.chain(*by_rank)), pair_loss)
    models = [Net(), Net()]  # built here: the ranks are threads, which share torch's random state

    def evaluate_rank():
        rank = processes.rank()
        return evaluate(models[rank], Restarting(by_rank[rank]), pair_loss)

    assert on_ranks(evaluate_rank, 2) == pytest.approx([expected, expected])


def test_order_of_names_does_not_matter():
    data = batches(2)
    expected = evaluate(Net(), data, named_loss)
    models = [Net(), Net()]

    def evaluate_rank():
        rank = processes.rank()
        orders = itertools.cycle([1, -1] if rank else [-1, 1])

        def loss_fn(model, batch):
            losses = named_loss(model, batch)
            return dict([*losses.items()][:: next(orders)])

        return evaluate(models[rank], data, loss_fn)

    for means in on_ranks(evaluate_rank, 2):
        assert means == pytest.approx(expected)


def reads_with(most):
    """Return the reads of an evaluation of `most` batches, and half as many on rank 0."""
    local = batches(most)
    if processes.rank() == 0:
        local = local[: most // 2]
    return reads_of(lambda: evaluate(Net(), local, pair_loss))


@pytest.mark.slow
@pytest.mark.ranks(3)
def test_reads_do_not_depend_on_the_number_of_batches():
    """If the batches have a length, the ranks agree once on the number of passes."""
    assert reads_with(2) == reads_with(20)


def test_carry_stays_on_its_rank():
    """The mean is that of four batches, three of the first rank and one of the second."""
    data = [batches(3, time=4, seed=3), batches(1, time=4, seed=1)]
    models = [Recurrent(), Recurrent()]
    initial = models[0].initial()

    def evaluate_rank():
        rank = processes.rank()
        return evaluate(models[rank], data[rank], carried_loss, carry=initial)

    first = evaluate(models[0], data[0], carried_loss, carry=initial)
    second = evaluate(models[0], data[1], carried_loss, carry=initial)
    mean = (3 * first + second) / 4
    assert on_ranks(evaluate_rank, 2) == pytest.approx([mean, mean])


def _named_by_rank(model, batch):
    return {f"loss of {processes.rank()}": mean_loss(model, batch)}


def _errors_of_ranks(count, *loss_fns):
    """Evaluate `count` batches with one loss_fn per rank; return the errors of the ranks."""
    models = [Net() for _ in loss_fns]

    def evaluate_rank():
        rank = processes.rank()
        return error_of(evaluate, models[rank], batches(count), loss_fns[rank])

    return on_ranks(evaluate_rank, len(loss_fns))


def test_no_batches_on_all_ranks():
    for error in _errors_of_ranks(0, pair_loss, pair_loss):
        assert error.startswith("ValueError: batches is empty")


@pytest.mark.parametrize(
    "loss_fns",
    [(mean_loss, pair_loss), (_named_by_rank, _named_by_rank), (pair_loss, named_loss)],
)
def test_different_losses_on_ranks(loss_fns):
    for error in _errors_of_ranks(2, *loss_fns):
        assert error.startswith("TypeError: loss_fn must return the same names and forms")
