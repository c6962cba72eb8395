"""`fit_losses` and `LossFit`: fit the law of the loss, and forecast the loss of other curves."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from plateau_jax.arguments import checks
from plateau_jax.curves.curve import AnyCurve, as_curve
from plateau_jax.tools.drawing.axes import LossLine, draw_losses
from plateau_jax.tools.drawing.legend import legend_labels
from plateau_jax.tools.drawing.plots import name_curves
from plateau_jax.tools.forecasts.fitted_law import FittedLaw, Prediction, fit_unnamed_runs
from plateau_jax.tools.forecasts.loss_forecast import LossComparison, LossForecast
from plateau_jax.tools.forecasts.loss_run import LossRun

_Floats = NDArray[np.float64]


def fit_losses(runs: LossRun | Iterable[LossRun]) -> "LossFit":
    """Fit the law of the loss to the logged losses of one run, or of several.

    Several runs must share the model, the data set and the peak learning rate.

    Let s_0, …, s_{t-1} be the learning rates of the t updates before a logged loss, without those
    that are 0, and m the largest of them. Then

        loss(t) = floor + scale·(S(t)/S₀)^-α + noise·(N(t)/p₀)^0.8,   floor, scale, noise >= 0
        S(t) = Σ s^0.9
        N(t) = Σ s²/(2 Σ s) + ½ Σ_{k<t-1} s_k/(Σ_{j>k} s_j + m/10) · (Σ_{j≥k} s_j² / Σ_{j≥k} s_j)

    S₀, the largest S of the logged losses, and p₀, the largest learning rate of the runs, only set
    the units. The fit minimizes the weighted mean of the squared relative errors plus
    (0.02·(α - 0.44))², with α in [0.05, 1.5]. For each α, floor, scale and noise follow by
    non-negative least squares.

    The fit uses the losses after the warmup and a further 3 % of the run. It leaves out spikes: one
    or two losses that exceed both neighbors by 1 % plus six times the noise. It averages the losses
    in at most 60 groups per run. The weight of a run is proportional to the square of its last
    logged step, and the losses in the last 5 % of its steps have half of this weight.

    Warns (`CurveWarning`) of spikes, and of losses that seem to lag, like an EMA.
    `docs/forecast.md` says what to log.

    Sources: S^-α as in Tissue et al. 2024, arXiv:2408.11029, and Luo et al. 2025, arXiv:2503.12811.
    N is the term T₂ of the bound in `compare`, with m/10 added to one denominator. The powers and
    weights were chosen on published runs.

    Args:
        runs: One `LossRun`, or several with the same peak: their largest learning rates must agree
            within 10⁻⁶, or within 5 % if those of a run were read from its log, which may miss the
            peak. The learning rate of at least one run must fall to half its peak.

    Returns:
        The fit, which is deterministic.

    Raises:
        TypeError: A run is not a `LossRun`.
        ValueError: The law does not describe these losses, there are too few, they are too noisy,
            or a log seems to begin at a checkpoint: the message says what to log instead. The runs
            have different peaks.

    >>> import numpy as np
    >>> from plateau_jax import LossRun, PlateauCurve, fit_losses
    >>> curve, steps = PlateauCurve(1000, warmup_steps=50), np.arange(100, 1001, 25)
    >>> run = LossRun(curve, 1e-3, steps, 2.5 + 2 * steps**-0.5 + 0.1 * curve(steps))
    >>> fit = fit_losses(run)
    >>> [round(number, 3) for number in (fit.floor, fit.exponent, fit.residual_sd)]
    [2.374, 0.439, 0.001]
    >>> longer = fit.predict(PlateauCurve(2000, warmup_steps=50))
    >>> print(f"{longer.low:.2f} to {longer.high:.2f}, after {run.losses[-1]:.2f}")
    2.52 to 2.55, after 2.56
    """
    fitted = fit_unnamed_runs(_check_runs(runs))
    law = fitted.law
    return LossFit(
        floor=law.floor,
        scale=law.scale,
        exponent=law.alpha,
        noise=law.noise,
        residual_sd=fitted.residual_sd,
        runs=fitted.runs,
        _fitted=fitted,
    )


def _check_runs(runs: Any) -> list[LossRun]:
    """Return one run, or several, as a list."""
    items: list[Any] = [runs]
    if checks.is_ordered(runs) and not isinstance(runs, LossRun):
        items = list(runs)
    for run in items:
        if not isinstance(run, LossRun):
            raise TypeError(
                f"{checks.short_repr(run)} must be a LossRun: write LossRun(curve, peak, steps, "
                "losses)"
            )
    return items


@dataclass(frozen=True, eq=False)
class LossFit:
    """The law of the loss, fitted to the logged losses of one run or several; see `fit_losses`.

    Attributes:
        floor, scale, exponent, noise: The numbers of the law; `exponent` is α, and the others are
            in units of the loss.
        residual_sd: Weighted root mean square of the fit's errors, in units of the loss.
        runs: The runs, a tuple.

    >>> import numpy as np
    >>> from plateau_jax import LossRun, PlateauCurve, fit_losses
    >>> curve, steps = PlateauCurve(1000, warmup_steps=50), np.arange(100, 1001, 25)
    >>> fit = fit_losses(LossRun(curve, 1e-3, steps, 2.5 + 2 * steps**-0.5 + 0.1 * curve(steps)))
    >>> fit.losses(curve, [500, 1000]).round(2)
    array([2.65, 2.56])
    """

    floor: float
    scale: float
    exponent: float
    noise: float
    residual_sd: float
    runs: tuple[LossRun, ...]
    _fitted: FittedLaw = field(repr=False)

    def predict(self, curve: AnyCurve, peak_value: float | None = None) -> LossForecast:
        """Forecast the loss after the last step of a curve.

            loss ± 2 √(sd² + a² + q² + (1.5 c)² + d² + (0.003 loss)² + k²)

        sd is `residual_sd`. a and q are half the difference between the forecasts of two further
        fits: a with the exponents α ± 0.06, q with the powers 0.6 and 1.0 of N instead of 0.8. c is
        the change of the forecast if the fit leaves out the first 20 % of each run after its
        warmup, or 0 if a run then has fewer than 8 averages. d is the largest abs(δ) of the runs
        with a decay: δ is the forecast of a fit to that run alone minus the forecast of the fit to
        all runs. With one run, d is 0. k is 0.01 loss ∣log₂(peak/peak of the nearest run)∣.

        Args:
            curve: Any curve, or a mapping that describes it, with more than a tenth of the steps of
                the longest run, and at most four times as many.
            peak_value: The peak learning rate of the curve; by default that of the runs. The
                largest learning rate must be within a factor of 1.5 of that of a run.

        Returns:
            A named tuple of `loss`, `low`, `high` and `reasons`: the forecast, the limits of its
            interval, and a tuple of texts, the known reasons why it is less certain. `print` also
            says on which runs the intervals were tested. If the warmup differs too much from that
            of every run, it shows the interval as unknown.

        Raises:
            TypeError: `curve` is not a `Curve`, or `peak_value` not a number.
            ValueError: The curve is too long or too short, or the peak too far from that of the
                runs. `peak_value` is left out, but the runs have different ones.
        """
        return self._fitted.predict(as_curve("curve", curve), peak_value).forecast

    def losses(self, curve: AnyCurve, steps: ArrayLike, peak_value: float | None = None) -> _Floats:
        """Evaluate the law at steps of a curve, in about a millisecond per step.

        Args:
            curve: As for `predict`.
            steps: Integers, numbers of updates in 1 … total_steps, of any shape.
            peak_value: As for `predict`.

        Returns:
            Losses, float64, of the shape of `steps`; infinite before the first update with a
            positive learning rate.

        Raises:
            TypeError, ValueError: As `predict`; a step out of range.
        """
        return self._fitted.losses(as_curve("curve", curve), steps, peak_value)

    def compare(
        self, curves: Mapping[str, AnyCurve], peak_value: float | None = None
    ) -> LossComparison:
        """Forecast several curves, and their differences to the first.

            difference ± 2 √(sd² + Δa² + Δq² + (1.5 Δc)² + D² + (0.0025 loss of the first)² + Δk²)

        Δ is the difference between a term of `predict` for the curve and for the first curve. D is
        the largest abs(Δδ) of a run.

        Args:
            curves: A mapping from names to curves.
            peak_value: As for `predict`, for all of them.

        Returns:
            Three tuples with an entry per curve: `names`; `forecasts`, as `predict` returns them;
            and `differences`. A difference is a named tuple of `difference`, the loss of this curve
            minus that of the first, and the limits of its interval, `low` and `high`. Its
            `is_distinguishable` is True if the interval excludes 0. If a curve equals the first,
            all three numbers are 0. If the warmup of one of the two curves differs too much from
            that of every run, the interval is unknown: see the `reasons` of both forecasts. `print`
            and notebooks show a table, and say on which runs the intervals were tested.

        Raises:
            TypeError, ValueError: As `predict`; `curves` is not a mapping, or is empty.
        """
        if not isinstance(curves, Mapping):
            raise TypeError(
                "curves must be a mapping from names to curves: write fit.compare({'name': curve})"
            )
        if not curves:
            raise ValueError("there is no curve: write fit.compare({'name': curve, ...})")
        fitted = self._fitted
        predictions: list[Prediction] = []
        for name, value in curves.items():
            curve = as_curve(f"curves[{checks.short_repr(name)}]", value)
            predictions.append(fitted.predict(curve, peak_value))
        first = predictions[0]
        return LossComparison(
            names=tuple(map(str, curves)),
            forecasts=tuple(prediction.forecast for prediction in predictions),
            differences=tuple(fitted.difference(prediction, first) for prediction in predictions),
        )

    def plot(
        self,
        curves: AnyCurve | Iterable[AnyCurve] | Mapping[str, AnyCurve] | None = None,
        *,
        peak_value: float | None = None,
        ax: Any = None,
    ) -> Any:
        """Plot the logged losses, the fitted law, and forecasts with their intervals.

        Needs matplotlib.

        Args:
            curves: One curve, several, or a mapping from names to curves, to forecast. Default:
                none.
            peak_value: As for `predict`, for all of them.
            ax: The matplotlib Axes to draw into; the current ones by default.

        Returns:
            The Axes.

        Raises:
            TypeError, ValueError: As `predict`.
            ModuleNotFoundError: matplotlib is not installed, and no Axes were given.
        """
        lines: list[LossLine] = []
        if curves is not None:
            named = name_curves((curves,))
            labels = legend_labels(named)
            for label, (curve, _) in zip(labels, named, strict=True):
                lines.append(self._fitted.line(curve, peak_value, label))
        runs = [self._fitted.run_to_draw(run) for run in self.runs]
        return draw_losses(runs, lines, ax)
