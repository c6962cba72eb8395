"""How an update reaches its optimizers: decided on the device, or on the host."""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer

from torch_bridge.schedulers.param_groups import all_groups
from torch_bridge.training.clock import Clock

# Their fused kernels take a tensor `found_inf` and leave everything as it is where it is 1.
_WITH_FOUND_INF = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad)


class Skip:
    """The decision of one update: to be skipped where its loss or its gradient norm is not finite."""

    def __init__(self, loss: Tensor, norm: Tensor, clock: Tensor) -> None:
        # Zero times a finite number is zero: one comparison in place of two isfinite.
        self.on_device = loss.mul(0).add_(norm, alpha=0).ne(0)
        self.found_inf = self.on_device.float()
        self._clock = clock

    _step: int | None = None

    def read_clock(self) -> int | None:
        """Where the clock stands for this update; None if it is skipped.

        Synchronizes with the device once, however often it is called.
        """
        if self._step is None:
            self._step = int(torch.where(self.on_device, -1, self._clock).item())
        return None if self._step < 0 else self._step


class Driver(Protocol):
    """Steps one optimizer, with the gradients that are there, a decision and the clock's rates."""

    steady: bool
    """Whether the last update was run without synchronizing with the device."""

    def bind(self, groups: Sequence[dict[str, Any]]) -> None: ...
    def step(self, skip: Skip) -> None: ...


class DeviceDriver:
    """For fused optimizers: rates and decision are tensors, which their kernels read.

    While fused SGD still has momentum buffers to create, the decision is read on the host: a skip on the
    device would leave them uninitialized.
    """

    def __init__(self, optimizer: Optimizer, clock: Clock, groups: slice) -> None:
        self._optimizer = optimizer
        self._rates = clock.group_rates[groups]
        self._is_sgd = type(optimizer) is torch.optim.SGD
        self.steady = False

    def bind(self, groups: Sequence[dict[str, Any]]) -> None:
        for group, rate in zip(groups, self._rates, strict=True):
            group["lr"] = rate

    def step(self, skip: Skip) -> None:
        optimizer: Any = self._optimizer
        self.steady = not self._is_sgd or _has_momentum(optimizer)
        if not self.steady:
            if skip.read_clock() is not None:
                _complete_momentum(optimizer)
                optimizer.step()
            return
        try:
            optimizer.found_inf = skip.found_inf
            optimizer.step()
        finally:
            vars(optimizer).pop("found_inf", None)


class HostDriver:
    """For all others: they keep counts on the host, which a skip on the device could not undo.

    Their rates are floats.
    """

    steady = False

    def __init__(self, optimizer: Optimizer, clock: Clock, groups: slice) -> None:
        self._optimizer = optimizer
        self._clock, self._groups = clock, groups

    def bind(self, groups: Sequence[dict[str, Any]]) -> None:
        """Every step writes its rates."""

    def step(self, skip: Skip) -> None:
        clock = skip.read_clock()
        if clock is None:
            return
        rates = self._clock.rates_at(clock)[self._groups]
        for group, rate in zip(self._optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        self._optimizer.step()


class Drivers:
    """The drivers of all optimizers of an update, chosen by what their groups' settings are.

    Args:
        optimizers: Their groups, one after the other, are those of the clock.
        clock: Where the rates are.
    """

    def __init__(self, optimizers: Sequence[Optimizer], clock: Clock) -> None:
        self._optimizers, self._clock = optimizers, clock
        self._parameters = self._present_parameters()
        self.is_partial = False
        """An update began and did not end: weights may have moved, or other ranks may wait for this one."""
        self.bind()

    def bind(self) -> None:
        """Choose the drivers anew, and tie the groups to the clock.

        Raises:
            ValueError: The optimizers have other groups or parameters than they had at first.
        """
        present = self._present_parameters()
        if len(present) != len(self._parameters):
            raise ValueError(
                f"the optimizer has {len(present)} parameter groups; "
                f"the step was built for {len(self._parameters)}"
            )
        if present != self._parameters:
            raise ValueError("the optimizer has other parameters than those that the step was built for")
        self._drivers: list[Driver] = []
        first = 0
        for optimizer in self._optimizers:
            groups = optimizer.param_groups
            of_clock = slice(first, first := first + len(groups))
            kind = DeviceDriver if takes_found_inf(optimizer, groups) else HostDriver
            driver = kind(optimizer, self._clock, of_clock)
            driver.bind(groups)
            self._drivers.append(driver)
        self.write_peaks()
        self._any_on_host = any(isinstance(driver, HostDriver) for driver in self._drivers)

    def write_peaks(self) -> None:
        """Let the groups say what their peaks are, as beside a torch scheduler."""
        for group, peak in zip(all_groups(self._optimizers), self._clock.peaks, strict=True):
            group["initial_lr"] = peak

    def _present_parameters(self) -> list[list[int]]:
        return [list(map(id, group["params"])) for group in all_groups(self._optimizers)]

    @property
    def steady(self) -> bool:
        """Whether the last update was run without synchronizing with the device."""
        return all(driver.steady for driver in self._drivers)

    def step(self, skip: Skip) -> None:
        # A driver on the host waits for the decision: an interrupt of this wait leaves everything as it was.
        if self._any_on_host and skip.read_clock() is None:
            return
        self.is_partial = True
        for driver in self._drivers:
            driver.step(skip)


def takes_found_inf(optimizer: Optimizer, groups: Sequence[dict[str, Any]]) -> bool:
    """Whether the optimizer, with these groups, takes the decision to skip as a tensor."""
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
            f"cuda_graph=True needs {type(optimizer).__name__} with capturable=True beside fused=True"
        )


def _complete_momentum(optimizer: Optimizer) -> None:
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


def _has_momentum(optimizer: Optimizer) -> bool:
    """Whether every parameter with a gradient has the momentum buffer that SGD would create."""
    return not any(
        group.get("momentum")
        and parameter.grad is not None
        and optimizer.state.get(parameter, {}).get("momentum_buffer") is None
        for group in optimizer.param_groups
        for parameter in group["params"]
    )
