"""Forecast final losses of published runs from one or two runs of the same model, data and peak.

Every run that can be fitted forecasts the final losses of all other runs of its model, data and
peak: of the same length (within 2 %), longer (up to four times), or shorter (from 0.3 times on).
Fits of two runs use pairs of these runs, drawn at random with a fixed seed; lengths are relative to
the longer run of a pair. Each forecast is compared with the last logged loss of the run. Printed
are the mean error in nats and the fraction of runs whose last loss lies in the interval of
`fit_losses`, both averaged over models, data and peaks; and how often the interval of the
difference of two forecasts of one length contains the true difference.

Next to the law of `fit_losses` stand the annealing law (Tissue et al. 2024, arXiv:2408.11029),
fitted to the same losses with the same weights and the same penalty on α, and the last loss of the
run that was fitted; of two, that with the nearer length.

PATH is a clone of one of these repositories, which this program reads and does not copy:

    git clone https://github.com/fabian-sp/lr-scheduling           (measured at 8ace3a3, on main)
    git clone --branch ladder-1xC https://github.com/allenai/OLMo  (measured at 9bc064c72b14)

    python examples/benchmarks/forecast.py lr-scheduling OLMo

Takes some minutes.
"""

import argparse
import csv
import json
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import combinations
from pathlib import Path

import numpy as np

from plateau_jax import LossFit, LossRun, StagedCurve, fit_losses
from plateau_jax.tools.forecasts.loss_groups import AFTER_WARMUP, group_losses, group_run
from plateau_jax.tools.forecasts.loss_interval import ForecastTerms
from plateau_jax.tools.forecasts.loss_law import fit_law, schedule_sums

LAWS = "fit_losses", "annealing law", "nearest run"
LENGTHS = "same length", "longer", "shorter"

MEMORY = 0.999
"""λ of the annealing law: each fall of the learning rate acts over 1/(1 - λ) steps."""

Losses = dict[int, float]
"""Losses by step."""


def read_schaipp(clone: Path) -> dict[tuple, list[LossRun]]:
    """Return the runs of Schaipp et al. 2025 (arXiv:2501.18965) of each data set, model and peak.

    The logs of most warmup–stable–decay runs begin at a checkpoint of a run at constant learning
    rate: the earlier losses are those of this run. Of runs with the same schedule, one is kept.
    """
    logs = defaultdict(dict)
    for path in sorted((clone / "data").glob("*.json")):
        log = json.loads(path.read_text(encoding="utf-8"))
        config, losses = log["config"], log["history"]["val"]
        names = "dataset", "model", "n_layer", "n_embd", "lr"
        curve = schaipp_curve(config)
        losses = dict(zip(losses["iter"], losses["val_loss"], strict=True))
        logs[tuple(config[name] for name in names)][curve] = {
            t: losses[t] for t in sorted(losses) if t > 0
        }
    groups = defaultdict(list)
    for key, runs in logs.items():
        constant = [losses for curve, losses in runs.items() if curve(curve.total_steps - 1) == 1]
        for curve, losses in runs.items():
            if (joined := joined_losses(losses, constant)) is not None:
                groups[key].append(new_run(curve, key[-1], joined))
    return groups


def schaipp_curve(config: dict) -> StagedCurve:
    """Return the schedule of a configuration."""
    warmup, total = config["warmup_steps"], config["iterations"]
    if config["scheduler"] == "cos":
        least = config.get("cos_final_lr") or -1
        end = least / config["lr"] if least > 0 else 0.1
        return StagedCurve([(warmup, 1.0, "cosine"), (total - warmup, end, "cosine")], start=0.01)
    decay = int(total * config["wsd_fract_decay"])
    shape = "1-sqrt" if config.get("decay_type") == "sqrt" else "linear"
    stages = [(warmup, 1.0), (total - warmup - decay,)]
    return StagedCurve([*stages, (decay, 0.0, shape)] if decay else stages, start=0.01)


