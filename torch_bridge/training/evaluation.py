"""The loss of a model over a data set, without gradients."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

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
    """The mean loss over all batches: Σ sum / Σ weight for pairs, the average of plain means.

    Without gradients and in evaluation mode, which ends with the call: every module's mode is then
    what it was. The device is looked at once, at the end. `loss_fn` runs as it is given: a step built
    with `compile=True` compiles its own copy.

    Args:
        model: The module that `loss_fn` is called with.
        batches: Any iterable of batches.
        loss_fn: As for `TrainStep`.
        precision: As for `TrainStep`.
        carry: The initial recurrent state, as for `TrainStep`; it goes from batch to batch.

    Returns:
        The loss; not finite where the total weight is zero.

    Raises:
        TypeError, ValueError: What `TrainStep` raises for the same arguments and the same loss; no
            batch at all.

    >>> model = nn.Linear(2, 1)
    >>> loss_fn = lambda model, batch: (model(batch).sum() * 0 + len(batch), len(batch))
    >>> evaluate(model, [torch.ones(4, 2), torch.ones(1, 2)], loss_fn)
    1.0
    """
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    state = None if carry is None else Carry(carry, device)
    context = Precision(precision, device).autocast
    leaves = [] if state is None else state.buffers
    modes = {module: module.training for module in model.modules()}
    total: Any = 0.0
    weight: Any = 0.0
    first: Loss | None = None
    model.eval()
    try:
        with torch.no_grad():
            for batch in batches:
                with context:
                    loss, leaves = forward(loss_fn, model, batch, state, leaves)
                first = first or loss
                check_kind(loss, first)
                # float64: sums over a whole data set.
                total = total + loss.total.double()
                part = 1.0 if loss.weight is None else loss.weight
                weight = weight + (part.double() if isinstance(part, torch.Tensor) else part)
    finally:
        for module, mode in modes.items():
            module.training = mode
    if first is None:
        raise ValueError("batches is empty")
    if not isinstance(weight, torch.Tensor):
        weight = total.new_tensor(weight)  # division by a zero of Python's would raise
    return (total / weight).item()
