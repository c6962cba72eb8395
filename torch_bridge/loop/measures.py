"""What an evaluation adds up: the loss, or several means under their names."""

import math
from collections.abc import Mapping
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from torch_bridge.distributed import processes
from torch_bridge.training.loss import Loss, as_loss, check_kind, is_pair

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
    """What a loss function returned, each under its name.

    In a dictionary sums may be integers, such as a number of right answers, or plain numbers.

    Raises:
        TypeError, ValueError: As `as_loss`; a dictionary without entries, or with keys that are no names.
    """
    if not isinstance(value, Mapping):
        return {_LOSS: as_loss(value)}
    named = cast("Mapping[Any, Any]", value)
    if not named or not all(isinstance(name, str) and name for name in named):
        raise TypeError(f"loss_fn returned a dictionary with the keys {list(named)}; they must be names")
    found: dict[str, Loss] = {}
    for name, item in named.items():
        try:
            total, *weight = item if is_pair(item) else (item,)
            found[name] = as_loss((_floating(total), *weight) if weight else _floating(total))
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
    """The sums and weights so far, of one rank, in float64: they run over a whole data set.

    Args:
        first: What the first batch gave.
    """

    def __init__(self, first: Mapping[str, Loss]) -> None:
        self.first = first
        self._totals: dict[str, Any] = dict.fromkeys(first, 0.0)
        self._weights: dict[str, Any] = dict.fromkeys(first, 0.0)

    def add(self, found: Mapping[str, Loss]) -> None:
        """Add those of a batch.

        Raises:
            TypeError: Other names, or means in place of pairs.
        """
        if found.keys() != self.first.keys():
            raise TypeError(f"loss_fn returned {_named(found)} for one batch and {_named(self.first)} before")
        for name, loss in found.items():
            check_kind(loss, self.first[name])
            self._totals[name] = self._totals[name] + loss.total.double()
            part = 1.0 if loss.weight is None else loss.weight
            self._weights[name] = self._weights[name] + (part.double() if isinstance(part, Tensor) else part)

    def read(self) -> dict[str, tuple[bool, float, float]]:
        """Whether it is of means, sum and weight of each. Synchronizes with the device once."""
        totals, weights = list(self._totals.values()), list(self._weights.values())
        device = next((total.device for total in totals if total.device.type != "cpu"), None)
        values = [
            value.to(device)
            if isinstance(value, Tensor)
            else torch.tensor(value, dtype=torch.float64, device=device)
            for value in (*totals, *weights)
        ]
        numbers = cast("list[float]", torch.stack(values).tolist())
        count = len(self.first)
        return {
            name: (loss.weight is None, total, weight)
            for (name, loss), total, weight in zip(
                self.first.items(), numbers[:count], numbers[count:], strict=True
            )
        }


def read_means(sums: Sums | None) -> Any:
    """Σ sum / Σ weight of each name over all ranks, in their order, from the sums of this one. Synchronizes.

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