def read_olmo(clone: Path) -> dict[str, list[LossRun]]:
    """Return the runs of each size of the OLMo ladder: cosines, stable phases, decays."""
    folder = clone / "scripts" / "scaling" / "data"
    groups = defaultdict(list)
    for constant_path in sorted((folder / "peteish-moreeval-const").glob("*-10xC.csv")):
        size = constant_path.name.partition("-")[0]
        peak, constant, _ = read_olmo_log(constant_path)
        _, _, lrs = read_olmo_log(folder / "peteish-moreeval" / f"{size}-0.5xC.csv")
        first = min(lrs)
        # The learning rate logged at step t is that of update t - 1.
        warmup = round(first * peak / lrs[first])
        first_stage, totals = (warmup - 1, 1.0), {}
        for path in sorted((folder / "peteish-moreeval").glob(f"{size}-*xC*.csv")):
            _, losses, _ = read_olmo_log(path)
            total = totals[path.name] = max(losses)
            curve = StagedCurve(
                [first_stage, (total - warmup - 10, 0.1, "cosine"), (11,)], start=1 / warmup
            )
            groups[size].append(new_run(curve, peak, losses))
        total = max(constant)
        curve = StagedCurve([first_stage, (total - warmup + 1,)], start=1 / warmup)
        groups[size].append(new_run(curve, peak, constant))
        for path in sorted((folder / "peteish-moreeval-decay").glob(f"{size}-*xC.csv")):
            total = totals[path.name]
            decay = round((total - 10) / 10)
            stages = [first_stage, (total - warmup - 10 - decay,), (decay, 0.1), (11,)]
            joined = joined_losses(read_olmo_log(path)[1], [constant])
            groups[size].append(new_run(StagedCurve(stages, start=1 / warmup), peak, joined))
    return groups


def read_olmo_log(path: Path) -> tuple[float, Losses, dict[int, float]]:
    """Return the peak, and the losses and learning rates of a log by step."""
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    losses, lrs = (
        {int(row["_step"]): float(row[column]) for row in rows}
        for column in ("eval/c4_en-validation/CrossEntropyLoss", "optim/learning_rate_group0")
    )
    return float(rows[0]["learning_rate_peak"]), losses, lrs


def joined_losses(losses: Losses, constant: list[Losses]) -> Losses | None:
    """Put the losses of a run at constant learning rate before those of a run that continues it.

    Return None if the log begins late and there is no such run.
    """
    first = min(losses)
    sources = [earlier for earlier in constant if min(earlier) < first <= max(earlier)]
    if not sources:
        return losses if first <= 1000 else None
    return {t: loss for t, loss in max(sources, key=len).items() if t < first} | losses


def new_run(curve: StagedCurve, peak: float, losses: Losses) -> LossRun:
    return LossRun(curve, peak, list(losses), list(losses.values()))


@cache
def final_sums(run: LossRun) -> tuple[np.ndarray, np.ndarray]:
    """Return S and N at the last logged loss."""
    return schedule_sums(run.curve, run.peak_value, run.steps[-1])


@cache
def annealing_sums(run: LossRun) -> tuple[np.ndarray, np.ndarray]:
    """Return S1 and S2 of the annealing law, in units of the peak, after each update."""
    learning_rates = np.asarray(run.curve(np.arange(run.steps[-1])), np.float64)
    momentum, memory = [], 0.0
    for fall in np.maximum(-np.diff(learning_rates, prepend=0.0), 0.0).tolist():
        memory = MEMORY * memory + fall
        momentum.append(memory)
    return np.cumsum(learning_rates), np.cumsum(momentum)


class AnnealingLaw:
    """The annealing law, fitted to the losses that `fit_losses` uses."""

    def __init__(self, fit: LossFit) -> None:
        logged = group_losses(fit.runs, AFTER_WARMUP)
        sums, falls = np.empty_like(logged.progress), np.empty_like(logged.progress)
        for index, run in enumerate(fit.runs):
            run_sums, run_falls = annealing_sums(run)
            is_own = logged.runs == index
            updates = group_run(run, AFTER_WARMUP).steps
            sums[is_own], falls[is_own] = run_sums[updates - 1], run_falls[updates - 1]
        # The fit keeps the coefficient at 0 or above, and S2 lowers the loss.
        logged = replace(
            logged, progress=sums, noise=-falls, progress_unit=float(sums.max()), noise_unit=1.0
        )
        self.law = fit_law(logged, power=1.0)

    def final_loss(self, run: LossRun) -> float:
        sums, falls = annealing_sums(run)
        return float(self.law.losses(sums[-1], -falls[-1]))


