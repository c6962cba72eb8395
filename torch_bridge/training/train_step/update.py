"""One update on the device: forward, backward, unscale, clip, decide, step, count."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from torch_bridge.training.device_clocks.device_clock import Clock
from torch_bridge.training.distributed.parallelism import Parallelism
from torch_bridge.training.train_step.gradients import clip, gradients_of
from torch_bridge.training.train_step.loss import Loss, check_same_form
from torch_bridge.training.train_step.loss_call import LossCall
from torch_bridge.training.train_step.loss_normalizer import LossNormalizer
from torch_bridge.training.train_step.status import Status
from torch_bridge.training.train_step.steppers import OptimizerSteppers


class Update:
    """Runs an update, on the same tensors in every call, so that a graph can capture it."""

    def __init__(
        self,
        loss_call: LossCall[Loss],
        parameters: list[nn.Parameter],
        *,
        parallelism: Parallelism,
        clock: Clock,
        normalizer: LossNormalizer,
        steppers: OptimizerSteppers,
        status: Status,
        max_norm: float | None,
    ) -> None:
        self._loss_call = loss_call
        self._carry = loss_call.carry
        self._scale = loss_call.precision.scale
        self._aux = loss_call.aux
        self._optimized = parameters
        self._all_parameters = list(loss_call.model.parameters())
        self._parallelism: Parallelism | None = None
        if parallelism.is_distributed:
            self._parallelism = parallelism
        self._clock = clock
        self._normalizer = normalizer
        self._steppers = steppers
        self._status = status
        self._max_norm = max_norm

    def __call__(self, micro_batches: Sequence[Any]) -> tuple[Any, ...]:
        """Run an update, so that an error leaves nothing of it behind.

        Args:
            micro_batches: The micro-batches of this rank.

        Returns:
            Loss, norm, learning rates and counters, as new tensors. With `has_aux` also the pytree
            structure of the micro-batches' aux outputs and their tensors, flat, so that a CUDA
            graph can copy them.
        """
        had_agreed = self._normalizer.has_agreed
        self._aux.clear()  # an update interrupted after its count may have left some
        for parameter in self._all_parameters:
            parameter.grad = None
        try:
            loss, norm, counters = self._run(micro_batches)
            self._status.complete()
        except BaseException:
            self._normalizer.has_agreed = had_agreed  # discard a divisor agreed on in this update
            self._aux.clear()
            raise
        finally:
            for parameter in self._all_parameters:
                parameter.grad = None
        outputs = loss, norm, self._clock.lrs.clone(), counters
        if not self._loss_call.has_aux:
            return outputs
        leaves, structure = pytree.tree_flatten(tuple(self._aux))
        self._aux.clear()
        return *outputs, structure, *leaves

    def _run(self, micro_batches: Sequence[Any]) -> tuple[Tensor, Tensor, Tensor]:
        """Run an update; return its loss, its norm and the counters."""
        # A call of a Python function between torch's operators takes most of a microsecond, since
        # the caches are full of torch's code by then. So the smallest pieces are inlined, here and
        # in what this calls.
        (total, weight), carry = self._forward_and_backward(micro_batches)
        gradients = gradients_of(self._optimized)
        if not gradients:
            raise ValueError(
                "the loss has no gradient with respect to any parameter of the optimizer"
            )

        loss, norm = self._normalizer.normalize(
            (total, weight), len(micro_batches), gradients, self._clock.count
        )
        if self._max_norm is not None:
            clip(gradients, norm, self._max_norm)

        # x·0 is 0 for a finite x and NaN otherwise: one comparison replaces two calls of isfinite.
        skip = loss.mul(0).add_(norm, alpha=0).ne(0)
        found_inf = skip.float()
        next_carry: list[Tensor] = []
        if self._carry is not None:
            # Before the optimizer's step: a leaf may be a view of a parameter that it moves.
            next_carry = self._carry.select_if_skipped(carry, skip)
        self._clock.fill_lrs()
        self._steppers.step(skip, found_inf)

        counters = self._clock.count_update(skip, loss)
        if self._scale is not None:
            self._scale.update(found_inf, loss)
        if self._carry is not None:
            self._carry.write(next_carry)
        return loss, norm, counters

    def _forward_and_backward(self, micro_batches: Sequence[Any]) -> tuple[Loss, list[Tensor]]:
        """Run all micro-batches; return the sums of losses and weights, and the last carry."""
        carry: list[Tensor] = []
        if self._carry is not None:
            # Clones: loss_fn may change them in place, and the update may turn out to be skipped.
            carry = [buffer.clone() for buffer in self._carry.buffers]
        count = len(micro_batches)
        sums: Any = None
        for number, batch in enumerate(micro_batches, 1):
            # None if there is nothing to average: a null context would cost three calls.
            context = None
            if self._parallelism is not None:
                context = self._parallelism.micro_batch_context(is_last=number == count)
            if context is None:
                loss, carry = self._loss_call.run(batch, carry)
                total = self._normalizer.backward(loss, count)
            else:
                with context:
                    loss, carry = self._loss_call.run(batch, carry)
                    total = self._normalizer.backward(loss, count)
            loss = total, loss[1]
            if count == 1:
                return loss, carry
            if sums is None:
                sums = _copy_loss(loss)
                continue
            sums = _add_losses(sums, loss)
        return sums, carry


def _copy_loss(loss: Loss) -> Loss:
    """Copy the first loss of several: loss_fn may write its next results into the same tensors."""
    total, weight = loss
    if weight is not None:
        weight = weight + 0.0
    return total.clone(), weight


def _add_losses(sums: Loss, loss: Loss) -> Loss:
    """Add up totals and weights."""
    total, weight = sums
    new_total, new_weight = loss
    check_same_form(new_weight, is_pair=weight is not None)
    if weight is None or new_weight is None:
        return total + new_total, None
    return total + new_total, weight + new_weight
