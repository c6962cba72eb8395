"""JAX's transformation `scale_by_curve`, update by update and in a compiled loop."""

import pickle
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from support.runs.run import Run, Update

from plateau_jax import Curve, DataClock, check_resume, resume_record, scale_by_curve


class OptaxRun(Run):
    """The transformation, whose state is saved with the record of the run."""

    keeps_peaks = True
    last_step = 2**31 - 1

    def build(self) -> None:
        (peak,) = self.peaks
        self.transform = _transformation(self.curve, peak, self.clock)
        self.state = self.transform.init(None)

    def update(self, count: Any = 1, metric: Any = 0.5) -> list[float]:
        arguments = arguments_of_update(count, metric, counts_data=self.unit is not None)
        updates, self.state = self.transform.update(jnp.ones(2), self.state, **arguments)
        lr = self.state.learning_rate
        assert lr.dtype == jnp.float32
        assert (updates == -lr.astype(updates.dtype)).all()
        return [float(lr)]

    def curve_step(self) -> int:
        return int(self.state.curve_step)

    def consumed(self) -> int:
        rest = getattr(self.state, "rest", 0)
        return self.curve_step() * (self.unit or 1) + int(rest)

    def record(self) -> dict[str, Any]:
        return resume_record(self.curve, clock=self.clock)

    def save(self) -> Any:
        return pickle.loads(pickle.dumps((jax.device_get(self.state), self.record())))

    def load(self, state: Any, **options: Any) -> None:
        on_host, record = state
        check_resume(record, self.record(), on_host.curve_step, **options)
        self.state = jax.device_put(on_host)


class ScannedRun(OptaxRun):
    """All updates in one compiled loop, under a peak that is traced, with x64 on."""

    keeps_peaks = False

    @staticmethod
    def context() -> AbstractContextManager[Any]:
        return jax.enable_x64(True)

    def run(self, updates: Sequence[Update]) -> list[list[float]]:
        counts, metrics = zip(*updates, strict=True)
        (peak,) = self.peaks
        scan = _scan(self.curve, self.clock, self.unit is not None)
        self.state, lrs = scan(
            np.float32(peak),
            self.state,
            np.array(counts, np.int32),
            np.array(metrics, np.float32),
        )
        return [[lr] for lr in lrs.tolist()]

    def set_peaks(self, peaks: Sequence[float]) -> None:
        self.peaks = list(peaks)


def arguments_of_update(count: Any, metric: Any, *, counts_data: bool) -> dict[str, Any]:
    if counts_data:
        return {"count": count}
    return {"value": metric}


_transformation: Any = cache(scale_by_curve)


@cache
def _scan(curve: Curve, clock: DataClock | Any, counts_data: bool) -> Any:
    @jax.jit
    def scan(peak: Any, state: Any, counts: Any, metrics: Any) -> Any:
        transformation = scale_by_curve(curve, peak, clock)

        def update(state: Any, count_and_metric: Any) -> Any:
            arguments = arguments_of_update(*count_and_metric, counts_data=counts_data)
            _, state = transformation.update(jnp.ones(2), state, **arguments)
            return state, state.learning_rate

        return jax.lax.scan(update, state, (counts, metrics))

    return scan
