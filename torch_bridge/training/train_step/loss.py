"""The loss function: its forms, and the parsing of its result."""

import math
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from plateau_jax.arguments import checks
from plateau_jax.arguments.curve_warning import warn

_Result = TypeVar("_Result")

LossFunction = Callable[[Any, Any], _Result] | Callable[[Any, Any, Any], _Result]
"""`loss_fn(model, batch)`, or with a carry `loss_fn(model, batch, carry)`; see `TrainStep`."""

_MEANING = (
    "a pair is (sum, weight), the loss is sum/weight, and the weight is a count of samples or "
    "tokens. To return more than the loss, build the step with has_aux=True and return (loss, "
    "aux), with tensors in aux"
)

_TORCH_LOSS_MODULES = ("torch.nn.modules.loss", "torch.nn.functional")


def check_model_and_loss_fn(model: Any, loss_fn: Any) -> None:
    """Check that the model is a module, and that `loss_fn` is a function of a model.

    Raises:
        TypeError: It is not a module; or `loss_fn` cannot be called, or is one of torch's criteria.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(checks.must("model", model, "be a torch.nn.Module"))
    if not callable(loss_fn):
        raise TypeError(checks.must("loss_fn", loss_fn, "be callable"))
    if getattr(loss_fn, "__module__", None) in _TORCH_LOSS_MODULES:
        raise TypeError(
            f"loss_fn = {checks.short_repr(loss_fn)} takes outputs and targets, and is called as "
            "loss_fn(model, batch): wrap the criterion, "
            "lambda model, batch: criterion(model(batch[0]), batch[1])"
        )


Loss = tuple[Tensor, Tensor | float | None]
"""A mean loss and None, or a sum and its weight, by which it is divided."""


def parse_loss(value: Any) -> Loss:
    """Convert the result of a loss function to a `Loss`.

    Raises:
        TypeError: The result is neither a tensor nor a pair (sum, weight).
        ValueError: The loss is not a scalar, or the weight is negative, not a scalar, or requires
            grad.
    """
    if not is_pair(value):
        return _scalar("loss", value), None
    total, weight = value
    total = _scalar("sum", total)
    if isinstance(weight, Tensor):
        _check_weight_tensor(weight)
        if total.is_cpu or not weight.is_cpu:
            return total, weight.detach().to(torch.promote_types(total.dtype, torch.float32))
        weight = weight.item()  # in host memory, so this does not synchronize
    return total, _weight_on_host(weight)


def _scalar(name: str, value: Any) -> Tensor:
    if not isinstance(value, Tensor):
        raise TypeError(
            f"loss_fn returned {describe(value)} as the {name}; it must return a scalar tensor or "
            "a pair (sum, weight)"
        )
    if value.dim() != 0 or not value.is_floating_point():
        raise ValueError(
            f"loss_fn returned a {name} of shape {tuple(value.shape)} and {value.dtype}; "
            "it must be a floating-point scalar: reduce it with .mean(), or return (loss.sum(), "
            "weight)"
        )
    return value


def _check_weight_tensor(weight: Tensor) -> None:
    if weight.dim() != 0:
        raise ValueError(f"loss_fn returned a weight of shape {tuple(weight.shape)}; {_MEANING}")
    if weight.requires_grad:
        raise ValueError(
            f"loss_fn returned a weight that requires grad; {_MEANING}; if it was computed "
            "from outputs, return weight.detach()"
        )


def _weight_on_host(weight: Any) -> float:
    if isinstance(weight, bool) or not isinstance(weight, Real):
        raise TypeError(f"loss_fn returned the weight {describe(weight)}; {_MEANING}")
    number = float(cast("float", weight))
    if not 0 <= number < math.inf:
        raise ValueError(
            f"loss_fn returned the weight {number}; it must be finite and not negative"
        )
    return number


def check_weight(weight: Tensor | float) -> bool:
    """Warn if a weight in host memory is not a whole number: it may be an accuracy.

    Returns:
        True if later weights need no check, as for a weight on a device, which is not read. (0 and
        1 may be a count or an accuracy.)

    Warns:
        CurveWarning: The message names `has_aux`.
    """
    if isinstance(weight, Tensor):
        if weight.device.type != "cpu":
            return True
        weight = weight.item()
    number = float(weight)
    if not math.isfinite(number):  # the update will be skipped
        return False
    # Within the rounding error of a float32 sum: fractions that add up to 1 may give 1.0000001.
    count = round(number)
    if number >= 0 and math.isclose(number, count, rel_tol=1e-6):
        return count > 1
    warn(
        f"loss_fn returned a weight that is not a whole number, but {_MEANING}. If fractions are "
        "meant, turn this warning off: "
        'warnings.filterwarnings("ignore", "loss_fn returned a weight")'
    )
    return True


def check_same_form(weight: Tensor | float | None, *, is_pair: bool) -> None:
    """Reject a mean after pairs, and a pair after means."""
    if (weight is not None) != is_pair:
        raise TypeError(
            "loss_fn returned a mean for one batch and a pair (sum, weight) for another"
        )


def is_pair(value: Any) -> bool:
    return isinstance(value, tuple | list) and len(cast("Sequence[Any]", value)) == 2


def describe(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return checks.short_repr(value)
