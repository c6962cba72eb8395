"""For the tests of the examples: one small run of each."""

from functools import cache

import pytest
from support.programs import EXAMPLES, SMALL_RUNS, run


@pytest.fixture(scope="session")
def jax_cache(tmp_path_factory):
    """The environment of programs that run one after another: JAX compiles a function once."""
    return {"JAX_COMPILATION_CACHE_DIR": str(tmp_path_factory.mktemp("jax"))}


@pytest.fixture(scope="session")
def ran(tmp_path_factory, jax_cache):
    """A function that runs an example once, and returns its folder and the printed lines."""

    @cache
    def run_once(script):
        folder = tmp_path_factory.mktemp("example")
        arguments = SMALL_RUNS[script].split()
        printed = run(EXAMPLES / script, *arguments, folder=folder, environment=jax_cache)
        return folder, printed.splitlines()

    return run_once
