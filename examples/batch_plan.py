"""Train a small GPT with a constant batch size and with one that grows; the curve counts tokens.

The transformer and the text are those of train_gpt.py; a token is a byte. A step of the curve is
1000 tokens, however they are divided into updates. So after equal numbers of tokens both runs have
the same float32 learning rate: in PyTorch, which trains, and in JAX, where an optax transformation
gets the same counts. The picture shows batch, learning rate and loss over tokens, and over updates.

Ctrl-C saves, also while the batch grows, and --resume continues at the same token and learning
rate. The micro-batch and the number of processes may change in between. The defaults take some two
minutes on one CPU core.

    python examples/batch_plan.py
    python examples/batch_plan.py --tokens 1024000 --plan 0:1024 204800:2048
    python examples/batch_plan.py --resume        (keeps settings that are not given again)
    torchrun --nproc-per-node 2 examples/batch_plan.py --resume --micro-batch 256
"""

from helpers import program

# isort: split
import argparse
import json
import os
import signal
import sys
from pathlib import Path

import jax
import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.ticker import EngFormatter
from tqdm import tqdm
from train_gpt import GPT, loss_fn, read_text, say, stopped, with_saved_settings

from plateau_jax import BatchPlan, DataClock, PlateauCurve, scale_by_curve
from torch_bridge import Checkpoints, MetricLog, TrainStep, distribute

matplotlib.use("Agg")  # writes files, opens no window

CONTEXT = 64  # tokens in a sequence
UNIT = 1000  # tokens in a step of the curve
PEAK = 4e-3  # learning rate
PLAN = "0:512 204800:1024 512000:2048 1024000:4096"
PROCESSES, RANK = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
# Okabe and Ito's colours, safe for colour-blind readers. The second line is thin and drawn over the
# first.
LOOKS = {"color": "#E69F00", "lw": 4.5, "alpha": 0.6}, {"color": "#0072B2", "lw": 1.5}


class TrainingRun:
    """One of the two runs: its plan, its training step, and a log of all its updates."""

    def __init__(self, name, plan, curve, device):
        self.name, self.plan, self.log = name, plan, MetricLog(keep=None)
        torch.manual_seed(0)
        model = distribute(GPT(n_layer=3, n_embd=64, block_size=CONTEXT), "ddp", device=device)
        adamw = torch.optim.AdamW(model.parameters(), lr=PEAK, betas=(0.9, 0.95), fused=True)
        # A skipped update would get the same text again, so nonfinite values are errors.
        options = {"clock": DataClock(UNIT), "on_nonfinite": "raise"}
        self.train_step = TrainStep(model, adamw, loss_fn, curve, max_norm=1.0, **options)

    def read_figures(self):
        """Return the tokens before each update, its tokens, its learning rate and its loss."""
        self.log.flush()
        rows = [(row["consumed"], row["lr"], row["loss"]) for row in self.log.rows]
        consumed, learning_rates, losses = np.array(rows).reshape(-1, 3).T
        counts = np.diff(consumed, prepend=0).astype(np.int32)
        return consumed.astype(np.int64) - counts, counts, learning_rates.astype(np.float32), losses


