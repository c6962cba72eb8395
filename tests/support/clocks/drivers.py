"""An adapter for each driver of a clock: schedulers, training step, and JAX's transformation.

A driver makes updates, each with a count of samples and a metric, and returns the learning rate
that each used. `Definition` does the same by definition: in Python integers, and by the oracle of
the hold rules.
"""

import json
import math
import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from support.clocks.holds import curve_steps_of, told
from support.schedulers.driven import Driven
from support.schedulers.runs import learning_rate
from support.training.models import Net
from support.training.optimizers import make_optimizer
from support.training.steps import through_file
from support.trees import equal_trees

from plateau_jax import (
    Curve,
    CurveScheduler,
    DataClock,
    check_resume,
    resume_record,
    scale_by_curve,
)
from torch_bridge import TrainStep

Update = tuple[int, Any]
"""The count of an update, and its metric."""


class Definition:
    """What a clock must do.

    Args:
        curve, peak, clock: As in `lambda_lr`.
        skips_nonfinite: True if updates whose metric is not finite are skipped.
    """

    def __init__(
        self, curve: Curve, peak: float, clock: Any = None, *, skips_nonfinite: bool
    ) -> None:
        self.curve = curve
        self.peak = peak
        self.clock = clock
        self.skips_nonfinite = skips_nonfinite
        self.counts: list[int] = []
        self.metrics: list[Any] = []

    def run(self, updates: Sequence[Update]) -> list[float]:
        """Return the learning rate of each of these further updates."""
        applied_before: list[int] = []
        for count, metric in updates:
            applied_before.append(len(self.counts))
            if not self.skips_nonfinite or math.isfinite(metric):
                self.counts.append(count)
                self.metrics.append(metric)
        curve_steps = self.curve_steps()
        lrs: list[float] = []
        for applied in applied_before:
            lrs.append(learning_rate(self.peak, self.curve, curve_steps[applied]))
        return lrs

    def curve_steps(self) -> list[int]:
        """Return the step of the curve of each applied update, and the one after the last."""
        return curve_steps_of(self.clock, self.curve, self.counts, self.metrics)


class Driver(ABC):
    """A training run, which can stop and resume in a new process.

    Args:
        curve, peak, clock: As in `lambda_lr`.
    """

    skips_nonfinite = False
    """An update whose metric is not finite does not count."""
    keeps_peak = False
    """The peak is fixed; else there is a method `set_peak`."""
    last_step = 2**62
    """At this step of the curve the clock stops."""
    context: Callable[[], AbstractContextManager[Any]] = nullcontext
    """Everything that a driver does takes place in it."""

    def __init__(self, curve: Curve, peak: float, clock: Any = None) -> None:
        self.curve = curve
        self.peak = peak
        self.clock = clock
        self.start()

    @property
    def counts_data(self) -> bool:
        return isinstance(self.clock, DataClock) or self.curve.unit is not None

    @abstractmethod
    def start(self) -> None:
        """Build everything, as a new process does."""

    @abstractmethod
    def update(self, count: int, metric: Any) -> float:
        """Make an update; return the learning rate that it used."""

    @abstractmethod
    def curve_step(self) -> int:
        """Return the step of the curve for the next update."""

    @abstractmethod
    def consumed(self) -> int:
        """Return how much data all updates have consumed."""

    @abstractmethod
    def save(self) -> Any:
        """Return the state as it comes back from a file."""

    @abstractmethod
    def load(self, state: Any) -> None:
        """Resume from a state."""

    def run(self, updates: Sequence[Update]) -> list[float]:
        return [self.update(count, metric) for count, metric in updates]


class Scheduler(Driver):
    """`tests/schedulers/test_programs` compares it with its definition."""

    def start(self) -> None:
        self.driven = Driven("scheduler", self.curve, [self.peak], clock=self.clock)
        self.part = self.driven.part

    def update(self, count: int, metric: Any) -> float:
        (value,) = self.driven.values()
        self.driven.optimizer.step()
        self.driven.step(count, metric)
        return value

    def curve_step(self) -> int:
        return self.part.curve_step

    def consumed(self) -> int:
        return self.part.consumed

    def save(self) -> Any:
        return self.driven.saved()

    def load(self, state: Any, **options: Any) -> None:
        state_of_optimizer, state_of_scheduler = state
        # First, because a rejected state changes nothing.
        self.part.load_state_dict(state_of_scheduler, **options)
        self.driven.optimizer.load_state_dict(state_of_optimizer)
        # Again, under another curve, which has other values.
        self.part.load_state_dict(state_of_scheduler, **options)


