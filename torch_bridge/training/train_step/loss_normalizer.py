"""One loss and one gradient from all micro-batches of an update, on one rank or several."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ReduceOp

from torch_bridge.training.distributed.parallelism import Parallelism
from torch_bridge.training.train_step.gradients import norm_dtype, total_norm
from torch_bridge.training.train_step.loss import Loss, check_weight
from torch_bridge.training.train_step.precision import LossScale


class LossNormalizer:
    """Runs the backward pass of each micro-batch, then normalizes loss and gradients.

        loss = Σ sum / Σ weight  for pairs,  the mean of the means otherwise

    Σ weight is known only at the end. So the backward passes run on sum/c, and at the end gradients
    and loss are multiplied by c/Σ weight. A single micro-batch on one rank takes its own weight as
    c and needs no multiplication. Otherwise c is 1, unless an fp16 gradient of a sum could
    overflow: then c is the largest weight that any rank has for its first micro-batch.

    On several ranks the model's wrapper averages the gradients, which is right for means. For pairs
    the average is Σ gradient/(c·size), so the factor is c·size/Σ weight. A single all-reduce in
    float64 sums total, weight, squared norm, form and consumption, so all ranks make the same
    decision. The clock limits the count of an update to 2⁵³, so its sum is exact.

    For example, two ranks return (12, 3) and (2, 1), so that the loss is 14/4 = 3.5. With gradients
    g and h of the two sums, the gradient of the loss is (g + h)/4:

                              c = 1                            fp16: c = 3, the largest first weight
        backward passes       g              and  h            g/3              and  h/3
        averaged              (g + h)/2                        (g + h)/6
        times c·size/Σ weight (g + h)/2 · 1·2/4 = (g + h)/4    (g + h)/6 · 3·2/4 = (g + h)/4
        loss                  (12 + 2) · 1/4 = 3.5             (4 + 2/3) · 3/4 = 3.5

    Args:
        parameters: The optimized parameters.
        scale: The loss scale, or None.
        parallelism: The interface to the model's parallelism.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], scale: LossScale | None, parallelism: Parallelism
    ) -> None:
        self._scale = scale
        self._parallelism = parallelism
        self._size = parallelism.size
        self._norm_dtype = norm_dtype(parameters)
        self._device = parameters[0].device
        has_fp16 = any(parameter.dtype == torch.float16 for parameter in parameters)
        self._can_overflow = scale is not None or parallelism.may_send_fp16 or has_fp16
        self._has_checked_weight = False

    def choose_divisor(self, weight: Tensor | float | None, count: int) -> Tensor | float:
        """Return the divisor of this update's sums, c; in fp16, the ranks agree on it.

        Args:
            weight: The weight of the first micro-batch; None for a mean.
            count: The number of this rank's micro-batches.

        Raises:
            ValueError: The weight of the only micro-batch is zero, as a number on the host.
        """
        if weight is not None and count == 1 and self._size == 1:
            return _nonzero_on_host(weight)
        if not self._can_overflow or (weight is None and self._size == 1):
            return 1.0
        first = self._as_tensor(0.0 if weight is None else weight).float()
        first = torch.nan_to_num(first, nan=0.0, posinf=0.0)
        self._parallelism.all_reduce(first, ReduceOp.MAX)
        return torch.where(first > 0, first, 1.0)

    def backward(self, loss: Loss, count: int, divisor: Tensor | float) -> Tensor:
        """Run the backward pass of one of `count` micro-batches.

        Returns:
            Its contribution to the total that `normalize` takes, detached.

        Raises:
            ValueError: The loss and the parameters are on different devices.
            RuntimeError: The loss has no gradient, and is not the sum of an empty micro-batch.
        """
        term, weight = loss
        if term.device != self._device:
            raise ValueError(
                f"loss_fn returned a loss on {term.device}; the parameters are on {self._device}"
            )
        if weight is not None:
            if not self._has_checked_weight:
                self._has_checked_weight = check_weight(weight)
            if isinstance(divisor, Tensor) or divisor != 1:
                term = term / divisor
        elif count > 1:
            term = term / count
        is_empty = weight is not None and not term.requires_grad and self._size == 1
        if self._scale is not None and not is_empty:
            (term * self._scale.factor).backward()
        elif not is_empty:
            term.backward()
        # If loss_fn returned a parameter or a view of one, the optimizer would change the reported
        # loss.
        is_shared = term.is_leaf or term._is_view()
        term = term.detach()
        if is_shared:
            term = term.clone()
        if term.dtype.itemsize < 4:
            term = term.float()
        return term

    def normalize(
        self,
        loss: Loss,
        count: int,
        divisor: Tensor | float,
        gradients: list[Tensor],
        consumed: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Normalize the gradients in place.

        Args:
            loss: The sums, over this rank's micro-batches, of what `backward` returned and of the
                weights.
            count: The number of these micro-batches.
            divisor: The divisor of the sums.
            gradients: Their gradients.
            consumed: The samples or tokens in them, if the clock counts these; replaced in place by
                the sum over all ranks.

        Returns:
            The loss of the update and the total norm of the gradients, as new scalars.

        Raises:
            ValueError: The total weight is zero, as a number on the host.
        """
        if self._size > 1:
            return self._normalize_over_ranks(loss, divisor, gradients, consumed)
        total, weight = loss
        gradient_factor: Any = None
        if self._scale is not None:
            gradient_factor = self._scale.factor.reciprocal()
        if count > 1 and weight is not None:
            loss_factor = divisor / _nonzero_on_host(weight)
            total = total * loss_factor
            gradient_factor = _multiply(loss_factor, gradient_factor)
        if gradient_factor is not None:
            torch._foreach_mul_(gradients, gradient_factor)
        return total, total_norm(gradients, self._norm_dtype)

    def _normalize_over_ranks(
        self,
        loss: Loss,
        divisor: Tensor | float,
        gradients: list[Tensor],
        consumed: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        total, weight = loss
        is_pair = weight is not None
        norm = total_norm(gradients, self._norm_dtype)

        # In float64, which the square of a float32 cannot overflow. Replicas have equal gradients,
        # so the sum over ranks would count each square once per replica.
        square = norm.double().square() / self._parallelism.replicas
        numbers = [
            self._as_tensor(number).double()
            for number in (total, weight if is_pair else 0.0, square, float(is_pair))
        ]
        if consumed is not None:
            numbers.append(consumed.double())
        sums = torch.stack(numbers)
        self._parallelism.all_reduce(sums)
        total_over_ranks, weight_over_ranks, squares, num_pairs = sums[:4]
        if consumed is not None:
            consumed.copy_(sums[4])
        # If some ranks have means and others pairs, the update has no loss: NaN makes all ranks
        # skip it.
        is_same_form = num_pairs % self._size == 0
        total_over_ranks = torch.where(is_same_form, total_over_ranks, math.nan)
        norm_over_ranks = squares.sqrt()

        loss_factor: Any = 1 / self._size
        gradient_factor: Any = None
        if self._scale is not None:
            gradient_factor = self._scale.factor.reciprocal()
        if is_pair:
            loss_factor = divisor / weight_over_ranks
            gradient_factor = _multiply(loss_factor * self._size, gradient_factor)
        if gradient_factor is not None:
            # With a float64 factor, torch would run one operator per gradient.
            torch._foreach_mul_(gradients, gradient_factor.to(norm.dtype))
            norm_over_ranks = norm_over_ranks * gradient_factor
        loss_over_ranks = total_over_ranks * loss_factor
        return loss_over_ranks.to(total.dtype), norm_over_ranks.to(norm.dtype)

    def _as_tensor(self, number: Tensor | float) -> Tensor:
        if isinstance(number, Tensor):
            return number
        return torch.full((), number, dtype=torch.float64, device=self._device)


def _multiply(factor: Any, other: Any) -> Any:
    if other is None:
        return factor
    return factor * other


def _nonzero_on_host(total_weight: Tensor | float) -> Tensor | float:
    """Return the total weight, but reject a zero on the host.

    A zero on the device makes the loss nonfinite, so that the update is skipped.
    """
    if not isinstance(total_weight, Tensor) and total_weight == 0:
        raise ValueError("the total weight of the micro-batches is zero")
    return total_weight
