"""One update on the device: forward, backward, unscale, clip, decide, step, count."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from torch_bridge.distributed.parallelism import Parallelism
from torch_bridge.training.clock.clock import Clock
from torch_bridge.training.optimizers.steppers import OptimizerSteppers
from torch_bridge.training.update.carry import Carry
from torch_bridge.training.update.gradients import clip, gradients_of
from torch_bridge.training.update.loss import (
    Loss,
    call_loss_fn,
    check_same_kind,
    parse_loss,
    parse_loss_and_aux,
)
from torch_bridge.training.update.loss_normalizer import LossNormalizer
from torch_bridge.training.update.precision import Precision


class Update:
    """Runs an update over micro-batches. Every call uses the same tensors, so that a graph can capture it."""

    def __init__(
        self,
        model: nn.Module,
        loss_fn: Callable[..., Any],
        parameters: list[nn.Parameter],
        *,
        parallelism: Parallelism,
        precision: Precision,
        carry: Carry | None,
        clock: Clock,
        normalizer: LossNormalizer,
        steppers: OptimizerSteppers,
        max_norm: float | None,
        has_aux: bool,
    ) -> None:
        self._model, self._loss_fn = model, loss_fn
        self._optimized, self._all_parameters = parameters, list(model.parameters())
        self._parallelism = parallelism if parallelism.is_distributed else None
        self._precision, self._carry, self._clock = precision, carry, clock
        self._normalizer, self._steppers = normalizer, steppers
        self._max_norm, self._has_aux = max_norm, has_aux
        self._parse_loss = self._parse_loss_and_aux if has_aux else parse_loss
        self._aux: list[Any] = []
        self._is_plain = carry is None and precision.name == "fp32"

    def __call__(self, micro_batches: Sequence[Any], *, must_skip: bool = False) -> tuple[Any, ...]:
        """Run an update.

        Args:
            micro_batches: The micro-batches of this rank.
            must_skip: True to make the loss NaN, so that every rank skips the update.

        Returns:
            Loss, norm, learning rates and counters, as new tensors. With `has_aux` also the pytree
            structure of the micro-batches' aux outputs and their tensors, flat, so that a CUDA
            graph can copy them.
        """
        # A call of a Python function between torch's operators takes most of a microsecond, since
        # the caches hold torch's code by then. So the smallest pieces are inlined, here and in what
        # this calls.
        #
        # On one rank `steppers.step` sets `is_partial`: an error before that leaves the step
        # usable. Under a wrapper, an error anywhere leaves other ranks waiting in a collective, and
        # the wrapper in mid-pass.
        steppers, normalizer = self._steppers, self._normalizer
        steppers.is_partial = self._parallelism is not None
        had_agreed = normalizer.has_agreed
        self._aux.clear()  # an update interrupted after its count may have left some
        for parameter in self._all_parameters:
            parameter.grad = None
        try:
            total, carry = self._forward_and_backward(micro_batches)
            if must_skip:
                total = total[0] * math.nan, total[1]
            gradients = gradients_of(self._optimized)
            if not gradients:
                raise ValueError(
                    "the loss has no gradient with respect to any parameter of the optimizer"
                )
            consumed = self._clock.count
            if consumed is not None and self._parallelism is not None:
                consumed = consumed.clone()  # the sum over ranks takes its place
            loss, norm = normalizer.normalize(total, len(micro_batches), gradients, consumed)
            if self._max_norm is not None:
                clip(gradients, norm, self._max_norm)
            # x·0 is 0 for a finite x and NaN otherwise: one comparison replaces two calls of
            # isfinite.
            skip = loss.mul(0).add_(norm, alpha=0).ne(0)
            found_inf = skip.float()
            # Before the optimizer's step: a leaf may be a view of a parameter that it moves.
            next_carry = [] if self._carry is None else self._carry.select_if_skipped(carry, skip)
            self._clock.fill_lrs()
            steppers.step(skip, found_inf)
            counters = self._clock.count_update(skip, loss, consumed)
            if self._precision.scale is not None:
                self._precision.scale.update(found_inf, loss)
            if self._carry is not None:
                self._carry.write(next_carry)
            steppers.is_partial = False
        except BaseException:
            normalizer.has_agreed = had_agreed  # discard a divisor agreed on in this update
            self._aux.clear()
            raise
        finally:
            for parameter in self._all_parameters:
                parameter.grad = None
        outputs = loss, norm, self._clock.lrs.clone(), counters
        if not self._has_aux:
            return outputs
        leaves, structure = pytree.tree_flatten(tuple(self._aux))
        self._aux.clear()
        return *outputs, structure, *leaves

    def _forward_and_backward(self, micro_batches: Sequence[Any]) -> tuple[Loss, list[Tensor]]:
        """Run all micro-batches; return the sums of losses and weights, and the carry after the last one."""
        # Clones: loss_fn may change them in place, and the update may turn out to be skipped.
        carry = [] if self._carry is None else [buffer.clone() for buffer in self._carry.buffers]
        total: Any = None
        weight: Any = None
        count = len(micro_batches)
        for number, batch in enumerate(micro_batches, 1):
            # None if there is nothing to average: a null context would cost three calls.
            context = None
            if self._parallelism is not None:
                context = self._parallelism.micro_batch_context(is_last=number == count)
            if context is None:
                loss, carry = self._run_micro_batch(batch, carry, count)
            else:
                with context:
                    loss, carry = self._run_micro_batch(batch, carry, count)
            if number == 1:
                total, weight = loss
                if count > 1:  # loss_fn may write its next results into the same tensors
                    total, weight = total.clone(), None if weight is None else weight + 0.0
                continue
            check_same_kind(loss[1], weight is not None)
            total, weight = total + loss[0], None if weight is None else weight + loss[1]
        return (total, weight), carry

    def _run_micro_batch(
        self, batch: Any, carry: list[Tensor], count: int
    ) -> tuple[Loss, list[Tensor]]:
        """Run one of `count` micro-batches; return its contribution to the loss, and the carry after it."""
        if self._is_plain:
            torch.clear_autocast_cache()  # as in Precision.run
            loss = self._parse_loss(self._loss_fn(self._model, batch))
        else:
            loss, carry = self._precision.run(
                call_loss_fn,
                self._loss_fn,
                self._model,
                batch,
                self._carry,
                carry,
                self._parse_loss,
            )
        return (self._normalizer.backward(loss, count), loss[1]), carry

    def _parse_loss_and_aux(self, value: Any) -> Loss:
        loss, aux = parse_loss_and_aux(value)
        self._aux.append(aux)
        return loss
