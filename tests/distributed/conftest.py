"""A process group of one rank, in which the updates are those of any group."""

import pytest
from torch import distributed


@pytest.fixture(scope="module")
def one_rank():
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()
