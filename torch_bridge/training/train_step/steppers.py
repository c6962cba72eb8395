"""Steps of the optimizers, with the decision to skip an update read on the device or on the host.

A skipped update must leave parameters and optimizer states as they were. The fused kernels of torch
read the decision, and the learning rate, from device tensors. So the host enqueues the step without
knowing whether it takes effect, and nothing waits. All other optimizers count their steps on the
host, before any kernel runs. The device cannot undo that, so the host must read the decision first,
which synchronizes once per update.

The fused kernels read the clock's memory, which takes the place of the groups' `lr`. In other
groups the host writes floats; but if a group's `lr` was a tensor when the step was built, every
update fills a copy of it, since an optimizer that compiles its step may reject a number.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.optim import Optimizer

from torch_bridge.groups.optimizers import groups_of
from torch_bridge.groups.options import LEARNING_RATE, written_values
from torch_bridge.training.device_clocks.device_clock import DeviceClock
from torch_bridge.training.train_step import fused_sgd
from torch_bridge.training.train_step.optimizer_checks import check_no_scheduler
from torch_bridge.training.train_step.optimizer_support import SKIPPING, can_skip
from torch_bridge.training.train_step.status import Status


class _GroupSettings(NamedTuple):
    """Settings of a parameter group that decide how its optimizer is stepped."""

    params: list[Tensor]
    num_params: int
    fused: bool | None


class _AttachedOptimizer(NamedTuple):
    """An optimizer, and the values that its groups had when it was attached."""

    optimizer: Any
    groups: list[dict[str, Any]]
    settings: list[_GroupSettings]
    is_on_device: bool
    """True if the optimizer's kernels read the decision to skip, and the learning rates, on the
    device. False if the host decides."""
    lrs: Sequence[Tensor | None]
    """The tensors in the groups' `lr`; None if the host writes a float."""
    clock_groups: slice
    """The positions of its groups among those of the clock."""
    is_fused_sgd: bool
    """True if missing momentum must be created before an update."""

    def is_current(self) -> bool:
        """Return False if the user or a load has changed the groups."""
        # Every update pays for these comparisons, so they cover only changes that would go
        # unnoticed.
        groups = groups_of(self.optimizer)
        if groups is not self.groups or len(groups) != len(self.settings):
            return False
        for group, (params, num_params, fused) in zip(groups, self.settings, strict=True):
            if group["params"] is not params or len(params) != num_params:
                return False
            if group.get("fused") is not fused:
                return False
        return True


