"""Schedulers and followers on a clock of samples: stepped by counts, saved and loaded in every way."""

import copy
import json
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import torch
from hypothesis import assume, strategies as st
from support.curves.strategies import SMALLEST_NORMAL, magnitudes
from support.schedulers.runs import learning_rate, lrs_of, optimizer_with
from support.training.trees import through_file

from plateau_jax import Curve
from torch_bridge import follow, lambda_lr

units = magnitudes(1, 2**40)
counts = st.lists(st.one_of(magnitudes(0, 2**45), st.integers(0, 300)), max_size=12)


def clocks_of(unit: int, given: Sequence[int]) -> list[int]:
    """Return the clock of each update, and the clock after the last one."""
    sums = [0]
    for count in given:
        sums.append(sums[-1] + count)
    return [consumed // unit for consumed in sums]


class Counter:
    """The `count` function of a scheduler in a trainer: the count of the update that took place."""

    def __init__(self) -> None:
        self.count: Any = None

    def __call__(self) -> Any:
        if isinstance(self.count, Exception):
            raise self.count
        return self.count


class CountedRun:
    """A scheduler or a follower of two groups."""

    BASES = 0.25, 0.7

    def __init__(
        self, kind: str, curve: Curve, unit: int | None, asked: bool = False, **options: Any
    ) -> None:
        self.kind, self.curve, self.unit, self.asked, self.options = kind, curve, unit, asked, options
        self.start()

    def start(self, optimizer_state: Any = None) -> None:
        self.counter = Counter()
        count: Callable[[], Any] | None = self.counter if self.asked else None
        arguments: Any = self.options | {"unit": self.unit, "count": count}
        if self.kind == "scheduler":
            self.optimizer = optimizer_with(self.BASES)
            if optimizer_state is not None:
                self.optimizer.load_state_dict(optimizer_state)
            self.part: Any = lambda_lr(self.optimizer, self.curve, **arguments)
        else:
            self.optimizer = optimizer_with([0.1, 0.1], torch.optim.AdamW)
            for group, base in zip(self.optimizer.param_groups, self.BASES, strict=True):
                group["weight_decay"] = base
            if optimizer_state is not None:
                self.optimizer.load_state_dict(optimizer_state)
            self.part = follow(self.optimizer, "weight_decay", self.curve, **arguments)

    def update(self, count: Any) -> None:
        self.optimizer.step()
        if self.unit is None:
            self.part.step()
        elif self.asked:
            self.counter.count = count
            self.part.step()
        else:
            self.part.step(count=count)

    def values(self) -> list[float]:
        if self.kind == "scheduler":
            return lrs_of(self.optimizer)
        return [group["weight_decay"] for group in self.optimizer.param_groups]

    def expected_values(self, clock: int) -> list[float]:
        return [learning_rate(base, self.curve, clock) for base in self.BASES]

    def check(self, consumed: int, updates: int) -> None:
        clock = consumed // self.unit if self.unit else consumed
        assert (self.part.consumed, self.part.clock, self.part.unit) == (consumed, clock, self.unit)
        assert type(self.part.consumed) is int
        assert self.part.last_epoch == updates
        assert self.values() == self.expected_values(clock)

    def shown(self) -> str:
        """Return all that an error must not change, as text."""
        groups = [{**group, "params": None} for group in self.optimizer.param_groups]
        return str((self.part.state_dict(), groups))

    def by_file(self) -> None:
        saved = through_file([self.optimizer.state_dict(), self.part.state_dict()])
        self.start()
        self.optimizer.load_state_dict(saved[0])
        self.part.load_state_dict(saved[1])

    def by_file_optimizer_last(self) -> None:
        saved = through_file([self.optimizer.state_dict(), self.part.state_dict()])
        self.start()
        self.part.load_state_dict(saved[1])
        self.optimizer.load_state_dict(saved[0])

    def by_file_built_after_loading(self) -> None:
        # A new follower takes the loaded values as its bases at first, and rejects those that are too small.
        assume(all(value == 0 or value >= SMALLEST_NORMAL for value in self.values()))
        saved = through_file([self.optimizer.state_dict(), self.part.state_dict()])
        self.start(saved[0])
        self.part.load_state_dict(saved[1])

    def by_json(self) -> None:
        saved = json.loads(json.dumps(self.part.state_dict()))
        self.start()
        self.part.load_state_dict(saved)

    def into_itself_later(self) -> None:
        saved = through_file([self.optimizer.state_dict(), self.part.state_dict()])
        for count in (3, 0, 2**20):
            self.update(count)
        self.optimizer.load_state_dict(saved[0])
        self.part.load_state_dict(saved[1])

    def by_copy(self) -> None:
        self.optimizer, self.part, self.counter = copy.deepcopy((self.optimizer, self.part, self.counter))

    def by_pickle(self) -> None:
        self.optimizer, self.part, self.counter = pickle.loads(
            pickle.dumps((self.optimizer, self.part, self.counter))
        )


ROUTES = [name for name in vars(CountedRun) if name.startswith(("by_", "into_"))]
