"""The interval of a forecast, from refits of the law and the distance of the peak from those of the runs."""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from plateau_jax.analysis.loss_comparison import LossDifference
from plateau_jax.analysis.loss_law import Law, fit_law, fit_law_at
from plateau_jax.analysis.loss_readings import GroupedReadings

_Floats = NDArray[np.float64]

_ALPHA_STEP = 0.06
_OTHER_POWERS = 0.6, 1.0
_RELATIVE_SD = 0.002
_PEAK_SD = 0.01


class ForecastTerms(NamedTuple):
    """Forecasts, and the parts of their uncertainty with their signs."""

    loss: _Floats
    by_alpha: _Floats
    by_power: _Floats
    by_peak: _Floats

    def half_width(self, residual_sd: float) -> _Floats:
        """Return half the width of the interval: see `LossFit.predict`."""
        parts = residual_sd, self.by_alpha, self.by_power, _RELATIVE_SD * self.loss, self.by_peak
        return 2 * np.sqrt(sum(np.square(part) for part in parts))

    def minus(self, first: "ForecastTerms", residual_sd: float) -> LossDifference:
        """Return the difference of two forecasts: see `LossFit.compare`."""
        if self is first:
            return LossDifference(0.0, 0.0, 0.0)
        difference = float(self.loss - first.loss)
        changes = (float(part - other) for part, other in zip(self[1:], first[1:], strict=True))
        half = 2 * math.hypot(residual_sd, *changes)
        return LossDifference(difference, difference - half, difference + half)


class RefittedLaws(NamedTuple):
    """The law, its refits for the interval, and the units of its sums."""

    law: Law
    by_alpha: tuple[Law, Law]
    by_power: tuple[Law, Law]
    progress_unit: float
    peak_unit: float

    def losses(self, progress: _Floats, noise: _Floats) -> _Floats:
        """Return the losses at sums S and N, in units of learning rate."""
        return self.law.losses(progress / self.progress_unit, noise / self.peak_unit)

    def terms(self, progress: _Floats, noise: _Floats, octaves: float) -> ForecastTerms:
        """Return the terms of forecasts; `octaves` is log₂ of the peak over that of the nearest run."""
        sums = progress / self.progress_unit, noise / self.peak_unit
        loss = self.law.losses(*sums)
        by_alpha, by_power = (
            (high.losses(*sums) - low.losses(*sums)) / 2 for low, high in (self.by_alpha, self.by_power)
        )
        return ForecastTerms(loss, by_alpha, by_power, _PEAK_SD * loss * abs(octaves))


def refit_laws(law: Law, grouped: GroupedReadings) -> RefittedLaws:
    """Refit the law with α ± 0.06, and with the powers 0.6 and 1.0 of N."""
    readings = grouped.readings
    low, high = (fit_law_at(readings, law.alpha + step) for step in (-_ALPHA_STEP, _ALPHA_STEP))
    by_power = fit_law(readings, _OTHER_POWERS[0]), fit_law(readings, _OTHER_POWERS[1])
    return RefittedLaws(law, (low, high), by_power, grouped.progress_unit, grouped.peak_unit)
