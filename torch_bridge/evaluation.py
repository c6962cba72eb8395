"""`evaluate`: the mean loss of a model over a data set, or several named means, without gradients."""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast, overload

import torch
from torch import Tensor, nn

from torch_bridge.curve_api import checks
from torch_bridge.distributed import processes
from torch_bridge.distributed.distribution import check_module
from torch_bridge.distributed.parallelism import reshard
from torch_bridge.distributed.processes import in_lockstep
from torch_bridge.training.update.loss import (
    Carry,
    Loss,
    LossFunction,
    call_loss_fn,
    check_loss_fn,
    check_same_kind,
    check_weight,
    is_pair,
    parse_loss,
)
from torch_bridge.training.update.precision import Precision, PrecisionName

_LOSS = ""
"""The name of a loss that is not in a dictionary; as a key of a dictionary it is rejected."""


@overload
def evaluate(
    model: nn.Module,
    batches: Iterable[Any],
    loss_fn: LossFunction[Tensor | tuple[Any, Any]],
    *,
    precision: PrecisionName = "fp32",
    carry: Any = None,
) -> float: ...
@overload
def evaluate(
    model: nn.Module,
    batches: Iterable[Any],
    loss_fn: LossFunction[Mapping[str, Any]],
    *,
    precision: PrecisionName = "fp32",
    carry: Any = None,
) -> dict[str, float]: ...
def evaluate(
    model: nn.Module,
    batches: Iterable[Any],
    loss_fn: LossFunction[Any],
    *,
    precision: PrecisionName = "fp32",
    carry: Any = None,
) -> float | dict[str, float]:
    """Return the mean loss over all batches, or several means, without gradients and in evaluation mode.

        Σ sum / Σ weight    if loss_fn returns pairs
        Σ mean / batches    if it returns means

    The sums are float64, and the host synchronizes with the device once, at the end. Afterwards
    every module has its previous mode. `loss_fn` is not compiled: a step built with `compile=True`
    compiles its own copy.

    With several ranks, every rank calls this with its own batches (those of `make_loader(...,
    training=False)` hold every sample once). The sums run over all ranks, and every rank gets the
    same loss. A sharded model must run equally often on all ranks, so a rank that has no more
    batches repeats its last one (or another rank's first) and ignores the result. If `batches` has
    a length on every rank, the ranks agree once on the number of passes, otherwise before every
    pass. After an error on one rank, the others wait until that rank ends, or until the timeout of
    the process group.

    Args:
        model: The module that `loss_fn` is called with; with several ranks, the wrapped model.
        batches: Any iterable of batches.
        loss_fn: As for `TrainStep`; or one that returns a dictionary of losses, accuracies and the
            like, each a mean or a pair (sum, weight), the same names for every batch. (For a
            `loss_fn` that returns aux pass `lambda model, batch: loss_fn(model, batch)[0]`.)
        precision: As for `TrainStep`.
        carry: The initial recurrent state, as for `TrainStep`; it is passed from batch to batch on
            each rank.

    Returns:
        The loss, or a dictionary of numbers; not finite if the total weight is zero.

    Raises:
        TypeError, ValueError: As `TrainStep` for the same arguments and the same loss; no rank has
            a batch; the names in the dictionary differ from those of an earlier batch.
        RuntimeError: There are several ranks but no process group.

    Warns:
        CurveWarning: `loss_fn` returns pairs whose weights are not whole numbers, such as (loss,
        accuracy).

    >>> model = nn.Linear(2, 1)
    >>> loss_fn = lambda model, batch: (model(batch).sum() * 0 + len(batch), len(batch))
    >>> evaluate(model, [torch.ones(4, 2), torch.ones(1, 2)], loss_fn)
    1.0
    """
    check_module(model)
    check_loss_fn(loss_fn)
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    state = None if carry is None else Carry(carry, device)
    run = Precision(precision, device).run
    leaves = [] if state is None else state.buffers
    modes = {module: module.training for module in model.modules()}
    sums: dict[str, _Sum] = {}
    model.eval()
    try:
        with torch.no_grad():
            for batch, counts in in_lockstep(batches, device):
                losses, new_leaves = run(
                    call_loss_fn, loss_fn, model, batch, state, leaves, _parse_named_losses
                )
                if counts:  # else a filler batch, which keeps the collectives of the ranks together
                    leaves = new_leaves
                    _add(sums, losses)
    finally:
        for module, mode in modes.items():
            module.training = mode
        reshard(
            model
        )  # without a backward pass it stays gathered, and no optimizer could be built over it
    return _read_means(sums)


