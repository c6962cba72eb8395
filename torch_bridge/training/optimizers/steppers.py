"""Steps of the optimizers, with the decision to skip an update read on the device or on the host.

A skipped update must leave parameters and optimizer states as they were. The optimizers differ in who can
read the decision:

- The fused kernels of torch read it, and the learning rate, from device tensors. So the host enqueues the
  step without knowing whether it takes effect, and nothing waits.
- All others count their steps on the host, before any kernel runs. The device cannot undo that, so the host
  must read the decision first, which synchronizes once per update.
- The first step of fused SGD creates its momentum buffers on the host and leaves it to the kernel to
  initialize them. A skip on the device would leave them uninitialized, so until they exist the host decides.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer

from torch_bridge.schedulers.param_groups import all_groups, updates_made
from torch_bridge.training.clock.clock import Clock
from torch_bridge.training.optimizers.optimizers import check_fused_sgd, check_no_scheduler

# Their fused kernels read a tensor `found_inf`, and change nothing if it is 1.
_WITH_FOUND_INF = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad)


class SkipDecision:
    """The decision to skip an update: its loss or its gradient norm is not finite."""

    def __init__(self, loss: Tensor, norm: Tensor, clock: Tensor) -> None:
        # x·0 is 0 for a finite x and NaN otherwise: one comparison replaces two calls of isfinite.
        self.on_device = loss.mul(0).add_(norm, alpha=0).ne(0)
        self.found_inf = self.on_device.float()
        self._clock = clock

    _step: int | None = None

    def read_clock(self) -> int | None:
        """Return the step of the curve of this update, or None if the update is skipped.

        The first call synchronizes with the device, and reads decision and clock at once.
        """
        if self._step is None:
            self._step = int(torch.where(self.on_device, -1, self._clock).item())
        return None if self._step < 0 else self._step


class OptimizerStepper(Protocol):
    """Steps one optimizer at the clock's learning rates, unless the update is skipped."""

    steady: bool
    """True if the last update did not synchronize with the device."""

    def step(self, skip: SkipDecision) -> None: ...


class DeviceStepper:
    """For fused optimizers, whose kernels read learning rates and decision from tensors.

    While fused SGD still has momentum buffers to create, the host reads the decision.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._is_sgd = type(optimizer) is torch.optim.SGD
        self.steady = False

    def step(self, skip: SkipDecision) -> None:
        optimizer: Any = self._optimizer
        self.steady = not self._is_sgd or _has_all_momentum(optimizer)
        if not self.steady:
            if skip.read_clock() is not None:
                _fill_missing_momentum(optimizer)
                optimizer.step()
            return
        try:
            optimizer.found_inf = skip.found_inf
            optimizer.step()
        finally:
            # A leftover attribute would affect the user's later calls of `optimizer.step`.
            vars(optimizer).pop("found_inf", None)


class HostStepper:
    """For all other optimizers, which count on the host and get their learning rates as floats."""

    steady = False

    def __init__(self, optimizer: Optimizer, clock: Clock, groups: slice) -> None:
        self._optimizer, self._clock, self._groups = optimizer, clock, groups

    def step(self, skip: SkipDecision) -> None:
        clock = skip.read_clock()
        if clock is None:
            return
        lrs = self._clock.lrs_at(clock)[self._groups]
        for group, lr in zip(self._optimizer.param_groups, lrs, strict=True):
            group["lr"] = lr
        self._optimizer.step()


class _AttachedGroup(NamedTuple):
    """A parameter group, and the values that it had when it was attached."""

    group: dict[str, Any]
    params: list[Any]
    size: int
    fused: Any
    lr: Tensor | None
    """The tensor that the kernel reads; None for a `HostStepper`, which writes floats."""


class OptimizerSteppers:
    """The steppers of all optimizers of an update, chosen by the settings of their groups.

    Args:
        optimizers: The torch optimizers; the clock has their groups in this order.
        with_wrappers: The same optimizers, and the trainers' wrappers around them.
        clock: Holds the learning rates.
        cuda_graph: True if the update is captured in CUDA graphs.
    """

    def __init__(
        self, optimizers: Sequence[Optimizer], with_wrappers: Sequence[Any], clock: Clock, cuda_graph: bool
    ) -> None:
        self._optimizers, self._with_wrappers, self._clock = optimizers, with_wrappers, clock
        self._cuda_graph = cuda_graph
        self._parameter_ids = self._current_parameter_ids()
        self.is_partial = False
        """True while an update is unfinished: weights may have moved, or other ranks wait for this one."""
        self.updates_made: int | None = 0
        """Updates the optimizers had made when last attached; None if there were some of unknown number."""
        self.attach()

    def attach(self) -> None:
        """Choose the steppers, and give the groups their peaks and the clock's learning-rate tensors.

        Raises:
            ValueError: A scheduler is attached; the optimizers' groups or parameters are not those that the
                step was built for; torch's fused SGD does not train parameters of this dtype; or a CUDA graph
                cannot capture them.
        """
        check_no_scheduler(self._with_wrappers)
        for optimizer in self._optimizers:
            check_fused_sgd(optimizer)
        current = self._current_parameter_ids()
        if len(current) != len(self._parameter_ids):
            raise ValueError(
                f"the optimizer has {len(current)} parameter groups; "
                f"the step was built for {len(self._parameter_ids)}"
            )
        if current != self._parameter_ids:
            raise ValueError("the optimizer has different parameters from those that the step was built for")
        if self._cuda_graph:
            self._check_capturable()
        self._steppers: list[OptimizerStepper] = []
        self._group_lists: list[tuple[Optimizer, list[dict[str, Any]]]] = []
        self._groups: list[_AttachedGroup] = []
        attributes: list[dict[str, Any]] = list(map(vars, self._with_wrappers))
        self._step_attributes = [(names, names.get("step")) for names in attributes]
        first = 0
        for optimizer in self._optimizers:
            groups = optimizer.param_groups
            clock_groups = slice(first, first := first + len(groups))
            is_fused = takes_found_inf(optimizer, groups)
            self._steppers.append(
                DeviceStepper(optimizer) if is_fused else HostStepper(optimizer, self._clock, clock_groups)
            )
            self._group_lists.append((optimizer, groups))
            for group, lr in zip(groups, self._clock.group_lrs[clock_groups], strict=True):
                params, fused = group["params"], group.get("fused")
                attached = _AttachedGroup(group, params, len(params), fused, lr if is_fused else None)
                self._groups.append(attached)
        self._any_on_host = any(isinstance(stepper, HostStepper) for stepper in self._steppers)
        counts = [updates_made(optimizer) for optimizer in self._optimizers]
        most = max(count or 0 for count in counts)
        self.updates_made = None if not most and None in counts else most
        self.write_peaks()
        self.prepare()

    def write_peaks(self) -> None:
        """Write the peaks as the groups' `initial_lr`, as a torch scheduler does."""
        for group, peak in zip(all_groups(self._optimizers), self._clock.peaks, strict=True):
            group["initial_lr"] = peak

    def prepare(self) -> None:
        """Prepare the next update: attach again if the user or a load has changed the groups.

        A load creates new groups. If a learning rate was assigned, the clock's tensor replaces it again.

        Raises:
            ValueError: As `attach`.
        """
        # Every update pays for these comparisons, so they cover only changes that would go unnoticed.
        count = 0
        for optimizer, groups in self._group_lists:
            if optimizer.param_groups is not groups:
                return self.attach()
            count += len(groups)
        if count != len(self._groups):
            return self.attach()
        for group, params, size, fused, lr in self._groups:
            if group["params"] is not params or len(params) != size or group.get("fused") is not fused:
                return self.attach()
            if lr is not None:
                group["lr"] = lr
        for attributes, step in self._step_attributes:
            if attributes.get("step") is not step:
                return self.attach()
        return self._check_capturable() if self._cuda_graph else None

    def _check_capturable(self) -> None:
        for optimizer in self._optimizers:
            check_capturable(optimizer, optimizer.param_groups)

    def _current_parameter_ids(self) -> list[list[int]]:
        return [list(map(id, group["params"])) for group in all_groups(self._optimizers)]

    @property
    def steady(self) -> bool:
        """True if the last update did not synchronize with the device."""
        return all(stepper.steady for stepper in self._steppers)

    def step(self, skip: SkipDecision) -> None:
        # An interrupt while a host stepper waits for the decision, such as Ctrl-C, changes nothing. So the
        # wait comes before `is_partial`, and the step stays usable.
        is_skipped = self._any_on_host and skip.read_clock() is None
        # Set before the first optimizer moves a weight, and before a skipped update is counted. An error from
        # here until counters and loss scale are written leaves, for instance, new weights with old counters,
        # and the next update would use the same learning rate again. Only a completed update or a loaded
        # checkpoint clears the mark.
        self.is_partial = True
        if is_skipped:
            return
        for stepper in self._steppers:
            stepper.step(skip)