class OptimizerSteppers:
    """Steps the optimizers at the clock's learning rates, unless the update is skipped.

    Args:
        optimizers: The torch optimizers; the clock has their groups in this order.
        nested: The same optimizers, and the trainers' wrappers around them.
        clock: Computes the learning rates.
        status: Knows when the optimizers begin to move weights.
        cuda_graph: True if the update is captured in CUDA graphs.
    """

    def __init__(
        self,
        optimizers: Sequence[Optimizer],
        nested: Sequence[Any],
        clock: DeviceClock,
        status: Status,
        *,
        cuda_graph: bool,
    ) -> None:
        self._optimizers = optimizers
        self._nested = nested
        self._clock = clock
        self._status = status
        self._cuda_graph = cuda_graph
        self._parameter_ids = self._current_parameter_ids()
        self._lr_tensors: list[Tensor | None] = []
        """A copy of the tensor that each group had as `lr` when the step was built, since other
        groups may have the same one; None for a number."""
        for group in groups_of(optimizers):
            lr = group["lr"]
            self._lr_tensors.append(lr.detach().clone() if isinstance(lr, Tensor) else None)
        self.attach()

    def check(self) -> None:
        """Check that the optimizers are those that the step was built for.

        Raises:
            ValueError: A scheduler is attached; the optimizers' groups or parameters are different
                ones; fused SGD does not train parameters of this dtype; or a CUDA graph cannot
                capture them.
        """
        check_no_scheduler(self._nested)
        if self._current_parameter_ids() != self._parameter_ids:
            raise ValueError(
                "the optimizer has different parameters, or different groups of them, from those "
                "that the step was built for"
            )
        for optimizer in self._optimizers:
            fused_sgd.check(optimizer)
        if self._cuda_graph:
            for optimizer in self._optimizers:
                check_capturable(optimizer)

    def attach(self) -> None:
        """Decide if the device or the host steps each optimizer; write peaks and learning rates.

        Raises:
            ValueError: As `check`.
        """
        self.check()
        attached: list[_AttachedOptimizer] = []
        first = 0
        for optimizer in self._optimizers:
            last = first + len(groups_of(optimizer))
            attached.append(self._attach_optimizer(optimizer, slice(first, last)))
            first = last
        for group, peak in zip(groups_of(self._optimizers), self._clock.peaks, strict=True):
            group["initial_lr"] = peak  # as a torch scheduler does
        self._is_read_by_host = not all(item.is_on_device for item in attached)
        # `prepare` compares it with the optimizers, so that the next update attaches again after an
        # interrupt anywhere before.
        self._attached = attached
        self._write_tensors()

    def _attach_optimizer(self, optimizer: Optimizer, clock_groups: slice) -> _AttachedOptimizer:
        groups = groups_of(optimizer)
        settings: list[_GroupSettings] = []
        for group in groups:
            params = group["params"]
            settings.append(_GroupSettings(params, len(params), group.get("fused")))
        is_on_device = can_skip(optimizer)
        lrs: Sequence[Tensor | None] = self._lr_tensors[clock_groups]
        if is_on_device:
            lrs = self._clock.group_lrs[clock_groups]
            written_values(optimizer)[LEARNING_RATE] = list(lrs)
        return _AttachedOptimizer(
            optimizer,
            groups,
            settings,
            is_on_device,
            lrs,
            clock_groups,
            is_fused_sgd=fused_sgd.is_fused_sgd(optimizer),
        )

    def prepare(self) -> None:
        """Prepare the next update: attach again if the user or a load has changed the groups.

        A load creates new groups. If a learning rate was assigned, the tensor replaces it again.

        Raises:
            ValueError: As `attach`.
        """
        # A loop costs less than `all` over a generator.
        for attached in self._attached:
            if not attached.is_current():
                self.attach()
                return
        check_no_scheduler(self._nested)
        self._write_tensors()

    def _write_tensors(self) -> None:
        """Give the groups their tensors, which a program may have replaced."""
        for attached in self._attached:
            for group, lr in zip(attached.groups, attached.lrs, strict=True):
                if lr is not None:
                    group["lr"] = lr
            if attached.is_fused_sgd:
                fused_sgd.create_momentum(attached.optimizer)

    def _current_parameter_ids(self) -> list[list[int]]:
        return [list(map(id, group["params"])) for group in groups_of(self._optimizers)]

    def step(self, skip: Tensor, found_inf: Tensor) -> None:
        """Step all optimizers unless `skip`, a bool scalar; `found_inf` has it in float32."""
        is_skipped = False
        if self._is_read_by_host:
            # The only time that an update waits for the device. An interrupt during this wait, such
            # as Ctrl-C, changes nothing, so it comes before `begin_writing`: the step stays usable.
            both = torch.stack([skip.long(), self._clock.curve_step])  # to wait once
            skipped, curve_step = cast("list[int]", both.tolist())
            is_skipped = bool(skipped)
            self.write_host_lrs(curve_step)
        # Before the first optimizer moves a weight, and before a skipped update is counted.
        self._status.begin_writing()
        if is_skipped:
            return
        for attached in self._attached:
            optimizer = attached.optimizer
            if not attached.is_on_device:
                optimizer.step()
                continue
            try:
                optimizer.found_inf = found_inf
                optimizer.step()
            finally:
                # A leftover attribute would affect the user's later calls of `optimizer.step`.
                vars(optimizer).pop("found_inf", None)

    def write_host_lrs(self, curve_step: int) -> None:
        """Write the learning rates into the groups of the optimizers that the host steps."""
        lrs = self._clock.lrs_at(curve_step)
        for attached in self._attached:
            if attached.is_on_device:
                continue
            values = lrs[attached.clock_groups]
            written_values(attached.optimizer)[LEARNING_RATE] = values
            for group, tensor, lr in zip(attached.groups, attached.lrs, values, strict=True):
                if tensor is None:
                    group["lr"] = lr
                else:
                    tensor.fill_(lr)


def check_capturable(optimizer: Optimizer) -> None:
    """Reject an optimizer that a CUDA graph cannot capture.

    Raises:
        ValueError: The optimizer is not fused, or not capturable.
    """
    groups = groups_of(optimizer)
    class_name = type(optimizer).__name__
    if not can_skip(optimizer):
        names = ", ".join([known.__name__ for known in SKIPPING])
        fused = [group.get("fused") for group in groups]
        raise ValueError(
            f"cuda_graph=True needs {names} with fused=True; the optimizer is {class_name} with "
            f"fused={fused}"
        )
    if not all(group.get("capturable", True) for group in groups):
        raise ValueError(
            f"cuda_graph=True needs {class_name} with capturable=True next to fused=True"
        )
