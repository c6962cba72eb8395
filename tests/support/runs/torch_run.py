"""A torch optimizer, and the schedulers and followers that its program steps after each update."""

import copy
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from support.runs.options import Key, option_of, set_option
from support.runs.run import Run
from support.schedulers.runs import lrs_of, optimizer_with
from support.training.steps import through_file
from torch import Tensor
from torch.optim import SGD

from torch_bridge import follow, lambda_lr


class TorchRun(Run):
    """An optimizer with two groups, and any schedulers that the program uses, also torch's own.

    Args:
        kind: The class of the optimizer.
        form: Makes the learning rate of a group from a number.
        lr: The learning rate.
    """

    optimizer: Any
    schedulers: Sequence[Any]
    """They are stepped after each update, in this order."""

    def __init__(self, kind: Any = SGD, form: Any = float, lr: float = 0.1) -> None:
        self.kind = kind
        self.form = form
        super().__init__(None, [lr, lr])

    def build(self) -> None:
        options = {"weight_decay": 0.5}
        if self.kind is SGD:
            options["momentum"] = 0.5
        self.optimizer = optimizer_with(list(map(self.form, self.peaks)), self.kind, **options)
        self.schedulers = []

    def in_a_new_process(self) -> Self:
        """Return the program as another process starts it."""
        return type(self)(self.kind, self.form)

    def use(self, *schedulers: Any) -> None:
        """Step these schedulers from now on."""
        self.schedulers = list(schedulers)

    @property
    def part(self) -> Any:
        """The first scheduler or follower."""
        return self.schedulers[0]

    @property
    def groups(self) -> list[dict[str, Any]]:
        return self.optimizer.param_groups

    # Updates.

    def step_optimizer(self, times: int = 1) -> None:
        for _ in range(times):
            self.optimizer.step()

    def step_schedulers(self, times: int = 1) -> None:
        for _ in range(times):
            for scheduler in self.schedulers:
                scheduler.step()

    def update(self, count: Any = 1, metric: Any = 0.5) -> list[float]:
        self.step_optimizer()
        values = self.values()
        self.step_schedulers()
        return values

    def values(self) -> list[float]:
        return lrs_of(self.optimizer)

    def train(self, updates: int) -> None:
        self.repeat(updates, updates=1)

    def repeat(self, times: int, *, updates: int, steps: int = 1) -> None:
        """Make these updates, and then these scheduler steps, as often as `times` says."""
        for _ in range(times):
            self.step_optimizer(updates)
            self.step_schedulers(steps)

    # The position and the state.

    def curve_step(self) -> int:
        return self.part.curve_step

    def consumed(self) -> int:
        return self.part.consumed

    def save(self) -> Any:
        schedulers = [scheduler.state_dict() for scheduler in self.schedulers]
        return through_file({"optimizer": self.optimizer.state_dict(), "schedulers": schedulers})

    def load_optimizer(self, state: Any) -> None:
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))

    def load_schedulers(self, state: Any, **options: Any) -> None:
        for scheduler, scheduler_state in zip(self.schedulers, state["schedulers"], strict=True):
            scheduler.load_state_dict(copy.deepcopy(scheduler_state), **options)

    def load(self, state: Any, **options: Any) -> None:
        self.load_optimizer(state)
        self.load_schedulers(state, **options)


