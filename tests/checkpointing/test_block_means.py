"""Means of blocks of updates, saved with checkpoints and merged for a cooldown."""

import warnings
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from support.checkpointing.checkpoints import assert_same_bits
from support.distributed.models import wrapped
from support.distributed.processes import run
from support.examples import examples
from support.training.models import Net, seeded
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_swa_avg_fn
from torch.testing import assert_close

from plateau_jax import StagedCurve
from torch_bridge import Checkpoints
from torch_bridge.training.distributed.processes import rank, world_size

LENGTH = 4
"""Updates in a block."""
LAST = 24
"""Updates of the run."""
STABLE = StagedCurve([(2, 1.0), (LAST - 2,)])


class BlockMeansRun:
    """Trains two layers; all ranks together see the batches that a single process sees.

    Args:
        directory: Of the checkpoints.
        wrapper: As for `wrapped`.
        dtype: Of the model.
        every: Updates between two that are averaged.
    """

    def __init__(self, directory, wrapper="plain", dtype=torch.float32, every=1):
        model = Net().to(dtype)
        self.dtype = dtype
        self.mean = AveragedModel(model, avg_fn=get_swa_avg_fn()).float()
        self.model = wrapped(wrapper, model)
        if wrapper == "fsdp":
            wrapped(wrapper, self.mean.module)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.every = every
        self.num_updates = 0
        self.weights = []
        """The weights after each update, in float64."""
        self.checkpoints = Checkpoints(directory, keep=LAST)

    def train(self, last):
        for update in range(self.num_updates + 1, last + 1):
            with seeded(update):
                all_inputs = torch.randn(12, 3)
            inputs = all_inputs[rank() :: world_size()].to(self.dtype)
            errors = self.model(inputs) - inputs[:, :2].sin()
            errors.square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            state = self.model.state_dict()
            self.weights.append({name: weight.double() for name, weight in state.items()})
            if (update - 1) % LENGTH == 0:
                self.mean.n_averaged.zero_()
            if update % self.every == 0:
                self.mean.update_parameters(self.model)
            if update % LENGTH == 0:
                self.save(update)
            self.num_updates = update

    def save(self, update):
        self.checkpoints.save(update, wait=True, **self.parts())

    def parts(self):
        return {"model": self.model, "optimizer": self.optimizer, "mean": self.mean}

    def load_newest(self):
        # The random states of a rank that is gone, or new, are not needed here.
        with warnings.catch_warnings(action="ignore", category=UserWarning):
            self.num_updates = self.checkpoints.load(**self.parts()) or 0


RUNS: dict[str, dict[str, Any]] = {
    "every update": {},
    "every second update": {"every": 2},
    "bfloat16": {"dtype": torch.bfloat16},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    trained = {}
    for name, options in RUNS.items():
        directory = tmp_path_factory.mktemp("run")
        trained[name] = BlockMeansRun(directory, **options)
        trained[name].train(LAST)
    return trained


@given(
    name=st.sampled_from([*RUNS]),
    start=st.integers(LENGTH, LAST - 2),
    length=st.integers(1, LAST),
    shape=st.sampled_from(["linear", "1-sqrt", "cosine"]),
)
@examples(25)
def test_merge_is_weighted_mean_of_block_means(runs, name, start, length, shape):
    """It is summed in float32, even if the weights are bfloat16."""
    trained = runs[name]
    length = min(length, LAST - start)
    steps = trained.checkpoints.steps()[1:]
    curve = STABLE.cooldown(start, length, shape=shape)
    weights = curve.merge_weights(steps, mean_of=LENGTH)
    merged = Net(seed=9)
    trained.checkpoints.merge(steps, weights, into=merged, part="mean")
    for parameter, value in merged.state_dict().items():
        expected = 0
        for step, weight in zip(steps, weights.tolist(), strict=True):
            of_block = trained.weights[step - LENGTH : step]
            averaged = of_block[trained.every - 1 :: trained.every]
            total = sum(weights_after[parameter] for weights_after in averaged)
            expected += weight * total / len(averaged)
        assert_close(value.double(), expected, rtol=0, atol=1e-6)


def saved_mean(checkpoints, step):
    mean = AveragedModel(Net())
    checkpoints.load_model(mean, step, part="mean")
    return mean


@pytest.mark.parametrize("name", ["every update", "every second update"])
@pytest.mark.parametrize("stop", [8, 10])
def test_resume_within_a_block_keeps_its_mean(tmp_path, runs, stop, name):
    """The state contains how many updates have been averaged."""
    uninterrupted = runs[name]
    killed = BlockMeansRun(tmp_path, **RUNS[name])
    killed.train(stop)
    killed.save(stop)
    resumed = BlockMeansRun(tmp_path, **RUNS[name])
    resumed.load_newest()
    resumed.train(LAST)
    for step in uninterrupted.checkpoints.steps():
        mean = saved_mean(resumed.checkpoints, step)
        expected = saved_mean(uninterrupted.checkpoints, step)
        assert_same_bits(mean.state_dict(), expected.state_dict())
        assert mean.n_averaged == LENGTH // uninterrupted.every


def test_averaged_model_loads_into_its_module(tmp_path):
    """The buffers of a batch normalization, which have a version, are among its state."""
    model = nn.Sequential(Net(), nn.BatchNorm1d(2))
    mean = AveragedModel(model)
    mean.update_parameters(model)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, mean=mean)
    for tensor in model.state_dict().values():
        tensor.add_(1)
    checkpoints.load_model(model, part="mean")
    assert_same_bits(model.state_dict(), mean.module.state_dict())
    other = AveragedModel(model)
    checkpoints.merge([1], [1.0], into=other, part="mean")
    assert_same_bits(other.state_dict(), mean.state_dict())


def test_count_of_another_module_is_not_dropped(tmp_path):
    model = nn.Linear(2, 1)
    model.register_buffer("n_averaged", torch.tensor(3))
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, model=model)
    with pytest.raises(ValueError, match=r"n_averaged: \(\) in the checkpoint, missing here"):
        checkpoints.load_model(nn.Linear(2, 1), part="model")


# Several ranks.


def train_on_ranks(directory, wrapper, last):
    """Continue the run in a directory, or begin it, until after some updates; then save it."""
    run = BlockMeansRun(directory, wrapper)
    run.load_newest()
    run.train(last)
    run.save(last)


@pytest.mark.slow
@pytest.mark.parametrize("wrapper", ["ddp", "fsdp"])
def test_block_continues_on_another_number_of_ranks(tmp_path, runs, wrapper):
    """The third block is killed in its middle."""
    run(train_on_ranks, tmp_path, wrapper, 2 * LENGTH + 2, processes=2)
    run(train_on_ranks, tmp_path, wrapper, LAST, processes=3)
    checkpoints = Checkpoints(tmp_path, keep=LAST)
    reference = runs["every update"].checkpoints
    for step in reference.steps():
        mean = saved_mean(checkpoints, step)
        expected = saved_mean(reference, step)
        assert mean.n_averaged == LENGTH
        assert_close(mean.state_dict(), expected.state_dict(), rtol=0, atol=1e-6)
