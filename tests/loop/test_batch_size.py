"""The search finds the largest micro-batch that runs, in few trials of whole updates."""

import gc
import math
import random
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from support.data.loaders import process
from support.training.models import mean_loss
from support.training.optimizers import make_optimizer
from support.training.steps import CURVE
from support.wrong import wrong
from torch import Tensor, nn

from torch_bridge import TrainStep, find_batch_size

pytestmark = pytest.mark.usefixtures("frozen")


def exhaust():
    """Raise an error of the allocator itself."""
    torch.empty(2**60)


def rows(count):
    return torch.randn(count, 3), torch.randn(count, 2)


def _trials(global_batch, limit, fits):
    """Return the result for a step that may run out of memory, and the sizes of all trials."""
    trials = []

    def step(batch, *more):
        trials[-1] = len(batch)
        if not fits(len(batch)):
            exhaust()

    def make_step():
        trials.append(0)
        return step

    try:
        return find_batch_size(make_step, torch.ones, global_batch, limit=limit), trials[1:]
    except RuntimeError as error:
        return str(error), trials[1:]


@given(
    st.sampled_from((int, np.int64, torch.tensor)),
    st.integers(1, 3000),
    st.integers(0, 4000),
    st.none() | st.integers(1, 4000),
)
def test_finds_the_largest_divisor_that_fits(kind, global_batch, most, limit):
    result, trials = _trials(kind(global_batch), limit, lambda size: size <= most)
    divisors = [size for size in range(1, global_batch + 1) if global_batch % size == 0]
    allowed = [size for size in divisors if limit is None or size <= limit]
    fitting = [size for size in allowed if size <= most]
    assert set(trials) <= set(allowed)
    assert len(trials) == len(set(trials)) <= math.log2(len(allowed)) + 1
    if fitting:
        assert result == (fitting[-1], global_batch // fitting[-1])
        assert result[0] in trials
        assert [type(number) for number in result] == [int, int]
    else:
        assert "not even a micro-batch of one sample" in result


def _caused_by(error, attribute):
    outer = RuntimeError("in the loader, or in a compiler's backend")
    setattr(outer, attribute, error)
    return outer


_OUT_OF_MEMORY = {
    "cuda": torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
    "driver": RuntimeError("CUDA error: out of memory"),
    "cublas": RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    "cudnn": RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    "windows": RuntimeError(
        "DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes"
    ),
    "host": RuntimeError("std::bad_alloc"),
    "python": MemoryError(),
    "wrapped": _caused_by(MemoryError(), "__cause__"),
    "compiled": _caused_by(torch.OutOfMemoryError("CUDA out of memory"), "inner_exception"),
}
_OTHERS = {
    "other": RuntimeError("CUDNN_STATUS_EXECUTION_FAILED"),
    "text": ValueError("out of memory"),
    "handled": _caused_by(MemoryError(), "__context__"),
}


@pytest.mark.parametrize("kind", _OUT_OF_MEMORY)
def test_out_of_memory_errors_are_recognized(kind):
    def step(batch, *_):
        if len(batch) > 3:
            raise _OUT_OF_MEMORY[kind]

    assert find_batch_size(lambda: step, torch.ones, 12) == (3, 4)


@pytest.mark.parametrize("kind", _OTHERS)
@pytest.mark.parametrize("where", ["step", "make_batch", "make_step"])
def test_other_errors_propagate(kind, where):
    def fail(*_):
        raise _OTHERS[kind]

    functions = {"make_step": lambda: fail, "make_batch": torch.ones}
    if where != "step":
        functions[where] = fail
    with pytest.raises(type(_OTHERS[kind])) as caught:
        find_batch_size(**functions, global_batch=8)
    assert caught.value is _OTHERS[kind]


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("name", ["adamw", "plain adam", "momentum"])
def test_trial_makes_five_applied_updates(name, precision):
    passes = []
    results = []

    def make_step():
        passes.clear(), results.clear()
        model = nn.Linear(3, 2)
        optimizer = make_optimizer(name, model)

        def loss_fn(model, batch):
            states = any(
                isinstance(value, Tensor)
                for state in optimizer.state.values()
                for value in state.values()
            )
            gradients = any(parameter.grad is not None for parameter in model.parameters())
            passes.append((len(batch[0]), states, gradients))
            # In fp16 the first scales overflow.
            return mean_loss(model, batch) * 100

        step = TrainStep(model, optimizer, loss_fn, CURVE, precision=precision)

        def run(*batches):
            results.append(step(*batches))
            return results[-1]

        return run

    assert find_batch_size(make_step, rows, 8, limit=2) == (2, 4)
    assert passes[0] == (2, name == "momentum", False)  # fused SGD has zeros from the start
    assert passes[-2:] == [(2, True, False), (2, True, True)]
    assert results[-1].applied == 5
    assert (results[-1].skipped > 0) == (precision == "fp16")
    assert len(passes) == 2 * len(results)


def test_trial_has_the_batches_of_an_update():
    """The step may modify it, and all other batches of its update are in memory."""
    seen = []

    def step(*micro_batches):
        alive = [item for item in gc.get_objects() if type(item) is Tensor and item.shape == (7, 5)]
        places = {tensor.data_ptr() for tensor in alive}
        seen.append((len(places), len(micro_batches)))
        for batch in micro_batches:
            batch.pop("inputs")

    assert find_batch_size(
        lambda: step, lambda size: {"inputs": torch.ones(size, 5)}, 28, limit=7
    ) == (7, 4)
    assert seen[-5:] == [(4, 2)] * 5


def test_trials_free_their_memory():
    held = []

    def make_step():
        assert not any(reference() for reference in held)
        model = nn.Linear(2, 2)

        def step(*batches):
            held.extend(map(weakref.ref, (*batches, model, model.weight)))
            loss = model(batches[0]).sum()
            loss.backward()
            if len(batches[0]) > 2:
                local = [loss, batches]
                local.append(local)
                exhaust()

        return step

    assert find_batch_size(make_step, lambda size: torch.ones(size, 2), 64) == (2, 32)
    assert held
    assert not any(reference() for reference in held)


def test_random_states_are_restored():
    def draw():
        return [float(torch.rand(())), float(np.random.rand()), random.random()]  # noqa: NPY002 - the global generator

    def seed():
        torch.manual_seed(0)
        np.random.seed(0)  # noqa: NPY002 - the global generator
        random.seed(0)

    def step(*_):
        draw()

    def make_step():
        draw()
        return step

    def make_batch(size):
        draw()
        if size > 3:
            exhaust()
        return torch.rand(size, 2)

    seed()
    expected = draw()
    seed()
    find_batch_size(make_step, make_batch, 12)
    assert draw() == expected


@pytest.mark.parametrize("held", ["model", "parameter"])
def test_existing_model_is_rejected(held):
    """Before a trial trains it."""
    kept = [nn.Linear(3, 2)]

    def make_step():
        model = kept[0]
        if held == "parameter":
            model = nn.Linear(3, 2)
            model.bias = kept[0].bias
        return TrainStep(model, make_optimizer("adamw", model), mean_loss, CURVE)

    before = kept[0].bias.tolist()
    with pytest.raises(ValueError, match="build the model and its optimizer inside make_step"):
        find_batch_size(make_step, rows, 8)
    assert kept[0].bias.tolist() == before


# Errors.


def make_printing_step():
    return print


@wrong(TypeError, "'int' object is not callable")
def test_make_step_that_is_not_callable():
    not_callable = 3
    find_batch_size(not_callable, torch.ones, 8)


@pytest.mark.parametrize(("value", "error"), [(2.0, TypeError), (0, ValueError)])
def test_wrong_global_batch(value, error):
    with pytest.raises(error, match=f"global_batch = {value}"):
        find_batch_size(make_printing_step, torch.ones, value)


@pytest.mark.parametrize(("value", "error"), [("4", TypeError), (0, ValueError)])
def test_wrong_limit(value, error):
    with pytest.raises(error, match=f"limit = {value!r}"):
        find_batch_size(make_printing_step, torch.ones, 8, limit=value)


@wrong(RuntimeError, "DefaultCPUAllocator")
def test_step_that_cannot_be_built():
    find_batch_size(exhaust, torch.ones, 8)


@wrong(RuntimeError, "runs in one process, and there are 2")
def test_two_processes():
    with process(0, 2):
        find_batch_size(make_printing_step, torch.ones, 8)
