"""`LossRun`: the losses of a training run and the curve that it was trained with."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from os import PathLike
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from plateau_jax.curves.curve import Curve, check_curve
from plateau_jax.curves.staged_curve import StagedCurve
from plateau_jax.forecasts.logs import is_perplexity, read_log
from plateau_jax.theory.curve_parts import largest_multiplier
from plateau_jax.validation import checks
from plateau_jax.validation.curve_warning import suppress_warnings, warn

_LARGEST_FIRST_LOSS = 15
"""In nats; a uniform distribution over a million tokens has 14."""

_MOST_STAGES = 20
"""Number of stages of a curve that `repr` shows."""


@dataclass(frozen=True, eq=False)
class LossRun:
    """The losses of a training run, with its curve and its peak learning rate.

    Log a validation loss if you can, at 20 steps or more after the warmup. Training losses are noisier: log
    means over the interval since the last logged loss, not an EMA or a running mean.

    Args:
        curve: The curve of the learning rates.
        peak_value: The peak learning rate, positive; the run used peak_value · curve(step).
        steps: Integers, shape (n,), increasing: the loss at step t was measured after t updates.
        losses: Positive numbers, shape (n,), such as a mean cross-entropy in nats. A first one above 15 seems
            to be a perplexity and causes a `CurveWarning`.

    Attributes:
        curve, peak_value: As above; the peak is a Python float.
        steps: int64, shape (n,), a read-only copy.
        losses: float64, shape (n,), a read-only copy.

    Raises:
        TypeError: An argument of a wrong type.
        ValueError: A loss that is not finite or not positive; steps that do not increase, are below 1, or lie
            after the curve's end; no losses, or not as many steps as losses; a peak that is not positive.

    >>> from plateau_jax import LossRun, PlateauCurve
    >>> run = LossRun(PlateauCurve(1000), 1e-3, steps=[250, 500, 750, 1000], losses=[3.5, 3.2, 3.0, 2.9])
    >>> run.losses
    array([3.5, 3.2, 3. , 2.9])
    """

    curve: Curve
    peak_value: float
    steps: NDArray[np.int64]
    losses: NDArray[np.float64]
    _columns: Mapping[str, str] = field(default_factory=dict[str, str], init=False, repr=False)

    def __init__(self, curve: Curve, peak_value: float, steps: ArrayLike, losses: ArrayLike) -> None:
        check_curve("curve", curve)
        peak = float(checks.number("peak_value", peak_value))
        if not checks.peak("peak_value", peak) > 0:
            raise ValueError(checks.must("peak_value", peak_value, "be positive"))
        step_array, loss_array = _checked_steps(steps, curve), _checked_losses(losses)
        if len(step_array) != len(loss_array):
            raise ValueError(f"steps has {len(step_array)} items and losses has {len(loss_array)}")
        values = {"curve": curve, "peak_value": peak, "steps": step_array, "losses": loss_array}
        for name, value in {**values, "_columns": dict[str, str]()}.items():
            object.__setattr__(self, name, value)
        self._warn_about_perplexities()

    @classmethod
    def read(
        cls,
        source: str | PathLike[str] | Iterable[Mapping[str, Any]],
        curve: Curve | None = None,
        peak_value: float | None = None,
        *,
        step: str | None = None,
        loss: str | None = None,
        lr: str | None = None,
    ) -> Self:
        """Read a run from a log.

        Columns are found by their usual names. A column is taken for the loss only if it is called `loss`,
        alone or preceded by train, training, val, valid, validation, eval, evaluation, test, dev, heldout or
        metrics; name any other with `loss=`. A validation loss is preferred to a training loss, and the
        trainer's step to the `_step` of Weights & Biases. Rows without a loss are left out.

        Warns about what it leaves out: losses that are not finite, and what a resumed run logged again. Also
        warns if the log has learning rates that are clearly not those of `curve`.

        Args:
            source: A path, or rows such as those of a `MetricLog`. Files may be CSV with commas, semicolons
                or tabs; JSON with a list of rows, or with one in `log_history`, as in the
                `trainer_state.json` of Transformers; or JSON lines.
            curve: The curve of the run. Without it the learning rates of the log are used, with straight
                lines between them, from 0 at step 0 if none was logged there, and a constant one after the
                last.
            peak_value: The peak learning rate; needed with a curve, unless the log has learning rates.
            step: The column of steps, the numbers of updates.
            loss: The column of losses.
            lr: The column of learning rates; of a list for several parameter groups, the first counts.

        Raises:
            TypeError: Neither a path nor rows.
            ValueError: A column is missing, or several could be meant: the message lists the columns, and
                names the argument that helps. A value is not a number. More than 5 % of the losses are not
                finite. Later rows, with the same steps or lower ones, replace half of the losses or more.
                Without a curve, the first learning rate comes after 10 % of the steps, or the last one more
                than an interval of logging before the last loss.
            OSError: The file cannot be read.

        >>> from plateau_jax import LossRun, PlateauCurve
        >>> rows = [{"applied": 50, "loss": 3.4}, {"applied": 100, "loss": 3.1}]
        >>> LossRun.read(rows, PlateauCurve(100), 1e-3).steps
        array([ 50, 100])
        """
        return cls._from_log(*read_log(source, curve, peak_value, step=step, loss=loss, lr=lr))

    @classmethod
    def _from_log(cls, name: str, columns: Mapping[str, str], arguments: tuple[Any, ...]) -> Self:
        try:
            run = cls._rebuild(columns, arguments)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        run._warn_about_perplexities(f"{name}: ")
        return run

    @classmethod
    def _rebuild(cls, columns: Mapping[str, str], arguments: tuple[Any, ...]) -> Self:
        with suppress_warnings():
            run = cls(*arguments)
        object.__setattr__(run, "_columns", columns)
        return run

    def _warn_about_perplexities(self, prefix: str = "") -> None:
        first, column = self.losses[0], self._columns.get("loss", "")
        problem = None
        if first > _LARGEST_FIRST_LOSS:
            problem = f"the first logged loss is {first:.4g}, as if the losses were perplexities"
        elif is_perplexity(column):
            problem = f"{column!r} seems to be a perplexity"
        if problem:
            warn(f"{prefix}{problem}: take the logarithm")

    def __repr__(self) -> str:
        stages = self.curve.stages if isinstance(self.curve, StagedCurve) else ()
        is_long = len(stages) > _MOST_STAGES  # such as the learning rates of a log
        curve = f"<StagedCurve of {len(stages)} stages>" if is_long else repr(self.curve)
        columns = ", ".join(f"{argument}={column!r}" for argument, column in self._columns.items())
        return (
            f"LossRun({curve}, {self.peak_value!r}, steps={self.steps[0]}…{self.steps[-1]}, "
            f"losses={self.losses[0]:.4g}…{self.losses[-1]:.4g}{columns and f', read from {columns}'})"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # Copied or pickled arrays would be writable.
        return self._rebuild, (dict(self._columns), (self.curve, self.peak_value, self.steps, self.losses))

    @property
    def _last_step(self) -> int:
        """The step of the last logged loss."""
        return int(self.steps[-1])

    @property
    def _length(self) -> int:
        """The number of steps that the log covers.

        The last loss of a whole run is usually logged less than one interval of logging before its end.
        """
        interval = int(self.steps[-1] - self.steps[-2]) if len(self.steps) > 1 else 0
        return min(self._last_step + interval, self.curve.total_steps)

    def _largest_learning_rate(self) -> float:
        """Return the largest learning rate of the updates before the last logged loss."""
        return self.peak_value * largest_multiplier(self.curve, self._last_step)


def _checked_steps(steps: Any, curve: Curve) -> NDArray[np.int64]:
    try:
        array = np.array(steps)
    except ValueError:  # lists of several lengths
        array = np.zeros(())
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise TypeError(f"steps = {checks.short_repr(steps)} must be a sequence of integers")
    if not array.size:
        raise ValueError("there are no logged losses")
    wrong = np.flatnonzero(array[1:] <= array[:-1])
    if wrong.size:
        index = int(wrong[0])
        raise ValueError(
            f"steps must increase: steps[{index}] = {array[index]}, steps[{index + 1}] = {array[index + 1]}; "
            "a resumed run logs some steps twice: keep the later losses"
        )
    if array[0] < 1:
        raise ValueError(f"steps[0] = {array[0]} must be at least 1: a logged loss needs an update before it")
    if array[-1] > curve.total_steps:
        raise ValueError(
            f"steps[-1] = {array[-1]} lies after the end of the curve, which has total_steps = "
            f"{curve.total_steps}: give the curve that the run was trained with, and count steps in updates"
        )
    array = array.astype(np.int64)
    array.flags.writeable = False
    return array


def _checked_losses(losses: Any) -> NDArray[np.float64]:
    # NumPy would turn [True, "3.1"] into numbers. All items of an array have its dtype.
    for index, loss in enumerate(
        losses if checks.is_ordered(losses) and not hasattr(losses, "dtype") else [losses]
    ):
        if checks.is_not_real(loss):
            raise TypeError(checks.must(("losses", index), loss, "be a real number"))
    try:
        array = np.array(losses, np.float64)
    except (TypeError, ValueError, OverflowError):
        array = np.zeros(())
    if array.ndim != 1:
        raise TypeError(checks.must("losses", losses, "be a sequence of numbers"))
    with np.errstate(all="ignore"):
        in_float32 = array.astype(np.float32)  # whose squares do not overflow in float64
    wrong = np.flatnonzero(~(np.isfinite(in_float32) & (in_float32 > 0)))
    if wrong.size:
        index = int(wrong[0])
        raise ValueError(
            checks.must(("losses", index), float(array[index]), "be finite and positive in float32")
        )
    array.flags.writeable = False
    return array
