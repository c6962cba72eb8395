"""One whole update on the device: forward, backward, unscale, clip, decide, step, count."""

import copy
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from torch_bridge.core import PlateauCurve, checks
from torch_bridge.groups import curves_of, peaks_of
from torch_bridge.multipliers import Multipliers
from torch_bridge.training import snapshot
from torch_bridge.training.capture import Graphs
from torch_bridge.training.carry import Carry
from torch_bridge.training.clock import Clock
from torch_bridge.training.gradients import clip, gradients_of, norm_dtype, total_norm
from torch_bridge.training.loss import Loss, accumulate, forward
from torch_bridge.training.metrics import StepResult
from torch_bridge.training.optimizers import check_capturable, check_optimizer, has_momentum, skips_on_device
from torch_bridge.training.precision import LossScale, autocast


class TrainStep:
    """One training update as a call: `step(batch, *more_micro_batches)`.

    For each micro-batch a forward and a backward pass under autocast; then unscale, clip, and, if
    loss and gradient norm are finite, an optimizer step with the rate peak · curve(applied), where
    `applied` counts the updates that took place. Loss, norm, rate and counts come back as device
    tensors: nothing here reads them, and the host runs ahead of the device.

    Fused Adam, AdamW, SGD and Adagrad run without one read of the device in the steady state,
    skipped updates included (fused SGD with momentum is looked at until its first update has taken
    place). Every other torch optimizer works with one read an update beyond its own, for the
    decision to skip, and gets its rate as a Python float; those that need a closure are refused.

    A skipped update leaves parameters, optimizer state, carry and the curve's clock as they were.
    Module buffers that a forward pass changes, such as BatchNorm's statistics, are not restored.

    Args:
        model: The module that `loss_fn` is called with.
        optimizer: A torch optimizer over some or all of the model's parameters. A group's peak rate
            is its `initial_lr` where it has one, else its `lr`, rounded to float32. With a fused optimizer
            `group["lr"]` becomes a tensor that every update fills.
        loss_fn: `loss_fn(model, batch)` returns a mean loss (a scalar) or a pair (sum, weight). The
            means of the micro-batches are averaged; pairs give Σ sum / Σ weight over the whole
            update, however a batch is split. With `carry`: `loss_fn(model, batch, carry)` returns
            (loss or pair, new carry).
        curve: One curve, or a sequence of one a parameter group.
        precision: `"fp32"`, `"bf16"`, or `"fp16"` with dynamic loss scaling. (On a CPU torch has no
            fp16 LSTM; a GRU works.)
        max_norm: Clip gradients to this total 2-norm, as `torch.nn.utils.clip_grad_norm_` does.
        on_nonfinite: `"skip"` an update whose loss or norm is not finite, or `"raise"`, which reads
            the device. Under fp16 an overflow of the scaled gradient alone is skipped either way.
        compile: Compile `loss_fn` with `torch.compile`.
        cuda_graph: Capture the whole update in a CUDA graph for each shape of batch.
        carry: The initial recurrent state, any pytree of tensors. Micro-batches are then consecutive
            in time, and the carry is detached between them.

    Raises:
        TypeError: An argument of another kind; an optimizer that needs a closure.
        ValueError: An unknown `precision` or `on_nonfinite`; a `max_norm` that is not positive; an
            optimizer whose parameters are not the model's, or that has a scheduler attached; fp16
            parameters with `precision="fp16"`; `cuda_graph=True` where an update cannot be captured.

    A call raises TypeError or ValueError for a loss that is neither scalar nor pair, a total weight
    of zero that is known on the host, or a carry of another shape; the step stays usable.

    >>> model = nn.Linear(2, 1)
    >>> optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    >>> def loss_fn(model, batch):
    ...     inputs, targets = batch
    ...     return nn.functional.mse_loss(model(inputs), targets)
    >>> step = TrainStep(model, optimizer, loss_fn, PlateauCurve(100, warmup_steps=10), max_norm=1.0)
    >>> for _ in range(5):
    ...     result = step((torch.ones(8, 2), torch.ones(8, 1)))
    >>> result.applied, result.lr
    (tensor(5), tensor([0.0400]))
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        loss_fn: Callable[..., Any],
        curve: PlateauCurve | Sequence[PlateauCurve],
        *,
        precision: str = "fp32",
        max_norm: float | None = None,
        on_nonfinite: str = "skip",
        compile: bool = False,
        cuda_graph: bool = False,
        carry: Any = None,
    ) -> None:
        device = check_optimizer(model, optimizer)
        curves, peaks = curves_of(optimizer, curve), peaks_of(optimizer)
        self._autocast = autocast(precision, device)
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        if precision == "fp16" and any(parameter.dtype == torch.float16 for parameter in parameters):
            raise ValueError(
                'precision="fp16" needs parameters in fp32, which it casts itself; some are fp16'
            )
        if max_norm is not None and not checks.number("max_norm", max_norm) > 0:
            raise ValueError(f"max_norm = {max_norm!r} must be positive, or None for no clipping")
        checks.one_of("on_nonfinite", on_nonfinite, ("skip", "raise"))
        if not callable(loss_fn):
            raise TypeError(f"loss_fn = {loss_fn!r} must be callable")
        if cuda_graph:
            if device.type != "cuda":
                raise ValueError(f"cuda_graph=True needs parameters on a CUDA device; they are on {device}")
            check_capturable(optimizer, optimizer.param_groups)
        self._carry = None if carry is None else Carry(carry, device)

        self.model, self.optimizer = model, optimizer
        self._precision, self._max_norm, self._raises = precision, max_norm, on_nonfinite == "raise"
        self._loss_fn = torch.compile(loss_fn) if compile else loss_fn
        self._device, self._trained, self._parameters = device, parameters, list(model.parameters())
        self._clock = Clock(curves, peaks, device)
        self._scale = LossScale(device) if precision == "fp16" else None
        self._norm_dtype = norm_dtype(parameters)
        self._steady, self._factors = False, Multipliers(curves)
        self._graphs = None
        self._tie()
        if cuda_graph:
            self._graphs = Graphs(self._update, lambda: self._steady, model, optimizer, device)

    def __call__(self, batch: Any, *more_micro_batches: Any) -> StepResult:
        """Run one update over the micro-batches.

        Raises:
            FloatingPointError: `on_nonfinite="raise"`, and loss or gradient norm is not finite.
        """
        if [id(group["lr"]) for group in self.optimizer.param_groups] != self._written:
            self._tie()
        self._clock.tick()
        run = self._graphs or self._update
        loss, norm, rates, counts = run((batch, *more_micro_batches))
        result = StepResult(loss, norm, rates, *counts.unbind())
        if self._raises:
            self._raise_if_nonfinite(result)
        return result

    def reset_carry(self) -> None:
        """Put the initial carry back."""
        if self._carry is None:
            raise ValueError("this step was built without a carry")
        self._carry.reset()

    def _tie(self) -> None:
        """Tie the optimizer's groups to the clock: at first, and whenever something else set their rates."""
        groups, peaks = self.optimizer.param_groups, self._clock.peaks
        if len(groups) != len(peaks):
            raise ValueError(
                f"the optimizer has {len(groups)} parameter groups; the step was built for {len(peaks)}"
            )
        for group, peak in zip(groups, peaks, strict=True):
            group["initial_lr"] = peak
        self._skips_on_device = skips_on_device(self.optimizer, groups)
        self._write(self._clock.rates if self._skips_on_device else [group["lr"] for group in groups])
        if self._graphs is not None:
            self._graphs.drop()

    def _write(self, rates: Sequence[Any]) -> None:
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        self._written = [id(rate) for rate in rates]

    def _update(self, micro_batches: Sequence[Any]) -> tuple[Tensor, ...]:
        # Clones, since loss_fn may change them in place before the update turns out to be skipped.
        carry = [] if self._carry is None else [buffer.clone() for buffer in self._carry.buffers]

        def losses() -> Iterator[Loss]:
            nonlocal carry
            for batch in micro_batches:
                with self._autocast:
                    loss, carry = forward(self._loss_fn, self.model, batch, self._carry, carry)
                yield loss

        self._zero_gradients()
        try:
            scale = None if self._scale is None else self._scale.scale
            loss, rescale = accumulate(losses(), len(micro_batches), scale, self._trained)
            gradients = gradients_of(self._trained)
            if not gradients:
                raise ValueError("the loss has no gradient with respect to any parameter of the optimizer")
            if rescale is not None:
                torch._foreach_mul_(gradients, rescale)
            norm = total_norm(gradients, self._norm_dtype)
            if self._max_norm is not None:
                clip(gradients, norm, self._max_norm)
            # Zero times a finite number is zero: one comparison in place of two isfinite.
            skip = loss.mul(0).add(norm, alpha=0).ne(0)
            found_inf = skip.float()
            self._clock.look_up()
            self._step_optimizer(skip, found_inf)
            self._clock.count(skip)
            if self._scale is not None:
                self._scale.update(found_inf, loss)
            if self._carry is not None:
                self._carry.keep(carry, skip)
        finally:
            self._zero_gradients()
        return loss, norm, self._clock.rate.clone(), self._clock.counts.clone()

    def _zero_gradients(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    def _step_optimizer(self, skip: Tensor, found_inf: Tensor) -> None:
        optimizer: Any = self.optimizer
        self._steady = self._skips_on_device and has_momentum(optimizer)
        if self._steady:
            optimizer.found_inf = found_inf
            try:
                optimizer.step()
            finally:
                del optimizer.found_inf
        elif self._skips_on_device:
            if not skip.item():
                optimizer.step()
        elif (applied := int(torch.where(skip, -1, self._clock.counts[0]).item())) >= 0:
            self._write(list(map(operator.mul, self._clock.peaks, self._factors[applied])))
            optimizer.step()

    def _raise_if_nonfinite(self, result: StepResult) -> None:
        loss, norm = result.loss.item(), result.grad_norm.item()
        if not math.isfinite(loss) or (not math.isfinite(norm) and self._scale is None):
            number = int(result.applied + result.skipped)
            raise FloatingPointError(
                f"update {number} was skipped: its loss is {loss} and its gradient norm {norm}"
            )

    def state_dict(self) -> dict[str, Any]:
        """A snapshot in host memory, which later updates do not change.

        Model, optimizer, loss scale, clock, carry, and torch's random-number states: tensors and plain
        values, so that `torch.load(weights_only=True)` reads it back. `state["applied"]` and
        `state["skipped"]` count the updates so far. What a restored run needs besides is the state of
        its loader.
        """
        return snapshot.on_host(self._state())

    def _state(self) -> dict[str, Any]:
        self._clock.look_up()  # a tensor rate is saved as that of the next update, as a scheduler's is
        counts = cast("list[int]", self._clock.counts.tolist())
        scale = self._scale
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "optimizer_type": type(self.optimizer).__name__,
            "precision": self._precision,
            "curves": [curve.to_dict() for curve in self._clock.curves],
            "applied": counts[0],
            "skipped": counts[1],
            "loss_scale": None if scale is None else [scale.scale, scale.good_updates],
            "carry": None if self._carry is None else self._carry.buffers,
            "random": snapshot.random_states(self._device),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on, bit for bit, where a snapshot was taken. What is loaded is copied.

        The peaks of the rates and the optimizer's settings are the saved ones.

        Raises:
            ValueError: The state of another curve, model, optimizer, precision or carry, or not a
                state. Nothing was changed.
        """
        snapshot.check(self._state(), state_dict)
        groups = state_dict["optimizer"]["param_groups"]
        peaks = [float(checks.peak("initial_lr", group["initial_lr"])) for group in groups]
        if self._graphs is not None:
            check_capturable(self.optimizer, groups)
        self.model.load_state_dict(state_dict["model"])
        self.optimizer.load_state_dict(copy.deepcopy(state_dict["optimizer"]))
        self._clock.peaks = peaks
        self._clock.set(state_dict["applied"], state_dict["skipped"])
        self._tie()
        if self._scale is not None:
            torch._foreach_copy_([self._scale.scale, self._scale.good_updates], state_dict["loss_scale"])
        if self._carry is not None:
            self._carry.set(state_dict["carry"])
        snapshot.set_random_states(state_dict["random"], self._device)
