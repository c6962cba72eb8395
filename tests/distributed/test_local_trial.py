"""A trial of one process: the others neither take part nor notice."""

import pytest
from support.local_trials import updates_after_trials
from support.processes import run

pytestmark = pytest.mark.slow


def test_a_process_tries_an_update_while_the_others_wait() -> None:
    assert run(updates_after_trials) == [[], []]
