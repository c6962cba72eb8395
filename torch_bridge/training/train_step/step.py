"""`TrainStep`: one call per training update, with a state to save and restore."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Never, get_args

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from plateau_jax.arguments import checks
from plateau_jax.arguments.curve_warning import warn
from plateau_jax.clocks.clock import MAX_CONSUMED, AnyClock, check_clock
from plateau_jax.curves.curve import Curve
from torch_bridge.groups.curves_and_peaks import check_peaks_are_known
from torch_bridge.groups.optimizers import parameters_of
from torch_bridge.groups.options import bases_per_group, one_if_equal
from torch_bridge.training.device_clocks.device_clock import DeviceClock
from torch_bridge.training.distributed.distribute import parallelism_of
from torch_bridge.training.distributed.plain_names import load_plain_state
from torch_bridge.training.train_step.cuda_graphs import GraphedUpdate, Guards, check_graph
from torch_bridge.training.train_step.gradients import check_max_norm
from torch_bridge.training.train_step.loss import LossFunction, check_model_and_loss_fn, parse_loss
from torch_bridge.training.train_step.loss_call import Carry, LossCall
from torch_bridge.training.train_step.optimizer_checks import (
    check_no_scheduler,
    check_optimizers,
    curves_by_group,
    device_of,
    peaks_of,
    unwrap_trainers,
)
from torch_bridge.training.train_step.precision import Precision, PrecisionName
from torch_bridge.training.train_step.result import StepResult, read_and_raise_if_nonfinite
from torch_bridge.training.train_step.run_warnings import RunWarnings, StartWarning
from torch_bridge.training.train_step.status import Status
from torch_bridge.training.train_step.step_state import StepState, TrainStepState, copy_to_host
from torch_bridge.training.train_step.steppers import OptimizerSteppers
from torch_bridge.training.train_step.update import Update

OnNonfinite = Literal["skip", "raise"]
Synchronize = Literal["update", "micro"]


class TrainStep:
    """Run one training update per call, on one device or several.

    Each micro-batch runs forward and backward, with bf16 or fp16 under autocast. Then the gradients
    are unscaled and clipped. If the loss and the gradient norm are finite, the optimizer steps and
    the update counts; otherwise it is skipped. With g the gradient of the loss:

        loss = Σ sum / Σ weight,  or the mean of the means
        g ← g · min(1, max_norm / (‖g‖ + 10⁻⁶))
        lr = float32(float32(peak) · curve(curve_step))

    `train_step(x, y)` is an update with two micro-batches. `train_step((x, y))` is an update with
    one micro-batch of two parts. `print(train_step)` shows the curve, its current step and the
    learning rate, and synchronizes with the device.

    A call replaces `loss.backward()`, `optimizer.step()`, `scheduler.step()` and
    `optimizer.zero_grad()`: it discards existing gradients, and leaves none. It does not
    change the mode of the model, so call `model.train()` yourself.

    Not thread-safe. Cannot be copied or pickled: build another `TrainStep`, and load this one's
    state there.

    >>> import torch
    >>> from plateau_jax import PlateauCurve
    >>> from torch_bridge import TrainStep
    >>> model = torch.nn.Linear(2, 1)
    >>> groups = [{"params": [model.weight]}, {"params": [model.bias], "lr": 0.05}]
    >>> optimizer = torch.optim.AdamW(groups, lr=0.1, fused=True)
    >>> def loss_fn(model, batch):
    ...     inputs, targets = batch
    ...     return torch.nn.functional.mse_loss(model(inputs), targets)
    >>> curve = PlateauCurve(100, warmup_steps=10)
    >>> train_step = TrainStep(model, optimizer, loss_fn, curve, precision="bf16", max_norm=1.0)
    >>> micro_batch = torch.ones(8, 2), torch.ones(8, 1)
    >>> for _ in range(5):
    ...     result = train_step(micro_batch, micro_batch)
    >>> result.applied, result.lr
    (tensor(5), tensor([0.0400, 0.0200]))

    Args:
        model: A module, plain or wrapped as a whole by `DistributedDataParallel` or `fully_shard`.
        optimizer: A torch optimizer over parameters of the model, or a sequence of optimizers over
            disjoint parameters. The peak of a group is its `initial_lr` if it has one, else its
            `lr`. With fused Adam, AdamW, Adagrad or SGD, the host does not wait for the device.
            Optimizers wrapped by Fabric or accelerate are unwrapped.
        loss_fn: `loss_fn(model, batch)` returns a mean loss, a scalar, or a pair (sum, weight),
            such as (loss.sum(), number of tokens).
        curve: One curve, or a sequence with one curve per parameter group. For several optimizers,
            one curve for all, or a sequence with an entry of this kind for each optimizer.
        precision: `"fp32"`, `"bf16"`, or `"fp16"` with dynamic loss scaling (arXiv:1710.03740).
        max_norm: Clip gradients to this total 2-norm, as `torch.nn.utils.clip_grad_norm_` does.
        on_nonfinite: What to do if the loss or the gradient norm is not finite: `"skip"` the
            update, or `"raise"` an error too. `"raise"` synchronizes with the device in every
            update.
        compile: Compile `loss_fn`, and the decision of hold rules, with `torch.compile`.
        cuda_graph: Capture the whole update in a CUDA graph, one for each of the first eight batch
            shapes. Updates with other shapes run eagerly, as do those with a tensor that occurs
            twice in a micro-batch or is expanded.
        carry: The initial recurrent state, any pytree of tensors. `loss_fn(model, batch, carry)`
            then returns (loss or pair, new carry).
        clock: A `DataClock`, to count samples or tokens: pass what each update consumes,
            `train_step(batch, count=n)`. Or a hold rule such as `HoldUntilFlat`, or a list of hold
            rules, which read the loss of each update and may hold the curve. By default, a step of
            the curve is an update or, for a curve from `BatchPlan.scale`, its unit of samples or
            tokens.
        synchronize: Average gradients over the ranks once per `"update"`, or after every
            `"micro"`-batch, which takes less memory under `fully_shard`.
        strict: The default of `load_state_dict`'s `strict`.
        initial_updates: Updates already made by another training loop; the schedule resumes from
            there. If the optimizer was stepped or loaded, first write the peaks into `initial_lr`.
            By default 0, with a warning if the optimizer has made updates and no state is loaded.
        has_aux: If True, `loss_fn` returns (loss or pair, aux), with aux any pytree of tensors; see
            `result.aux`.
        advise: False to turn off the warnings about an optimizer that was resumed without its
            curve, a learning rate that the curve overwrites, a run past the end of the curve, and a
            unit that is too large.

    Attributes:
        model (Module): The module.
        optimizers (tuple[Optimizer, ...]): The torch optimizers.
        strict (bool): The argument `strict`.

    Raises:
        TypeError, ValueError: An argument, or a combination of arguments, is not supported. The
            message names them. Nothing was changed.

    Warns:
        CurveWarning: When you build it, if there are several ranks but the model is not wrapped, so
            that each rank trains alone (`distribute(model, None)` marks this as intended), or if a
            group has a factor of its learning rate that only other schedulers read, such as timm's
            `lr_scale`. In the first update, if the optimizer has made updates, but the curve starts
            at 0, or if the `lr` of a group is neither its `initial_lr` nor what a curve wrote last.
            When you save or print it, once each, if:

            - training continues far past the end of the curve;
            - the unit is so large that the curve stays at 0.

            In an update, once, if a weight in host memory is not a whole number. With
            `cuda_graph=True`, if a setting of the optimizer changes so often that updates run
            eagerly.
    """

    # Tensors made under torch.inference_mode() could not be written to outside of it.
    @torch.inference_mode(False)
    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        loss_fn: LossFunction[Any],
        curve: Curve | Sequence[Curve | Sequence[Curve]],
        *,
        precision: PrecisionName = "fp32",
        max_norm: float | None = None,
        on_nonfinite: OnNonfinite = "skip",
        compile: bool = False,
        cuda_graph: bool = False,
        carry: Any = None,
        clock: AnyClock | None = None,
        synchronize: Synchronize = "update",
        strict: bool = True,
        initial_updates: int | None = None,
        has_aux: bool = False,
        advise: bool = True,
    ) -> None:
        check_model_and_loss_fn(model, loss_fn)
        checks.one_of("synchronize", synchronize, get_args(Synchronize))
        checks.one_of("on_nonfinite", on_nonfinite, get_args(OnNonfinite))
        check_max_norm(max_norm)

        parallelism = parallelism_of(model, every_micro_batch=synchronize == "micro")
        several = optimizer if isinstance(optimizer, list | tuple) else [optimizer]
        optimizers: tuple[Optimizer, ...] = tuple(map(unwrap_trainers, several))
        check_optimizers(model, optimizers)
        check_no_scheduler(several)
        parameters = parameters_of(optimizers)
        device = device_of(optimizers)
        parallelism.check_parameters(parameters)
        if cuda_graph:
            check_graph(model, parallelism, device)
        updates_before = 0
        if initial_updates is not None:
            updates_before = checks.in_range("initial_updates", initial_updates, 0, MAX_CONSUMED)
        if updates_before > 0:
            for item in optimizers:
                check_peaks_are_known(item, f"initial_updates = {updates_before}")
        curves = curves_by_group(optimizer, optimizers, curve)
        checked_clock = check_clock(clock, curves)
        peaks = [peak for item in optimizers for peak in peaks_of(item)]

        self.model = model
        self.optimizers = optimizers
        self.strict = checks.boolean("strict", strict)
        self._parallelism = parallelism
        self._raises = on_nonfinite == "raise"
        self._status = Status(is_distributed=parallelism.is_distributed)
        self._precision = Precision(precision, device, parameters)
        self._carry: Carry | None = None
        if carry is not None:
            self._carry = Carry(carry, device)
        self._clock = DeviceClock(
            curves,
            peaks,
            device,
            checked_clock,
            initial_updates=updates_before,
            is_compiled=compile,
        )
        self._start_warning: StartWarning | None = None
        """None after the first update or load."""
        self._run_warnings: RunWarnings | None = None
        if advise:
            self._start_warning = StartWarning(
                optimizers, self._clock, is_known=initial_updates is not None
            )
            self._run_warnings = RunWarnings(self._clock)
        self._steppers = OptimizerSteppers(
            optimizers,
            self._clock,
            self._status,
            cuda_graph=cuda_graph,
        )
        self._state = StepState(
            parallelism.module,
            optimizers,
            clock=self._clock,
            precision=self._precision,
            carry=self._carry,
            device=device,
        )
        if compile:
            loss_fn = torch.compile(loss_fn)
        loss_call = LossCall(
            model,
            loss_fn,
            parse_loss,
            precision=self._precision,
            carry=self._carry,
            has_aux=has_aux,
        )
        self._update = Update(
            loss_call,
            parameters,
            parallelism=parallelism,
            clock=self._clock,
            steppers=self._steppers,
            status=self._status,
            max_norm=max_norm,
        )
        self._graphs: GraphedUpdate | None = None
        if cuda_graph:
            guards = Guards(model, optimizers)
            self._graphs = GraphedUpdate(self._update, self._status, guards, device)

    @property
    def optimizer(self) -> Optimizer:
        """The torch optimizer, if it is the only one."""
        if len(self.optimizers) != 1:
            raise AttributeError(
                f"this TrainStep has {len(self.optimizers)} optimizers: see train_step.optimizers"
            )
        return self.optimizers[0]

    def __call__(
        self, batch: Any, *more_micro_batches: Any, count: int | Tensor | None = None
    ) -> StepResult:
        """Run one update over the micro-batches.

        Args:
            batch: A batch for `loss_fn`.
            *more_micro_batches: Further micro-batches of the same update.
            count: With a `DataClock`, the samples or tokens in all micro-batches of this rank. The
                `TrainStep` adds up the counts of the ranks. An integer of at least 0, or an integer
                scalar tensor, which the host does not read. A skipped update counts as 0. By
                default the `count` of the clock, which is for all ranks together.

        Returns:
            Tensors on the device, which later updates do not overwrite. Read them by name: as a
            tuple, the result has only `loss`, `grad_norm`, `lr`, `counters` and `aux`.

            - `loss`: the loss of the whole update.
            - `grad_norm`: the 2-norm of the gradients before clipping.
            - `lr`: the learning rate of each parameter group, float32 of shape (groups,).
            - `applied`, `skipped`: the numbers of updates so far, int64.
            - `curve_step`: the step of the curve that gave `lr`, int64.
            - `consumed`: the samples or tokens so far, int64.
            - `counters`: the last four in one tensor, int64 of shape (4,).
            - `aux`: with `has_aux=True`, a tuple of one pytree per micro-batch.

        Raises:
            FloatingPointError: `on_nonfinite="raise"`, and the loss or the gradient norm is not
                finite.
            TypeError, ValueError: One of these:

                - `loss_fn` returned neither a loss nor a pair, or a carry of a different structure.
                - `count` is missing or not an integer.
                - A scheduler was attached to the optimizer, or its parameters have changed.

                Unless the model is wrapped, you can call the `TrainStep` again. An error in
                `loss_fn` leaves everything unchanged except random states, and buffers that the
                forward pass has changed, such as BatchNorm's.
            RuntimeError: One of these:

                - An earlier update was interrupted after the optimizer's step began and before the
                  update was counted. If the model is wrapped, it was interrupted anywhere. The
                  message says how to resume.
                - `DistributedDataParallel` did not average the gradients.
        """
        self._status.check()
        self._status.begin_update()
        self._clock.set_count(count, self._parallelism.rank, self._parallelism.size)
        self._steppers.prepare()
        if self._start_warning is not None:
            start_warning = self._start_warning
            self._start_warning = None
            start_warning.warn_if_due()

        micro_batches = batch, *more_micro_batches
        try:
            if self._graphs is not None:
                result = self._graphs(micro_batches)
            else:
                result = self._update(micro_batches)
        except Exception as error:
            _note_micro_batches(error, micro_batches)
            raise
        if self._raises:
            read_and_raise_if_nonfinite(result, scaled=self._precision.scale is not None)
        return result

    def reset_carry(self) -> None:
        """Restore the initial carry, if the `TrainStep` was built with one."""
        if self._carry is not None:
            self._carry.reset()

    @torch.inference_mode(False)
    def set_peak(self, peak: float | Sequence[float]) -> None:
        """Use a different peak learning rate from the next update on.

        The state includes the new peak. A load keeps the saved peak, so call this after it. Don't
        write a learning rate into a parameter group: the next update overwrites it.

        Args:
            peak: One peak for all parameter groups, or a sequence of one per group, in the order of
                the optimizers. Rounded to float32.

        Raises:
            TypeError: `peak` is neither a number nor a sequence of numbers.
            ValueError: A peak is negative, not finite, or positive and below 2⁻¹²⁶; or the number
                of peaks differs from the number of groups. Nothing was changed.
            RuntimeError: An earlier update or load was interrupted.
        """
        peaks = bases_per_group("peak", peak, len(self._clock.peaks))
        self._status.check()
        self._steppers.prepare()
        self._status.begin_writing()
        self._state.peak_was_set = True
        self._clock.set_peaks(peaks)
        if self._start_warning is not None:
            self._start_warning.accept_values()
        self._steppers.attach()
        self._status.complete()

    def state_dict(self) -> TrainStepState:
        """Return a snapshot in host memory, which later updates do not change.

        Synchronizes with the device. The snapshot contains the states of the model and the
        optimizers, the loss scale, the carry, the position on the curve, and torch's random states.
        It consists of tensors and plain values, so that `torch.load(weights_only=True)` can read
        it. `state["applied"]` and `state["skipped"]` are the numbers of updates so far. To resume a
        run, also save the state of its loader. As in torch, non-persistent buffers are not saved,
        so a buffer that the forward pass changes must be persistent.

        On several ranks, each rank calls it and gets its own random states and carry and, under
        `fully_shard`, its own shards. `Checkpoints` can resume from such states with a different
        number of ranks.
        """
        self._status.check()
        self._check_run()
        return copy_to_host(self._live_state())

    def _live_state(self) -> TrainStepState:
        """Return the current state, which shares memory with the step. `Checkpoints` calls it."""
        return self._state.read()

    @torch.inference_mode(False)
    def load_state_dict(
        self, state_dict: TrainStepState | Mapping[str, Any], strict: bool | None = None
    ) -> None:
        """Resume, bit for bit, from a snapshot. Copies what it loads.

        The run continues with the saved peaks and the saved settings of the optimizers, except for
        settings that only choose an implementation (`fused`, `foreach`, `capturable`,
        `differentiable`). After a ValueError of the kinds below, nothing has changed. After any
        other error, the `TrainStep` makes no update until a state is loaded.

        Args:
            state_dict: The state that `state_dict` returned. If the parameters are sharded, the
                saved tensors may be whole.
            strict: If True, reject the state of a different clock, or of a curve that differs at a
                step so far, as `lambda_lr` does. If False, the run resumes at the saved step, under
                the curve and clock of this `TrainStep`, with a warning. By default, the value that
                the `TrainStep` was built with.

        Raises:
            ValueError: One of these:

                - The state is not that of a `TrainStep`, lacks an entry, or was saved by a
                  different version.
                - It belongs to a different curve or clock (unless `strict` is False), optimizer,
                  precision or carry, or to a model of different shapes or dtypes.
                - The optimizer's parameters are different ones, in a different order or in
                  different groups.
                - A scheduler is attached to the optimizer.
            Exception: Any error that the `load_state_dict` of the model or an optimizer raises,
                such as torch's RuntimeError for missing keys.

        Warns:
            CurveWarning: The curve or the clock differs, and `strict` is False. Or the saved peaks,
                with which the run continues, differ from those that the `TrainStep` was built with,
                and `set_peak` did not set them.
        """
        self._status.check_loadable()
        self._steppers.check()  # `prepare` could fail on a setting that a damaged state left behind
        strict = checks.boolean("strict", self.strict if strict is None else strict)
        checked = self._state.check(state_dict, strict=strict)
        for message in checked.run.warnings:
            warn(message)

        self._status.begin_load()
        load_plain_state(self._parallelism.module, checked.saved["model"])
        self._state.restore(checked)
        self._start_warning = None
        self._steppers.attach()
        self._steppers.write_host_lrs(checked.run.position.step)
        if self._graphs is not None:
            self._graphs.drop()  # the guards would count the load as a change
        self._status.complete()

    def __repr__(self) -> str:
        """Return the curve. Reads nothing from the device, since debuggers call this."""
        return f"TrainStep({self._describe_curves()})"

    def __str__(self) -> str:
        """Return the curve, its current step and learning rates, and the counters. Synchronizes."""
        self._check_run()
        counters = self._clock.read_counters()
        lrs = [float(f"{lr:.6g}") for lr in self._clock.lrs_at(counters.curve_step)]
        fields = [
            self._describe_curves(),
            f"curve_step={counters.curve_step}",
            f"lr={checks.short_repr(one_if_equal(lrs))}",
            f"applied={counters.applied}",
            f"skipped={counters.skipped}",
        ]
        unit = self._clock.settings.unit
        if unit is not None:
            fields += f"consumed={counters.consumed}", f"unit={unit}"
        return f"TrainStep({', '.join(fields)})"

    def _check_run(self) -> None:
        if self._run_warnings is not None:
            self._run_warnings.check()

    def _describe_curves(self) -> str:
        return checks.short_repr(one_if_equal(self._clock.curves))

    def __reduce__(self) -> Never:
        raise TypeError(
            "a TrainStep can't be copied or pickled: build another one, and load this one's state "
            "there"
        )


def _note_micro_batches(error: Exception, micro_batches: Sequence[Any]) -> None:
    """Add a note about the likely mistake `train_step(x, y)`, with which loss_fn gets x alone."""
    count = len(micro_batches)
    is_out_of_memory = isinstance(error, torch.OutOfMemoryError)
    are_tensors = all(isinstance(item, Tensor) for item in micro_batches)
    if count > 1 and are_tensors and not is_out_of_memory:
        error.add_note(
            f"{count} arguments are {count} micro-batches, and loss_fn gets one at a "
            "time: pass a batch of several tensors as one argument, train_step((x, y))"
        )
