"""A torch optimizer, and any schedulers that its program steps after each update."""

import copy
from typing import Any, Self

from support.schedulers.runs import lrs_of, optimizer_with
from support.training.steps import through_file
from torch.optim import SGD


class TorchRun:
    """An optimizer with two groups, and any schedulers that the program uses, also torch's own.

    Args:
        kind: The class of the optimizer.
        make_value: Makes the learning rate of a group from a number.
        lr: The learning rate.
    """

    def __init__(self, kind: Any = SGD, make_value: Any = float, lr: float = 0.1) -> None:
        self.kind = kind
        self.make_value = make_value
        options = {"weight_decay": 0.5}
        if kind is SGD:
            options["momentum"] = 0.5
        self.optimizer = optimizer_with([make_value(lr), make_value(lr)], kind, **options)
        self.schedulers: list[Any] = []

    def in_a_new_process(self) -> Self:
        """Return the program as another process starts it."""
        return type(self)(self.kind, self.make_value)

    def use(self, *schedulers: Any) -> None:
        """Step these schedulers from now on, in this order."""
        self.schedulers = list(schedulers)

    # Updates.

    def train(self, updates: int) -> None:
        """Make updates, each followed by a step of the schedulers."""
        self.repeat(updates, updates=1)

    def repeat(self, times: int, *, updates: int, steps: int = 1) -> None:
        """Make these updates, and then these scheduler steps, as often as `times` says."""
        for _ in range(times):
            self.step_optimizer(updates)
            self.step_schedulers(steps)

    def step_optimizer(self, times: int = 1) -> None:
        for _ in range(times):
            self.optimizer.step()

    def step_schedulers(self, times: int = 1) -> None:
        for _ in range(times):
            for scheduler in self.schedulers:
                scheduler.step()

    def values(self) -> list[float]:
        return lrs_of(self.optimizer)

    # States.

    def save(self) -> Any:
        schedulers = [scheduler.state_dict() for scheduler in self.schedulers]
        return through_file({"optimizer": self.optimizer.state_dict(), "schedulers": schedulers})

    def load_optimizer(self, state: Any) -> None:
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))

    def load_schedulers(self, state: Any) -> None:
        for scheduler, scheduler_state in zip(self.schedulers, state["schedulers"], strict=True):
            scheduler.load_state_dict(copy.deepcopy(scheduler_state))

    def load(self, state: Any) -> None:
        self.load_optimizer(state)
        self.load_schedulers(state)
