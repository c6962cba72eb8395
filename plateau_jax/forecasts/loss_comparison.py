"""Forecasts of the loss of one curve or several, and how they are shown."""

from dataclasses import dataclass
from typing import NamedTuple

from plateau_jax.drawing import tables

NOTE = (
    "Losses after the last step, and differences to the first curve. For language models, curves of 0.3 to 4 "
    "times the steps of the runs, and their warmup, the intervals contain about 95 % of the true losses and "
    "90 % of the true differences. A curve is not distinguishable from the first if the interval of its "
    "difference contains 0."
)


class LossForecast(NamedTuple):
    """The forecast loss after the last step of a curve; `LossFit.predict` describes the fields.

    >>> LossForecast(2.914, 2.897, 2.931)
    LossForecast(loss=2.914, low=2.897, high=2.931, reasons=())
    """

    loss: float
    low: float
    high: float
    reasons: tuple[str, ...] = ()


class LossDifference(NamedTuple):
    """The difference of the forecast losses of two curves; `LossFit.compare` describes the fields.

    >>> LossDifference(-0.02, -0.03, -0.01).is_distinguishable
    True
    """

    difference: float
    low: float
    high: float

    @property
    def is_distinguishable(self) -> bool:
        """True if the interval does not contain 0."""
        return self.low > 0 or self.high < 0

    @property
    def _remark(self) -> str:
        """The remark next to the difference: empty if the curves are distinguishable."""
        if self == (0, 0, 0):
            return "the same curve"
        return "" if self.is_distinguishable else "not distinguishable"


@dataclass(frozen=True)
class LossComparison:
    """Forecasts of several curves; `LossFit.compare` describes the fields.

    >>> forecasts = LossForecast(3.0, 2.98, 3.02), LossForecast(2.99, 2.97, 3.01)
    >>> table = LossComparison(("cosine", "linear"), forecasts, ((0.0, 0.0, 0.0), (-0.01, -0.02, 0.01)))
    >>> print(str(table).partition("Losses")[0])
             loss   interval       difference  interval
    cosine  3.000  2.980 to 3.020
    linear  2.990  2.970 to 3.010       -0.010  -0.020 to +0.010  not distinguishable
    <BLANKLINE>
    <BLANKLINE>
    """

    names: tuple[str, ...]
    forecasts: tuple[LossForecast, ...]
    differences: tuple[LossDifference, ...]

    def __str__(self) -> str:
        return tables.as_text(_table_rows(self), _note(self), left=(0, 5))

    def _repr_html_(self) -> str:
        """Return HTML for notebooks."""
        return tables.as_html(_table_rows(self), _note(self))


def _table_rows(comparison: LossComparison) -> list[tuple[str, ...]]:
    """Return a header and one row per curve."""
    rows: list[tuple[str, ...]] = [("", "loss", "interval", "difference", "interval", "")]
    pairs = zip(comparison.names, comparison.forecasts, comparison.differences, strict=True)
    for index, (name, (loss, low, high, _), (difference, least, most)) in enumerate(pairs):
        compared = f"{difference:+.3f}", f"{least:+.3f} to {most:+.3f}"
        remark = LossDifference(difference, least, most)._remark
        rows.append(
            (name, f"{loss:.3f}", f"{low:.3f} to {high:.3f}", *((*compared, remark) if index else ("",) * 3))
        )
    return rows


def _note(comparison: LossComparison) -> str:
    """Return what the numbers mean, and which of them are less certain."""
    forecasts = zip(comparison.names, comparison.forecasts, strict=True)
    reasons = [
        f"{name}: {', and '.join(forecast.reasons)}." for name, forecast in forecasts if forecast.reasons
    ]
    return " ".join([NOTE, *["Less certain:"][: len(reasons)], *reasons])
