"""A torch optimizer, and the `lambda_lr` or `follow` that its program steps after each update."""

import copy
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from support.runs.options import Key, option_of, set_option
from support.runs.run import Run
from support.schedulers.runs import optimizer_with
from support.training.steps import through_file
from torch import Tensor
from torch.optim import SGD

from torch_bridge import follow, lambda_lr


class SchedulerRun(Run):
    """A `lambda_lr`.

    Args:
        curve, peaks, clock: As in `Run`.
        make_value: Makes the value of a group from a number.
        optimizer_class: The class of the optimizer.
        last_epoch: For a scheduler that starts in mid-run.
        options: Other arguments of `lambda_lr`.
    """

    optimizer: Any
    scheduler: Any
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
        make_value: Any = float,
        optimizer_class: Any = SGD,
        last_epoch: int = -1,
        **options: Any,
    ) -> None:
        self.make_value = make_value
        self.optimizer_class = optimizer_class
        self.options = options
        super().__init__(curve, [self.peak_of(peak) for peak in peaks], clock)
        if last_epoch != -1:
            self.start(last_epoch=last_epoch)

    def peak_of(self, number: float) -> float:
        """Return the float32 of what a group holds that is given this number."""
        return float(np.float32(float(self.make_value(number))))

    def in_group(self, number: float) -> float:
        return float(self.make_value(number))

    def build(self) -> None:
        self.start()

    def start(self, optimizer_state: Any = None, last_epoch: int = -1) -> None:
        """Build the optimizer, load its state into it, and build the scheduler in mid-run."""
        self.optimizer = optimizer_with([0.1] * len(self.peaks), self.optimizer_class)
        for group, peak in zip(self.groups, self.peaks, strict=True):
            set_option(group, self.key, self.make_value(peak))
        first = self.groups[0]
        self.fresh_options = {name: value for name, value in first.items() if name != "params"}
        if optimizer_state is not None:
            self.optimizer.load_state_dict(optimizer_state)
        self.scheduler = self.new_scheduler(last_epoch)

    def new_scheduler(self, last_epoch: int = -1) -> Any:
        return lambda_lr(self.optimizer, self.curve, last_epoch, clock=self.clock, **self.options)

    # The groups.

    @property
    def groups(self) -> list[dict[str, Any]]:
        return self.optimizer.param_groups

    def raw_values(self) -> list[Any]:
        """Return what each group holds."""
        return [option_of(group, self.key) for group in self.groups]

    def values(self) -> list[float]:
        return list(map(float, self.raw_values()))

    def other_options(self, group: dict[str, Any]) -> dict[str, Any]:
        """Return the options of a group, with that of a new group in place of the one it sets."""
        options = {name: group[name] for name in self.fresh_options}
        set_option(options, self.key, option_of(self.fresh_options, self.key))
        return options

    def add_group(self, peak: float) -> None:
        group = self.fresh_options | {"params": [torch.nn.Parameter(torch.ones(1))]}
        value = self.make_value(self.peak_of(peak))
        if not isinstance(value, Tensor):
            value = self.peak_of(peak)
        set_option(group, self.key, value)
        self.optimizer.add_param_group(group)
        self.peaks.append(self.peak_of(peak))

    # Updates.

    def step_scheduler(self, count: Any = 1, metric: Any = 0.5) -> None:
        if self.has_hold_rules:
            self.scheduler.step(metric)
        elif self.unit is None:
            self.scheduler.step()
        else:
            self.scheduler.step(count=count)

    def update(self, count: Any = 1, metric: Any = 0.5) -> list[float]:
        self.optimizer.step()
        before = self.raw_values()
        values = self.values()
        self.step_scheduler(count, metric)
        for value, now in zip(before, self.raw_values(), strict=True):
            assert now is value or not isinstance(value, Tensor)
        return values

    def train(self, updates: int) -> None:
        """Make updates that consume 20 samples each."""
        self.run([(20, 0.5)] * updates)

    def set_peaks(self, peaks: float | Sequence[float]) -> None:
        """Set one peak for all groups, or one for each."""
        self.write_peaks(peaks)
        if isinstance(peaks, int | float):
            peaks = [peaks] * len(self.peaks)
        self.peaks = list(peaks)

    def write_peaks(self, peaks: Any) -> None:
        self.scheduler.set_peak(peaks)

    # The position and the state.

    def curve_step(self) -> int:
        return self.scheduler.curve_step

    def consumed(self) -> int:
        return self.scheduler.consumed

    def check_reads(self, updates: int) -> None:
        scheduler = self.scheduler
        assert scheduler.get_last_lr() == self.raw_values()
        assert scheduler.base_lrs == self.peaks
        assert scheduler.unit == self.unit
        assert scheduler.last_epoch == updates
        if self.unit is None:
            assert scheduler.consumed == updates
        for number in (scheduler.curve_step, scheduler.last_epoch, scheduler.consumed):
            assert type(number) is int
        value_type = Tensor if isinstance(self.make_value(0.5), Tensor) else float
        for value in self.raw_values():
            assert type(value) is value_type
        for group in self.groups:
            assert self.other_options(group) == self.fresh_options

    def save(self) -> Any:
        optimizer = self.optimizer.state_dict()
        scheduler = json.loads(json.dumps(self.scheduler.state_dict()))
        return through_file({"optimizer": optimizer, "scheduler": scheduler})

    def load_optimizer(self, state: Any) -> None:
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))

    def load_scheduler(self, state: Any, **options: Any) -> None:
        self.scheduler.load_state_dict(copy.deepcopy(state["scheduler"]), **options)

    def load(self, state: Any, **options: Any) -> None:
        # First, because a rejected state changes nothing.
        self.load_scheduler(state, **options)
        self.load_optimizer(state)
        # Again, under another curve, which has other values.
        self.load_scheduler(state, **options)

    def restart(self) -> None:
        state = self.save()
        values = self.raw_values()
        self.start()
        self.load_scheduler(state)
        assert self.raw_values() == values, "without the state of the optimizer"
        self.load(state)

    def restart_on_a_loaded_optimizer(self) -> None:
        """Resume like a program that loads the optimizer before it builds the scheduler."""
        state = self.save()
        self.start(state["optimizer"])
        self.load_scheduler(state)

    def ways_to_resume(self) -> list[Callable[[], None]]:
        return [self.restart, self.restart_on_a_loaded_optimizer]


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

    def new_scheduler(self, last_epoch: int = -1) -> Any:
        return follow(self.optimizer, self.key, self.curve)

    def write_peaks(self, peaks: Any) -> None:
        self.scheduler.set_base_value(peaks)
