"""`evaluate`: the mean loss of a model over a data set, or several named means."""

import math
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast, overload

import torch
from torch import Tensor, nn

from plateau_jax.arguments import checks
from torch_bridge.training.distributed import processes
from torch_bridge.training.distributed.parallelism import reshard
from torch_bridge.training.distributed.processes import in_lockstep
from torch_bridge.training.train_step.loss import (
    Loss,
    LossFunction,
    check_model_and_loss_fn,
    check_weight,
    is_pair,
    parse_loss,
)
from torch_bridge.training.train_step.loss_call import Carry, LossCall
from torch_bridge.training.train_step.precision import Precision, PrecisionName

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
    """Return the mean loss over all batches, or several means, in evaluation mode.

        Σ sum / Σ weight    if loss_fn returns pairs
        Σ mean / batches    if it returns means

    No gradients are computed. The sums are float64, and the host synchronizes with the device once,
    at the end. Afterwards every module has its previous mode. `loss_fn` is not compiled: a step
    built with `compile=True` compiles its own copy.

    With several ranks, every rank calls this with its own batches. A loader from `make_loader` with
    `training=False` gives each sample to one rank. The sums run over all ranks, and every rank gets
    the same loss. A sharded model must run equally often on all ranks, so a rank that has no more
    batches repeats its last one and ignores the result. If `batches` has a length, the
    ranks agree once on the number of passes. Otherwise they agree before every pass.
    After an error on one rank, the others wait until that rank ends, or until the timeout of the
    process group.

    Args:
        model: The module that `loss_fn` is called with; with several ranks, the wrapped model.
        batches: Any iterable of batches.
        loss_fn: As for `TrainStep`; or one that returns a dictionary of losses, accuracies and the
            like, with the same names for every batch. Each value is a mean or a pair (sum, weight).
            For a `loss_fn` that returns aux, pass `lambda model, batch: loss_fn(model, batch)[0]`.
        precision: As for `TrainStep`.
        carry: The initial recurrent state, as for `TrainStep`; it is passed from batch to batch on
            each rank.

    Returns:
        The loss, or a dictionary of numbers; not finite if the total weight is zero.

    Raises:
        TypeError, ValueError: As `TrainStep` for the same arguments and the same loss; a rank has
            no batch; the names in the dictionary differ from those of an earlier batch; there are
            several ranks but no process group.

    Warns:
        CurveWarning: `loss_fn` returns pairs whose weights are not whole numbers, such as
            (loss, accuracy).

    >>> import torch
    >>> from torch_bridge import evaluate
    >>> def loss_fn(model, batch):
    ...     return model(batch).sum(), len(batch)
    >>> evaluate(torch.nn.Identity(), [torch.tensor([1.0, 2.0, 3.0]), torch.tensor([6.0])], loss_fn)
    3.0
    """
    check_model_and_loss_fn(model, loss_fn)
    device = torch.device("cpu")
    first_parameter = next(iter(model.parameters()), None)
    if first_parameter is not None:
        device = first_parameter.device
    state = None if carry is None else Carry(carry, device)
    leaves = [] if state is None else state.buffers
    loss_call = LossCall(
        model,
        loss_fn,
        _parse_named_losses,
        precision=Precision(precision, device),
        carry=state,
    )
    forms: dict[str, str] | None = None
    sums: Any = 0.0
    with _evaluation_mode(model), torch.no_grad():
        for batch, is_counted in in_lockstep(batches):
            losses, new_leaves, _ = loss_call.run(batch, leaves)
            if not is_counted:  # a filler, so that all ranks run the same collectives
                continue
            leaves = new_leaves
            forms_of_batch = _forms_of(losses)
            if forms is None:
                forms = forms_of_batch
            _check_same_forms(forms, forms_of_batch)
            # In one order, whatever the order of the names was on this rank and in this batch.
            sums = sums + _stack([losses[name] for name in sorted(losses)])
    if forms is None:
        raise ValueError("batches is empty")
    means = _means_over_ranks(forms, sums.tolist())
    return means.get(_LOSS, means)


