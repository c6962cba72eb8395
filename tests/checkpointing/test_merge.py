"""`Checkpoints.merge`: the weighted mean of the models in several checkpoints."""

import ctypes
import gc
import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from support.checkpointing.checkpoints import model_of_buffer
from support.examples import examples
from support.training.models import Net
from support.training.steps import make_step
from torch import nn
from torch.torch_version import TorchVersion

from torch_bridge import Checkpoints

STEPS = [10, 20, 30, 40]


class MixedDtypes(nn.Module):
    """Parameters and buffers of many dtypes and shapes, drawn from a seed."""

    def __init__(self, seed):
        super().__init__()
        self.random = torch.Generator().manual_seed(seed)
        self.in_float64 = self.parameter(torch.float64)
        self.in_float32 = self.parameter(torch.float32)
        self.in_bfloat16 = self.parameter(torch.bfloat16)
        self.in_float16 = self.parameter(torch.float16)
        self.in_complex64 = self.parameter(torch.complex64)
        self.scalar = nn.Parameter(torch.randn((), generator=self.random))
        self.nothing = nn.Parameter(torch.empty(0, 3))
        self.frozen = nn.Parameter(torch.randn(3, generator=self.random), requires_grad=False)
        self.register_buffer("mean", torch.randn(3, generator=self.random))
        self.register_buffer("count", torch.tensor(seed))
        self.register_buffer("mask", torch.tensor([seed % 2 == 0, True]))
        self.register_buffer("hidden", torch.full((2,), float(seed)), persistent=False)

    def parameter(self, dtype):
        values = torch.randn(5, 3, generator=self.random, dtype=widest(dtype))
        return nn.Parameter(values.to(dtype))


def widest(dtype):
    if dtype.is_complex:
        return torch.complex128
    return torch.float64


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Four checkpoints of a module of many dtypes."""
    directory = tmp_path_factory.mktemp("saved")
    for step in STEPS:
        Checkpoints(directory, keep=4).save(step, model=MixedDtypes(step), wait=True)
    return directory


# The mean.

# Half the distance from 1 to the next number.
UNIT_ROUNDOFF = {
    torch.float64: 2.0**-53,
    torch.float32: 2.0**-24,
    torch.complex64: 2.0**-24,
    torch.bfloat16: 2.0**-8,
    torch.float16: 2.0**-11,
}


def check_mean(merged, tensors, weights):
    """Compare a tensor with Σ weight · tensor, summed at least in float32 and rounded once."""
    terms = []
    for tensor, weight in zip(tensors, weights, strict=True):
        terms.append(weight * tensor.detach().to(widest(tensor.dtype)).numpy())
    mean = np.sum(terms, axis=0)
    scale = np.sum(np.abs(terms), axis=0)
    unit = UNIT_ROUNDOFF[merged.dtype]
    unit_of_sum = min(unit, UNIT_ROUNDOFF[torch.float32])
    error_of_sum = 2.5 * len(terms) * unit_of_sum * scale
    error_of_rounding = unit * (np.abs(mean) + error_of_sum)
    bound = error_of_sum + error_of_rounding
    if merged.dtype == torch.float16:
        bound = bound + 2.0**-25  # half of its smallest number
    error = np.abs(merged.detach().to(widest(merged.dtype)).numpy() - mean)
    assert (error <= bound).all()


@given(
    first_weights=st.lists(
        st.sampled_from([0.0, 1.0, 0.1, -0.7, 1 / 3, 3.0, 1e-9]), min_size=1, max_size=4
    ),
    all_steps=st.permutations(STEPS),
)
@examples(40)
def test_floating_tensors_are_averaged(saved, first_weights, all_steps):
    """All other tensors come from the last checkpoint."""
    first_weights = first_weights[:-1]
    weights = [*first_weights, 1 - math.fsum(first_weights)]
    steps = all_steps[: len(weights)]
    states = [MixedDtypes(step).state_dict() for step in steps]
    module = MixedDtypes(99)
    Checkpoints(saved).merge(steps, weights, into=module, part="model")
    for name, tensor in module.state_dict().items():
        if tensor.dtype in UNIT_ROUNDOFF:
            check_mean(tensor, [state[name] for state in states], weights)
        else:
            assert torch.equal(tensor, states[-1][name])
    assert module.hidden.tolist() == [99, 99]
    assert module.in_float32.requires_grad
    assert not module.frozen.requires_grad


class Tied(nn.Module):
    """Two layers that share a weight, and a seed as extra state."""

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.first = nn.Linear(3, 3)
        self.second = nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.seed = seed

    def get_extra_state(self):
        return {"seed": self.seed, "array": np.arange(self.seed)}

    def set_extra_state(self, state):
        self.seed = state["seed"]
        assert state["array"].tolist() == list(range(self.seed))


def test_merge_keeps_ties_and_extra_state(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    models = [Tied(1), Tied(2), Tied(3)]
    for step, model in enumerate(models):
        checkpoints.save(step, model=model)
    first, second, third = (model.first.weight for model in models)
    expected = 0.25 * first + 0.25 * second + 0.5 * third

    merged = Tied(9)
    checkpoints.merge([0, 1, 2], [0.25, 0.25, 0.5], into=merged, part="model")
    assert merged.second.weight is merged.first.weight
    torch.testing.assert_close(merged.first.weight, expected)
    assert merged.seed == 3

    untied = Tied(9)
    untied.second.weight = nn.Parameter(torch.zeros(3, 3))
    checkpoints.merge([0, 1, 2], [0.25, 0.25, 0.5], into=untied, part="model")
    torch.testing.assert_close(untied.first.weight, expected)
    torch.testing.assert_close(untied.second.weight, expected)


WITH_BFLOAT16 = [(1 + 2.0**-30 + 1) / 2, (1 / 3 + 0.333984375) / 2]


@pytest.mark.parametrize(
    ("first_dtype", "last_dtype", "dtype", "expected"),
    [
        (torch.float64, torch.bfloat16, torch.float64, WITH_BFLOAT16),
        (torch.bfloat16, torch.float64, torch.float64, WITH_BFLOAT16),
        (torch.float64, torch.bfloat16, torch.float16, [1.0, 0.33366]),
        # Integers have no mean: those of the last checkpoint.
        (torch.float32, torch.int64, torch.float32, [1, 0]),
        (torch.float32, torch.float32, torch.complex64, [1, 1 / 3]),
        (torch.int64, torch.float32, torch.float32, [1, 1 / 6]),
    ],
)
def test_merge_across_dtypes(tmp_path, first_dtype, last_dtype, dtype, expected):
    """The sum is as precise as the most precise checkpoint, and rounded once."""
    values = torch.tensor([1 + 2.0**-30, 1 / 3], dtype=torch.float64)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(0, model=model_of_buffer(values.to(first_dtype)))
    checkpoints.save(1, model=model_of_buffer(values.to(last_dtype)))
    merged = model_of_buffer(torch.zeros(2, dtype=dtype))
    checkpoints.merge([0, 1], [0.5, 0.5], into=merged, part="model")
    rounded = torch.tensor(expected, dtype=torch.float64).to(dtype)
    assert torch.equal(merged.get_buffer("values"), rounded)


def test_zero_weight_checkpoint_may_be_non_finite(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=4)
    model = Net()
    for step, value in enumerate([1.0, math.nan, 3.0, math.inf]):
        nn.init.constant_(model.first.weight, value)
        checkpoints.save(step, step=make_step(model=model))
    checkpoints.merge([0, 1, 2, 3], [0.5, 0.0, 0.5, 0.0], into=model)
    assert (model.first.weight == 2).all()


# Memory.


def memory(entry):
    """Return an entry of the process's status in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == entry:
            kilobytes, _ = value.split()
            return int(kilobytes) * 1024
    raise LookupError(entry)


