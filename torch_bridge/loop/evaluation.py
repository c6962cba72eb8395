"""The loss of a model over a data set, without gradients."""

import math
from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import nn

from torch_bridge.distributed import processes
from torch_bridge.distributed.lockstep import in_lockstep
from torch_bridge.distributed.wrappers import reshard
from torch_bridge.training.carry import Carry
from torch_bridge.training.loss import Loss, LossFunction, check_kind, forward
from torch_bridge.training.precision import Precision, PrecisionName


def evaluate(
    model: nn.Module,
    batches: Iterable[Any],
    loss_fn: LossFunction,
    *,
    precision: PrecisionName = "fp32",
    carry: Any = None,
) -> float:
    """The mean loss over all batches.

        Σ sum / Σ weight    where loss_fn returns pairs
        Σ mean / batches    where it returns means

    The sums are float64.

    The model runs without gradients and in evaluation mode; afterwards every module's mode is what it was
    before. The host synchronizes with the device once, at the end. `loss_fn` runs as it is given: a step
    built with `compile=True` compiles its own copy.

    Every one of several ranks calls this with its own batches (those of `make_loader(..., training=False)`
    hold every sample once), the sums run over all ranks, and each gets the same loss. All ranks run the
    model equally often, as a sharded one needs: a rank that has no batch left runs it on its last batch
    again, or on another rank's if it never had one, and ignores the result. How often is agreed on once if
    every rank's `batches` has a length, otherwise before every pass. An error in one rank is raised there
    alone: the others wait until it ends, or until the process group's timeout.

    Args:
        model: The module that `loss_fn` is called with; with several ranks, in its wrapper.
        batches: Any iterable of batches.
        loss_fn: As for `TrainStep`.
        precision: As for `TrainStep`.
        carry: The initial recurrent state, as for `TrainStep`; it goes from batch to batch within a rank.

    Returns:
        The loss; not finite where the total weight is zero.

    Raises:
        TypeError, ValueError: What `TrainStep` raises for the same arguments and the same loss; no
            batch at all, in any rank.
        RuntimeError: Several ranks without a process group.

    >>> model = nn.Linear(2, 1)
    >>> loss_fn = lambda model, batch: (model(batch).sum() * 0 + len(batch), len(batch))
    >>> evaluate(model, [torch.ones(4, 2), torch.ones(1, 2)], loss_fn)
    1.0
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model = {model!r} must be a torch.nn.Module")
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    state = None if carry is None else Carry(carry, device)
    run = Precision(precision, device).run
    leaves = [] if state is None else state.buffers
    modes = {module: module.training for module in model.modules()}
    total: Any = 0.0
    weight: Any = 0.0
    first: Loss | None = None
    model.eval()
    try:
        with torch.no_grad():
            for batch, counts in in_lockstep(batches, device):
                loss, after = run(forward, loss_fn, model, batch, state, leaves)
                if not counts:
                    continue
                leaves = after
                first = first or loss
                check_kind(loss, first)
                # float64: sums over a whole data set.
                total = total + loss.total.double()
                part = 1.0 if loss.weight is None else loss.weight
                weight = weight + (part.double() if isinstance(part, torch.Tensor) else part)
    finally:
        for module, mode in modes.items():
            module.training = mode
        reshard(model)  # so that an optimizer can be built over its parameters
    return _read_quotient(first, total, weight)


def _read_quotient(first: Loss | None, total: Any, weight: Any) -> float:
    """Σ sum / Σ weight over all ranks, in their order, from the sums of this one. Synchronizes."""
    sums: tuple[bool, float, float] | None = None
    if first is not None:
        weight = weight if isinstance(weight, torch.Tensor) else total.new_tensor(weight)
        total, weight = cast("list[float]", torch.stack([total, weight]).tolist())
        sums = first.weight is None, total, weight
    all_sums = [sums for sums in processes.gather(sums) if sums is not None]
    if not all_sums:
        raise ValueError("batches is empty")
    are_means, totals, weights = zip(*all_sums, strict=True)
    if len(set(are_means)) > 1:
        raise TypeError("loss_fn returned a mean in one rank and a pair (sum, weight) in another")
    total, weight = sum(totals), sum(weights)
    return total / weight if weight else total * math.inf  # Python's own division by zero raises