class SchedulerRun(TorchRun):
    """A `lambda_lr`.

    Args:
        curve, peaks, clock: As in `Run`.
        form: Makes the value of a group from a number.
        kind: The class of the optimizer.
        last_epoch: For a scheduler that starts in mid-run.
        options: Other arguments of `lambda_lr`.
    """

    key: Key = "lr"
    """The option that it sets."""
    fresh_options: dict[str, Any]
    """The options of a new group, without its parameters."""

    def __init__(
        self,
        curve: Any,
        peaks: Sequence[float] = (0.25, 0.7),
        clock: Any = None,
        *,
        form: Any = float,
        kind: Any = SGD,
        last_epoch: int = -1,
        **options: Any,
    ) -> None:
        self.form = form
        self.kind = kind
        self.options = options
        Run.__init__(self, curve, [self.peak_of(peak) for peak in peaks], clock)
        if last_epoch != -1:
            self.start(last_epoch=last_epoch)

    def peak_of(self, number: float) -> float:
        """Return the float32 of what a group holds that is given this number."""
        return float(np.float32(float(self.form(number))))

    def build(self) -> None:
        self.start()

    def start(self, optimizer_state: Any = None, last_epoch: int = -1) -> None:
        """Build the optimizer, load its state into it, and build the scheduler in mid-run."""
        self.optimizer = optimizer_with([0.1] * len(self.peaks), self.kind)
        for group, peak in zip(self.groups, self.peaks, strict=True):
            set_option(group, self.key, self.form(peak))
        first = self.groups[0]
        self.fresh_options = {name: value for name, value in first.items() if name != "params"}
        if optimizer_state is not None:
            self.optimizer.load_state_dict(optimizer_state)
        self.use(self.new_part(last_epoch))

    def new_part(self, last_epoch: int) -> Any:
        return lambda_lr(self.optimizer, self.curve, last_epoch, clock=self.clock, **self.options)

    def step_part(self, count: Any = 1, metric: Any = 0.5) -> None:
        if self.is_held:
            self.part.step(metric)
        elif self.unit is None:
            self.part.step()
        else:
            self.part.step(count=count)

    def update(self, count: Any = 1, metric: Any = 0.5) -> list[float]:
        self.optimizer.step()
        before = self.raw_values()
        values = self.values()
        self.step_part(count, metric)
        for value, now in zip(before, self.raw_values(), strict=True):
            assert now is value or not isinstance(value, Tensor)
        return values

    def train(self, updates: int) -> None:
        """Make updates that consume 20 samples each."""
        self.run([(20, 0.5)] * updates)

    def raw_values(self) -> list[Any]:
        """Return what each group holds."""
        return [option_of(group, self.key) for group in self.groups]

    def other_options(self, group: dict[str, Any]) -> dict[str, Any]:
        """Return the options of a group, with that of a new group in place of the one it sets."""
        options = {name: group[name] for name in self.fresh_options}
        set_option(options, self.key, option_of(self.fresh_options, self.key))
        return options

    def values(self) -> list[float]:
        return list(map(float, self.raw_values()))

    def add_group(self, peak: float) -> None:
        group = self.fresh_options | {"params": [torch.nn.Parameter(torch.ones(1))]}
        value = self.form(self.peak_of(peak))
        if not isinstance(value, Tensor):
            value = self.peak_of(peak)
        set_option(group, self.key, value)
        self.optimizer.add_param_group(group)
        self.peaks.append(self.peak_of(peak))

    def set_peaks(self, peaks: float | Sequence[float]) -> None:
        """Set one peak for all groups, or one for each."""
        self.write_peaks(peaks)
        if isinstance(peaks, int | float):
            peaks = [peaks] * len(self.peaks)
        self.peaks = list(peaks)

    def write_peaks(self, peaks: Any) -> None:
        self.part.set_peak(peaks)

    def load(self, state: Any, **options: Any) -> None:
        # First, because a rejected state changes nothing.
        self.load_schedulers(state, **options)
        self.load_optimizer(state)
        # Again, under another curve, which has other values.
        self.load_schedulers(state, **options)


class FollowerRun(SchedulerRun):
    """A `follow`.

    Args:
        key: The option that it sets.
        curve, peaks, options: As in `SchedulerRun`.
    """

    def __init__(
        self,
        curve: Any,
        peaks: Sequence[float] = (0.25, 0.7),
        *,
        key: Key = "weight_decay",
        **options: Any,
    ) -> None:
        self.key = key
        super().__init__(curve, peaks, **options)

    def new_part(self, last_epoch: int) -> Any:
        return follow(self.optimizer, self.key, self.curve)

    def write_peaks(self, peaks: Any) -> None:
        self.part.set_base_value(peaks)
