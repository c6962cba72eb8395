"""Updates that wait for the device read from it; here, a CPU stands in for the device."""

from functools import partial

import pytest
from support.training.kind import Kind
from support.training.models import Net, batches, nonfinite
from support.training.optimizers import OTHERS
from support.training.reads import reads_of
from support.training.steps import make_step, state_kept_by_skips
from support.trees import assert_equal_trees
from torch.optim import SGD, Adam, RMSprop
from train_step.kinds_of_run import KINDS, ON_DEVICE

from torch_bridge import MetricLog

WITH_DEVICE_WEIGHTS = {
    "device pair, fp16",
    "device weights, fp32",
    "device weights, bf16",
    "device weights, fp16",
    "half parameters",
}
"""On a CPU, a weight may be in host memory, and the first one above 1 is read."""


@pytest.mark.parametrize("name", ON_DEVICE)
def test_updates_read_nothing_from_the_device(name):
    """Neither does the first, a bad one, nor one after a load."""
    kind = ON_DEVICE[name]
    step = kind.build()
    log = MetricLog(every=100)
    bad = {5, 6}
    if kind.accumulation > 1:
        bad = {0, 5}
    updates = kind.updates(9, bad)

    def train(updates):
        for micro_batches in updates:
            log(step(*micro_batches))

    reads = reads_of(lambda: train(updates[:8]))
    assert len(reads) == int(name in WITH_DEVICE_WEIGHTS)
    for optimizer in step.optimizers:
        optimizer.load_state_dict(optimizer.state_dict())
    assert reads_of(lambda: train(updates[8:])) == []


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize(
    "options", [{}, {"clock": KINDS["held"].options["clock"]}], ids=["plain", "held"]
)
def test_host_stepper_adds_one_read(name, options):
    kind = Kind(name, curve=KINDS["held"].curve, max_norm=0.1, **options)
    (batch,) = batches(1)
    model = kind.model()
    (optimizer,) = kind.optimizers(model)

    def update_by_hand():
        kind.loss_fn(model, batch).backward()
        optimizer.step()

    update_by_hand()
    step = kind.build()
    step(batch)
    assert len(reads_of(lambda: step(batch))) == len(reads_of(update_by_hand)) + 1
    assert len(reads_of(lambda: step(nonfinite(batch)))) == 1


class Derived(Adam):
    """A subclass may do anything, so the host steps it."""


FUSED_ADAM = partial(Adam, fused=True)
FUSED_MOMENTUM = partial(SGD, lr=0.1, momentum=0.9, fused=True)


@pytest.mark.parametrize(
    ("first", "last", "reads"),
    [
        (FUSED_ADAM, FUSED_MOMENTUM, 0),
        (FUSED_ADAM, RMSprop, 1),
        (partial(Derived, fused=True), FUSED_ADAM, 1),
    ],
    ids=["fused", "one on the host", "a subclass"],
)
def test_optimizers_share_one_read_and_one_decision(first, last, reads):
    model = Net()
    optimizers = [first(model.first.parameters()), last(model.last.parameters())]
    step = make_step(model=model, optimizer=optimizers)
    (batch,) = batches(1)
    step(batch)
    before = state_kept_by_skips(step) | {"skipped": 1}
    assert len(reads_of(lambda: step(nonfinite(batch)))) == reads
    assert_equal_trees(state_kept_by_skips(step), before)
