"""For all tests: which ones run, their examples, and the devices and seeds of the frameworks."""

import gc
import os
import random
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from doctest import DocTest
from functools import partial
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import Phase, settings

# Read when torch starts: its models here are so small that a second thread is waited for, not used.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Read when torch compiles: a pool of compiling processes costs more than it saves here.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
# Read when transformers starts: tests download nothing.
os.environ["HF_HUB_OFFLINE"] = "1"
# Read when JAX starts: what two tests compile alike is compiled once.
os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp()
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
# Read when JAX starts, too: four devices, for tests of sharded arrays.
xla_flags = os.environ.get("XLA_FLAGS", "")
os.environ["XLA_FLAGS"] = f"{xla_flags} --xla_force_host_platform_device_count=4"

# The same command draws the same examples, and there is no deadline: compiling takes as long as it
# takes. Hypothesis also draws constants of imported modules, so one file alone may see others than
# in a run of all. A failure is not shrunk, since shrinking a large curve takes minutes.
settings.register_profile(
    "all", deadline=None, derandomize=True, database=None, phases=(Phase.explicit, Phase.generate)
)
settings.register_profile("fast", settings.get_profile("all"), max_examples=25)
# New examples in every run, and failures shrunk: `--hypothesis-profile explore`.
settings.register_profile("explore", deadline=None, derandomize=False, print_blob=True)

# So that a failed assertion there shows its values.
pytest.register_assert_rewrite("support")

_GROUPS = pytest.StashKey[dict[int, Any]]()
_ALL_SLOW = re.compile(r"^pytestmark = (\[\s*)?pytest\.mark\.slow\b", re.MULTILINE)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--all",
        action="store_true",
        help="run the slow tests too; they need what '.[test-all]' installs",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Without `--all` and `-m`, slow tests are left out and the others draw fewer examples."""
    config.add_cleanup(partial(shutil.rmtree, os.environ["JAX_COMPILATION_CACHE_DIR"]))
    if not config.option.all and not config.option.markexpr:
        config.option.markexpr = "not slow"
    if not config.getoption("--hypothesis-profile"):
        if _leaves_out_slow_tests(config):
            settings.load_profile("fast")
        else:
            settings.load_profile("all")


def _leaves_out_slow_tests(config: pytest.Config) -> bool:
    return config.option.markexpr == "not slow"


def pytest_report_header(config: pytest.Config) -> str | None:
    if _leaves_out_slow_tests(config):
        return "slow tests are left out; --all runs them"
    return None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Don't import files without tests, or with only slow tests, whose packages may be missing."""
    if collection_path.suffix != ".py":
        return None
    if not collection_path.name.startswith(("test_", "conftest")):
        return True  # `--doctest-modules` imports it, and some import a trainer
    if not _leaves_out_slow_tests(config):
        return None
    source = collection_path.read_text(encoding="utf-8")
    if _ALL_SLOW.search(source):
        return True
    return None  # other plugins decide


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the example of each public name without its module's imports: users copy it alone."""
    for item in items:
        if isinstance(item, pytest.DoctestItem) and _is_of_public_name(item.dtest):
            item.dtest.globs.clear()


def _is_of_public_name(example: DocTest) -> bool:
    module = example.globs["__name__"]
    package, _, _ = module.partition(".")
    name, _, _ = example.name.removeprefix(f"{module}.").partition(".")
    return name in sys.modules[package].__all__


def _has_gpu(framework: str) -> bool:
    if framework == "jax":
        return import_module("jax").default_backend() != "cpu"
    return import_module("torch").cuda.is_available()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Seed every global generator; skip `@pytest.mark.gpu` or `gpu("jax")` without such a GPU."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 -- the global generator, for code that draws from it
    if "torch" in sys.modules:
        import_module("torch").manual_seed(0)
    for marker in item.iter_markers("gpu"):
        (framework,) = marker.args or ("torch",)
        if not _has_gpu(framework):
            pytest.skip(f"{framework} sees no GPU")


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Call a test marked `ranks(n)` on each rank of a group of n processes, not in this one.

    The tests of a file share the group. A test that fails ends it, and the next one starts another.
    """
    marker = pyfuncitem.get_closest_marker("ranks")
    if marker is None:
        return None
    (size,) = marker.args
    file = pyfuncitem.getparent(pytest.Module)
    assert file is not None
    groups = file.stash.setdefault(_GROUPS, {})
    if size not in groups:
        groups[size] = import_module("support.distributed.processes").RankGroup(size)
        file.addfinalizer(groups[size].close)
    names = signature(pyfuncitem.function).parameters
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    try:
        groups[size].call(pyfuncitem.function, **arguments)
    except AssertionError as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None
    return True


def pytest_collection_finish(session: pytest.Session) -> None:
    """What is imported stays to the end: the garbage collector need not search it each time."""
    gc.freeze()
    # Not for the processes that tests start: two of them would write one file at once.
    os.environ.pop("JAX_COMPILATION_CACHE_DIR", None)


@pytest.fixture(scope="module")
def short_windows() -> Iterator[None]:
    """Schedulers compute 64 steps ahead, not thousands: less work, and more borders to cross."""
    with patch.object(import_module("plateau_jax.runs.schedules"), "CHUNK", 64):
        yield


@pytest.fixture
def float64_by_default() -> Iterator[None]:
    """Torch creates tensors of floats in float64."""
    torch = import_module("torch")
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(default)
