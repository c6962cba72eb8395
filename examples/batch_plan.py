"""Train a small GPT at one constant batch, and under a plan that grows the batch, on one clock of tokens.

The transformer and the text are those of train_gpt.py; a token is a byte. A step of the curve is 1000
tokens, however they are cut into updates. So at equal tokens both trainings have the same float32 rate: in
PyTorch, which trains, and in JAX, where an optax transformation gets the same counts. The picture shows
batch, rate and loss over tokens, and over updates.

Ctrl-C saves, in the middle of the ramp too, and --resume goes on at the same token and the same rate. The
micro-batch and the number of processes may change in between. The defaults take some two minutes on one
CPU core.

    python examples/batch_plan.py
    python examples/batch_plan.py --tokens 1024000 --plan 0:1024 204800:2048
    python examples/batch_plan.py --resume        (with the settings of the checkpoint, unless given again)
    torchrun --nproc-per-node 2 examples/batch_plan.py --resume --micro-batch 256
"""

import program

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

from plateau_jax import BatchPlan, PlateauCurve, scale_by_curve
from torch_bridge import Checkpoints, MetricLog, TrainStep, distribute, is_main

matplotlib.use("Agg")  # A file, no window.

CONTEXT = 64  # tokens in a sequence
UNIT = 1000  # tokens in a step of the curve
PEAK = 4e-3  # learning rate
PLAN = "0:512 204800:1024 512000:2048 1024000:4096"
PROCESSES, RANK = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
# Colours by Okabe and Ito, which colour-blind eyes tell apart. The second line is thin, over the first.
LOOKS = {"color": "#E69F00", "lw": 4.5, "alpha": 0.6}, {"color": "#0072B2", "lw": 1.5}


class Training:
    """One of the two trainings: its plan, its training step, and a log of all its updates."""

    def __init__(self, name, plan, curve, device):
        self.name, self.plan, self.log = name, plan, MetricLog(keep=None)
        torch.manual_seed(0)
        model = distribute(GPT(n_layer=3, n_embd=64, block_size=CONTEXT), "ddp", device=device)
        adamw = torch.optim.AdamW(model.parameters(), lr=PEAK, betas=(0.9, 0.95), fused=True)
        # A row has one byte more than the model sees. After a skipped update the same text would come again.
        options = {"count": lambda rows: rows[:, 1:].numel(), "unit": UNIT, "on_nonfinite": "raise"}
        self.step = TrainStep(model, adamw, loss_fn, curve, max_norm=1.0, **options)

    def read_figures(self):
        """Of each update: the tokens before it, its own tokens, its rate, its loss."""
        self.log.flush()
        rows = [(row["consumed"], row["lr"], row["loss"]) for row in self.log.rows]
        consumed, rates, losses = np.array(rows).reshape(-1, 3).T
        counts = np.diff(consumed, prepend=0).astype(np.int32)
        return consumed.astype(np.int64) - counts, counts, rates.astype(np.float32), losses


