"""Updates with aux on every rank, compared with updates without."""

from collections.abc import Callable
from typing import Any

import torch
from support.distributed.distributed_models import build, gather_weights
from support.training.models import batches, nonfinite
from support.training.steps import CURVE
from support.training.trees import equal_trees
from torch import Tensor, distributed, nn

from torch_bridge import TrainStep


def _mean(outputs: Tensor, targets: Tensor) -> Any:
    return nn.functional.mse_loss(outputs, targets)


def _pair(outputs: Tensor, targets: Tensor) -> Any:
    return (outputs - targets).square().sum(), targets.numel()


_LOSSES: dict[str, Callable[[Tensor, Tensor], Any]] = {"mean": _mean, "pair": _pair}


def aux_of_updates(wrapper: str, loss: str, pieces: int) -> list[str]:
    """Return the differences from updates without aux, and from the outputs for this rank's rows."""

    def without_aux(model: nn.Module, batch: Any) -> Any:
        return _LOSSES[loss](model(batch[0]), batch[1])

    def with_aux(model: nn.Module, batch: Any) -> Any:
        outputs = model(batch[0])
        return _LOSSES[loss](outputs, batch[1]), {"outputs": outputs, "inputs": [batch[0]]}

    def step_of(loss_fn: Any, has_aux: bool) -> TrainStep:
        model = build(wrapper)
        optimizer = torch.optim.AdamW(model.parameters())
        return TrainStep(model, optimizer, loss_fn, CURVE, has_aux=has_aux)

    step, step_without_aux = step_of(with_aux, True), step_of(without_aux, False)
    wrong: list[str] = []
    rank = distributed.get_rank()
    for update in range(4):
        micro = batches(pieces, rows=2 + rank, seed=10 * update + rank)
        if update == 2 and rank == 1:  # nonfinite on one rank, skipped on both
            micro[-1] = nonfinite(micro[-1])
        with torch.no_grad():
            expected = [{"outputs": step.model(inputs), "inputs": [inputs]} for inputs, _ in micro]
        result = step(*micro)
        if not equal_trees(tuple(result[:4]), tuple(step_without_aux(*micro)[:4])):
            wrong.append(f"update {update}: {result}")
        if not equal_trees(list(result.aux), expected):
            wrong.append(f"update {update}: aux {result.aux}, not {expected}")
        if any(aux["outputs"].requires_grad for aux in result.aux):
            wrong.append(f"update {update}: aux is not detached")
        if int(result.skipped) != (update >= 2):
            wrong.append(f"update {update}: {result.skipped} skipped")
    weights, expected_weights = (
        [array.tolist() for array in gather_weights(list(trained.model.parameters()))]
        for trained in (step, step_without_aux)
    )
    if weights != expected_weights:
        wrong.append(f"weights {weights}, not {expected_weights}")
    return wrong
