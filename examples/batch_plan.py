"""Train a small GPT at one constant batch, and under a plan that grows the batch, on one clock of tokens.

The transformer and the text of train_gpt.py; a token is a byte. A step of the curve is 1000 tokens, however
they are cut into updates. So at equal tokens both trainings have the same float32 rate: in PyTorch, which
trains, and in JAX, where an optax transformation gets the same counts. The picture shows batch, rate and
loss over tokens, and over updates.

Ctrl-C saves, in the middle of the ramp too, and --resume goes on at the same token and the same rate. The
micro-batch and the number of processes may change in between. The defaults take some three minutes on two
CPU cores.

    python examples/batch_plan.py
    python examples/batch_plan.py --tokens 1024000 --plan 0:1024 204800:2048 --constant 2048
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
from tqdm import tqdm
from train_gpt import GPT, loss_fn, read_text, say, stopped, with_saved_settings

from plateau_jax import BatchPlan, PlateauCurve, scale_by_curve
from torch_bridge import Checkpoints, MetricLog, TrainStep, distribute, is_main

matplotlib.use("Agg")  # A file, no window.

CONTEXT = 64  # tokens in a sequence
UNIT = 1000  # tokens in a step of the curve
PROCESSES, RANK = (int(os.environ.get(name, default)) for name, default in (("WORLD_SIZE", 1), ("RANK", 0)))
# Colours by Okabe and Ito, which colour-blind eyes tell apart. The second line is thin, and lies on the first.
LOOKS = {"color": "#E69F00", "lw": 5, "alpha": 0.6}, {"color": "#0072B2", "lw": 1.5}


class Training:
    """One of the two trainings: its plan, its step, and a row of figures for each update."""

    def __init__(self, plan, curve, args):
        self.plan, self.log = plan, MetricLog(keep=None)
        torch.manual_seed(args.seed)
        model = distribute(GPT(n_layer=3, n_embd=64, block_size=CONTEXT), "ddp", device=args.device)
        adamw = torch.optim.AdamW(model.parameters(), lr=args.peak, betas=(0.9, 0.95), fused=True)
        # After a skipped update the text would be ahead of the clock.
        options = {"max_norm": 1.0, "on_nonfinite": "raise", "unit": UNIT, "count": tokens_of}
        self.step = TrainStep(model, adamw, loss_fn, curve, **options)

    def column(self, name):
        self.log.flush()
        return np.array([row[name] for row in self.log.rows])

    def counts(self):
        """The tokens of each update, as the step counted them."""
        return np.diff(self.column("consumed"), prepend=0).astype(np.int32)

    def starts(self):
        """The tokens that were consumed before each update."""
        return self.column("consumed") - self.counts()


def tokens_of(micro_batch):
    """A row has one byte more than the model sees: the last byte is only a target."""
    return micro_batch[:, 1:].numel()


def train(name, training, rows, args, stop, save):
    """Train to the end, or until a Ctrl-C. Returns whether it came to the end."""
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(args.seed))
    consumed, updates = int(training.counts().sum()), len(training.log.rows)
    bar = tqdm(desc=name, total=args.tokens, initial=consumed, unit=" tokens", unit_scale=True, leave=False)
    while consumed < args.tokens:
        # Which text an update gets depends on nothing but the tokens before it.
        batch, first, tenths = training.plan(consumed), consumed // CONTEXT, consumed * 10 // args.tokens
        count = training.plan.micro_batches(consumed, args.micro_batch, PROCESSES)
        sequences = order[torch.arange(first, first + batch // CONTEXT) % len(order)]
        mine = rows[sequences.view(count, PROCESSES, -1)[:, RANK]].to(args.device)
        training.log(training.step(*mine))
        consumed, updates = consumed + batch, updates + 1
        bar.update(batch)
        if consumed * 10 // args.tokens > tenths:
            row = training.log.flush()
            text = f"{name:8} {consumed:10,} tokens {updates:7,} updates   batch {batch:6,}"
            with bar.external_write_mode():
                say(f"{text}   rate {row['lr']:.2e}   loss {row['loss']:.4f}")
            save()
        # With several processes this is a collective: not after every update.
        if (PROCESSES == 1 or updates % 10 == 0) and stopped(stop, args.device):
            break
    bar.close()
    return consumed >= args.tokens


def rates_in_jax(training, curve, peak):
    """The rates of an optax transformation that gets the counts of a training's updates."""
    transformation = scale_by_curve(curve, peak, unit=UNIT)

    def update(state, count):
        _, state = transformation.update({}, state, count=count)
        return state, state.learning_rate

    _, rates = jax.lax.scan(update, transformation.init({}), training.counts())
    return np.array(rates)


def compare(trainings, curve, peak):
    """Print how many rates differ: of the two trainings at equal tokens, and of the two frameworks."""
    constant, growing = trainings.values()
    rates = {"PyTorch": [each.column("lr").astype(np.float32) for each in trainings.values()]}
    rates["JAX"] = [rates_in_jax(each, curve, peak) for each in trainings.values()]
    _, *common = np.intersect1d(constant.starts(), growing.starts(), return_indices=True)
    for framework, both in rates.items():
        differing = count_differing(*(each[at] for each, at in zip(both, common, strict=True)))
        print(f"rates that differ at equal tokens, in {framework}: {differing}")
    differing = count_differing(*map(np.concatenate, rates.values()))
    print(f"rates that differ between PyTorch and JAX: {differing}")


