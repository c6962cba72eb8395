"""Means of blocks of updates under DDP and FSDP2."""

from pathlib import Path

import pytest
import torch
from support.checkpointing.block_means import LAST, LENGTH, STABLE, BlockMeansRun
from support.checkpointing.checkpoints import gathered
from torch import Tensor, distributed

from torch_bridge.distributed.plain_names import plain_state
from torch_bridge.distributed.processes import rank

pytestmark = [pytest.mark.slow, pytest.mark.ranks(2)]


def merged_weights(run: BlockMeansRun) -> dict[str, Tensor]:
    """Train, and merge the block means into the model for a cooldown within two blocks."""
    run.train(LAST)
    steps = run.checkpoints.steps()[1:]
    weights = STABLE.cooldown(LENGTH + 1, LAST - LENGTH - 2).merge_weights(steps, mean_of=LENGTH)
    run.checkpoints.merge(steps, weights, into=run.model, part="mean")
    return gathered(plain_state(run.model))


@pytest.mark.parametrize("wrapper", ["ddp", "fsdp"])
def test_merge_of_block_means_matches_one_process(tmp_path: Path, wrapper: str) -> None:
    directory_of_rank = tmp_path / str(rank())
    merged = merged_weights(BlockMeansRun(tmp_path / "ranks", wrapper))
    distributed.destroy_process_group()
    expected = merged_weights(BlockMeansRun(directory_of_rank))
    for name, weight in expected.items():
        torch.testing.assert_close(merged[name], weight, rtol=0, atol=1e-6)
