"""The processes that call the tests marked `ranks` show errors, and start again after them."""

import os

import pytest
from support.distributed.processes import RankGroup
from torch import distributed

pytestmark = pytest.mark.slow


def test_group_shows_errors_and_starts_again():
    group = RankGroup(2)
    with pytest.raises(AssertionError, match="ValueError: invalid literal for int"):
        group.call(int, "one")
    with pytest.raises(AssertionError, match=r"process [01] ended with 7"):
        group.call(os._exit, 7)
    assert group.call(distributed.get_rank) == [0, 1]
    group.close()
