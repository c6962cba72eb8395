"""Forecasts of the loss of one curve or several, and how they are printed."""

import textwrap
from dataclasses import dataclass
from typing import NamedTuple

from plateau_jax.tools.drawing import tables
from plateau_jax.tools.forecasts.forecast_reasons import UNCOVERED_REASONS

CONDITIONS = (
    "The intervals were tested on 249 published runs of language models (AdamW, "
    "3000 to 201524 steps), on which the law was also chosen, and on runs "
    "unknown to it, for curves of 0.3 to 4 times the steps of the fitted runs, at their peak and "
    "with their warmup. They contained about 95 % of the true losses and 90 % of the true "
    "differences. This is what held there, not a promise."
)

NOTE = (
    "Losses after the last step, and differences to the first curve. A curve is not "
    f"distinguishable from the first if the interval of its difference contains 0. {CONDITIONS}"
)


class LossForecast(NamedTuple):
    """The forecast loss after the last step of a curve; `LossFit.predict` describes the fields."""

    loss: float
    low: float
    high: float
    reasons: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"loss {self.loss:.3f}, interval {self.interval}"]
        if self.reasons:
            lines.append(f"Less certain: {', and '.join(self.reasons)}.")
        lines.append(CONDITIONS)
        return "\n".join(textwrap.fill(line, 90) for line in lines)

    @property
    def is_known(self) -> bool:
        """False for a curve with a warmup that no run had: the interval cannot cover its effect."""
        return UNCOVERED_REASONS.isdisjoint(self.reasons)

    @property
    def interval(self) -> str:
        if not self.is_known:
            return "unknown"
        return f"{self.low:.3f} to {self.high:.3f}"


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
    def remark(self) -> str:
        """The remark to print next to the difference; empty if the curves are distinguishable."""
        if self == (0, 0, 0):
            return "the same curve"
        if not self.is_distinguishable:
            return "not distinguishable"
        return ""


@dataclass(frozen=True)
class LossComparison:
    """Forecasts of several curves; `LossFit.compare` describes the fields.

    >>> forecasts = LossForecast(3.0, 2.98, 3.02), LossForecast(2.99, 2.97, 3.01)
    >>> differences = LossDifference(0.0, 0.0, 0.0), LossDifference(-0.01, -0.02, 0.01)
    >>> table = LossComparison(("cosine", "linear"), forecasts, differences)
    >>> print(str(table).partition("Losses")[0])
             loss        interval  difference          interval
    cosine  3.000  2.980 to 3.020
    linear  2.990  2.970 to 3.010      -0.010  -0.020 to +0.010  not distinguishable
    <BLANKLINE>
    <BLANKLINE>
    """

    names: tuple[str, ...]
    forecasts: tuple[LossForecast, ...]
    differences: tuple[LossDifference, ...]

    def __str__(self) -> str:
        return tables.as_text(self._table_rows(), self._note(), left=(0, 5))

    def _repr_html_(self) -> str:
        """Return HTML for notebooks."""
        return tables.as_html(self._table_rows(), self._note())

    def _table_rows(self) -> list[tuple[str, ...]]:
        """Return a header and one row per curve."""
        rows: list[tuple[str, ...]] = [("", "loss", "interval", "difference", "interval", "")]
        for index, name in enumerate(self.names):
            forecast = self.forecasts[index]
            cells = ("", "", "")
            if index > 0:
                cells = self._difference_cells(index)
            rows.append((name, f"{forecast.loss:.3f}", forecast.interval, *cells))
        return rows

    def _difference_cells(self, index: int) -> tuple[str, str, str]:
        difference, low, high = self.differences[index]
        if not (self.forecasts[0].is_known and self.forecasts[index].is_known):
            return f"{difference:+.3f}", "unknown", ""
        return f"{difference:+.3f}", f"{low:+.3f} to {high:+.3f}", self.differences[index].remark

    def _note(self) -> str:
        """Explain the numbers, and list why some of them are less certain."""
        reasons: list[str] = []
        for name, forecast in zip(self.names, self.forecasts, strict=True):
            if forecast.reasons:
                reasons.append(f"{name}: {', and '.join(forecast.reasons)}.")
        if not reasons:
            return NOTE
        return " ".join([NOTE, "Less certain:", *reasons])
