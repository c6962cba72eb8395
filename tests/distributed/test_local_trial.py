"""A trial on one rank: the others take no part in it, and train on as if there had been none."""

import pytest
from support.local_trials import updates_after_trials
from support.processes import run

pytestmark = pytest.mark.slow


def test_one_rank_tries_updates_while_the_others_wait() -> None:
    assert run(updates_after_trials) == [[], []]
