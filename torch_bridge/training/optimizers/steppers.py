"""How an update steps its optimizers: the skip is decided on the device, or on the host."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer

from torch_bridge.schedulers.param_groups import all_groups
from torch_bridge.training.clock.clock import Clock
from torch_bridge.training.optimizers.optimizers import check_no_scheduler

# Their fused kernels take a tensor `found_inf`, and change nothing if it is 1.
_WITH_FOUND_INF = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad)


class SkipDecision:
    """The decision of one update: it is skipped if its loss or its gradient norm is not finite."""

    def __init__(self, loss: Tensor, norm: Tensor, clock: Tensor) -> None:
        # Zero times a finite number is zero: one comparison in place of two isfinite.
        self.on_device = loss.mul(0).add_(norm, alpha=0).ne(0)
        self.found_inf = self.on_device.float()
        self._clock = clock

    _step: int | None = None

    def read_clock(self) -> int | None:
        """The step of the curve of this update; None if it is skipped.

        Synchronizes with the device once, however often it is called.
        """
        if self._step is None:
            self._step = int(torch.where(self.on_device, -1, self._clock).item())
        return None if self._step < 0 else self._step


class OptimizerStepper(Protocol):
    """Steps one optimizer at the clock's learning rates, unless the update is skipped."""

    steady: bool
    """The last update did not synchronize with the device."""

    def step(self, skip: SkipDecision) -> None: ...


class DeviceStepper:
    """For fused optimizers: learning rates and decision are tensors, which their kernels read.

    While fused SGD still has momentum buffers to create, the decision is read on the host: a skip on the
    device would leave them uninitialized.
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
            vars(optimizer).pop("found_inf", None)


class HostStepper:
    """For all others: they count on the host, which a skip on the device could not undo.

    Their learning rates are floats.
    """

    steady = False

    def __init__(self, optimizer: Optimizer, clock: Clock, groups: slice) -> None:
        self._optimizer, self._clock, self._groups = optimizer, clock, groups

    def step(self, skip: SkipDecision) -> None:
        clock = skip.read_clock()
        if clock is None:
            return
        rates = self._clock.lrs_at(clock)[self._groups]
        for group, rate in zip(self._optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        self._optimizer.step()


class _AttachedGroup(NamedTuple):
    """A parameter group, and what it had when it was attached."""

    group: dict[str, Any]
    params: list[Any]
    size: int
    fused: Any
    lr: Tensor | None
    """The tensor that the kernel reads; None for a `HostStepper`, which writes floats."""


class OptimizerSteppers:
    """The steppers of all optimizers of an update, chosen by the settings of their groups.

    Args:
        optimizers: Their groups, one after the other, are those of the clock.
        with_wrappers: The same, and the wrappers that trainers have put around them.
        clock: Holds the learning rates.
        cuda_graph: The update is captured in CUDA graphs.
    """

    def __init__(
        self, optimizers: Sequence[Optimizer], with_wrappers: Sequence[Any], clock: Clock, cuda_graph: bool
    ) -> None:
        self._optimizers, self._with_wrappers, self._clock = optimizers, with_wrappers, clock
        self._cuda_graph = cuda_graph
        self._parameters = self._present_parameters()
        self.is_partial = False
        """An update began and did not end: weights may have moved, or other ranks may wait for this one."""
        self.attach()

    def attach(self) -> None:
        """Choose the steppers, and give the groups their peaks and the tensors of their learning rates.

        Raises:
            ValueError: A scheduler is attached; the optimizers have other groups or parameters than they had
                at first; or a CUDA graph cannot hold them.
        """
        check_no_scheduler(self._with_wrappers)
        present = self._present_parameters()
        if len(present) != len(self._parameters):
            raise ValueError(
                f"the optimizer has {len(present)} parameter groups; "
                f"the step was built for {len(self._parameters)}"
            )
        if present != self._parameters:
            raise ValueError("the optimizer has other parameters than those that the step was built for")
        self._check_capturable()
        self._steppers: list[OptimizerStepper] = []
        self._lists: list[tuple[Optimizer, list[dict[str, Any]]]] = []
        self._groups: list[_AttachedGroup] = []
        attributes: list[dict[str, Any]] = list(map(vars, self._with_wrappers))
        self._steps = [(each, each.get("step")) for each in attributes]
        first = 0
        for optimizer in self._optimizers:
            groups = optimizer.param_groups
            of_clock = slice(first, first := first + len(groups))
            is_fused = takes_found_inf(optimizer, groups)
            self._steppers.append(
                DeviceStepper(optimizer) if is_fused else HostStepper(optimizer, self._clock, of_clock)
            )
            self._lists.append((optimizer, groups))
            for group, lr in zip(groups, self._clock.group_lrs[of_clock], strict=True):
                params = group["params"]
                attached = group, params, len(params), group.get("fused"), lr if is_fused else None
                self._groups.append(_AttachedGroup(*attached))
        self._any_on_host = any(isinstance(stepper, HostStepper) for stepper in self._steppers)
        self.write_peaks()
        self.prepare()

    def write_peaks(self) -> None:
        """Write the peaks as the groups' `initial_lr`, as a torch scheduler does."""
        for group, peak in zip(all_groups(self._optimizers), self._clock.peaks, strict=True):
            group["initial_lr"] = peak

    def prepare(self) -> None:
        """Called before each update: attach again if the user or a load has changed the groups.

        A load makes new groups. An assigned learning rate is replaced by the clock's tensor again.

        Raises:
            ValueError: As `attach`.
        """
        # Only what would be wrong without a word, in a few comparisons: each update pays for them.
        count = 0
        for optimizer, groups in self._lists:
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
        for attributes, step in self._steps:
            if attributes.get("step") is not step:
                return self.attach()
        return self._check_capturable()

    def _check_capturable(self) -> None:
        if self._cuda_graph:
            for optimizer in self._optimizers:
                check_capturable(optimizer, optimizer.param_groups)

    def _present_parameters(self) -> list[list[int]]:
        return [list(map(id, group["params"])) for group in all_groups(self._optimizers)]

    @property
    def steady(self) -> bool:
        """The last update did not synchronize with the device."""
        return all(stepper.steady for stepper in self._steppers)

    def step(self, skip: SkipDecision) -> None:
        # A stepper on the host waits for the decision: an interrupt of this wait leaves everything as it was.
        if self._any_on_host and skip.read_clock() is None:
            return
        self.is_partial = True
        for stepper in self._steppers:
            stepper.step(skip)


