"""One update on the device: forward, backward, unscale, clip, decide, step, count."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

from torch_bridge.training.device_clocks.device_clock import DeviceClock
from torch_bridge.training.distributed.parallelism import Parallelism
from torch_bridge.training.train_step.gradients import clip, gradients_of
from torch_bridge.training.train_step.loss import Loss, check_same_form
from torch_bridge.training.train_step.loss_call import LossCall
from torch_bridge.training.train_step.loss_normalizer import LossNormalizer
from torch_bridge.training.train_step.result import StepResult
from torch_bridge.training.train_step.status import Status
from torch_bridge.training.train_step.steppers import OptimizerSteppers


class _Passes(NamedTuple):
    """The results of the forward and backward passes of all micro-batches."""

    sums: Loss
    """The sums of losses and weights."""
    divisor: Tensor | float
    """The divisor of the losses that are sums."""
    carry: list[Tensor]
    """The leaves of the last carry."""
    aux: list[Any]
    """The aux output of each micro-batch; empty without `has_aux`."""


class Update:
    """Runs an update, on the same tensors in every call, so that a graph can capture it."""

    def __init__(
        self,
        loss_call: LossCall[Loss],
        parameters: list[nn.Parameter],
        *,
        parallelism: Parallelism,
        clock: DeviceClock,
        steppers: OptimizerSteppers,
        status: Status,
        max_norm: float | None,
    ) -> None:
        self._loss_call = loss_call
        self._carry = loss_call.carry
        self._scale = loss_call.precision.scale
        self._optimized = parameters
        self._all_parameters = list(loss_call.model.parameters())
        self._parallelism = parallelism
        self._clock = clock
        self._normalizer = LossNormalizer(parameters, self._scale, parallelism)
        self._steppers = steppers
        self._status = status
        self._max_norm = max_norm

    def __call__(self, micro_batches: Sequence[Any]) -> StepResult:
        """Run an update over this rank's micro-batches. Leaves no gradient, even after an error."""
        self._clear_gradients()
        try:
            result = self._run(micro_batches)
            self._status.complete()
            return result
        finally:
            self._clear_gradients()

    def _clear_gradients(self) -> None:
        for parameter in self._all_parameters:
            parameter.grad = None

    def _run(self, micro_batches: Sequence[Any]) -> StepResult:
        passes = self._forward_and_backward(micro_batches)
        gradients = gradients_of(self._optimized)
        if not gradients:
            raise ValueError(
                "the loss has no gradient with respect to any parameter of the optimizer"
            )

        loss, norm = self._normalizer.normalize(
            passes.sums, len(micro_batches), passes.divisor, gradients, self._clock.count
        )
        if self._max_norm is not None:
            clip(gradients, norm, self._max_norm)

        # x - x is 0 for a finite x and otherwise NaN, which differs from everything: one comparison
        # replaces two calls of isfinite.
        skip = (loss - loss).ne(norm - norm)
        found_inf = skip.float()
        next_carry: list[Tensor] = []
        if self._carry is not None:
            # Before the optimizer's step: a leaf may be a view of a parameter that it moves.
            next_carry = self._carry.select_if_skipped(passes.carry, skip)
        self._clock.fill_lrs()
        self._steppers.step(skip, found_inf)

        counters = self._clock.count_update(skip, loss)
        if self._scale is not None:
            self._scale.update(found_inf, loss)
        if self._carry is not None:
            self._carry.write(next_carry)
        return StepResult(loss, norm, self._clock.lrs.clone(), counters, tuple(passes.aux))

    def _forward_and_backward(self, micro_batches: Sequence[Any]) -> _Passes:
        carry: list[Tensor] = []
        if self._carry is not None:
            # Clones: loss_fn may change them in place, and the update may turn out to be skipped.
            carry = [buffer.clone() for buffer in self._carry.buffers]
        count = len(micro_batches)
        sums: Loss | None = None
        divisor: Tensor | float = 1.0
        aux: list[Any] = []
        for number, batch in enumerate(micro_batches, 1):
            with self._parallelism.micro_batch_context(is_last=number == count):
                (term, weight), carry, aux_of_batch = self._loss_call.run(batch, carry)
                if number == 1:
                    divisor = self._normalizer.choose_divisor(weight, count)
                total = self._normalizer.backward((term, weight), count, divisor)
            if self._loss_call.has_aux:
                aux.append(aux_of_batch)
            if count == 1:
                return _Passes((total, weight), divisor, carry, aux)
            sums = _add_losses(sums, (total, weight))
        assert sums is not None  # there is at least one micro-batch
        return _Passes(sums, divisor, carry, aux)


def _add_losses(sums: Loss | None, loss: Loss) -> Loss:
    """Add up totals and weights."""
    new_total, new_weight = loss
    if sums is None:
        # Copies: loss_fn may write its next results into the same tensors.
        return new_total.clone(), None if new_weight is None else new_weight + 0.0
    total, weight = sums
    check_same_form(new_weight, is_pair=weight is not None)
    if weight is None or new_weight is None:
        return total + new_total, None
    return total + new_total, weight + new_weight
