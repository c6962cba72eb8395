"""`TrainStep`: a training update as a call, and its state."""

from collections.abc import Mapping, Sequence
from typing import Any, Never

import torch
from torch import nn
from torch.optim import Optimizer

from torch_bridge.core import Curve, Rule
from torch_bridge.distributed.wrappers import Unwrapped
from torch_bridge.schedulers.param_groups import given_peaks
from torch_bridge.training import snapshot
from torch_bridge.training.arguments import OnNonfinite, Synchronize, checked
from torch_bridge.training.batch_counts import CountFunction
from torch_bridge.training.capture import Graphs
from torch_bridge.training.changes import Foundation
from torch_bridge.training.clock import Clock
from torch_bridge.training.drivers import Drivers, check_capturable
from torch_bridge.training.loss import LossFunction
from torch_bridge.training.loss_normalizer import LossNormalizer
from torch_bridge.training.precision import PrecisionName
from torch_bridge.training.result import StepResult, read_and_raise_if_nonfinite, with_extras
from torch_bridge.training.saved_parts import SavedParts
from torch_bridge.training.snapshot import TrainStepState
from torch_bridge.training.update import Update

CurvesOfGroups = Curve | Sequence[Curve]


class TrainStep:
    """One training update as a call: `step(batch, *more_micro_batches)`, on one device or over several.

    Each micro-batch takes a forward and a backward pass under autocast. Then gradients are unscaled and
    clipped, and if loss and gradient norm are finite the optimizer steps, with the rate peak · curve(clock).
    The clock counts the updates that took place, except those at which a rule of `hold` stopped it; with
    `unit` it counts what they consumed, in steps of so many samples or tokens. With several micro-batches,
    for which `loss_fn` returns pairs (sum, weight) or means, and g the gradient of the loss:

        loss = Σ sum / Σ weight,  or the mean of the means
        g ← g · min(1, max_norm / (‖g‖ + 10⁻⁶))
        lr = float32(peak) · curve(clock)

    A pair is always (sum, weight), such as (loss.sum(), number of tokens): never (loss, accuracy), for which
    there is `has_aux`. `step(x, y)` is an update of two micro-batches, `step((x, y))` of one with two parts.

    >>> import torch
    >>> from torch_bridge import PlateauCurve, TrainStep
    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    >>> def loss_fn(model, batch):
    ...     inputs, targets = batch
    ...     return torch.nn.functional.mse_loss(model(inputs), targets)
    >>> curve = PlateauCurve(100, warmup_steps=10)
    >>> step = TrainStep(model, optimizer, loss_fn, curve, max_norm=1.0)
    >>> for _ in range(5):
    ...     result = step((torch.ones(8, 2), torch.ones(8, 1)))
    >>> result.applied, result.lr
    (tensor(5), tensor([0.0400]))

    Args:
        model: The module that `loss_fn` is called with: plain, or in a wrapper of torch (below).
        optimizer: A torch optimizer over some or all of the model's parameters, or a sequence of
            several over disjoint ones, which then share the clipping, the decision and the clock.
            A group's peak rate is its `initial_lr` where it has one, else its `lr`, rounded to
            float32. With a fused optimizer `group["lr"]` becomes a tensor that every update fills.
            The wrappers of Lightning, Fabric and accelerate are taken off. Under Lightning's manual
            optimization give it `self.optimizers()`: an update then counts once in `trainer.global_step`,
            a skipped one too. Build the step in `on_fit_start`, since each `fit` has new optimizers.
        loss_fn: `loss_fn(model, batch)` returns a mean loss (a scalar) or a pair (sum, weight). The
            means of the micro-batches are averaged; pairs give Σ sum / Σ weight over the whole
            update, however a batch is split. With `carry`: `loss_fn(model, batch, carry)` returns
            (loss or pair, new carry). With `has_aux`: (loss or pair, aux) where there would be a loss or
            pair, with `carry` thus ((loss or pair, aux), new carry).
        curve: One curve, or a sequence of one per parameter group. For a sequence of optimizers: one
            curve for all, or a sequence with an entry per optimizer, itself a curve or a sequence.
        precision: `"fp32"`, `"bf16"`, or `"fp16"` with dynamic loss scaling (Micikevicius et al. 2018,
            arXiv:1710.03740). (On a CPU torch has no fp16 LSTM; a GRU works.)
        max_norm: Clip gradients to this total 2-norm (Pascanu et al. 2013, arXiv:1211.5063), as
            `torch.nn.utils.clip_grad_norm_` does.
        on_nonfinite: `"skip"` an update whose loss or norm is not finite, or `"raise"`, which
            synchronizes with the device at each update. Under fp16 an update whose scaled gradient alone
            overflows is skipped either way.
        compile: Compile `loss_fn` with `torch.compile`.
        cuda_graph: Capture the whole update in a CUDA graph, one for each shape of batch. Before each update
            what the graphs depend on is compared, and they are captured anew where it changed: modes,
            parts, parameters and buffers of the model, settings and states of the optimizers. Changes of
            plain values that `loss_fn` or a module reads, of hooks, of torch's global switches, and of
            `.data` to another view of the same memory are not noticed: build the step anew after them.
            A batch that requires gradients gets none. Fused Adagrad on CUDA needs torch 2.13.
        carry: The initial recurrent state, any pytree of tensors. Micro-batches are then consecutive
            in time, and the carry is detached between them.
        hold: A `HoldUntilFlat`, a `HoldBelow`, or a list of them, under one curve for all groups. The
            metric is the update's loss, and the decision is taken on the device.
        synchronize: When gradients are averaged over ranks: once an `"update"`, which communicates less, or
            after every `"micro"`-batch, which takes less memory under `fully_shard`, where gradients stay
            whole until they are averaged. (With DDP's `static_graph` it is always the latter.) The numbers
            are the same, but for rounding.
        strict: The default of `load_state_dict`'s `strict`, which `Checkpoints` uses.
        initial_updates: Updates already made by another training loop; the schedule resumes from there. If
            the optimizer has made steps already, its groups need their peaks in `initial_lr`.
        has_aux: `loss_fn` returns aux beside the loss, any pytree of tensors: metrics, outputs.
            `result.aux` has one for each micro-batch.
        unit: How many samples or tokens make one step of the curve, beside `count`; up to 2⁶². The clock is
            then `consumed // unit`, where `consumed` is the sum of the counts of all updates that took
            place. None: an update makes a step.
        count: `count(batch)` gives the number of samples or tokens of a micro-batch: an int, or an integer
            scalar on the device, where a negative one counts as 0. Micro-batches and ranks are added up. With
            `cuda_graph` take it from the batch alone: a graph keeps any other number as it was first.

    Attributes:
        model: The module.
        optimizers: The torch optimizers, a tuple.
        strict: As above.

    Raises:
        TypeError: An argument of another kind; an optimizer that needs a closure; one of `unit` and `count`
            without the other.
        ValueError: An unknown `precision`, `on_nonfinite` or `synchronize`; a `max_norm` that is not
            positive; a model that is wrapped in part, or by Fabric for mixed precision; parameters to be
            trained that `DistributedDataParallel` leaves out; what is refused below; an optimizer with
            parameters that are not the model's, that it has twice or that another optimizer has too, with a
            scheduler attached, or with a `state_dict` of a form of its own; fp16 parameters with
            `precision="fp16"`; `cuda_graph=True` where an update cannot be captured; several curves with
            `hold`, or a curve without a flat part for `HoldUntilFlat`; an `initial_updates` that is negative,
            or that comes with optimizers whose peaks are not known; a `unit` below 1 or above 2⁶², or beside
            `hold` or `initial_updates`.

    Warns:
        CurveWarning: The model is not wrapped, and a process group of several ranks runs: each rank trains
            for itself. `distribute(model, None)` says that it is meant.

    **No synchronization.** Loss, norm, rate and counts are returned as device tensors, so that the host runs
    ahead of the device. With fused Adam, AdamW, SGD and Adagrad an update does not synchronize with the
    device, not even one that is skipped. (With fused SGD and momentum it does until the first update that
    takes place.) With any other torch optimizer it synchronizes once, to decide whether to skip, beside what
    the optimizer itself does; the rate is then a Python float. Optimizers that need a closure are refused.

    **Skipped updates.** A skipped update leaves parameters, optimizer state, carry and the curve's clock as
    they were. Module buffers that a forward pass changes, such as BatchNorm's statistics, are not restored.
    Before and after an update the gradients of all of the model's parameters are cleared, also of those that
    no optimizer has.

    **Several ranks.** The model is wrapped by torch, by hand or by `distribute`: in
    `DistributedDataParallel`, or with `fully_shard` (FSDP2) applied to blocks and then to the model, over
    one mesh dimension, or two for hybrid sharding. The update is then one over all ranks: the loss is Σ sum
    / Σ weight, or the mean, over the micro-batches of all, and each rank returns the same, decides the same
    and has the same clock. Every rank passes the same number of micro-batches. With pairs a micro-batch may
    have no weight or no rows; its rank runs the model on it nevertheless. If some ranks return pairs and
    others means, the loss is NaN. Under `fully_shard` every rank runs the same modules. After an error
    inside an update the step refuses further calls: restart the program from its last checkpoint.

    **What goes together.** Both wrappers go with every precision, `carry`, `hold`, `compile`, several
    optimizers and `checkpoint_activations`. Refused: `cuda_graph` with a wrapper or
    `checkpoint_activations`; `fully_shard` with fused SGD and Adagrad, Muon, Adafactor and Rprop, which
    torch cannot run on shards, with an offload policy, with parameters left out, beside tensor parallelism,
    or where `set_gradient_divide_factor` has set another number than that of the ranks.

    **Errors.** A call refuses a loss that is neither scalar nor pair, a total weight of zero that is known
    on the host, and a carry of another shape; the step stays usable. After an error or a Ctrl-C between an
    optimizer's step and its count, calls and `state_dict` raise RuntimeError until a state is loaded. A step
    is for one thread, and can't be copied or pickled: build another one, and give it `state_dict()`.
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
        initial_updates: int = 0,
        has_aux: bool = False,
        unit: int | None = None,
        count: CountFunction | None = None,
    ) -> None:
        found = checked(
            model,
            optimizer,
            loss_fn,
            curve,
            precision=precision,
            max_norm=max_norm,
            on_nonfinite=on_nonfinite,
            cuda_graph=cuda_graph,
            carry=carry,
            hold=hold,
            synchronize=synchronize,
            initial_updates=initial_updates,
            unit=unit,
            count=count,
        )
        self.model = model
        self.optimizers: tuple[Optimizer, ...] = found.optimizers
        self.strict = strict
        self._precision, self._carry = found.precision, found.carry
        self._is_distributed = not isinstance(found.wrapper, Unwrapped)
        self._raises = on_nonfinite == "raise"
        self._count_in_trainer = found.count_in_trainer
        self._clock = Clock(
            found.curves, found.peaks, found.device, found.rules, found.unit, found.initial_updates
        )
        self._drivers = Drivers(self.optimizers, self._clock)
        normalizer = LossNormalizer(found.parameters, found.precision.scale, found.wrapper)
        self._update = Update(
            model,
            torch.compile(loss_fn) if compile else loss_fn,
            found,
            self._clock,
            normalizer,
            self._drivers,
            max_norm,
            has_aux,
        )
        self._graphs = Graphs(self._update, self._drivers, found.device) if cuda_graph else None
        self._foundation = Foundation(model, self.optimizers, found.with_wrappers, captured=cuda_graph)
        self._saved_parts = SavedParts(
            found.wrapper.module,
            self.optimizers,
            self._clock,
            found.precision.name,
            normalizer,
            found.carry,
            found.device,
        )

    @property
    def optimizer(self) -> Optimizer:
        """The torch optimizer, where there is one."""
        if len(self.optimizers) != 1:
            raise AttributeError(f"this step has {len(self.optimizers)} optimizers: see step.optimizers")
        return self.optimizers[0]

    def __call__(self, batch: Any, *more_micro_batches: Any) -> StepResult:
        """Run one update over the micro-batches.

        Args:
            batch: What `loss_fn` takes as its batch.
            *more_micro_batches: Others, which make the same update.

        Returns:
            What the update did, as tensors on the device.

        Raises:
            FloatingPointError: `on_nonfinite="raise"`, and loss or gradient norm is not finite.
            TypeError, ValueError: `loss_fn` returned no loss, or another carry, or `count` no number of
                samples or tokens; the step stays usable.
            ValueError: A scheduler was attached to the optimizer, which has two clocks then; or it has other
                parameters than it had. Nothing was changed.
            RuntimeError: An earlier update was interrupted between the optimizer's step and its count, or,
                over several ranks, anywhere; or `DistributedDataParallel` did not average the gradients,
                since parameters got none or `loss_fn` did not call it.
        """
        if self._drivers.is_partial:
            self._check_whole()
        if self._foundation.changed():
            self._rebuild()
        self._clock.prepare()
        run = self._graphs or self._update
        loss, norm, rates, counts, *aux = run((batch, *more_micro_batches))
        if self._graphs is not None and not self._graphs.recorded:
            self._foundation.settle()  # optimizers make their states in their first updates
        applied, skipped, clock, consumed = counts.unbind()
        result = StepResult(loss, norm, rates, applied, skipped, clock)
        if aux or self._clock.unit is not None:
            result = with_extras(result, applied if self._clock.unit is None else consumed, aux)
        if self._count_in_trainer is not None:
            self._count_in_trainer()
        if self._raises:
            read_and_raise_if_nonfinite(result, scaled=self._precision.scale is not None)
        return result

    def reset_carry(self) -> None:
        """Put the initial carry back.

        Raises:
            ValueError: The step was built without one.
        """
        if self._carry is None:
            raise ValueError("this step was built without a carry")
        self._carry.reset()

    @torch.inference_mode(False)
    def set_peak(self, peak: float | Sequence[float]) -> None:
        """From the next update on the rates are peak · curve(clock) with another peak.

        The peak is part of the state. A rate that is written into a group is overwritten by each update; this
        is the way to change it.

        Args:
            peak: One for all parameter groups, or a sequence of one for each, those of several optimizers
                one after the other. Rounded to float32.

        Raises:
            TypeError: Not a number, or a sequence of them.
            ValueError: Negative, not finite, or positive and below 2⁻¹²⁶; another number of peaks than of
                groups. Nothing was changed.
        """
        peaks = given_peaks(peak, len(self._clock.peaks))
        if self._foundation.changed():
            self._rebuild()
        self._clock.set_peaks(peaks)
        self._drivers.write_peaks()
        self._foundation.settle()  # the groups' initial_lr is no reason to capture anew

    def _rebuild(self) -> None:
        """Choose what depends on settings and memory anew, since something else changed them.

        Raises:
            ValueError: The step can't go on with what was changed.
        """
        self._foundation.check_no_scheduler()
        if self._graphs is not None:
            for optimizer in self.optimizers:
                check_capturable(optimizer, optimizer.param_groups)
        self._drivers.bind()
        if self._graphs is not None:
            self._graphs.drop()
        self._foundation.settle()

    def state_dict(self) -> TrainStepState:
        """A snapshot in host memory, which later updates do not change. Synchronizes with the device.

        It has model, optimizers, loss scale, clock, carry, and torch's random-number states, as tensors and
        plain values, so that `torch.load(weights_only=True)` reads it back. `state["applied"]` and
        `state["skipped"]` count the updates so far. A restored run also needs the state of its loader.

        Each of several ranks calls it, for a state of its own: its random numbers and carry, and under
        `fully_shard` its shards. `Checkpoints` brings such states to another number of ranks.
        """
        self._check_whole()
        return snapshot.on_host(self._saved_parts.read_state())

    @torch.inference_mode(False)
    def load_state_dict(
        self, state_dict: TrainStepState | Mapping[str, Any], strict: bool | None = None
    ) -> None:
        """Resume, bit for bit, from a snapshot. Copies what it loads.

        The peak learning rates and the optimizers' settings become the saved ones, except for those that
        only choose an implementation (`fused`, `foreach`, `capturable`, `differentiable`). The state of an
        optimizer that is not torch's own is compared with this step's only after its first update.

        Args:
            state_dict: The state that `state_dict` returned. If this step's parameters are sharded, the
                saved tensors may be whole.
            strict: Refuse the state of another plan: of a curve that differs at a step before the saved
                clock (`Curve.same_until`), of another hold or of another unit. With False the run resumes
                under this step's curve, at the saved clock; rules other than the saved ones start anew; with
                another unit `consumed` is clock · unit, and without one the number of updates is the clock.
                The default is the step's own `strict`.

        Raises:
            ValueError: The state of another plan (unless `strict` is False), of another model, optimizer,
                precision or carry; damaged, or not a state; a scheduler is attached to the optimizer.
            Exception: Any error that the `load_state_dict` of the model or an optimizer raises.

        After an error everything has the state that it had before.
        """
        if self._is_distributed:
            self._check_whole()
        strict = self.strict if strict is None else strict
        self._foundation.check_no_scheduler()
        parts, was_partial = self._saved_parts, self._drivers.is_partial
        own = parts.read_state()
        parts.check(own, state_dict, strict)
        before = snapshot.on_host(own)
        self._drivers.is_partial = True  # some parts have the new state, and some the old one
        try:
            parts.write_state(state_dict, strict)
        except BaseException:
            parts.write_state(before, strict)
            self._rebuild()
            self._drivers.is_partial = was_partial
            raise
        self._rebuild()
        self._drivers.is_partial = False

    def _check_whole(self) -> None:
        if not self._drivers.is_partial:
            return
        if self._is_distributed:
            raise RuntimeError(
                "an error ended an update on this rank, and other ranks may still wait for it: stop all "
                "ranks, and restart the program from its last checkpoint"
            )
        raise RuntimeError(
            "an update was interrupted between its optimizer's step and its count: load a checkpoint, by "
            "load_state_dict, before the next update"
        )

    def __reduce__(self) -> Never:
        raise TypeError(
            "a TrainStep can't be copied or pickled: build another one, and load this one's state there"
        )
