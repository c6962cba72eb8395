"""For the tests of the examples: one small run of each."""

from functools import cache

import pytest
from support.programs import EXAMPLES, SMALL_RUNS, run


@pytest.fixture(scope="session")
def ran(tmp_path_factory):
    """A function that runs an example once, and returns its folder and the printed lines."""

    @cache
    def run_once(script):
        folder = tmp_path_factory.mktemp("example")
        return folder, run(
            EXAMPLES / script, *SMALL_RUNS[script].split(), folder=folder
        ).splitlines()

    return run_once
