"""Forecast the final losses of published runs from one or two other runs of the same model, data and peak.

Every run that can be fitted forecasts the final losses of all other runs of its model, data and peak that
have the same length (within 2 %) or are longer (up to four times). Fits of two runs use pairs of these runs,
drawn at random with a fixed seed; their lengths are relative to the longer run of the pair. Each forecast is
compared with the last reading of the run. Printed are the mean error in nats, and the share of runs whose
last reading lies in the interval of `fit_losses`.

Next to the law of `fit_losses` stand the annealing law (Tissue et al. 2024, arXiv:2408.11029) and S^-α alone,
both fitted to the same readings with the same weights and the same penalty on α, and the last reading of the
run that was fitted; of two, that with the nearer length. The data are from Schaipp et al. 2025; see
loss_curves/README.md. Takes about a minute.

    python examples/benchmarks/forecast.py
"""

import argparse
import json
import random
from collections import defaultdict
from dataclasses import replace
from functools import cache
from itertools import combinations
from pathlib import Path

import numpy as np

from plateau_jax import Curve, LossFit, LossRun, fit_losses
from plateau_jax.analysis.loss_law import fit_law
from plateau_jax.analysis.loss_readings import group_readings

DATA = Path(__file__).parent / "loss_curves" / "runs.json"
LAWS = "fit_losses", "annealing law", "S^-α alone", "nearest run"
CASES = "1 run, same length", "1 run, longer", "2 runs, same length", "2 runs, longer"

MEMORY = 0.999
"""λ of the annealing law: each fall of the learning rate acts over 1/(1 - λ) steps."""


def read_groups() -> list[list[LossRun]]:
    """Return the runs of each model, data set and peak."""
    groups = defaultdict(list)
    for row in json.loads(DATA.read_text(encoding="utf-8")).values():
        run = LossRun(Curve.from_dict(row["curve"]), row["peak"], row["steps"], row["losses"])
        groups[row["corpus"], row["layers"], row["width"], row["peak"]].append(run)
    return list(groups.values())


@cache
def annealing_sums(run: LossRun) -> tuple[np.ndarray, np.ndarray]:
    """Return S1 and S2 of the annealing law after each update, in units of the peak."""
    learning_rates = np.asarray(run.curve(np.arange(run.steps[-1])), np.float64)
    momentum, memory = [], 0.0
    for fall in np.maximum(-np.diff(learning_rates, prepend=0.0), 0.0).tolist():
        memory = MEMORY * memory + fall
        momentum.append(memory)
    return np.cumsum(learning_rates), np.cumsum(momentum)


class OtherLaws:
    """The annealing law and S^-α alone, fitted to the readings that `fit_losses` uses."""

    def __init__(self, runs: list[LossRun]) -> None:
        readings, progress_unit, peak = group_readings(runs)
        self.unit = progress_unit / peak
        annealed = np.empty_like(readings.progress)
        for index, run in enumerate(runs):
            progress, falls = annealing_sums(run)
            is_own = readings.runs == index
            # The step of a group follows from its S.
            steps = np.searchsorted(progress, readings.progress[is_own] * self.unit * (1 - 1e-9))
            annealed[is_own] = falls[steps]
        # The fit keeps the coefficient at 0 or above, and S2 lowers the loss.
        self.annealing = fit_law(replace(readings, noise=-annealed), power=1.0)
        self.power_law = fit_law(replace(readings, noise=np.zeros_like(annealed)))

    def final_losses(self, run: LossRun) -> list[float]:
        progress, falls = (np.array(sums[-1]) for sums in annealing_sums(run))
        laws = (self.annealing, -falls), (self.power_law, np.array(0.0))
        return [float(law.losses(progress / self.unit, term)) for law, term in laws]


def forecast(fit: LossFit, run: LossRun) -> tuple[float, float]:
    """Return the forecast at a run's last reading, and half the width of its interval."""
    _, low, high, _ = fit.predict(run.curve, run.peak_value)
    (loss,) = fit.losses(run.curve, run.steps[-1:], run.peak_value)
    return float(loss), (high - low) / 2


def case_of(run: LossRun, sources: list[LossRun]) -> str | None:
    """Return the line of the table to which a forecast belongs, or None if there is none."""
    length, longest = run.curve.total_steps, max(source.curve.total_steps for source in sources)
    count = f"{len(sources)} run{'s' if len(sources) > 1 else ''}"
    if any(run is source for source in sources) or length > 4 * max(source.steps[-1] for source in sources):
        return None
    if abs(length / longest - 1) < 0.02:
        return f"{count}, same length"
    return f"{count}, longer" if length > longest else None


def fit_or_none(sources: list[LossRun]) -> LossFit | None:
    try:
        return fit_losses(sources)
    except ValueError:
        return None


def measure(groups: list[list[LossRun]], most_pairs: int) -> None:
    """Print the table."""
    found = {case: [] for case in CASES}
    fitted = refused = 0
    for runs in groups:
        alone = [run for run in runs if fit_or_none([run])]
        pairs = list(combinations(alone, 2))
        pairs = random.Random(0).sample(pairs, min(most_pairs, len(pairs)))
        for sources in [*([run] for run in runs), *map(list, pairs)]:
            if not (fit := fit_or_none(sources)):
                refused += 1
                continue
            fitted += 1
            others = OtherLaws(sources)
            for run in runs:
                if case := case_of(run, sources):
                    loss, half = forecast(fit, run)
                    nearest = min(sources, key=lambda source: abs(source.steps[-1] - run.steps[-1]))
                    forecasts = np.array([loss, *others.final_losses(run), nearest.losses[-1]])
                    errors = np.abs(forecasts - run.losses[-1])
                    found[case].append((errors, errors[0] <= half))
    print(f"{sum(map(len, groups))} runs; {fitted} fits, {refused} refused\n")
    print(f"{'mean error in nats':20}  forecasts" + "".join(f"{law:>15}" for law in LAWS) + "  covered")
    for case, results in found.items():
        if results:
            cells = "".join(f"{error:15.4f}" for error in np.mean([errors for errors, _ in results], axis=0))
            covered = np.mean([is_covered for _, is_covered in results])
            print(f"{case:20}  {len(results):9}{cells}{covered:9.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--pairs", type=int, default=40, help="most pairs of runs to fit for one model and peak"
    )
    parser.add_argument("--models", type=int, help="use only this many models and peaks")
    arguments = parser.parse_args()
    measure(read_groups()[: arguments.models], arguments.pairs)


if __name__ == "__main__":
    main()
