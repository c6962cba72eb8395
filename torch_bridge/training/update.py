"""One update on the device: forward, backward, unscale, clip, decide, step, count."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from torch_bridge.distributed.wrappers import Unwrapped
from torch_bridge.training.accumulation import Accumulator
from torch_bridge.training.arguments import Arguments
from torch_bridge.training.aux import Aux
from torch_bridge.training.clock import Clock
from torch_bridge.training.drivers import Drivers, Skip
from torch_bridge.training.explanation import explain
from torch_bridge.training.gradients import clip, gradients_of, norm_dtype
from torch_bridge.training.local_division import LocalDivision
from torch_bridge.training.loss import as_loss, forward
from torch_bridge.training.shared_division import SharedDivision
from torch_bridge.training.single_micro_batch import SingleMicroBatch


class Update:
    """Runs an update over micro-batches; works on the same tensors at every call.

    Args:
        model: The module that `loss_fn` is called with.
        loss_fn: The loss function, compiled where it is to be.
        found: The arguments of the step, checked.
        clock: Where the rates are, and what counts the update.
        drivers: They step the optimizers.
        max_norm: The norm that gradients are clipped to, or None.
        has_aux: Whether `loss_fn` returns aux beside the loss.
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: Any,
        found: Arguments,
        clock: Clock,
        drivers: Drivers,
        max_norm: float | None,
        has_aux: bool,
    ) -> None:
        self.wrapper = found.wrapper
        """What the update needs of the model's wrapper."""
        self._model, self._loss_fn = model, loss_fn
        self._precision, self._carry, self._batch_counts = found.precision, found.carry, found.batch_counts
        self._clock, self._drivers, self._max_norm = clock, drivers, max_norm
        self._aux = Aux() if has_aux else None
        self._read_loss = as_loss if self._aux is None else self._aux.read
        self._is_wrapped = not isinstance(found.wrapper, Unwrapped)
        self._optimized, self._all_parameters = found.parameters, list(model.parameters())
        self._device, self._norm_dtype = found.device, norm_dtype(found.parameters)

    def __call__(self, micro_batches: Sequence[Any]) -> tuple[Any, ...]:
        """Loss, norm, rates and counts, as tensors of their own; with `has_aux` what `Aux.take` gives."""
        # Between torch's operators a call of a Python function takes most of a microsecond, since the caches
        # hold torch's code by then. So the smallest pieces are written out, here and in what this calls.
        # Under a wrapper an error anywhere leaves other ranks in a collective, and torch's wrapper in a pass.
        self._drivers.is_partial = self._is_wrapped
        for parameter in self._all_parameters:
            parameter.grad = None
        try:
            consumed = None if self._batch_counts is None else self._batch_counts(micro_batches)
            accumulator, carry = self._forward_and_backward(micro_batches, consumed)
            gradients = gradients_of(self._optimized)
            if not gradients:
                raise ValueError("the loss has no gradient with respect to any parameter of the optimizer")
            loss, norm = accumulator.finish(gradients, self._norm_dtype)
            if self._max_norm is not None:
                clip(gradients, norm, self._max_norm)
            skip = Skip(loss, norm, self._clock.now)
            # Before the optimizer moves a parameter that a leaf may be a view of.
            kept = [] if self._carry is None else self._carry.chosen(carry, skip.on_device)
            self._clock.fill_rates()
            self._drivers.step(skip)
            self._clock.count_update(skip.on_device, loss, consumed)
            if self._precision.scale is not None:
                self._precision.scale.update(skip.found_inf, loss)
                accumulator.keep_weights()
            if self._carry is not None:
                self._carry.set(kept)
            self._drivers.is_partial = False
        except BaseException as error:
            if self._aux is not None:
                self._aux.clear()
            explain(error, micro_batches)
            raise
        finally:
            for parameter in self._all_parameters:
                parameter.grad = None
        outputs = loss, norm, self._clock.rates.clone(), self._clock.counts.clone()
        return outputs if self._aux is None else (*outputs, *self._aux.take())

    def _forward_and_backward(
        self, micro_batches: Sequence[Any], consumed: Tensor | None
    ) -> tuple[Accumulator | SingleMicroBatch, list[Tensor]]:
        # Clones, since loss_fn may change them in place before the update turns out to be skipped.
        carry = [] if self._carry is None else [buffer.clone() for buffer in self._carry.buffers]
        count, scale = len(micro_batches), self._precision.scale
        if self.wrapper.size > 1:
            division = SharedDivision(self._optimized, scale, self.wrapper, consumed)
            accumulator = Accumulator(count, self._optimized, scale, division)
        elif count > 1:
            accumulator = Accumulator(count, self._optimized, scale, LocalDivision(scale))
        else:
            accumulator = SingleMicroBatch(self._device, scale)
        for number, batch in enumerate(micro_batches, 1):
            # None where there is nothing to average: a context that does nothing would be three calls.
            context = self.wrapper.micro_batch(is_last=number == count) if self._is_wrapped else None
            if context is None:
                carry = self._run(batch, carry, accumulator)
            else:
                with context:
                    carry = self._run(batch, carry, accumulator)
        return accumulator, carry

    def _run(
        self, batch: Any, carry: list[Tensor], accumulator: Accumulator | SingleMicroBatch
    ) -> list[Tensor]:
        """One micro-batch forward and backward; the carry after it."""
        loss, carry = self._precision.run(
            forward, self._loss_fn, self._model, batch, self._carry, carry, self._read_loss
        )
        accumulator.add(loss)
        return carry