class NumPy(Driver):
    """The scheduler for loops without JAX or torch; its state is saved as JSON."""

    keeps_peak = True

    def start(self) -> None:
        self.scheduler = CurveScheduler(self.curve, self.peak, clock=self.clock)

    def update(self, count: int, metric: Any) -> float:
        lr = self.scheduler.lr
        if self.counts_data:
            self.scheduler.step(count=count)
        elif self.clock is not None:
            self.scheduler.step(metric=metric)
        else:
            self.scheduler.step()
        return lr

    def curve_step(self) -> int:
        return self.scheduler.curve_step

    def consumed(self) -> int:
        return self.scheduler.consumed

    def save(self) -> Any:
        return json.loads(json.dumps(self.scheduler.state_dict()))

    def load(self, state: Any, **options: Any) -> None:
        self.scheduler.load_state_dict(state, **options)


class Step(Driver):
    """A training step whose batches are its losses."""

    skips_nonfinite = True

    def start(self) -> None:
        model = Net()
        optimizer = make_optimizer("adamw", model, lr=self.peak)
        self.step = TrainStep(model, optimizer, told, self.curve, clock=self.clock)

    def update(self, count: int, metric: Any) -> float:
        before = self.step._clock.read_counters()
        options: dict[str, Any] = {}
        consumed_by_update = 1
        if self.counts_data:
            options["count"] = _in_either_form(count)
            consumed_by_update = count
        result = self.step(torch.tensor(metric), **options)

        applied = before.applied
        skipped = before.skipped
        consumed = before.consumed
        if math.isfinite(metric):
            applied += 1
            consumed += consumed_by_update
            assert float(self.step.optimizer.param_groups[0]["lr"]) == result.lr
        else:
            skipped += 1
        counters = torch.tensor([applied, skipped, before.curve_step, consumed])
        assert equal_trees(result.counters, counters)
        return result.lr.item()

    def curve_step(self) -> int:
        return self.step._clock.read_counters().curve_step

    def consumed(self) -> int:
        return self.step._clock.read_counters().consumed

    def save(self) -> Any:
        return through_file(self.step.state_dict())

    def load(self, state: Any, **options: Any) -> None:
        self.step.load_state_dict(state, **options)

    def set_peak(self, peak: float) -> None:
        self.peak = peak
        self.step.set_peak(peak)


def _in_either_form(count: int) -> int | torch.Tensor:
    """Return an even count as a number, and an odd one as a tensor."""
    if count % 2 == 0:
        return count
    return torch.tensor(count)


class Eager(Driver):
    """JAX's transformation, update by update; its state is saved with the record of the run."""

    keeps_peak = True
    last_step = 2**31 - 1

    def start(self) -> None:
        self.transform = _transformation(self.curve, self.peak, self.clock)
        self.state = self.transform.init(None)

    def update(self, count: int, metric: Any) -> float:
        arguments = arguments_of_update(count, metric, counts_data=self.counts_data)
        updates, self.state = self.transform.update(jnp.ones(2), self.state, **arguments)
        lr = self.state.learning_rate
        assert lr.dtype == jnp.float32
        assert (updates == -lr.astype(updates.dtype)).all()
        return float(lr)

    def curve_step(self) -> int:
        return int(self.state.curve_step)

    def consumed(self) -> int:
        if isinstance(self.clock, DataClock):
            unit = self.clock.unit
        else:
            unit = self.curve.unit or 1
        rest = getattr(self.state, "rest", 0)
        return self.curve_step() * unit + int(rest)

    def record(self) -> dict[str, Any]:
        return resume_record(self.curve, clock=self.clock)

    def save(self) -> Any:
        return pickle.loads(pickle.dumps((jax.device_get(self.state), self.record())))

    def load(self, state: Any) -> None:
        on_host, record = state
        check_resume(record, self.record(), on_host.curve_step)
        self.state = jax.device_put(on_host)


class Scanned(Eager):
    """All updates in one compiled loop, under a peak that is traced, with x64 on."""

    keeps_peak = False

    @staticmethod
    def context() -> AbstractContextManager[Any]:
        return jax.enable_x64(True)

    def run(self, updates: Sequence[Update]) -> list[float]:
        counts, metrics = zip(*updates, strict=True)
        scan = _scan(self.curve, self.clock, self.counts_data)
        self.state, lrs = scan(
            np.float32(self.peak),
            self.state,
            np.array(counts, np.int32),
            np.array(metrics, np.float32),
        )
        return lrs.tolist()

    def set_peak(self, peak: float) -> None:
        self.peak = peak


def arguments_of_update(count: Any, metric: Any, *, counts_data: bool) -> dict[str, Any]:
    if counts_data:
        return {"count": count}
    return {"value": metric}


_transformation: Any = cache(scale_by_curve)


@cache
def _scan(curve: Curve, clock: Any, counts_data: bool) -> Any:
    @jax.jit
    def scan(peak: Any, state: Any, counts: Any, metrics: Any) -> Any:
        transformation = scale_by_curve(curve, peak, clock)

        def update(state: Any, count_and_metric: Any) -> Any:
            arguments = arguments_of_update(*count_and_metric, counts_data=counts_data)
            _, state = transformation.update(jnp.ones(2), state, **arguments)
            return state, state.learning_rate

        return jax.lax.scan(update, state, (counts, metrics))

    return scan