def takes_found_inf(optimizer: Optimizer, groups: Sequence[dict[str, Any]]) -> bool:
    """Return True if the optimizer, with these groups, reads the decision to skip from a tensor."""
    return type(optimizer) in _WITH_FOUND_INF and all(group.get("fused") for group in groups)


def check_capturable(optimizer: Optimizer, groups: Sequence[dict[str, Any]]) -> None:
    """Reject an optimizer that a CUDA graph cannot capture.

    Raises:
        ValueError: The optimizer is not fused, or not capturable.
    """
    if not takes_found_inf(optimizer, groups):
        names = ", ".join(kind.__name__ for kind in _WITH_FOUND_INF)
        raise ValueError(
            f"cuda_graph=True needs {names} with fused=True; the optimizer is {type(optimizer).__name__} "
            f"with fused={[group.get('fused') for group in groups]}"
        )
    if not all(group.get("capturable", True) for group in groups):
        raise ValueError(
            f"cuda_graph=True needs {type(optimizer).__name__} with capturable=True next to fused=True"
        )


def _fill_missing_momentum(optimizer: Optimizer) -> None:
    """Create zero momentum for parameters of fused SGD that get their first gradient after others.

    Its kernel uses the buffers of all parameters with a gradient, or creates them all.
    """
    for group in optimizer.param_groups:
        trained = [parameter for parameter in group["params"] if parameter.grad is not None]
        states = [optimizer.state[parameter] for parameter in trained]
        are_missing = [state.get("momentum_buffer") is None for state in states]
        if not all(are_missing):
            for parameter, state, is_missing in zip(trained, states, are_missing, strict=True):
                if is_missing:
                    state["momentum_buffer"] = torch.zeros_like(parameter.detach())


def _has_all_momentum(optimizer: Optimizer) -> bool:
    """Return True if every parameter with a gradient has the momentum buffer that SGD would create."""
    return not any(
        group.get("momentum")
        and parameter.grad is not None
        and optimizer.state.get(parameter, {}).get("momentum_buffer") is None
        for group in optimizer.param_groups
        for parameter in group["params"]
    )