def _parse_named_losses(value: Any) -> dict[str, Loss]:
    """Return the losses that a loss function returned, each under its name.

    In a dictionary, a sum may also be an integer tensor, such as a number of correct answers, or a
    number.
    """
    if not isinstance(value, Mapping):
        return {_LOSS: parse_loss(value)}
    named = cast("Mapping[Any, Any]", value)
    if not named or not all(isinstance(name, str) and name for name in named):
        raise TypeError(
            f"loss_fn returned a dictionary with the keys {checks.short_repr([*named])}; they must "
            "be strings"
        )
    losses: dict[str, Loss] = {}
    for name, item in named.items():
        try:
            total, *weight = item if is_pair(item) else (item,)
            losses[name] = parse_loss(
                (_as_floating(total), *weight) if weight else _as_floating(total)
            )
        except (TypeError, ValueError) as error:
            raise type(error)(f"in {name!r} {error}") from error
    return losses


def _as_floating(total: Any) -> Any:
    if isinstance(total, int | float):
        return torch.tensor(float(total), dtype=torch.float64)
    if isinstance(total, Tensor) and not total.is_floating_point() and not total.is_complex():
        return total.double()
    return total


@dataclass
class _Sum:
    """The sum of a loss over the batches of one rank, in float64 because a data set may be large."""

    is_mean: bool
    """True if the loss function returns means, whose weight is the number of batches; False for
    pairs."""
    total: Any = 0.0
    weight: Any = 0.0


def _add(sums: dict[str, _Sum], losses: Mapping[str, Loss]) -> None:
    """Add the losses of a batch. Those of the first batch decide the names, and which are means.

    Raises:
        TypeError: The names differ from those of the first batch, or a mean takes the place of a
            pair.
    """
    if not sums:
        sums.update({name: _Sum(weight is None) for name, (_, weight) in losses.items()})
    if losses.keys() != sums.keys():
        raise TypeError(
            f"loss_fn returned {_describe(losses)} for one batch and {_describe(sums)} before"
        )
    for name, (total, weight) in losses.items():
        check_same_kind(weight, not sums[name].is_mean)
        weight = 1.0 if weight is None else weight
        sums[name].total = sums[name].total + total.double()
        sums[name].weight = sums[name].weight + (
            weight.double() if isinstance(weight, Tensor) else weight
        )


def _describe(names: Collection[str]) -> str:
    return "a loss" if _LOSS in names else f"the names {checks.short_repr([*names])}"


def _read_sums(sums: Mapping[str, _Sum]) -> dict[str, _Sum]:
    """Return the sums as numbers. Synchronizes with the device once."""
    values = [value for item in sums.values() for value in (item.total, item.weight)]
    devices = (value.device for value in values if isinstance(value, Tensor))
    device = next((device for device in devices if device.type != "cpu"), torch.device("cpu"))
    zero = torch.zeros((), dtype=torch.float64, device=device)
    # A host number added to a zero on the device is an operator's argument. A copy would
    # synchronize.
    numbers = iter(cast("list[float]", torch.stack([zero + value for value in values]).tolist()))
    return {name: _Sum(item.is_mean, next(numbers), next(numbers)) for name, item in sums.items()}


def _read_means(sums: Mapping[str, _Sum]) -> Any:
    """Return Σ sum / Σ weight of each name over all ranks, from the sums of this rank. Synchronizes.

    Raises:
        ValueError: No rank has had a batch.
        TypeError: The ranks have different names, or some means and others pairs.

    Warns:
        CurveWarning: The total weight of pairs, which the host knows by now, is not a whole number.
    """
    gathered = processes.gather(_read_sums(sums) if sums else {})
    ranks = [rank_sums for rank_sums in gathered if rank_sums]
    if not ranks:
        raise ValueError("batches is empty")
    if any(rank_sums.keys() != ranks[0].keys() for rank_sums in ranks):
        raise TypeError("loss_fn returned different names on different ranks")
    means: dict[str, float] = {}
    for name, first in ranks[0].items():
        if any(rank_sums[name].is_mean != first.is_mean for rank_sums in ranks):
            raise TypeError(
                "loss_fn returned a mean on one rank and a pair (sum, weight) on another"
            )
        total = sum(rank_sums[name].total for rank_sums in ranks)
        weight = sum(rank_sums[name].weight for rank_sums in ranks)
        if name == _LOSS and not first.is_mean:  # a pair in a dictionary is surely meant as one
            check_weight(weight)
        means[name] = (
            total / weight if weight else total * math.inf
        )  # Python's own division by zero raises
    return means.get(_LOSS, means)
