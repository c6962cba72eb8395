"""States and checkpoints of several processes."""

from pathlib import Path

import pytest
from support.checkpointing import rank_checks, world_sizes
from support.checkpointing.checkpoints import Part
from support.distributed.processes import run, run_checks

from torch_bridge import Checkpoints

pytestmark = pytest.mark.slow


def test_states_and_checkpoints_on_two_ranks(tmp_path: Path) -> None:
    run_checks([rank_checks], tmp_path)
    part = Part()
    with pytest.warns(UserWarning, match=r"in part, part\.own are dropped"):
        Checkpoints(tmp_path / rank_checks.check_each_rank_gets_own_values_back.__name__).load(part=part)
    assert part.state["own"].tolist() == [0, 0, 0]


def test_loads_and_merges_under_other_world_size(tmp_path: Path) -> None:
    """From every wrapper to every other, with optimizers that have not stepped yet; to the bit."""
    for function in (world_sizes.save_all, world_sizes.load_all):
        function(tmp_path)
        run(function, tmp_path, processes=2)
        run(function, tmp_path, processes=4)
    run(world_sizes.load_all, tmp_path, processes=3)
