"""An adapter for each driver of a clock: scheduler, training step, and JAX's transformation.

A driver makes updates, each with a count of samples and a metric, and returns the learning rate that each
used. `Definition` does the same by definition: in Python integers, and by the oracle of the hold rules.
"""

import math
import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from itertools import accumulate
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from support.clocks.held import clocks_of, told
from support.schedulers.driven import Driven
from support.schedulers.runs import learning_rate
from support.training.models import Net
from support.training.optimizers import make_optimizer
from support.training.trees import equal_trees, through_file

from plateau_jax import Curve, check_resume, resume_record, scale_by_curve
from torch_bridge import TrainStep

Update = tuple[int, Any]
"""The count of an update, and its metric."""


class Definition:
    """What a clock must do.

    Args:
        curve, peak, unit, hold: As in `lambda_lr`.
        skips_nonfinite: True if updates whose metric is not finite are skipped.
    """

    def __init__(
        self, curve: Curve, peak: float, *, unit: int | None = None, hold: Any = None, skips_nonfinite: bool
    ) -> None:
        self.curve, self.peak, self.unit, self.hold = curve, peak, unit, hold
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
        clocks = self.clocks()
        return [learning_rate(self.peak, self.curve, clocks[applied]) for applied in applied_before]

    def clocks(self) -> list[int]:
        """Return the clock of each applied update, and the clock after the last."""
        if self.hold is not None:
            return clocks_of(self.hold, self.curve, self.metrics)
        if self.unit is None:
            return list(range(len(self.counts) + 1))
        return [consumed // self.unit for consumed in accumulate(self.counts, initial=0)]


class Driver(ABC):
    """A training run, which can stop and resume in a new process.

    Args:
        curve, peak, unit, hold: As in `lambda_lr`.
    """

    # Besides the methods below, each has: clock() and consumed(); save(), the state as it comes back from a
    # file, and load(state). Some have set_peak(peak); and start_again(message, state), which does what an
    # error of `load` advises.

    skips_nonfinite = keeps_peak = False
    last_clock = 2**62
    context: Callable[[], AbstractContextManager[Any]] = nullcontext
    """Everything that a driver does takes place in it."""

    def __init__(self, curve: Curve, peak: float, *, unit: int | None = None, hold: Any = None) -> None:
        self.curve, self.peak, self.unit, self.hold = curve, peak, unit, hold
        self.start()

    @abstractmethod
    def start(self) -> None:
        """Build everything, as a new process does."""

    @abstractmethod
    def update(self, count: int, metric: Any) -> float:
        """Make an update; return the learning rate that it used."""

    def run(self, updates: Sequence[Update]) -> list[float]:
        return [self.update(count, metric) for count, metric in updates]


class Scheduler(Driver):
    """`tests/schedulers/test_programs` compares it with its definition."""

    def start(self, last_epoch: int = -1) -> None:
        clock: Any = {"unit": self.unit, "hold": self.hold}
        self.driven = Driven("scheduler", self.curve, [self.peak], last_epoch=last_epoch, **clock)
        self.part = self.driven.part

    def update(self, count: int, metric: Any) -> float:
        (value,) = self.driven.values()
        self.driven.optimizer.step()
        self.driven.step(count, metric)
        return value

    def clock(self) -> int:
        return self.part.clock

    def consumed(self) -> int:
        return self.part.consumed

    def save(self) -> Any:
        return self.driven.saved()

    def load(self, state: Any, **options: Any) -> None:
        self.part.load_state_dict(state[1], **options)  # first, because a rejected state changes nothing
        self.driven.optimizer.load_state_dict(state[0])
        self.part.load_state_dict(state[1], **options)  # under another curve, which has other values

    def start_again(self, message: str, state: Any) -> None:
        advice = message.rpartition("of the curve, ")[2]
        if advice.startswith("load "):
            self.part.load_state_dict(eval(advice.removeprefix("load "), {"state_dict": state[1]}))
            return
        self.start(int(advice.removeprefix("do not load this state: build it with last_epoch=")))


class Step(Driver):
    """A training step whose batches are pairs: the loss, and the count."""

    optimizer_name, precision = "adamw", "fp32"
    skips_nonfinite = True

    def start(self) -> None:
        model = Net()
        optimizer = make_optimizer(self.optimizer_name, model, lr=self.peak)
        self.step = TrainStep(
            model,
            optimizer,
            lambda model, batch: told(model, batch[0]),
            self.curve,
            precision=self.precision,  # type: ignore[arg-type]  (pyright takes it for any str)
            hold=self.hold,
            unit=self.unit,
            count=None if self.unit is None else lambda batch: batch[1],
        )

    def update(self, count: int, metric: Any) -> float:
        before = self.step._clock.read_counters()
        result = self.step((torch.tensor(metric), torch.tensor(count) if count % 2 else count))
        is_applied = math.isfinite(metric)
        consumed = before.consumed + is_applied * (1 if self.unit is None else count)
        wanted = [before.applied + is_applied, before.skipped + (not is_applied), before.clock, consumed]
        assert equal_trees(result.counters, torch.tensor(wanted))
        assert float(self.step.optimizer.param_groups[0]["lr"]) == result.lr or not math.isfinite(metric)
        return result.lr.item()

    def clock(self) -> int:
        return self.step._clock.read_counters().clock

    def consumed(self) -> int:
        return self.step._clock.read_counters().consumed

    def save(self) -> Any:
        return through_file(self.step.state_dict())

    def load(self, state: Any, **options: Any) -> None:
        self.step.load_state_dict(state, **options)

    def set_peak(self, peak: float) -> None:
        self.peak = peak
        self.step.set_peak(peak)

    def start_again(self, message: str, state: Any) -> None:
        advice = message.rpartition("of the curve, load ")[2]
        self.step.load_state_dict(eval(advice, {"state_dict": state, "step": self.step}))


class DoubleStep(Step):
    """The model and the losses are float64; the learning rates and the rules are not."""

    optimizer_name = "sgd"

    @staticmethod
    @contextmanager
    def context() -> Generator[None]:
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            yield
        finally:
            torch.set_default_dtype(before)

    def update(self, count: int, metric: Any) -> float:
        return super().update(count, np.float64(metric))


class Eager(Driver):
    """JAX's transformation, update by update; its state is saved with the record of the run."""

    keeps_peak = True
    last_clock = 2**31 - 1

    def start(self) -> None:
        self.transform = _transformation(self.curve, self.peak, unit=self.unit, hold=self.hold)
        self.state = self.transform.init(None)

    def update(self, count: int, metric: Any) -> float:
        given = {"value": metric} if self.unit is None else {"count": count}
        updates, self.state = self.transform.update(jnp.ones(2), self.state, **given)
        lr = self.state.learning_rate
        assert lr.dtype == jnp.result_type(float)
        assert (updates == -lr.astype(updates.dtype)).all()
        return float(lr)

    def clock(self) -> int:
        return int(self.state.clock)

    def consumed(self) -> int:
        return self.clock() * (self.unit or 1) + int(getattr(self.state, "rest", 0))

    def save(self) -> Any:
        record = resume_record(self.curve, unit=self.unit, hold=self.hold)
        return pickle.loads(pickle.dumps((jax.device_get(self.state), record)))

    def load(self, state: Any) -> None:
        check_resume(state[1], self.curve, state[0].clock, unit=self.unit, hold=self.hold)
        self.state = jax.device_put(state[0])


class Scanned(Eager):
    """All updates in one compiled loop, under a peak that is traced, with x64 on."""

    keeps_peak = False
    unroll = 1

    @staticmethod
    def context() -> AbstractContextManager[Any]:
        return jax.enable_x64(True)

    def run(self, updates: Sequence[Update]) -> list[float]:
        counts, metrics = zip(*updates, strict=True)
        given = (np.array(counts, np.int32), np.array(metrics, np.float32))
        scan = _scan(self.curve, self.unit, self.hold, self.unroll)
        self.state, lrs = scan(np.float32(self.peak), self.state, *given)
        return lrs.tolist()

    def set_peak(self, peak: float) -> None:
        self.peak = peak


class Unrolled(Scanned):
    """XLA sees six updates as one."""

    unroll = 6


class Uncompiled(Eager):
    @staticmethod
    def context() -> AbstractContextManager[Any]:
        return jax.disable_jit()


_transformation: Any = cache(scale_by_curve)


@cache
def _scan(curve: Curve, unit: int | None, hold: Any, unroll: int) -> Any:
    @jax.jit
    def scan(peak: Any, state: Any, counts: Any, metrics: Any) -> Any:
        transformation = scale_by_curve(curve, peak, unit=unit, hold=hold)

        def update(state: Any, given: Any) -> Any:
            count, metric = given
            arguments = {"value": metric} if unit is None else {"count": count}
            _, state = transformation.update(jnp.ones(2), state, **arguments)
            return state, state.learning_rate

        return jax.lax.scan(update, state, (counts, metrics), unroll=unroll)

    return scan
