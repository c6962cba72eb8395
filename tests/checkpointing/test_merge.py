"""`Checkpoints.merge`: the weighted mean of the models in several checkpoints."""

import copy
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from support.checkpointing.checkpoints import large_model, same_bits
from support.examples import examples
from support.training.models import Net
from support.training.steps import make_step
from torch import nn

from torch_bridge import Checkpoints

COUNTS = [10, 20, 30, 40]
UNITS = {torch.float64: 2.0**-53, torch.float32: 2.0**-24, torch.complex64: 2.0**-24}
UNITS |= {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


class Mixed(nn.Module):
    """Parameters and buffers of many dtypes and shapes, drawn from a seed."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(seed)
        for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.complex64):
            name = f"in_{dtype}".replace("torch.", "")
            wide = torch.complex128 if dtype.is_complex else torch.float64
            values = torch.randn(5, 3, generator=random, dtype=wide)
            self.register_parameter(name, nn.Parameter(values.to(dtype)))
        self.scalar = nn.Parameter(torch.randn((), generator=random))
        self.nothing = nn.Parameter(torch.empty(0, 3))
        self.frozen = nn.Parameter(torch.randn(3, generator=random), requires_grad=False)
        self.register_buffer("mean", torch.randn(3, generator=random))
        self.register_buffer("count", torch.tensor(seed))
        self.register_buffer("mask", torch.tensor([seed % 2 == 0, True]))
        self.register_buffer("hidden", torch.full((2,), float(seed)), persistent=False)


def weighted(states: Sequence[dict[str, Any]], weights: Sequence[float]) -> dict[str, tuple[Any, Any]]:
    """Return the float64 mean of each floating-point tensor, and Σ |weight · tensor|, its rounding scale."""
    means: dict[str, tuple[Any, Any]] = {}
    for name, tensor in states[-1].items():
        if tensor.is_floating_point() or tensor.is_complex():
            wide = torch.complex128 if tensor.is_complex() else torch.float64
            terms = [
                weight * state[name].detach().to(wide).numpy()
                for weight, state in zip(weights, states, strict=True)
            ]
            means[name] = np.sum(terms, axis=0), np.sum(np.abs(terms), axis=0)
    return means


def state_of(module: nn.Module) -> dict[str, Any]:
    return copy.deepcopy(dict(module.state_dict()))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four checkpoints of a module of many dtypes."""
    folder = tmp_path_factory.mktemp("saved")
    for count in COUNTS:
        Checkpoints(folder, keep=4).save(count, model=Mixed(count), wait=True)
    return folder


_weights = st.lists(st.sampled_from([0.0, 1.0, 0.1, -0.7, 1 / 3, 3.0, 1e-9]), min_size=1, max_size=4)


@given(_weights, st.permutations(COUNTS))
@examples(40)
def test_floating_tensors_are_averaged(saved: Path, first: list[float], counts: list[int]) -> None:
    """They are summed at least in float32 and rounded once; all else comes from the last count."""
    weights = [*first[:-1], 1 - math.fsum(first[:-1])]
    counts = counts[: len(weights)]
    states = [state_of(Mixed(count)) for count in counts]
    module = Mixed(99)
    random = torch.get_rng_state()
    Checkpoints(saved).merge(counts, weights, into=module, part="model")
    assert torch.equal(torch.get_rng_state(), random)
    expected = weighted(states, weights)
    for name, tensor in state_of(module).items():
        if name not in expected:
            assert torch.equal(tensor, states[-1][name])
            continue
        wide = torch.complex128 if tensor.is_complex() else torch.float64
        mean, scale = expected[name]
        unit = UNITS[tensor.dtype]
        # Some roundings in float32, or in float64, and then one to the dtype.
        before = 2.5 * len(counts) * min(unit, 2.0**-24) * scale
        bound = before + unit * (np.abs(mean) + before) + (2.0**-25 if tensor.dtype == torch.float16 else 0)
        assert (np.abs(tensor.to(wide).numpy() - mean) <= bound).all(), name
    assert module.hidden.tolist() == [99, 99]
    assert module.in_float32.requires_grad
    assert not module.frozen.requires_grad


def test_single_weighted_checkpoint_is_loaded_exactly(saved: Path) -> None:
    module = Mixed(99)
    Checkpoints(saved).merge([20, 10, 30], np.array([1, 0, 0], np.float32), into=module, part="model")
    expected = state_of(Mixed(20)) | {name: state_of(Mixed(30))[name] for name in ("count", "mask")}
    assert same_bits(state_of(module), expected)


def test_merge_keeps_ties_and_extra_state(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self, seed: int) -> None:
            super().__init__()
            torch.manual_seed(seed)
            self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
            self.second.weight = self.first.weight
            self.seed = seed

        def get_extra_state(self) -> Any:
            return {"seed": self.seed, "array": np.arange(self.seed)}

        def set_extra_state(self, state: Any) -> None:
            self.seed = state["seed"]
            assert state["array"].tolist() == list(range(self.seed))

    checkpoints, models = Checkpoints(tmp_path), [Tied(seed) for seed in (1, 2, 3)]
    for count, model in enumerate(models):
        checkpoints.save(count, model=model)
    merged = Tied(9)
    checkpoints.merge([0, 1, 2], [0.25, 0.25, 0.5], into=merged, part="model")
    assert merged.second.weight is merged.first.weight
    expected = sum(
        weight * model.first.weight for weight, model in zip([0.25, 0.25, 0.5], models, strict=True)
    )
    torch.testing.assert_close(merged.first.weight, expected)
    assert merged.seed == 3
    untied = Tied(9)
    untied.second.weight = nn.Parameter(torch.zeros(3, 3))
    checkpoints.merge([0, 1, 2], [0.25, 0.25, 0.5], into=untied, part="model")
    torch.testing.assert_close(untied.first.weight, expected)
    torch.testing.assert_close(untied.second.weight, expected)


@pytest.mark.parametrize(
    ("saved_as", "here", "expected"),
    [
        (["float64", "bfloat16"], "float64", [(1 + 2.0**-30 + 1) / 2, (1 / 3 + 0.333984375) / 2]),
        (["float64", "bfloat16"], "float16", [1.0, 0.33366]),
        (["bfloat16", "float64"], "float64", [(1 + 2.0**-30 + 1) / 2, (1 / 3 + 0.333984375) / 2]),
        (["float32", "int64"], "float32", [1, 0]),  # integers have no mean: the last count's
        (["float32", "float32"], "complex64", [1, 1 / 3]),
    ],
)
def test_merge_across_dtypes(tmp_path: Path, saved_as: list[str], here: str, expected: list[float]) -> None:
    """The sum is as precise as the most precise checkpoint, and rounded once."""
    checkpoints, values = Checkpoints(tmp_path), torch.tensor([1 + 2.0**-30, 1 / 3], dtype=torch.float64)
    for count, dtype in enumerate(saved_as):
        checkpoints.save(count, model=_buffer(values.to(getattr(torch, dtype))))
    merged = _buffer(torch.zeros(2, dtype=getattr(torch, here)))
    checkpoints.merge([0, 1], [0.5, 0.5], into=merged, part="model")
    assert torch.equal(
        merged.get_buffer("values"), torch.tensor(expected, dtype=torch.float64).to(merged.values.dtype)
    )


def _buffer(values: torch.Tensor) -> nn.Module:
    module = nn.Module()
    module.register_buffer("values", values)
    return module


def test_zero_weight_checkpoint_may_be_non_finite(tmp_path: Path) -> None:
    checkpoints, model = Checkpoints(tmp_path, keep=4), Net()
    for count, value in enumerate((1.0, math.nan, 3.0, math.inf)):
        nn.init.constant_(model.first.weight, value)
        checkpoints.save(count, step=make_step(model=model))
    checkpoints.merge([0, 1, 2, 3], [0.5, 0.0, 0.5, 0.0], into=model)
    assert (model.first.weight == 2).all()


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, nullcontext])
@pytest.mark.parametrize("built", [torch.inference_mode, nullcontext])
def test_merge_and_load_model_in_inference_mode(saved: Path, mode: Any, built: Any) -> None:
    """The tensors of a module that was built in inference mode may change only in that mode."""
    checkpoints, expected = Checkpoints(saved), Mixed(99)
    checkpoints.merge(COUNTS, [0.25] * 4, into=expected, part="model")
    with built():
        merged, loaded = Mixed(99), Mixed(99)
    with mode():
        checkpoints.merge(COUNTS, [0.25] * 4, into=merged, part="model")
        checkpoints.load_model(loaded, 10, part="model")
    assert same_bits(state_of(merged), state_of(expected))
    assert same_bits(state_of(loaded), state_of(Mixed(10)))
    assert merged.in_float32.is_inference() == (built is torch.inference_mode)


@pytest.mark.slow
@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="the system does not tell a process's memory"
)
@pytest.mark.parametrize(
    ("kind", "limit"), [("float32", 1.5), ("bfloat16", 2.2), ("one tensor", 3.2), ("tied", 1.5)]
)
def test_merge_needs_memory_of_one_model_and_some_tensors(tmp_path: Path, kind: str, limit: float) -> None:
    """A few megabytes of tensors are summed at a time; bfloat16 ones in float32.

    The largest tensor is there three times: the sum, what DCP reads from the file, and what it returns.
    """
    model = large_model(kind)
    for count in range(8):
        Checkpoints(tmp_path, keep=8).save(count, model=model, wait=True)
    program = (
        "import sys; from support.checkpointing import checkpoints; checkpoints.peak_of_merge(*sys.argv[1:])"
    )
    # Freed memory returns to the system at once, so that its figure is that of the tensors.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", program, str(tmp_path), kind]
    printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert 1 < float(printed.stdout) < limit
