"""The interval of a forecast, from refits of the law and the distance to the peak of the runs."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from plateau_jax.tools.forecasts.loss_groups import falls_to_half, fit_alone, late_losses
from plateau_jax.tools.forecasts.loss_law import Law, LoggedLosses, fit_law, fit_law_at
from plateau_jax.tools.forecasts.loss_run import LossRun, last_step_of

_Floats = NDArray[np.float64]

_ALPHA_STEP = 0.06
_LOW_POWER = 0.6
_HIGH_POWER = 1.0
_LATE_FACTOR = 1.5
_RELATIVE_SD = 0.003
_RELATIVE_SD_OF_DIFFERENCE = 0.0025
_PEAK_SD = 0.01


class ForecastTerms(NamedTuple):
    """Forecasts, and the terms of their uncertainty with their signs.

    Attributes:
        loss: The forecasts.
        by_alpha, by_power, by_peak: a, q and k; see `LossFit.predict`.
        by_late: c.
        by_run: δ of each run with a decay, along the first axis; empty if there is one run.
    """

    loss: _Floats
    by_alpha: _Floats
    by_power: _Floats
    by_peak: _Floats
    by_late: _Floats
    by_run: _Floats

    def half_width(self, residual_sd: float) -> _Floats:
        """Return half the width of the interval: see `LossFit.predict`."""
        return self._half_width(residual_sd, _RELATIVE_SD * self.loss)

    def minus(self, first: "ForecastTerms", residual_sd: float) -> tuple[float, float]:
        """Return the difference to another forecast, and half the width of its interval."""
        changes = ForecastTerms(*(term - other for term, other in zip(self, first, strict=True)))
        half = changes._half_width(residual_sd, _RELATIVE_SD_OF_DIFFERENCE * first.loss)
        return float(changes.loss), float(half)

    def _half_width(self, residual_sd: float, relative_sd: _Floats) -> _Floats:
        by_late = _LATE_FACTOR * self.by_late
        by_run = np.max(np.abs(self.by_run), axis=0, initial=0.0)
        variance = residual_sd**2 + self.by_alpha**2 + self.by_power**2 + by_late**2
        variance = variance + by_run**2 + relative_sd**2 + self.by_peak**2
        return 2 * np.sqrt(variance)


class RefittedLaws(NamedTuple):
    """The law, and its refits for the interval; see `LossFit.predict`.

    Attributes:
        law: The law.
        by_alpha, by_power: Refits with α ± 0.06, and with the powers 0.6 and 1.0 of N.
        late: The refit without the first fifth of each run; the law itself if too few losses are
            left.
        alone: The law fitted to each run with a decay alone; empty if there is one run.
    """

    law: Law
    by_alpha: tuple[Law, Law]
    by_power: tuple[Law, Law]
    late: Law
    alone: tuple[Law, ...]

    def terms(self, progress: _Floats, noise: _Floats, octaves: float) -> ForecastTerms:
        """Return the terms of forecasts; `octaves` is log₂(peak/peak of the nearest run)."""
        loss = self.law.losses(progress, noise)
        by_run = np.array([law.losses(progress, noise) - loss for law in self.alone])
        return ForecastTerms(
            loss=loss,
            by_alpha=_half_difference(self.by_alpha, progress, noise),
            by_power=_half_difference(self.by_power, progress, noise),
            by_peak=_PEAK_SD * loss * abs(octaves),
            by_late=self.late.losses(progress, noise) - loss,
            by_run=by_run.reshape(len(self.alone), *np.shape(loss)),
        )


def _half_difference(laws: tuple[Law, Law], progress: _Floats, noise: _Floats) -> _Floats:
    low, high = laws
    return (high.losses(progress, noise) - low.losses(progress, noise)) / 2


def refit_laws(law: Law, logged: LoggedLosses, runs: Sequence[LossRun]) -> RefittedLaws:
    """Refit a law that was fitted to these logged losses of the runs."""
    late = law
    late_logged = late_losses(runs)
    if late_logged is not None:
        late = fit_law(late_logged)

    alone: list[Law] = []
    if len(runs) > 1:
        alone = [fit_alone(run) for run in runs if falls_to_half(run.curve, last_step_of(run))]

    low_alpha = fit_law_at(logged, law.alpha - _ALPHA_STEP)
    high_alpha = fit_law_at(logged, law.alpha + _ALPHA_STEP)
    low_power = fit_law(logged, _LOW_POWER)
    high_power = fit_law(logged, _HIGH_POWER)
    return RefittedLaws(
        law=law,
        by_alpha=(low_alpha, high_alpha),
        by_power=(low_power, high_power),
        late=late,
        alone=tuple(alone),
    )