def takes_found_inf(optimizer: Optimizer, groups: Sequence[dict[str, Any]]) -> bool:
    """The optimizer, with these groups, takes the decision to skip as a tensor."""
    return type(optimizer) in _WITH_FOUND_INF and all(group.get("fused") for group in groups)


def check_capturable(optimizer: Optimizer, groups: Sequence[dict[str, Any]]) -> None:
    """Refuse what a CUDA graph cannot hold.

    Raises:
        ValueError: The optimizer is not a fused one, or not capturable.
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
    """Give zero as momentum to parameters that join a group of fused SGD later.

    Its kernel takes the buffers of all parameters with a gradient, or creates them all.
    """
    for group in optimizer.param_groups:
        trained = [parameter for parameter in group["params"] if parameter.grad is not None]
        states = [optimizer.state[parameter] for parameter in trained]
        lacking = [state.get("momentum_buffer") is None for state in states]
        if not all(lacking):
            for parameter, state, lacks in zip(trained, states, lacking, strict=True):
                if lacks:
                    state["momentum_buffer"] = torch.zeros_like(parameter.detach())


def _has_all_momentum(optimizer: Optimizer) -> bool:
    """Every parameter with a gradient has the momentum buffer that SGD would create."""
    return not any(
        group.get("momentum")
        and parameter.grad is not None
        and optimizer.state.get(parameter, {}).get("momentum_buffer") is None
        for group in optimizer.param_groups
        for parameter in group["params"]
    )
