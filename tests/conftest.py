"""Before any test: four CPU devices for JAX, no downloads, no deadlines, no GPU tests without a GPU."""

import gc
import os
from collections.abc import Iterator
from importlib import import_module
from unittest.mock import patch

import pytest
from hypothesis import settings

# Read when torch starts: its models here are so small that a second thread is waited for, not used.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Read when transformers starts: tests download nothing.
os.environ["HF_HUB_OFFLINE"] = "1"
# Read when JAX starts.
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"

# Compiling takes as long as it takes.
settings.register_profile("plateau", deadline=None)
settings.load_profile("plateau")


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
    """What is imported stays to the end: the garbage collector need not look through it at every turn."""
    gc.freeze()


@pytest.fixture(scope="module")
def short_windows() -> Iterator[None]:
    """Schedulers compute 64 steps ahead, not thousands: less work, and more borders that a run crosses."""
    with patch.object(import_module("torch_bridge.multipliers"), "CHUNK", 64):
        yield
