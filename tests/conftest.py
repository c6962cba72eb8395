"""Before any test: four CPU devices for JAX, no downloads, no deadlines, no GPU tests without a GPU."""

import gc
import os
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import settings

collect_ignore = ["support"]  # no tests, and some import a trainer

# Read when torch starts: its models here are so small that a second thread is waited for, not used.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Read when transformers starts: tests download nothing.
os.environ["HF_HUB_OFFLINE"] = "1"
# Read when JAX starts.
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"

# Compiling takes as long as it takes.
settings.register_profile("whole", deadline=None)
settings.register_profile("quick", settings.get_profile("whole"), max_examples=25)


def _leaves_slow_ones_out(config: pytest.Config) -> bool:
    return config.option.markexpr == "not slow"


def pytest_configure(config: pytest.Config) -> None:
    """`-m "not slow"` draws fewer examples, where a test does not say how many."""
    settings.load_profile("quick" if _leaves_slow_ones_out(config) else "whole")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files with only slow tests are not imported without need, nor the trainers that they import."""
    if not _leaves_slow_ones_out(config) or collection_path.suffix != ".py":
        return None
    return "\npytestmark = pytest.mark.slow\n" in collection_path.read_text(encoding="utf-8") or None


def _has_gpu(framework: str) -> bool:
    if framework == "jax":
        return import_module("jax").default_backend() != "cpu"
    return import_module("torch").cuda.is_available()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """`@pytest.mark.gpu`, or `gpu("jax")`: skip where torch, or JAX, sees no GPU."""
    for marker in item.iter_markers("gpu"):
        (framework,) = marker.args or ("torch",)
        if not _has_gpu(framework):
            pytest.skip(f"{framework} sees no GPU")


def pytest_collection_finish() -> None:
    """What is imported stays to the end: the garbage collector need not search it each time."""
    gc.freeze()


@pytest.fixture(scope="module")
def frozen() -> None:
    """For a module whose tests collect garbage many times: only their own objects are searched."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def short_windows() -> Iterator[None]:
    """Schedulers compute 64 steps ahead, not thousands: less work, and a run crosses more borders."""
    with patch.object(import_module("torch_bridge.schedulers.multipliers"), "CHUNK", 64):
        yield
