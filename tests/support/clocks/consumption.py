"""Updates on several ranks whose counts differ by rank."""

from typing import Any

import torch
from support.distributed.distributed_models import build
from support.training.models import batches, mean_loss, nonfinite, pair_loss
from support.training.steps import CURVE
from torch import distributed

from torch_bridge import DataClock, TrainStep

_LARGE = 2**53 + 1
"""Above the integers that float64 holds exactly."""


def counts_on(rank: int, update: int) -> list[int]:
    """Return the counts of two micro-batches of an update on this rank."""
    return [_LARGE + rank if update == 1 else 7 * rank + 3 * update + piece for piece in range(2)]


def counted_on_ranks(
    wrapper: str, loss: str, first: int, last: int, state: Any
) -> tuple[list[tuple[int, int, float]], Any]:
    """Return (consumed, curve_step, lr) of these updates, and the state after them.

    A nonfinite loss of the last rank skips update 3.
    """
    rank, model = distributed.get_rank(), build(wrapper)
    step = TrainStep(
        model,
        torch.optim.AdamW(model.parameters(), lr=0.01),
        {"mean": mean_loss, "pair": pair_loss}[loss],
        CURVE,
        clock=DataClock(5),
    )
    if state is not None:
        step.load_state_dict(state)
    rows: list[tuple[int, int, float]] = []
    for update in range(first, last):
        number = sum(counts_on(rank, update))
        micro = batches(2, rows=2 + rank, seed=update)
        if update == 3 and rank == distributed.get_world_size() - 1:
            micro[-1] = nonfinite(micro[-1])
        result = step(*micro, count=torch.tensor(number) if rank else number)
        rows.append((int(result.consumed), int(result.curve_step), result.lr.item()))
    return rows, step.state_dict() if wrapper == "ddp" else None
