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
from torch_bridge.training.train_step.status import Status

_SKIPPING = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad)
"""The optimizers whose fused kernels change nothing if the optimizer's attribute `found_inf`, a
float32 tensor on the device, is 1. They read the learning rate from a tensor too."""


class _AttachedGroup(NamedTuple):
    """A parameter group, and what decided how its optimizer is stepped when it was attached."""

    group: dict[str, Any]
    params: list[Tensor]
    num_params: int
    fused: bool | None
    lr: Tensor | None
    """The tensor in its `lr`; None if the host writes a float."""

    def is_current(self, group: dict[str, Any]) -> bool:
        """Return False if the user or a load has changed the group."""
        # Every update pays for these comparisons, so they cover only changes that would go
        # unnoticed.
        params = group["params"]
        is_same = group is self.group and params is self.params
        return is_same and len(params) == self.num_params and group.get("fused") is self.fused


class OptimizerSteppers:
    """Steps the optimizers at the clock's learning rates, unless the update is skipped.

    Args:
        optimizers: The torch optimizers; the clock has their groups in this order.
        clock: Computes the learning rates.
        status: Knows when the optimizers begin to move weights.
        cuda_graph: True if the update is captured in CUDA graphs.
    """

    def __init__(
        self,
        optimizers: Sequence[Optimizer],
        clock: DeviceClock,
        status: Status,
        *,
        cuda_graph: bool,
    ) -> None:
        self._optimizers = optimizers
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
        self._is_on_device: dict[Any, bool] = {}
        self._attached: list[_AttachedGroup] = []
        self.attach()

    def check(self) -> None:
        """Check that the optimizers are those that the step was built for.

        Raises:
            ValueError: A scheduler is attached; or the optimizers' groups or parameters are
                different ones.
        """
        check_no_scheduler(self._optimizers)
        if self._current_parameter_ids() != self._parameter_ids:
            raise ValueError(
                "the optimizer has different parameters, or different groups of them, from those "
                "that the step was built for"
            )

    def attach(self) -> None:
        """Decide if the device or the host steps each optimizer; write peaks and learning rates.

        Raises:
            ValueError: As `check`; or fused SGD does not train parameters of this dtype; or a CUDA
                graph cannot capture the optimizers.
        """
        self.check()
        for optimizer in self._optimizers:
            fused_sgd.check(optimizer)
            if self._cuda_graph:
                check_capturable(optimizer)
        self._is_on_device = {optimizer: _can_skip(optimizer) for optimizer in self._optimizers}
        attached: list[_AttachedGroup] = []
        for optimizer, is_on_device in self._is_on_device.items():
            lrs = self._clock.group_lrs if is_on_device else self._lr_tensors
            for group in groups_of(optimizer):
                index = len(attached)
                group["initial_lr"] = self._clock.peaks[index]  # as a torch scheduler does
                params = group["params"]
                fused = group.get("fused")
                attached.append(_AttachedGroup(group, params, len(params), fused, lrs[index]))
        # `prepare` compares it with the optimizers, so that the next update attaches again after an
        # interrupt anywhere before.
        self._attached = attached
        self._write_tensors()
        for optimizer, is_on_device in self._is_on_device.items():
            if is_on_device:
                lrs_of_groups = [group["lr"] for group in groups_of(optimizer)]
                written_values(optimizer)[LEARNING_RATE] = lrs_of_groups

    def prepare(self) -> None:
        """Prepare the next update: attach again if the user or a load has changed the groups.

        A load creates new groups. If a learning rate was assigned, the tensor replaces it again.

        Raises:
            ValueError: As `attach`.
        """
        groups = groups_of(self._optimizers)
        attached = self._attached
        are_current = all(map(_AttachedGroup.is_current, attached, groups))
        if not are_current or len(groups) != len(attached):
            self.attach()
            return
        check_no_scheduler(self._optimizers)
        self._write_tensors()

    def _write_tensors(self) -> None:
        """Give the groups their tensors, which a program may have replaced."""
        for attached in self._attached:
            if attached.lr is not None:
                attached.group["lr"] = attached.lr
        for optimizer in self._optimizers:
            fused_sgd.create_momentum(optimizer)

    def _current_parameter_ids(self) -> list[list[int]]:
        return [list(map(id, group["params"])) for group in groups_of(self._optimizers)]

    def step(self, skip: Tensor, found_inf: Tensor) -> None:
        """Step all optimizers unless `skip`, a bool scalar; `found_inf` has it in float32."""
        is_skipped = False
        if not all(self._is_on_device.values()):
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
        for optimizer, is_on_device in self._is_on_device.items():
            if not is_on_device:
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
        first = 0
        for optimizer, is_on_device in self._is_on_device.items():
            last = first + len(groups_of(optimizer))
            if not is_on_device:
                values = written_values(optimizer)[LEARNING_RATE] = lrs[first:last]
                for attached, lr in zip(self._attached[first:last], values, strict=True):
                    if attached.lr is None:
                        attached.group["lr"] = lr
                    else:
                        attached.lr.fill_(lr)
            first = last


def _can_skip(optimizer: Optimizer) -> bool:
    """Return True if the device can skip an update; else the host must decide."""
    is_fused = all(group.get("fused") for group in groups_of(optimizer))
    return is_fused and type(optimizer) in _SKIPPING


def check_capturable(optimizer: Optimizer) -> None:
    """Reject an optimizer that a CUDA graph cannot capture.

    Raises:
        ValueError: The optimizer is not fused, or not capturable.
    """
    are_capturable = all(group.get("capturable", True) for group in groups_of(optimizer))
    if not _can_skip(optimizer) or not are_capturable:
        names = ", ".join([known.__name__ for known in _SKIPPING])
        raise ValueError(
            f"cuda_graph=True needs {names}, with fused=True and, if it has the option, "
            f"capturable=True in every group; the optimizer is {type(optimizer).__name__}"
        )
