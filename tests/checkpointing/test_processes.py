"""Checkpoints of several processes."""

from pathlib import Path

import pytest
from support.checkpointing import merging, model_wrappers, rank_checks, sharded_optimizer_state, world_sizes
from support.checkpointing.checkpoints import Part
from support.distributed.processes import run, run_each

from torch_bridge import Checkpoints

pytestmark = pytest.mark.slow


def test_checkpoints_on_two_ranks(tmp_path: Path) -> None:
    run_each([*rank_checks.CHECKS, rank_checks.save_outlives_process_group], tmp_path)
    directory, part = tmp_path / rank_checks.save_outlives_process_group.__name__, Part()
    assert Checkpoints(directory).counts() == [1]
    with pytest.warns(UserWarning, match="part are dropped"):
        Checkpoints(directory).load(part=part, model=Part())
    assert part.state.tolist() == [0, 0, 0]


def test_merges_on_two_ranks(tmp_path: Path) -> None:
    run_each([merging.rejected_merge_leaves_model_unchanged, merging.running_averages_equal_merges], tmp_path)


def test_states_load_under_every_wrapper(tmp_path: Path) -> None:
    run_each([model_wrappers.state_loads_under_every_wrapper], tmp_path)


def test_loads_and_merges_under_other_world_size(tmp_path: Path) -> None:
    """From every wrapper to every other, with optimizers that have not stepped yet; to the bit."""
    world_sizes.save_all(tmp_path)
    run(world_sizes.save_all, tmp_path, processes=2)
    run(world_sizes.save_all, tmp_path, processes=4)
    world_sizes.load_all(tmp_path)
    run(world_sizes.load_all, tmp_path, processes=2)
    run(world_sizes.load_all, tmp_path, processes=3)


def test_optimizers_own_shards_resume(tmp_path: Path) -> None:
    """In lists and dictionaries, or of another shape than the parameter; plain if these are plain."""
    run(sharded_optimizer_state.save, tmp_path)
    run(sharded_optimizer_state.save, tmp_path, processes=4)
    run(sharded_optimizer_state.load, tmp_path, 2, "fsdp")
    run(sharded_optimizer_state.load, tmp_path, 4, "fsdp")
    run(sharded_optimizer_state.load, tmp_path, 4, "hybrid", processes=4)
    for ranks in (2, 4):
        sharded_optimizer_state.load(tmp_path, ranks, "plain")
