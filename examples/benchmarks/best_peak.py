"""Choose the peak of long published runs from short ones, and print what each way costs.

The long runs are those of 124M parameters with 50 000 steps that were trained at 5e-4, 1e-3 and
2e-3, under nine curves. A parabola in ln peak through their three last losses is the truth: its
minimum, cut at these peaks, is the best peak, and the regret of a peak is the height of the
parabola above that. Each curve of 15 000, 25 000 or 35 000 steps that was trained at the same peaks
gives a peak for each of the nine. Printed are the regrets of three ways: the best peak of the short
runs, by a parabola through their last losses; this peak times the ratio of the two curves in
`compare`; and a parabola through forecasts of the curve at the three peaks, each from the short run
at that peak.

PATH is a clone, which this program reads and does not copy:

    git clone https://github.com/fabian-sp/lr-scheduling        (measured at 8ace3a3, on main)

    python examples/benchmarks/best_peak.py lr-scheduling

Takes less than a minute.
"""

import argparse
import math
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import numpy as np
from forecast import read_schaipp

from plateau_jax import LossRun, compare, fit_losses

PEAKS = 5e-4, 1e-3, 2e-3
LONG, SHORT = 50_000, (15_000, 25_000, 35_000)
LAYERS, WIDTH = 12, 768


class Measured(NamedTuple):
    """A parabola in ln peak through the last losses of runs, and its minimum within their peaks."""

    parabola: np.polynomial.Polynomial
    best: float

    def regret(self, peak: float) -> float:
        return float(self.parabola(math.log(peak)) - self.parabola(self.best))


def measure(losses: list[float]) -> Measured:
    logs = np.log(PEAKS)
    parabola = np.polynomial.Polynomial.fit(logs, losses, 2)
    (best,) = parabola.deriv().roots()
    return Measured(parabola, float(np.clip(best, logs[0], logs[-1])))


def read_runs(clone: Path) -> dict[tuple[int, str], list[LossRun]]:
    """Return the runs at the three peaks of each length and kind of curve, if it decays."""
    by_kind = defaultdict(dict)
    for (_, _, layers, width, peak), runs in read_schaipp(clone).items():
        if (layers, width) == (LAYERS, WIDTH) and peak in PEAKS:
            for run in runs:
                by_kind[run.curve.total_steps, kind_of(run)][peak] = run
    return {
        key: [runs[peak] for peak in PEAKS]
        for key, runs in by_kind.items()
        if len(runs) == len(PEAKS) and key[1] != "constant"
    }


def kind_of(run: LossRun) -> str:
    """Return the shape of a run's curve, the same for all lengths and peaks."""
    *_, last = run.curve.stages
    if last.shape == "cosine":
        return f"cosine to {round(last.to, 2)}"  # the source's cosines to 0 end at 1e-6 … 1e-7
    length = round(last.steps / run.curve.total_steps, 2)
    return "constant" if last.to is None else f"cooldown of {length}, {last.shape}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", metavar="PATH", type=Path, help="a clone, as above")
    runs = read_runs(parser.parse_args().path)
    truths = {
        kind: (group[1].curve, measure(last_losses(group)))
        for (steps, kind), group in runs.items()
        if steps == LONG
    }
    rows = defaultdict(list)
    for (steps, kind), group in runs.items():
        if steps not in SHORT:
            continue
        best_of_short = math.exp(measure(last_losses(group)).best)
        fits = [fit_losses(run) for run in group]
        for long_kind, (curve, truth) in truths.items():
            times_ratio = best_of_short * compare(group[1].curve, curve).peaks[1]
            of_forecasts = math.exp(measure([fit.predict(curve).loss for fit in fits]).best)
            regrets = [truth.regret(peak) for peak in (best_of_short, times_ratio, of_forecasts)]
            rows["same curve" if kind == long_kind else "another curve"].append(regrets)
    print(f"{len(truths)} curves of {LONG} steps\n")
    print("mean regret (largest)  choices  short runs' best  times the ratio  of forecasts")
    for name, regrets in sorted(rows.items(), reverse=True):
        cells = [
            f"{np.mean(column):.4f} ({max(column):.4f})" for column in zip(*regrets, strict=True)
        ]
        print(f"{name:21}  {len(regrets):7}  " + "  ".join(cells))


def last_losses(runs: list[LossRun]) -> list[float]:
    return [run.losses[-1] for run in runs]


if __name__ == "__main__":
    main()
