"""The loss of a model over a data set, without gradients."""

from collections.abc import Iterable, Mapping
from typing import Any, overload

import torch
from torch import Tensor, nn

from torch_bridge.distributed.lockstep import in_lockstep
from torch_bridge.distributed.sharded import reshard
from torch_bridge.distributed.wrappers import check_module
from torch_bridge.evaluation_sums import LossSums, parse_named_losses, read_means
from torch_bridge.training.update.carry import Carry
from torch_bridge.training.update.loss import LossFunction, call_loss_fn, check_loss_fn
from torch_bridge.training.update.precision import Precision, PrecisionName


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

    The sums are float64, and the host synchronizes with the device once, at the end. Afterwards every module
    has its previous mode. `loss_fn` is not compiled: a step built with `compile=True` compiles its own copy.

    With several ranks, every rank calls this with its own batches (those of `make_loader(...,
    training=False)` hold every sample once). The sums run over all ranks, and every rank gets the same loss.
    A sharded model must run equally often on all ranks, so a rank that has no more batches repeats its last
    one (or another rank's first) and ignores the result. If `batches` has a length on every rank, the ranks
    agree once on the number of passes, otherwise before every pass. After an error on one rank, the others
    wait until that rank ends, or until the timeout of the process group.

    Args:
        model: The module that `loss_fn` is called with; with several ranks, the wrapped model.
        batches: Any iterable of batches.
        loss_fn: As for `TrainStep`; or one that returns a dictionary of losses, accuracies and the like,
            each a mean or a pair (sum, weight), the same names for every batch. (For a `loss_fn` that
            returns aux pass `lambda model, batch: loss_fn(model, batch)[0]`.)
        precision: As for `TrainStep`.
        carry: The initial recurrent state, as for `TrainStep`; it is passed from batch to batch on each rank.

    Returns:
        The loss, or a dictionary of numbers; not finite if the total weight is zero.

    Raises:
        TypeError, ValueError: As `TrainStep` for the same arguments and the same loss; no rank has a batch;
            the names in the dictionary differ from those of an earlier batch.
        RuntimeError: There are several ranks but no process group.

    Warns:
        CurveWarning: `loss_fn` returns pairs whose weights are not whole numbers, such as (loss, accuracy).

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
    sums: LossSums | None = None
    model.eval()
    try:
        with torch.no_grad():
            for batch, counts in in_lockstep(batches, device):
                losses, new_leaves = run(
                    call_loss_fn, loss_fn, model, batch, state, leaves, parse_named_losses
                )
                if not counts:  # a filler batch, which keeps the collectives of the ranks together
                    continue
                leaves = new_leaves
                sums = sums or LossSums(losses)
                sums.add(losses)
    finally:
        for module, mode in modes.items():
            module.training = mode
        reshard(model)  # without a backward pass it stays gathered, and no optimizer could be built over it
    return read_means(sums)