def train(training, rows, args, stop, save):
    """Train to the end; or until a Ctrl-C, which saves and ends the program."""
    plan, counts = training.plan, training.read_figures()[1]
    consumed, updates = int(counts.sum()), len(counts)
    hidden = None if is_main() else True
    bar = tqdm(total=args.tokens, initial=consumed, unit="B", unit_scale=True, leave=False, disable=hidden)
    while consumed < args.tokens:
        # Which text an update gets depends on nothing but the tokens before it.
        batch, first, tenths = plan(consumed), consumed // CONTEXT, consumed * 10 // args.tokens
        sequences = torch.arange(first, first + batch // CONTEXT) % len(rows)
        shape = plan.micro_batches(consumed, args.micro_batch, PROCESSES), PROCESSES, -1
        training.log(training.step(*rows[sequences.view(shape)[:, RANK]].to(args.device)))
        consumed, updates = consumed + batch, updates + 1
        bar.update(batch)
        if consumed * 10 // args.tokens > tenths:
            row = training.log.flush()
            figures = f"batch {batch:5}, rate {row['lr']:.2e}, loss {row['loss']:.4f} nats a token"
            with bar.external_write_mode():
                say(f"{training.name:8} {consumed:9} tokens, {updates:5} updates, {figures}")
            save()
        # With several processes this is a collective: not after every update.
        if (PROCESSES == 1 or updates % 10 == 0) and stopped(stop, args.device):
            save(wait=True)
            bar.close()
            say(f"stopped after {consumed} tokens; {args.checkpoints} goes on with --resume")
            sys.exit(130)
    bar.close()


def compare(trainings, curve):
    """Print how many rates differ: between the trainings at equal tokens, and between the frameworks."""
    begins, counts, in_torch, _ = zip(*(each.read_figures() for each in trainings), strict=True)
    transformation = scale_by_curve(curve, PEAK, unit=UNIT)

    def update(state, count):
        _, state = transformation.update({}, state, count=count)
        return state, state.learning_rate

    in_jax = [np.array(jax.lax.scan(update, transformation.init({}), each)[1]) for each in counts]
    _, *common = np.intersect1d(*begins, return_indices=True)
    pairs = {
        "at equal tokens in PyTorch": [rates[at] for rates, at in zip(in_torch, common, strict=True)],
        "at equal tokens in JAX": [rates[at] for rates, at in zip(in_jax, common, strict=True)],
        "between PyTorch and JAX": [np.concatenate(in_torch), np.concatenate(in_jax)],
    }
    for where, (left, right) in pairs.items():
        differing = np.count_nonzero(left.view(np.int32) != right.view(np.int32))
        print(f"rates that differ {where}: {differing} of {len(left)}")


def picture(path, trainings):
    """Batch, rate and loss; over tokens on the left, over updates on the right."""
    figure, axes = plt.subplots(3, 2, figsize=(10, 7), sharex="col", sharey="row", layout="constrained")
    for training, look in zip(trainings, LOOKS, strict=True):
        begins, counts, rates, losses = training.read_figures()
        # The mean loss over each 1/60 of the tokens.
        borders = np.linspace(0, begins[-1] + counts[-1], 61)
        summed = np.interp(borders, [0, *np.cumsum(counts)], [0, *np.cumsum(losses * counts)])
        means, middles = np.diff(summed) / np.diff(borders), (borders[1:] + borders[:-1]) / 2
        updates = np.arange(len(begins))
        sides = (begins, middles), (updates, np.interp(middles, begins, updates))
        for (above, between, below), (starts, places) in zip(axes.T, sides, strict=True):
            above.step(starts, counts, where="post", label=f"{training.name} batch", **look)
            between.plot(starts, rates, **look)
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
    below.set(ylabel="loss, nats a token", xlabel="tokens")
    below.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes[0, 1].set(title="over updates")
    axes[2, 1].set(xlabel="updates")
    program.save_picture(figure, path)


def pair(text):
    return tuple(map(int, text.split(":")))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--tokens", type=int, default=2_048_000, help="of each training (2048000)")
    about = f"from so many tokens on, a batch of so many tokens ({PLAN}); the constant batch is the last one"
    add("--plan", type=pair, nargs="+", default=[*map(pair, PLAN.split())], metavar="FROM:BATCH", help=about)
    add("--micro-batch", type=int, default=512, help="tokens that a process takes at once (512)")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--checkpoints", default="batch_plan_checkpoints", metavar="FOLDER")
    add("--resume", action="store_true", help="continue from the newest checkpoint")
    add("--output", type=Path, default=Path("batch_plan.png"), metavar="FILE")
    args, settings = with_saved_settings(parser)
    try:
        steps = args.tokens // UNIT
        curve = PlateauCurve(steps, warmup_steps=steps // 10, plateaus=[(0, 50)], decay_shape="linear")
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
    torch.set_num_threads(1)  # The model is small.
    rows = read_text()[0].unfold(0, CONTEXT + 1, CONTEXT)
    rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))]
    try:
        trainings = [Training(*each, curve, args.device) for each in plans.items()]
        parts = {each.name: each.step for each in trainings}
        parts |= {f"{each.name}_log": each.log for each in trainings}
        checkpoints = Checkpoints(args.checkpoints)

        def save(wait=False):
            checkpoints.save(sum(len(each.read_figures()[0]) for each in trainings), wait=wait, **parts)

        if args.resume:
            checkpoints.load(**parts)
        if is_main():
            settings.parent.mkdir(parents=True, exist_ok=True)
            settings.write_text(json.dumps(vars(args), default=str))
        stop = program.stop_between_updates(signal.SIGTERM)  # which torchrun sends
        for each in trainings:
            updates, done = each.plan.updates(args.tokens), each.read_figures()[1]
            say(f"{each.name} batch: {updates} updates for {args.tokens} tokens; {done.sum()} are done")
        for each in trainings:
            train(each, rows, args, stop, save)
        save(wait=True)
    except (OSError, ValueError, RuntimeError, FloatingPointError) as error:
        sys.exit(f"batch_plan.py: {program.with_way_out(error, '--tokens')}")
    program.leave_on_ctrl_c()
    if is_main():
        compare(trainings, curve)
        picture(args.output, trainings)
        print(f"picture: {args.output}")


if __name__ == "__main__":
    main()
