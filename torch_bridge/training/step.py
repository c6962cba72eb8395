"""One whole update on the device: forward, backward, unscale, clip, decide, step, count."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, Literal, Never, get_args

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from torch_bridge.core import Curve, Rule, checks
from torch_bridge.distributed.checkpointed_forward import is_checkpointed
from torch_bridge.distributed.wrappers import Sharded, Unwrapped, check_shardable, wrapper_of
from torch_bridge.schedulers.hold_state import from_plain, rules_for, to_plain
from torch_bridge.schedulers.param_groups import peaks_of
from torch_bridge.schedulers.resume import clock_in
from torch_bridge.training import snapshot
from torch_bridge.training.accumulation import Accumulator
from torch_bridge.training.capture import Graphs
from torch_bridge.training.carry import Carry
from torch_bridge.training.changes import Foundation
from torch_bridge.training.clock import Clock
from torch_bridge.training.drivers import Drivers, Skip, check_capturable
from torch_bridge.training.gradients import clip, gradients_of, norm_dtype
from torch_bridge.training.loss import LossFunction, forward
from torch_bridge.training.optimizers import check_model, curves_by_group, device_of, optimizers_of
from torch_bridge.training.precision import Precision, PrecisionName
from torch_bridge.training.result import StepResult, raise_if_nonfinite
from torch_bridge.training.shared_accumulation import SharedAccumulator
from torch_bridge.training.snapshot import TrainStepState
from torch_bridge.training.state_checks import add_new_states, check

OnNonfinite = Literal["skip", "raise"]
Synchronize = Literal["update", "micro"]
CurvesOfGroups = Curve | Sequence[Curve]


class TrainStep:
    """One training update as a call: `step(batch, *more_micro_batches)`, on one device or over several.

    For each micro-batch a forward and a backward pass under autocast; then unscale, clip, and, if
    loss and gradient norm are finite, an optimizer step with the rate peak · curve(clock). The clock
    counts the updates that took place, except those at which a rule of `hold` stopped it. Loss, norm,
    rate and counts come back as device tensors: nothing here reads them, and the host runs ahead. With
    several micro-batches, whose pairs (sum, weight) or means `loss_fn` gives, and g the gradient of the loss:

        loss = Σ sum / Σ weight,  or the mean of the means
        g ← g · min(1, max_norm / (‖g‖ + 10⁻⁶))
        lr = float32(peak) · curve(clock)

    Fused Adam, AdamW, SGD and Adagrad run without one read of the device in the steady state,
    skipped updates included (fused SGD with momentum is looked at until its first update has taken
    place). Every other torch optimizer works with one read an update beyond its own, for the
    decision to skip, and gets its rate as a Python float; those that need a closure are refused.

    A skipped update leaves parameters, optimizer state, carry and the curve's clock as they were.
    Module buffers that a forward pass changes, such as BatchNorm's statistics, are not restored.
    The gradients of all of the model's parameters are cleared before and after an update, those of
    parameters that no optimizer has too.

    **Over several processes** the model is wrapped by torch, by hand or by `distribute`: in
    `DistributedDataParallel`, or with `fully_shard` (FSDP2) applied to blocks and then to the model, over
    one mesh dimension, or two for hybrid sharding. The update is then one over all: the loss is
    Σ sum / Σ weight, or the mean, over the micro-batches of all processes, and what is returned, the
    decision and the clock are the same in each. Every process passes as many micro-batches. One may weigh
    nothing or hold no rows, with pairs: its process runs the model on it all the same. Of pairs in one and
    means in another the loss is NaN. Under `fully_shard` each runs the same modules. An error in one process
    alone leaves the others waiting, until torchrun, or the group's timeout, ends them.

    **Composes**: both wrappers with every precision, `carry`, `hold`, `compile`, several optimizers and
    `checkpoint_activations`. Not, and refused: `cuda_graph` with a wrapper or `checkpoint_activations`;
    `fully_shard` with fused SGD and Adagrad, Muon, Adafactor and Rprop, which torch cannot run on shards,
    with an offload policy, with parameters left out, or beside tensor parallelism.

    Args:
        model: The module that `loss_fn` is called with: plain, or in one of these wrappers.
        optimizer: A torch optimizer over some or all of the model's parameters, or a sequence of
            several over disjoint ones, which then share the clipping, the decision and the clock.
            A group's peak rate is its `initial_lr` where it has one, else its `lr`, rounded to
            float32. With a fused optimizer `group["lr"]` becomes a tensor that every update fills.
            The wrappers of Lightning, Fabric and accelerate are taken off.
        loss_fn: `loss_fn(model, batch)` returns a mean loss (a scalar) or a pair (sum, weight). The
            means of the micro-batches are averaged; pairs give Σ sum / Σ weight over the whole
            update, however a batch is split. With `carry`: `loss_fn(model, batch, carry)` returns
            (loss or pair, new carry).
        curve: One curve, or a sequence of one per parameter group. For a sequence of optimizers: one
            curve for all, or a sequence with an entry per optimizer, itself a curve or a sequence.
        precision: `"fp32"`, `"bf16"`, or `"fp16"` with dynamic loss scaling (Micikevicius et al. 2018,
            arXiv:1710.03740). (On a CPU torch has no fp16 LSTM; a GRU works.)
        max_norm: Clip gradients to this total 2-norm (Pascanu et al. 2013, arXiv:1211.5063), as
            `torch.nn.utils.clip_grad_norm_` does.
        on_nonfinite: `"skip"` an update whose loss or norm is not finite, or `"raise"`, which reads
            the device. Under fp16 an overflow of the scaled gradient alone is skipped either way.
        compile: Compile `loss_fn` with `torch.compile`.
        cuda_graph: Capture the whole update in a CUDA graph for each shape of batch. What a graph was
            built for is compared before each update, and new graphs are made where it changed: modes,
            parts, parameters and buffers of the model, settings and states of the optimizers. Plain
            values that `loss_fn` or a module reads, hooks, torch's global switches and `.data` set to
            another view of the same memory can't be seen: after a change of those build the step anew.
            A batch that requires gradients gets none back. Fused Adagrad on CUDA needs torch 2.13.
        carry: The initial recurrent state, any pytree of tensors. Micro-batches are then consecutive
            in time, and the carry is detached between them.
        hold: A `HoldUntilFlat`, a `HoldBelow`, or a list of them, under one curve for all groups. The
            metric is the update's loss, and the decision is taken on the device.
        synchronize: When gradients are averaged over processes: once an `"update"`, which sends less, or
            after every `"micro"`-batch, which under `fully_shard` takes less memory: gradients that wait
            are whole. (With DDP's `static_graph` it is always the latter.) The numbers are the same, but
            for rounding.
        strict: What `load_state_dict` takes by default, where `Checkpoints` calls that.

    Attributes:
        model: The module.
        optimizers: The torch optimizers, a tuple.
        strict: As above.

    Raises:
        TypeError: An argument of another kind; an optimizer that needs a closure.
        ValueError: An unknown `precision`, `on_nonfinite` or `synchronize`; a `max_norm` that is not
            positive; a model that is wrapped in part, or by Fabric for mixed precision; parameters to be
            trained that `DistributedDataParallel` leaves out; what does not compose, as above; an optimizer
            whose parameters are not the model's or another's too, that has a scheduler attached, or whose
            `state_dict` has a form of its own; fp16 parameters with `precision="fp16"`; `cuda_graph=True`
            where an update cannot be captured; several curves with `hold`, or one without a flat part for
            `HoldUntilFlat`.

    A call refuses a loss that is neither scalar nor pair, a total weight of zero that is known on the host,
    and a carry of another shape; the step stays usable. After an error or a Ctrl-C between an optimizer's
    step and its count, calls and `state_dict` raise RuntimeError until a state is loaded. A step is for one
    thread, and can't be copied or pickled: build another one, and give it `state_dict()`.

    >>> from plateau_jax import PlateauCurve
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

    # Under torch.inference_mode() the tensors made here could not be written to outside of it.
    @torch.inference_mode(False)
    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        loss_fn: LossFunction,
        curve: CurvesOfGroups | Sequence[CurvesOfGroups],
        *,
        precision: PrecisionName = "fp32",
        max_norm: float | None = None,
        on_nonfinite: OnNonfinite = "skip",
        compile: bool = False,
        cuda_graph: bool = False,
        carry: Any = None,
        hold: Rule | Sequence[Rule] | None = None,
        synchronize: Synchronize = "update",
        strict: bool = True,
    ) -> None:
        check_model(model)
        checks.one_of("synchronize", synchronize, get_args(Synchronize))
        wrapper = wrapper_of(model, every_micro_batch=synchronize == "micro")
        optimizers = optimizers_of(model, optimizer)
        device = device_of(optimizers)
        curves = curves_by_group(optimizer, optimizers, curve)
        rules = rules_for(hold, curves)
        peaks = [peak for each in optimizers for peak in peaks_of(each)]
        groups = chain.from_iterable(each.param_groups for each in optimizers)
        parameters: list[nn.Parameter] = [parameter for group in groups for parameter in group["params"]]
        wrapper.check(parameters)
        self._precision = Precision(precision, device, parameters)
        if max_norm is not None and not checks.number("max_norm", max_norm) > 0:
            raise ValueError(f"max_norm = {max_norm!r} must be positive, or None for no clipping")
        checks.one_of("on_nonfinite", on_nonfinite, get_args(OnNonfinite))
        if not callable(loss_fn):
            raise TypeError(f"loss_fn = {loss_fn!r} must be callable")
        if cuda_graph:
            if not isinstance(wrapper, Unwrapped):
                raise ValueError("cuda_graph=True needs a model that is not wrapped for several processes")
            if is_checkpointed(model):
                raise ValueError("cuda_graph=True needs a model without checkpoint_activations")
            if device.type != "cuda":
                raise ValueError(f"cuda_graph=True needs parameters on a CUDA device; they are on {device}")
            for each in optimizers:
                check_capturable(each, each.param_groups)
        if isinstance(wrapper, Sharded):
            for each in optimizers:
                check_shardable(each)
        self._carry = None if carry is None else Carry(carry, device)

        self.model = model
        self.optimizers: tuple[Optimizer, ...] = tuple(optimizers)
        self.strict = strict
        self._wrapper = wrapper
        self._max_norm, self._raises = max_norm, on_nonfinite == "raise"
        self._loss_fn = torch.compile(loss_fn) if compile else loss_fn
        self._device = device
        self._optimized, self._all_parameters = parameters, list(model.parameters())
        self._norm_dtype = norm_dtype(parameters)
        self._clock = Clock(curves, peaks, device, rules)
        self._drivers = Drivers(self.optimizers, self._clock)
        self._graphs = Graphs(self._update, self._drivers, device) if cuda_graph else None
        self._foundation = Foundation(model, self.optimizers, captured=cuda_graph)

    @property
    def optimizer(self) -> Optimizer:
        """The torch optimizer, where there is one."""
        if len(self.optimizers) > 1:
            raise AttributeError(f"this step has {len(self.optimizers)} optimizers: see step.optimizers")
        return next(iter(self.optimizers))

    def __call__(self, batch: Any, *more_micro_batches: Any) -> StepResult:
        """Run one update over the micro-batches.

        Args:
            batch: What `loss_fn` takes as its batch.
            *more_micro_batches: Others, which make the same update.

        Returns:
            What the update did, as tensors on the device.

        Raises:
            FloatingPointError: `on_nonfinite="raise"`, and loss or gradient norm is not finite.
            TypeError, ValueError: `loss_fn` returned no loss, or another carry; the step stays usable.
            RuntimeError: An update before was broken off between the optimizer's step and its count; or
                `DistributedDataParallel` did not average the gradients, since parameters got none.
        """
        self._drivers.check_whole()
        if self._foundation.changed():
            self._rebuild()
        self._clock.move_window_if_due()
        run = self._graphs or self._update
        loss, norm, rates, counts = run((batch, *more_micro_batches))
        if self._graphs is not None and not self._graphs.recorded:
            self._foundation.settle()  # optimizers make their states in their first updates
        result = StepResult(loss, norm, rates, *counts.unbind())
        if self._raises:
            raise_if_nonfinite(result, scaled=self._precision.scale is not None)
        return result

    def reset_carry(self) -> None:
        """Put the initial carry back.

        Raises:
            ValueError: The step was built without one.
        """
        if self._carry is None:
            raise ValueError("this step was built without a carry")
        self._carry.reset()

    def _rebuild(self) -> None:
        """Choose what depends on settings and memory anew, since something else changed them."""
        if self._graphs is not None:
            for optimizer in self.optimizers:
                check_capturable(optimizer, optimizer.param_groups)
        self._drivers.bind()
        if self._graphs is not None:
            self._graphs.drop()
        self._foundation.settle()

    def _update(self, micro_batches: Sequence[Any]) -> tuple[Tensor, ...]:
        """Forward, backward, unscale, clip, decide, step, count."""
        self._clear_gradients()
        try:
            accumulator, carry = self._forward_and_backward(micro_batches)
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
            before = self._drivers.versions()
            try:
                self._drivers.step(skip)
                self._clock.count_update(skip.on_device, loss)
                if self._precision.scale is not None:
                    self._precision.scale.update(skip.found_inf, loss)
                    accumulator.keep_weights()
                if self._carry is not None:
                    self._carry.set(kept)
            except BaseException:
                self._drivers.note_break(before)
                raise
        except BaseException:
            self._wrapper.reset()
            raise
        finally:
            self._clear_gradients()
        return loss, norm, self._clock.rates.clone(), self._clock.counts.clone()

    def _forward_and_backward(self, micro_batches: Sequence[Any]) -> tuple[Accumulator, list[Tensor]]:
        # Clones, since loss_fn may change them in place before the update turns out to be skipped.
        carry = [] if self._carry is None else [buffer.clone() for buffer in self._carry.buffers]
        arguments = len(micro_batches), self._optimized, self._precision.scale
        accumulator = (
            Accumulator(*arguments)
            if self._wrapper.size == 1
            else SharedAccumulator(*arguments, wrapper=self._wrapper)
        )
        for number, batch in enumerate(micro_batches, 1):
            with self._wrapper.micro_batch(is_last=number == len(micro_batches)):
                with self._precision.autocast:
                    loss, carry = forward(self._loss_fn, self.model, batch, self._carry, carry)
                accumulator.add(loss)
        return accumulator, carry

    @contextmanager
    def _alone(self) -> Generator[None]:
        """Updates of this process alone, which send nothing; their numbers are nobody's."""
        from torch_bridge.distributed.local_trial import Trial, alone

        whole, self._wrapper = self._wrapper, Trial(self._wrapper)
        try:
            with alone(self.model):
                yield
        finally:
            self._wrapper = whole

    def _clear_gradients(self) -> None:
        for parameter in self._all_parameters:
            parameter.grad = None

    def state_dict(self) -> TrainStepState:
        """A snapshot in host memory, which later updates do not change.

        Model, optimizers, loss scale, clock, carry, and torch's random-number states: tensors and plain
        values, so that `torch.load(weights_only=True)` reads it back. `state["applied"]` and
        `state["skipped"]` count the updates so far. What a restored run needs besides is the state of
        its loader.

        Of several processes each has its own, which it calls for: under `fully_shard` its shards, and
        always its random numbers and carry. `Checkpoints` brings them to another number of processes.
        """
        self._drivers.check_whole()
        return snapshot.on_host(self._state())

    def _state_to_load(self) -> TrainStepState:
        """A state of the form of one to be loaded: what optimizers make in their first update is there."""
        state = self._state()
        states = [state["optimizer"]] if len(self.optimizers) == 1 else state["optimizer"]
        for optimizer, own in zip(self.optimizers, states, strict=True):
            add_new_states(optimizer, own)
        return snapshot.on_host(state)

    def _state(self) -> TrainStepState:
        optimizers = snapshot.states_of(self.optimizers, self._clock)
        kinds = [type(optimizer).__name__ for optimizer in self.optimizers]
        one = len(kinds) == 1
        applied, skipped, clock = self._clock.read()
        return {
            "model": self._wrapper.module.state_dict(),
            "optimizer": optimizers[0] if one else optimizers,
            "optimizer_type": kinds[0] if one else kinds,
            "precision": self._precision.name,
            "curves": [curve.to_dict() for curve in self._clock.curves],
            "applied": applied,
            "skipped": skipped,
            "clock": clock,
            "hold": to_plain(self._clock.rules, self._clock.states()),
            "loss_scale": None if self._precision.scale is None else self._precision.scale.state(),
            "carry": None if self._carry is None else self._carry.buffers,
            "random": snapshot.random_states(self._device),
        }

    @torch.inference_mode(False)
    def load_state_dict(
        self, state_dict: TrainStepState | Mapping[str, Any], strict: bool | None = None
    ) -> None:
        """Go on, bit for bit, where a snapshot was taken. What is loaded is copied.

        The peaks of the rates and the optimizers' settings are the saved ones. Of an optimizer that is
        not torch's own, states are compared where this step has them already.

        Args:
            state_dict: What `state_dict` returned. Where this step's parameters are sharded, the saved
                tensors may be whole.
            strict: Whether the state of another plan is refused: of a curve that differs at a step before
                the saved clock (`Curve.same_until`), or of another hold. With False the run goes on under
                this step's curve, from the saved clock, whatever came before, and rules that are not the
                saved ones start anew. By default as the step was built.

        Raises:
            ValueError: The state of another plan (unless `strict` is False), of another model, optimizer,
                precision or carry, or not a state. Nothing was changed. (What a `load_state_dict` of a
                module's or an optimizer's own raises comes later: `Checkpoints` puts all back then.)
        """
        clock = self._clock
        strict = self.strict if strict is None else strict
        check(self._state(), state_dict, self.optimizers, self._device, clock.curves if strict else None)
        held = from_plain(state_dict.get("hold"), clock.rules, strict, "TrainStep")
        states = [state_dict["optimizer"]] if len(self.optimizers) == 1 else state_dict["optimizer"]
        groups = list(chain.from_iterable(state["param_groups"] for state in states))
        if self._graphs is not None:
            for optimizer, state in zip(self.optimizers, states, strict=True):
                check_capturable(optimizer, state["param_groups"])
        peaks = [float(checks.peak("initial_lr", group["initial_lr"])) for group in groups]
        pairs = zip(self.optimizers, states, strict=True)
        copies = [snapshot.copied_for(optimizer, state) for optimizer, state in pairs]
        module = self._wrapper.module
        module.load_state_dict(snapshot.placed(module.state_dict(), state_dict["model"]))
        for optimizer, state in zip(self.optimizers, copies, strict=True):
            optimizer.load_state_dict(state)
            snapshot.restore_dtypes(optimizer, state)
        applied = state_dict["applied"]
        clock.set(applied, state_dict["skipped"], clock_in(state_dict, applied), peaks, held)
        self._rebuild()
        if self._precision.scale is not None:
            self._precision.scale.set(state_dict["loss_scale"] or [])
        if self._carry is not None:
            self._carry.set(state_dict["carry"] or [])
        snapshot.set_random_states(state_dict["random"], self._device)
        self._drivers.is_torn = False

    def __reduce__(self) -> Never:
        raise TypeError(
            "a TrainStep can't be copied or pickled: build another one, and load this one's state there"
        )
