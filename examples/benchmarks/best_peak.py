"""Find the best peak of long published runs from short ones at three peaks, and print what it costs.

The long runs are those of 124M parameters with 50 000 steps that were trained at 5e-4, 1e-3 and 2e-3, under
nine curves. A parabola in ln peak through their three last losses is the truth: its minimum, cut at these
peaks, is the best peak, and the regret of a peak is the height of the parabola above that. Each curve of
15 000, 25 000 or 35 000 steps that was trained at the same peaks forecasts all nine: `best_peak` gets its
three runs. Printed are the regret, and the fraction of ranges (`low` to `high`) that hold the best peak.

Next to it stands the best peak of the short runs, by a parabola through their last losses: as it is, and
times the ratio of the two curves in `compare`.

PATH is a clone, which this program reads and does not copy:

    git clone https://github.com/fabian-sp/lr-scheduling                  (measured at 8ace3a3, on main)

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

from plateau_jax import LossRun, best_peak, compare

PEAKS = 5e-4, 1e-3, 2e-3
LONG, SHORT = 50_000, (15_000, 25_000, 35_000)
LAYERS, WIDTH = 12, 768


class Measured(NamedTuple):
    """A parabola in ln peak through the last losses of runs, and its minimum within their peaks."""

    parabola: np.polynomial.Polynomial
    best: float

    def regret(self, peak: float) -> float:
        return float(self.parabola(math.log(peak)) - self.parabola(self.best))


def measure(runs: list[LossRun]) -> Measured:
    logs = np.log(PEAKS)
    parabola = np.polynomial.Polynomial.fit(logs, [run.losses[-1] for run in runs], 2)
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
        kind: (group[1].curve, measure(group)) for (steps, kind), group in runs.items() if steps == LONG
    }
    rows = defaultdict(list)
    for (steps, kind), group in runs.items():
        if steps in SHORT:
            peak_of_short_runs = math.exp(measure(group).best)
            for long_kind, (curve, truth) in truths.items():
                best = best_peak(group, curve)
                # A range may end at a peak that was run, and so may the truth.
                is_held = math.log(best.low) - 1e-9 <= truth.best <= math.log(best.high) + 1e-9
                peak_times_ratio = peak_of_short_runs * compare(group[1].curve, curve).peaks[1]
                regrets = [truth.regret(peak) for peak in (best.peak, peak_of_short_runs, peak_times_ratio)]
                rows["same curve" if kind == long_kind else "another curve"].append((*regrets, is_held))
    print(f"{len(truths)} curves of {LONG} steps\n")
    print("mean regret (largest)  forecasts        best_peak  short runs' best  times the ratio  range holds")
    for name, results in sorted(rows.items(), reverse=True):
        *regrets, are_held = zip(*results, strict=True)
        fraction_held = float(np.mean(are_held))
        cells = [f"{np.mean(column):.4f} ({max(column):.4f})" for column in regrets]
        print(f"{name:21}  {len(results):9}  " + "  ".join(cells) + f"  {fraction_held:11.2f}")


if __name__ == "__main__":
    main()
