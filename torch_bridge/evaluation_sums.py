"""The sums of an evaluation: of one loss, or of several named means."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from torch_bridge.curve_api import checks
from torch_bridge.distributed import processes
from torch_bridge.training.update.loss import Loss, check_same_kind, check_weight, is_pair, parse_loss

_LOSS = ""
"""The name of a loss that is not in a dictionary; as a key of a dictionary it is rejected."""


def parse_named_losses(value: Any) -> dict[str, Loss]:
    """Return the losses that a loss function returned, each under its name.

    In a dictionary, a sum may also be an integer tensor, such as a number of correct answers, or a number.
    """
    if not isinstance(value, Mapping):
        return {_LOSS: parse_loss(value)}
    named = cast("Mapping[Any, Any]", value)
    if not named or not all(isinstance(name, str) and name for name in named):
        raise TypeError(
            f"loss_fn returned a dictionary with the keys {checks.short_repr([*named])}; they must be strings"
        )
    losses: dict[str, Loss] = {}
    for name, item in named.items():
        try:
            total, *weight = item if is_pair(item) else (item,)
            losses[name] = parse_loss((_as_floating(total), *weight) if weight else _as_floating(total))
        except (TypeError, ValueError) as error:
            raise type(error)(f"in {name!r} {error}") from error
    return losses


def _as_floating(total: Any) -> Any:
    if isinstance(total, int | float):
        return torch.tensor(float(total), dtype=torch.float64)
    if isinstance(total, Tensor) and not total.is_floating_point() and not total.is_complex():
        return total.double()
    return total


class RankSum(NamedTuple):
    """The sum of one loss over the batches of one rank."""

    is_mean: bool
    """True if the loss function returns means, whose weight is the number of batches; False for pairs."""
    total: float
    weight: float


class LossSums:
    """The sums and weights of one rank's batches, in float64 because they run over a whole data set.

    Args:
        first: The losses of the first batch. Later batches must have losses of the same names and kinds.
    """

    def __init__(self, first: Mapping[str, Loss]) -> None:
        self._first = first
        self._sums: dict[str, list[Any]] = {name: [0.0, 0.0] for name in first}

    def add(self, losses: Mapping[str, Loss]) -> None:
        """Add the losses of a batch.

        Raises:
            TypeError: The names differ from those of the first batch, or a mean takes the place of a pair.
        """
        if losses.keys() != self._first.keys():
            raise TypeError(
                f"loss_fn returned {_describe(losses)} for one batch and {_describe(self._first)} before"
            )
        for name, loss in losses.items():
            check_same_kind(loss, self._first[name].weight is not None)
            weight = 1.0 if loss.weight is None else loss.weight
            sums = self._sums[name]
            sums[0] = sums[0] + loss.total.double()
            sums[1] = sums[1] + (weight.double() if isinstance(weight, Tensor) else weight)

    def read_sums(self) -> dict[str, RankSum]:
        """Return the sum of each name. Synchronizes with the device once."""
        values = [value for sums in self._sums.values() for value in sums]
        devices = (value.device for value in values if isinstance(value, Tensor))
        device = next((device for device in devices if device.type != "cpu"), torch.device("cpu"))
        zero = torch.zeros((), dtype=torch.float64, device=device)
        # A host number added to a zero on the device is an operator's argument. A copy would synchronize.
        stacked = torch.stack([zero + value for value in values])
        rows = cast("list[list[float]]", stacked.view(-1, 2).tolist())
        return {
            name: RankSum(loss.weight is None, total, weight)
            for (name, loss), (total, weight) in zip(self._first.items(), rows, strict=True)
        }


def read_means(sums: LossSums | None) -> Any:
    """Return Σ sum / Σ weight of each name over all ranks, from the sums of this rank. Synchronizes.

    Raises:
        ValueError: No rank has had a batch.
        TypeError: The ranks have different names, or some means and others pairs.

    Warns:
        CurveWarning: The total weight of pairs, which the host knows by now, is not a whole number.
    """
    gathered = processes.gather(None if sums is None else sums.read_sums())
    ranks = [rank_sums for rank_sums in gathered if rank_sums is not None]
    if not ranks:
        raise ValueError("batches is empty")
    names = ranks[0].keys()
    if any(rank_sums.keys() != names for rank_sums in ranks):
        raise TypeError("loss_fn returned different names on different ranks")
    means: dict[str, float] = {}
    for name in names:
        are_means, totals, weights = zip(*(rank_sums[name] for rank_sums in ranks), strict=True)
        if len(set(are_means)) > 1:
            raise TypeError("loss_fn returned a mean on one rank and a pair (sum, weight) on another")
        total, weight = sum(totals), sum(weights)
        if name == _LOSS and not are_means[0]:  # a pair in a dictionary is surely meant as one
            check_weight(weight)
        means[name] = total / weight if weight else total * math.inf  # Python's own division by zero raises
    return means.get(_LOSS, means)


def _describe(losses: Mapping[str, Loss]) -> str:
    return "a loss" if _LOSS in losses else f"the names {checks.short_repr([*losses])}"
