"""The sums of an evaluation: of the loss, or of several means under their names."""

import math
from collections.abc import Mapping
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from torch_bridge.distributed import processes
from torch_bridge.training.update.loss import Loss, check_same_kind, is_pair, parse_loss

_LOSS = ""
"""The name of a loss that is not in a dictionary; as a key of a dictionary it is refused."""


class Measures(Protocol):
    """`loss_fn(model, batch)` → a dictionary of means or pairs, for `evaluate`."""

    def __call__(self, model: Any, batch: Any, /) -> Mapping[str, Any]:
        """The means, or sums and weights, of a batch.

        Args:
            model: The module.
            batch: A batch.
        """
        ...


def measured(value: Any) -> dict[str, Loss]:
    """The losses that a loss function returned, each under its name.

    In a dictionary a sum may be an integer, such as a number of right answers, or a plain number.
    """
    if not isinstance(value, Mapping):
        return {_LOSS: parse_loss(value)}
    named = cast("Mapping[Any, Any]", value)
    if not named or not all(isinstance(name, str) and name for name in named):
        raise TypeError(f"loss_fn returned a dictionary with the keys {list(named)}; they must be names")
    found: dict[str, Loss] = {}
    for name, item in named.items():
        try:
            total, *weight = item if is_pair(item) else (item,)
            found[name] = parse_loss((_floating(total), *weight) if weight else _floating(total))
        except (TypeError, ValueError) as error:
            raise type(error)(f"in {name!r} {error}") from error
    return found


def _floating(total: Any) -> Any:
    if isinstance(total, int | float):
        return torch.tensor(float(total), dtype=torch.float64)
    if isinstance(total, Tensor) and not total.is_floating_point() and not total.is_complex():
        return total.double()
    return total


class Sums:
    """The sums and weights of one rank's batches, in float64 because they run over a whole data set.

    Args:
        first: The losses of the first batch, which says what the others must be.
    """

    def __init__(self, first: Mapping[str, Loss]) -> None:
        self._first = first
        self._sums: dict[str, list[Any]] = {name: [0.0, 0.0] for name in first}

    def add(self, found: Mapping[str, Loss]) -> None:
        """Add the losses of a batch.

        Raises:
            TypeError: Other names, or means in place of pairs.
        """
        if found.keys() != self._first.keys():
            raise TypeError(
                f"loss_fn returned {_named(found)} for one batch and {_named(self._first)} before"
            )
        for name, loss in found.items():
            check_same_kind(loss, self._first[name].weight is not None)
            weight = 1.0 if loss.weight is None else loss.weight
            sums = self._sums[name]
            sums[0] = sums[0] + loss.total.double()
            sums[1] = sums[1] + (weight.double() if isinstance(weight, Tensor) else weight)

    def read(self) -> dict[str, tuple[bool, float, float]]:
        """For each name: if it is a mean, its sum and its weight. Synchronizes with the device once."""
        values = [value for sums in self._sums.values() for value in sums]
        devices = (value.device for value in values if isinstance(value, Tensor))
        device = next((device for device in devices if device.type != "cpu"), torch.device("cpu"))
        zero = torch.zeros((), dtype=torch.float64, device=device)
        # Added to a zero there, what the host knows needs no copy, which would synchronize too.
        together = torch.stack([zero + value for value in values])
        rows = cast("list[list[float]]", together.view(-1, 2).tolist())
        return {
            name: (loss.weight is None, total, weight)
            for (name, loss), (total, weight) in zip(self._first.items(), rows, strict=True)
        }


def read_means(sums: Sums | None) -> Any:
    """Σ sum / Σ weight of each name over all ranks, from the sums of this rank. Synchronizes.

    Raises:
        ValueError: No rank has any.
        TypeError: The ranks have different names, or means and pairs.
    """
    gathered = processes.gather(None if sums is None else sums.read())
    of_ranks = [found for found in gathered if found is not None]
    if not of_ranks:
        raise ValueError("batches is empty")
    names = of_ranks[0].keys()
    if any(found.keys() != names for found in of_ranks):
        raise TypeError("loss_fn returned other names in one rank than in another")
    means: dict[str, float] = {}
    for name in names:
        are_means, totals, weights = zip(*(found[name] for found in of_ranks), strict=True)
        if len(set(are_means)) > 1:
            raise TypeError("loss_fn returned a mean in one rank and a pair (sum, weight) in another")
        total, weight = sum(totals), sum(weights)
        means[name] = total / weight if weight else total * math.inf  # Python's own division by zero raises
    return means.get(_LOSS, means)


def _named(found: Mapping[str, Loss]) -> str:
    return "a loss" if _LOSS in found else f"the names {list(found)}"
