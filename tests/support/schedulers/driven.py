"""A driver of a scheduler or follower: every clock and way to resume, and the expected values."""

import copy
import json
import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from support.clocks.holds import curve_steps_of
from support.curves.strategies import SMALLEST_NORMAL
from support.schedulers.runs import learning_rate, optimizer_with
from support.training.steps import through_file
from torch import Tensor
from torch.optim import SGD, AdamW, RMSprop

from plateau_jax import Curve, DataClock
from torch_bridge import follow, lambda_lr

Key = str | tuple[str, int]
FOLLOWED: list[tuple[Any, Key]] = [
    (SGD, "weight_decay"),
    (SGD, "momentum"),
    (RMSprop, "alpha"),
    (AdamW, "weight_decay"),
    (AdamW, ("betas", 0)),
    (AdamW, ("betas", 1)),
]
"""Optimizers, and options of theirs that a follower may set."""


def option_of(group: dict[str, Any], key: Key) -> Any:
    if isinstance(key, str):
        return group[key]
    name, index = key
    return group[name][index]


def set_option(group: dict[str, Any], key: Key, value: Any) -> None:
    if isinstance(key, str):
        group[key] = value
    else:
        name, index = key
        items = list(group[name])
        items[index] = value
        group[name] = tuple(items)


class Driven:
    """A scheduler or follower, and what its values must be.

    Args:
        kind: `"scheduler"` or `"follower"`.
        curve: One curve for all groups, or one for each.
        bases: Each group's peak, or value of the option that is followed.
        clock: The clock of a scheduler; by default it counts updates.
        form: Makes the value of a group from a number.
        optimizer_kind: The class of the optimizer.
        key: The option that a follower sets.
        last_epoch: Of a scheduler that starts in mid-run.
        options: More arguments of `lambda_lr` or `follow`.
    """

    def __init__(
        self,
        kind: str,
        curve: Any,
        bases: Sequence[float] = (0.25, 0.7),
        *,
        clock: Any = None,
        form: Any = float,
        optimizer_kind: Any = SGD,
        key: Key = "weight_decay",
        last_epoch: int = -1,
        **options: Any,
    ) -> None:
        self.kind = kind
        self.curve = curve
        self.clock = clock
        self.form = form
        self.optimizer_kind = optimizer_kind
        self.options = options
        self.unit: int | None = getattr(curve, "unit", None)
        if isinstance(clock, DataClock):
            self.unit = clock.unit
        self.is_held = clock is not None and not isinstance(clock, DataClock)
        self.key = key
        if kind == "scheduler":
            self.key = "lr"
        self.bases = [self.base_of(base) for base in bases]
        self.updates = int(last_epoch) + 1
        self.consumed: list[int] = []
        self.metrics: list[Any] = []
        self.new = 0
        """The number of groups added since the last update, which keep their values until then."""
        self.listed = 0
        """The number of groups at the last step, which `base_lrs` or `base_values` lists."""
        self.start(last_epoch=last_epoch)

    def base_of(self, number: float) -> float:
        """Return the float32 of what a group holds that is given this number."""
        return float(np.float32(float(self.form(number))))

    def start(self, optimizer_state: Any = None, last_epoch: int = -1) -> None:
        """Build the optimizer and what drives it, as a new process does."""
        self.optimizer = optimizer_with([0.1] * len(self.bases), self.optimizer_kind)
        for group, base in zip(self.optimizer.param_groups, self.bases, strict=True):
            set_option(group, self.key, self.form(base))
        first = self.optimizer.param_groups[0]
        self.listed = len(self.bases)
        self.fresh_options = {name: value for name, value in first.items() if name != "params"}
        if optimizer_state is not None:
            self.optimizer.load_state_dict(optimizer_state)
        if self.kind == "follower":
            self.part: Any = follow(self.optimizer, self.key, self.curve)
            return
        self.part = lambda_lr(
            self.optimizer, self.curve, last_epoch, clock=self.clock, **self.options
        )

    # What happens in a run.

    def step(self, count: Any = 1, metric: Any = 0.5) -> None:
        self.listed = len(self.bases)
        if self.is_held:
            self.part.step(metric)
        elif self.unit is None or self.kind == "follower":
            self.part.step()
        else:
            self.part.step(count=count)

    def update(self, count: Any = 1, metric: Any = 0.5, *, check: bool = False) -> None:
        self.optimizer.step()
        self.new = 0
        assert not check or self.values() == self.expected_values(), (
            "the update has used other values"
        )
        before = self.raw_values()
        self.step(count, metric)
        self.updates += 1
        self.consumed.append(int(count))
        if isinstance(metric, Tensor):
            metric = metric.item()  # `float` would warn for a leaf of autograd
        self.metrics.append(float(metric))
        for value, now in zip(before, self.raw_values(), strict=True):
            assert now is value or not isinstance(value, Tensor)

    def advance(self, updates: int) -> None:
        for _ in range(updates):
            self.update(20)

    def add_group(self, base: float) -> None:
        group = self.fresh_options | {"params": [torch.nn.Parameter(torch.ones(1))]}
        value = self.form(self.base_of(base))
        if not isinstance(value, Tensor):
            value = self.base_of(base)
        set_option(group, self.key, value)
        self.optimizer.add_param_group(group)
        self.bases.append(self.base_of(base))
        self.new += 1

    def set_peak(self, peak: float, one_for_each: bool) -> None:
        peaks = [peak] * len(self.bases)
        if one_for_each:
            peaks = [peak / 2**index for index in range(len(self.bases))]
        self.bases = list(map(self.base_of, peaks))
        self.new = 0
        self.listed = len(self.bases)
        change = self.part.set_base_value if self.kind == "follower" else self.part.set_peak
        if one_for_each:
            change(list(self.bases))
        else:
            change(self.bases[0])

    def jump(self, epoch: Any) -> None:
        with pytest.warns(UserWarning, match="epoch parameter|Detected call") as caught:
            self.part.step(epoch)
        # Before the first update there is a second one, as in torch, about the order of the calls.
        assert {warning.filename for warning in caught} == {__file__}, "the line of the call"
        self.updates = max(int(epoch), -1)
        self.new = 0
        self.listed = len(self.bases)

    # What must be true.

    def curve_step(self) -> int:
        if self.is_held:
            return curve_steps_of(self.clock, self.curve, self.consumed, self.metrics)[-1]
        if self.unit is None:
            return self.updates
        return sum(self.consumed) // self.unit

    def raw_values(self) -> list[Any]:
        return [option_of(group, self.key) for group in self.optimizer.param_groups]

    def values(self) -> list[float]:
        return list(map(float, self.raw_values()))

    def expected_values(self) -> list[float]:
        curves: Sequence[Curve] = self.curve
        if isinstance(self.curve, Curve):
            curves = [self.curve] * len(self.bases)
        step = self.curve_step()
        numbers: list[float] = []
        for base, curve in zip(self.bases, curves, strict=True):
            numbers.append(learning_rate(base, curve, step))
        first_new = len(self.bases) - self.new
        numbers[first_new:] = self.bases[first_new:]
        return [float(self.form(number)) for number in numbers]

    def check(self) -> None:
        part = self.part
        assert self.values() == self.expected_values()
        assert part.curve_step == self.curve_step()
        assert type(part.curve_step) is int
        old_values = self.raw_values()[: len(self.bases) - self.new]
        if self.kind == "follower":
            assert part.base_values == self.bases[: self.listed]
        else:
            self._check_scheduler()
            old_values = self.raw_values()
        value_type: type[Any] = float
        if isinstance(self.form(0.5), Tensor):
            value_type = Tensor
        for value in old_values:
            assert type(value) is value_type
        for group in self.optimizer.param_groups:
            options = {name: group[name] for name in self.fresh_options}
            set_option(options, self.key, option_of(self.fresh_options, self.key))
            assert options == self.fresh_options, "it has changed another option"

    def _check_scheduler(self) -> None:
        part = self.part
        consumed = max(self.updates, 0)
        if self.unit is not None:
            consumed = sum(self.consumed)
        assert part.last_epoch == self.updates
        assert type(part.last_epoch) is int
        assert part.consumed == consumed
        assert type(part.consumed) is int
        assert part.unit == self.unit
        assert part.base_lrs == self.bases[: self.listed]
        assert part.get_last_lr() == [group["lr"] for group in self.optimizer.param_groups]
        self.new = 0  # the call has given them their learning rates
        assert self.values() == self.expected_values()

    def shown(self) -> str:
        """Return all that an error must not change, as text."""
        state = self.part.state_dict()  # first, because it gives new groups their values
        self.new = 0
        groups = [{**group, "params": None} for group in self.optimizer.param_groups]
        return str((state, groups))

    def rejects(self, error: type[Exception], message: str, call: Any) -> str:
        """Check that the call raises this error and changes nothing; return the message."""
        before = self.shown()
        with pytest.raises(error, match=message) as caught:
            call()
        assert type(caught.value) is error
        assert self.shown() == before
        return str(caught.value)

    # Every way to resume.

    def saved(self) -> list[Any]:
        state = self.part.state_dict()  # first, because it gives new groups their values
        self.new = 0
        return through_file([self.optimizer.state_dict(), state])

    def by_file(self) -> None:
        optimizer_state, state = self.saved()
        self.start()
        self.optimizer.load_state_dict(optimizer_state)
        self.part.load_state_dict(state)

    def by_file_optimizer_last(self) -> None:
        optimizer_state, state = self.saved()
        self.start()
        self.part.load_state_dict(state)
        self.optimizer.load_state_dict(optimizer_state)

    def by_file_built_after_loading(self) -> None:
        # A new follower takes the loaded values as its bases at first, and rejects small ones.
        if any(0 < value < SMALLEST_NORMAL for value in self.values()):
            return
        optimizer_state, state = self.saved()
        self.start(optimizer_state)
        self.part.load_state_dict(state)

    def by_json(self) -> None:
        saved = json.loads(json.dumps(self.part.state_dict()))
        self.start()
        self.new = 0
        self.part.load_state_dict(saved)

    def into_itself_later(self) -> None:
        optimizer_state, state = self.saved()
        for count, metric in ((3, 0.1), (0, 0.7), (2**20, float("nan"))):
            self.optimizer.step()
            self.step(count, metric)
        self.optimizer.load_state_dict(optimizer_state)
        self.part.load_state_dict(state)

    def by_copy(self) -> None:
        self.optimizer, self.part = copy.deepcopy((self.optimizer, self.part))

    def by_pickle(self) -> None:
        self.optimizer, self.part = pickle.loads(pickle.dumps((self.optimizer, self.part)))

    def by_last_epoch(self, optimizer_state: Any = None) -> None:
        counts_updates = self.kind == "scheduler" and not self.unit and not self.is_held
        if counts_updates and not self.new and self.updates >= 0:
            self.start(optimizer_state, self.updates - 1)

    def by_last_epoch_after_the_optimizer(self) -> None:
        if self.updates > 0:  # else it would start at step 0 with a loaded optimizer, which warns
            self.by_last_epoch(through_file(self.optimizer.state_dict()))


ROUTES = [name for name in vars(Driven) if name.startswith(("by_", "into_"))]