def count_differing(left, right):
    return f"{np.count_nonzero(left.view(np.int32) != right.view(np.int32)):,} of {len(left):,}"


def picture(path, trainings):
    """Batch, rate and loss, over tokens on the left and over updates on the right."""
    figure, axes = plt.subplots(
        3, 2, figsize=(10, 7), sharex="col", sharey="row", height_ratios=(2, 2, 3), layout="constrained"
    )
    for (name, training), look in zip(trainings.items(), LOOKS, strict=True):
        counts, consumed = training.counts(), training.column("consumed")
        # The mean loss over each 1/60 of the tokens.
        ends = np.linspace(0, consumed[-1], 61)
        summed = np.interp(ends, [0, *consumed], [0, *np.cumsum(training.column("loss") * counts)])
        losses, middles = np.diff(summed) / np.diff(ends), (ends[1:] + ends[:-1]) / 2
        updates = np.arange(len(counts))
        sides = (training.starts(), middles), (updates, np.interp(middles, consumed, updates))
        for column, (begins, looks) in zip(axes.T, sides, strict=True):
            column[0].step(begins, counts, where="post", label=f"{name} batch", **look)
            column[1].plot(begins, training.column("lr"), **look)
            column[2].plot(looks, losses, **look)
    for row, title in zip(axes, ("Batch, tokens", "Learning rate", "Loss, nats a token"), strict=True):
        row[0].set_title(title, loc="left")
    for panel in axes.flat:
        panel.spines[["top", "right"]].set_visible(False)
        panel.margins(x=0.01)
        panel.xaxis.set_major_formatter("{x:,.0f}")
    axes[0, 0].legend(frameon=False)
    axes[2, 0].set_xlabel("tokens")
    axes[2, 1].set_xlabel("updates")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def pair(text):
    threshold, batch = map(int, text.split(":"))
    return threshold, batch


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=2_048_000, help="of each training (2048000)")
    parser.add_argument("--constant", type=int, default=4096, help="tokens in the constant batch (4096)")
    plan, as_text = [(0, 512), (204_800, 1024), (512_000, 2048), (1_024_000, 4096)], "TOKENS:BATCH"
    shown = " ".join(f"{threshold}:{batch}" for threshold, batch in plan)
    about = f"from so many tokens on, a batch of so many tokens ({shown})"
    parser.add_argument("--plan", type=pair, nargs="+", default=plan, metavar=as_text, help=about)
    parser.add_argument("--micro-batch", type=int, default=512, help="its tokens in each process (512)")
    parser.add_argument("--peak", type=float, default=4e-3, help="peak learning rate (0.004)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoints", default="batch_plan_checkpoints", metavar="FOLDER")
    parser.add_argument("--resume", action="store_true", help="continue from the newest checkpoint")
    parser.add_argument("--output", type=Path, default=Path("batch_plan.png"), metavar="FILE")
    args, settings = with_saved_settings(parser)
    try:
        steps = args.tokens // UNIT
        curve = PlateauCurve(steps, warmup_steps=steps // 10, plateaus=[(0, 50)], decay_shape="linear")
        plans = {"constant": BatchPlan([(0, args.constant)]), "growing": BatchPlan(args.plan)}
        for plan in plans.values():
            plan.check(args.micro_batch, PROCESSES)
    except ValueError as error:
        parser.error(str(error))
    if args.micro_batch % CONTEXT:
        parser.error(f"--micro-batch {args.micro_batch} must be a multiple of {CONTEXT}")
    program.check_device(parser, args.device)
    program.check_writable(parser, "--checkpoints", settings.parent)
    program.check_picture(parser, args.output)
    return args, settings, curve, plans


def main() -> None:
    args, settings, curve, plans = arguments()
    torch.set_num_threads(1)  # The model is small.
    text, _ = read_text()
    rows = text.unfold(0, CONTEXT + 1, CONTEXT)
    try:
        trainings = {name: Training(plan, curve, args) for name, plan in plans.items()}
        parts = {name: each.step for name, each in trainings.items()}
        parts |= {f"{name}_log": each.log for name, each in trainings.items()}
        checkpoints = Checkpoints(args.checkpoints)

        def save(wait=False):
            checkpoints.save(sum(len(each.log.rows) for each in trainings.values()), wait=wait, **parts)

        if args.resume:
            checkpoints.load(**parts)
        if is_main():
            settings.parent.mkdir(parents=True, exist_ok=True)
            settings.write_text(json.dumps(vars(args), default=str))
        for name, each in trainings.items():
            done = f"; {each.counts().sum():,} tokens are done" if args.resume else ""
            say(f"{name} batch: {args.tokens:,} tokens in {each.plan.updates(args.tokens):,} updates{done}")
        stop = program.stop_between_updates(signal.SIGTERM)  # which torchrun sends
        ended = all(train(name, each, rows, args, stop, save) for name, each in trainings.items())
        save(wait=True)
    except (OSError, ValueError, RuntimeError, FloatingPointError) as error:
        sys.exit(f"batch_plan.py: {error}")
    if not ended:
        say(f"stopped; {args.checkpoints} goes on with --resume")
        sys.exit(130)
    program.leave_on_ctrl_c()
    if is_main():
        compare(trainings, curve, args.peak)
        picture(args.output, trainings)
        print(f"picture: {args.output}")


if __name__ == "__main__":
    main()