def train(run, rows, args, stop, save):
    """Train to the end, or until Ctrl-C, which saves and ends the program."""
    plan, counts = run.plan, run.read_figures()[1]
    consumed, updates = int(counts.sum()), len(counts)
    hidden = None if RANK == 0 else True
    bar = tqdm(
        total=args.tokens, initial=consumed, unit="B", unit_scale=True, leave=False, disable=hidden
    )
    while consumed < args.tokens:
        # The text of an update depends only on the number of tokens before it.
        batch, first, tenths = plan(consumed), consumed // CONTEXT, consumed * 10 // args.tokens
        sequences = torch.arange(first, first + batch // CONTEXT) % len(rows)
        shape = plan.micro_batches(consumed, args.micro_batch, PROCESSES), PROCESSES, -1
        micro_batches = rows[sequences.view(shape)[:, RANK]].to(args.device)
        # The ranks add up their counts.
        run.log(run.train_step(*micro_batches, count=batch // PROCESSES))
        consumed, updates = consumed + batch, updates + 1
        bar.update(batch)
        if consumed * 10 // args.tokens > tenths:
            row = run.log.flush()
            figures = f"batch {batch:5}, lr {row['lr']:.2e}, loss {row['loss']:.4f} nats per token"
            with bar.external_write_mode():
                say(f"{run.name:8} {consumed:9} tokens, {updates:5} updates, {figures}")
            save()
        # With several processes this check is a collective, too slow for every update.
        if (PROCESSES == 1 or updates % 10 == 0) and stopped(stop, args.device):
            save(wait=True)
            bar.close()
            say(f"stopped after {consumed} tokens; {args.checkpoints} resumes with --resume")
            sys.exit(130)
    bar.close()


def lrs_in_jax(curve, counts):
    """Return the learning rates of an optax transformation that gets these counts."""
    transformation = scale_by_curve(curve, PEAK, DataClock(UNIT))

    def update(state, count):
        _, state = transformation.update({}, state, count=count)
        return state, state.learning_rate

    return np.array(jax.lax.scan(update, transformation.init({}), np.int32(counts))[1])


def compare(runs, curve):
    """Print how many learning rates differ between the runs, and between the frameworks."""
    begins, counts, in_torch, _ = zip(*(run.read_figures() for run in runs), strict=True)
    in_jax = [lrs_in_jax(curve, run_counts) for run_counts in counts]
    _, *common = np.intersect1d(*begins, return_indices=True)
    pairs = {
        "at equal tokens in PyTorch": [
            lrs[indices] for lrs, indices in zip(in_torch, common, strict=True)
        ],
        "at equal tokens in JAX": [
            lrs[indices] for lrs, indices in zip(in_jax, common, strict=True)
        ],
        "between PyTorch and JAX": [np.concatenate(in_torch), np.concatenate(in_jax)],
    }
    for pair_name, (left, right) in pairs.items():
        differing = np.count_nonzero(left.view(np.int32) != right.view(np.int32))
        print(f"learning rates that differ {pair_name}: {differing} of {len(left)}")


def draw_picture(path, runs):
    """Draw batch, learning rate and loss: over tokens on the left, over updates on the right."""
    figure, axes = plt.subplots(
        3, 2, figsize=(10, 7), sharex="col", sharey="row", layout="constrained"
    )
    for run, look in zip(runs, LOOKS, strict=True):
        begins, counts, learning_rates, losses = run.read_figures()
        # The mean loss over each 1/60 of the tokens.
        borders = np.linspace(0, begins[-1] + counts[-1], 61)
        summed = np.interp(borders, [0, *np.cumsum(counts)], [0, *np.cumsum(losses * counts)])
        means, middles = np.diff(summed) / np.diff(borders), (borders[1:] + borders[:-1]) / 2
        updates = np.arange(len(begins))
        sides = (begins, middles), (updates, np.interp(middles, begins, updates))
        for (above, between, below), (starts, places) in zip(axes.T, sides, strict=True):
            above.step(starts, counts, where="post", label=f"{run.name} batch", **look)
            between.plot(starts, learning_rates, **look)
            below.plot(places, means, **look)
    for panel in axes.flat:
        panel.spines[["top", "right"]].set_visible(False)
        panel.margins(x=0.01)
    above, between, below = axes[:, 0]
    above.set_yscale("log", base=2)
    above.yaxis.set_major_formatter("{x:.0f}")
    above.legend(frameon=False)
    above.set(ylabel="tokens in a batch", title="over tokens")
    between.set(ylabel="learning rate")
    below.set(ylabel="loss, nats per token", xlabel="tokens")
    below.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes[0, 1].set(title="over updates")
    axes[2, 1].set(xlabel="updates")
    program.save_picture(figure, path)


def stage(text):
    return tuple(map(int, text.split(":")))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--tokens", type=int, default=2_048_000, help="tokens of each run (2048000)")
    about = (
        f"after FROM tokens, batches of BATCH tokens ({PLAN}); the constant batch is the last one"
    )
    add(
        "--plan",
        type=stage,
        nargs="+",
        default=[*map(stage, PLAN.split())],
        metavar="FROM:BATCH",
        help=about,
    )
    add("--micro-batch", type=int, default=512, help="tokens in a micro-batch of one process (512)")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--checkpoints", default="batch_plan_checkpoints", metavar="FOLDER")
    add("--resume", action="store_true", help="continue from the newest checkpoint")
    add("--output", type=Path, default=Path("batch_plan.png"), metavar="FILE")
    args, settings = with_saved_settings(parser)
    try:
        steps = args.tokens // UNIT
        curve = PlateauCurve(
            steps, warmup_steps=steps // 10, plateaus=[(0, 50)], decay_shape="linear"
        )
        plan = BatchPlan(args.plan)
        plan.check(args.micro_batch, PROCESSES)
    except (TypeError, ValueError) as error:
        parser.error(str(error))
    if args.micro_batch % CONTEXT:
        parser.error(f"--micro-batch {args.micro_batch} must be a multiple of {CONTEXT}")
    program.check_device(parser, args.device)
    program.check_writable(parser, "--checkpoints", settings.parent)
    program.check_picture(parser, args.output)
    constant = BatchPlan([(0, args.plan[-1][1])])
    return args, settings, curve, {"constant": constant, "growing": plan}


def main() -> None:
    args, settings, curve, plans = arguments()
    torch.set_num_threads(1)  # the model is small
    rows = read_text()[0].unfold(0, CONTEXT + 1, CONTEXT)
    rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))]
    try:
        runs = [TrainingRun(name, plan, curve, args.device) for name, plan in plans.items()]
        parts = {run.name: run.train_step for run in runs}
        parts |= {f"{run.name}_log": run.log for run in runs}
        checkpoints = Checkpoints(args.checkpoints)

        def save(wait=False):
            checkpoints.save(sum(len(run.read_figures()[0]) for run in runs), wait=wait, **parts)

        if args.resume:
            checkpoints.load(**parts)
        if RANK == 0:
            settings.parent.mkdir(parents=True, exist_ok=True)
            settings.write_text(json.dumps(vars(args), default=str))
        stop = program.stop_between_updates(signal.SIGTERM)  # torchrun sends SIGTERM
        for run in runs:
            updates, done = run.plan.updates(args.tokens), run.read_figures()[1]
            say(
                f"{run.name} batch: {updates} updates for {args.tokens} tokens; {done.sum()} are "
                "done"
            )
        for run in runs:
            train(run, rows, args, stop, save)
        save(wait=True)  # destroy_process_group() would lose a save that is still pending
    except (OSError, ValueError, RuntimeError, FloatingPointError) as error:
        sys.exit(f"batch_plan.py: {program.with_resume_hint(error, '--tokens')}")
    program.leave_on_ctrl_c()
    if RANK == 0:
        compare(runs, curve)
        draw_picture(args.output, runs)
        print(f"picture: {args.output}")


if __name__ == "__main__":
    main()