def length_of(run: LossRun, sources: list[LossRun]) -> str | None:
    """Return how a run's length compares to those of the fitted runs, or None for no forecast."""
    ratio = run.curve.total_steps / max(source.curve.total_steps for source in sources)
    if (
        run in sources
        or ratio < 0.3
        or run.curve.total_steps > 4 * max(run.steps[-1] for run in sources)
    ):
        return None
    return LENGTHS[0] if abs(ratio - 1) < 0.02 else LENGTHS[1] if ratio > 1 else LENGTHS[2]


@cache
def fit_or_none(*sources: LossRun) -> LossFit | None:
    try:
        return fit_losses(sources)
    except ValueError:
        return None


def sources_of(runs: list[LossRun], most_pairs: int) -> Iterator[list[LossRun]]:
    """Yield each run, and pairs of those that can be fitted alone."""
    yield from ([run] for run in runs)
    pairs = list(combinations([run for run in runs if fit_or_none(run)], 2))
    yield from map(list, random.Random(0).sample(pairs, min(most_pairs, len(pairs))))


def measure(groups: list[list[LossRun]], most_pairs: int) -> None:
    """Print the tables of one repository."""
    found: dict[tuple[int, str], dict[int, list]] = defaultdict(lambda: defaultdict(list))
    differences = defaultdict(list)
    fitted = rejected = 0
    for group, runs in enumerate(groups):
        for sources in sources_of(runs, most_pairs):
            if not (fit := fit_or_none(*sources)):
                rejected += 1
                continue
            fitted += 1
            annealing = AnnealingLaw(fit)
            forecasts: list[tuple[LossRun, ForecastTerms]] = []
            for run in runs:
                if length := length_of(run, sources):
                    terms = fit._refits.terms(*final_sums(run), octaves=0.0)
                    nearest = min(sources, key=lambda source: abs(source.steps[-1] - run.steps[-1]))
                    losses = np.array([terms.loss, annealing.final_loss(run), nearest.losses[-1]])
                    errors = np.abs(losses - run.losses[-1])
                    is_covered = errors[0] <= terms.half_width(fit.residual_sd)
                    found[len(sources), length][group].append((*errors, is_covered))
                    forecasts.append((run, terms))
            for (first, first_terms), (run, terms) in combinations(forecasts, 2):
                if abs(run.curve.total_steps / first.curve.total_steps - 1) < 0.02:
                    difference, half = terms.minus(first_terms, fit.residual_sd)
                    true = run.losses[-1] - first.losses[-1]
                    is_distinguishable = abs(difference) > half
                    is_wrong = is_distinguishable and difference * true < 0
                    is_covered = abs(true - difference) <= half
                    differences[len(sources)].append((is_covered, is_distinguishable, is_wrong))
    print(
        f"{sum(map(len, groups))} runs in {len(groups)} groups; {fitted} fits, {rejected} "
        "rejected\n"
    )
    print(
        f"{'mean error in nats':20}  forecasts"
        + "".join(f"{law:>15}" for law in LAWS)
        + "  covered"
    )
    for (count, length), results in sorted(
        found.items(), key=lambda row: (row[0][0], LENGTHS.index(row[0][1]))
    ):
        *errors, covered = np.mean([np.mean(rows, axis=0) for rows in results.values()], axis=0)
        name = f"{count} run{'s' if count > 1 else ''}, {length}"
        cells = "".join(f"{error:15.4f}" for error in errors)
        print(f"{name:20}  {sum(map(len, results.values())):9}{cells}{covered:9.2f}")
    print(f"\n{'differences':20}  of pairs        covered  distinguishable  in wrong order")
    for count, rows in sorted(differences.items()):
        covered, distinguishable, wrong = np.mean(rows, axis=0)
        name = f"{count} run{'s' if count > 1 else ''}"
        print(f"{name:20}  {len(rows):8}{covered:15.2f}{distinguishable:17.2f}{wrong:16.4f}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", metavar="PATH", type=Path, nargs="+", help="a clone, as above")
    parser.add_argument(
        "--pairs",
        type=int,
        default=40,
        help="most pairs of runs to fit for one model, data set and peak",
    )
    arguments = parser.parse_args()
    for path in arguments.paths:
        if (path / "scripts" / "scaling" / "data").is_dir():
            groups = read_olmo(path)
        elif (path / "data").is_dir():
            groups = read_schaipp(path)
        else:
            parser.error(f"{path} is not a clone of one of these repositories, at this branch")
        print(f"{path.name}: ", end="")
        measure(list(groups.values()), arguments.pairs)
        print()


if __name__ == "__main__":
    main()