@pytest.mark.slow
@pytest.mark.ranks(1)  # in a new process, whose memory other tests have not used
@pytest.mark.skipif(
    not os.access("/proc/self/clear_refs", os.W_OK),
    reason="the system does not reset the peak of a process's memory",
)
@pytest.mark.skipif(
    TorchVersion(torch.__version__) < "2.13",  # of the older versions, only 2.9 was measured
    reason="torch 2.9 frees what it has read only when Python collects garbage",
)
@pytest.mark.parametrize(("layers", "width", "limit"), [(8, 1024, 1.5), (1, 2896, 3.2)])
def test_merge_needs_memory_of_one_model_and_some_tensors(tmp_path, layers, width, limit):
    """A few megabytes of tensors are summed at a time.

    The largest tensor is there three times: the sum, what DCP reads from the file, and what it
    returns. The limits are in units of a model, and include the memory of one.
    """
    # Freed memory returns to the system at once, so that its figure is that of the tensors.
    mmap_threshold = -3
    ctypes.CDLL(None).mallopt(mmap_threshold, 65536)
    # Of 32 MB.
    model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers)))
    size = sum(parameter.nbytes for parameter in model.parameters())
    checkpoints = Checkpoints(tmp_path, keep=9)
    for step in range(8):
        checkpoints.save(step, model=model, wait=True)
    small = nn.Linear(2, 2)
    checkpoints.save(8, model=small, wait=True)
    checkpoints.merge([8], [1.0], into=small, part="model")  # imports what a merge needs
    gc.collect()
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak is that from here on
    checkpoints.merge(range(8), [1 / 8] * 8, into=model, part="model")
    peak = memory("VmHWM") - before
    assert 1 < peak / size < limit, peak / size