@contextmanager
def _evaluation_mode(model: nn.Module) -> Generator[None]:
    """Put a model into evaluation mode, and restore the mode of every module afterwards."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode
        # Without a backward pass the model stays gathered, and no optimizer could be built over it.
        reshard(model)


# One batch: the losses by name, from the value that the loss function returned.


def _parse_named_losses(value: Any) -> dict[str, Loss]:
    """Return the losses that a loss function returned, each under its name.

    In a dictionary, a sum may also be an integer tensor, such as a number of correct answers, or a
    number.
    """
    if not isinstance(value, Mapping):
        return {_LOSS: parse_loss(value)}
    named = cast("Mapping[Any, Any]", value)
    if not named or not all(isinstance(name, str) and name for name in named):
        names = checks.short_repr([*named])
        raise TypeError(
            f"loss_fn returned a dictionary with the keys {names}; they must be strings"
        )
    losses: dict[str, Loss] = {}
    for name, item in named.items():
        losses[name] = _parse_item(name, item)
    return losses


def _parse_item(name: str, item: Any) -> Loss:
    try:
        if is_pair(item):
            total, weight = item
            return parse_loss((_as_floating(total), weight))
        return parse_loss(_as_floating(item))
    except (TypeError, ValueError) as error:
        raise type(error)(f"in {name!r} {error}") from error


def _as_floating(total: Any) -> Any:
    if isinstance(total, int | float):
        return torch.tensor(float(total), dtype=torch.float64)
    if isinstance(total, Tensor) and not total.is_floating_point() and not total.is_complex():
        return total.double()
    return total


def _forms_of(losses: Mapping[str, Loss]) -> dict[str, str]:
    """Return "mean" or "pair" for each name."""
    return {name: "mean" if weight is None else "pair" for name, (_, weight) in losses.items()}


def _check_same_forms(forms: Mapping[str, str], later_forms: Mapping[str, str]) -> None:
    if forms != later_forms:
        raise TypeError(
            "loss_fn must return the same names and forms for every batch on every rank, and "
            f"returned {checks.short_repr(forms)} and {checks.short_repr(later_forms)}"
        )


def _stack(losses: Sequence[Loss]) -> Tensor:
    """Return a row (sum, weight) for each loss, in float64 because a data set may be large."""
    # Numbers are added to a zero on the device, which does not synchronize as a copy would.
    devices = [total.device for total, _ in losses if not total.is_cpu]
    zero = torch.zeros((), dtype=torch.float64, device=(devices or ["cpu"])[0])
    values: list[Tensor] = []
    for total, weight in losses:
        values.append(zero + total)
        values.append(zero + (1.0 if weight is None else weight))
    return torch.stack(values).view(-1, 2)


def _means_over_ranks(
    forms: Mapping[str, str], sums: Sequence[Sequence[float]]
) -> dict[str, float]:
    """Return Σ sum / Σ weight of each name over all ranks.

    Args:
        forms: "mean" or "pair" for each name.
        sums: The row (sum, weight) of each name on this rank, in the order of the sorted names.

    Raises:
        TypeError: The ranks have different names, or some means and others pairs.

    Warns:
        CurveWarning: The total weight of pairs, which the host knows by now, is not a whole number.
    """
    gathered = processes.gather((forms, sums))
    for forms_of_rank, _ in gathered:
        _check_same_forms(gathered[0][0], forms_of_rank)
    means: dict[str, float] = {}
    for index, name in enumerate(sorted(forms)):
        total = sum(sums_of_rank[index][0] for _, sums_of_rank in gathered)
        weight = sum(sums_of_rank[index][1] for _, sums_of_rank in gathered)
        if name == _LOSS and forms[name] == "pair":  # in a dictionary it is surely meant as one
            check_weight(weight)
        # Python's own division by zero raises.
        means[name] = total / weight if weight else total * math.inf
    return {name: means[name] for name in forms}
