"""Start cooldowns of several lengths from one checkpoint, and hold a plateau until it is flat.

A small network learns to predict the next byte of Python's standard library from the previous
eight: in JAX with optax and in PyTorch with LambdaLR, from the same weights, with the same batches.
After the stable phase both save a checkpoint, from which three runs continue, each with a different
cooldown. A fourth continues at the constant learning rate. All this is repeated for several seeds,
and the losses are compared where each cooldown ends.

One more run starts from scratch, holds its peak until the loss has stopped falling, and then cools
down. At every update the two learning rates are the same float32, bit for bit. The losses of the
two frameworks differ in their last bits, on which a rule's decision may depend. So both get the
loss of the JAX run, and hold at the same updates.

    python examples/branch_cooldowns.py
    python examples/branch_cooldowns.py --stable 2000 --cooldowns 200 400 800 --output branches.png
"""

from helpers import program

# isort: split
import argparse
import io
import sysconfig
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import optax
import torch
from torch import nn
from tqdm import tqdm

from plateau_jax import (
    Curve,
    HoldUntilFlat,
    StagedCurve,
    check_resume,
    resume_record,
    scale_by_curve,
)
from torch_bridge import lambda_lr

matplotlib.use("Agg")  # writes files, opens no window

CONTEXT = 8  # bytes
INTERVAL = 20  # updates between two evaluations on the held-out text
# Okabe and Ito, safe for colour-blind readers.
BLUE, GREEN, ORANGE, PINK = "#0072B2", "#009E73", "#D55E00", "#CC79A7"
BLACK, GRAY = "#000000", "#888888"
NAMES = {"constant": "constant lr", "cooled": "cooled down"}


def network(seed):
    """8 bytes → 16 numbers each → 128 → 256 bytes.

    Source: Bengio et al. 2003, "A Neural Probabilistic Language Model".
    """
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Embedding(256, 16),
        nn.Flatten(),
        nn.Linear(16 * CONTEXT, 128),
        nn.Tanh(),
        nn.Linear(128, 256),
    )


@jax.jit
def jax_loss(weights, contexts, targets):
    """Return the loss of the same network in JAX; weights have their names in torch."""
    inputs = weights["0.weight"][contexts].reshape(len(contexts), -1)
    hidden = jnp.tanh(inputs @ weights["2.weight"].T + weights["2.bias"])
    logits = hidden @ weights["4.weight"].T + weights["4.bias"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()


def torch_loss(model, contexts, targets):
    return nn.functional.cross_entropy(model(torch.tensor(contexts)), torch.tensor(targets))


class Text:
    """Contexts of eight bytes, each with the next byte."""

    def __init__(self, seed):
        files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
        text = np.frombuffer(b"".join(file.read_bytes() for file in files), np.uint8).astype(
            np.int32
        )
        windows = np.lib.stride_tricks.sliding_window_view(text, CONTEXT + 1)
        self.training, held_out = np.split(windows, [len(windows) * 9 // 10])
        self.held_out = self._pairs(held_out[:: len(held_out) // 4000])
        self.seed = seed

    def batch(self, update, size=64):
        """Draw the batch of an update, the same in every run."""
        random = np.random.default_rng([self.seed, update])
        return self._pairs(self.training[random.integers(len(self.training), size=size)])

    def _pairs(self, windows):
        return windows[:, :-1], windows[:, -1].astype(np.int64)


class Run(NamedTuple):
    """The learning rates and losses of a run, JAX first in each pair, and its final checkpoint."""

    name: str
    curve: Curve
    updates: range
    learning_rates: np.ndarray
    """float32, one per update."""
    evaluated_at: list[int]
    """Updates before each evaluation."""
    losses: np.ndarray
    """Losses on the held-out text, one per evaluation."""
    jax_state: tuple
    """Weights and optimizer state. JAX arrays never change, so they need no copy to be a
    checkpoint."""
    torch_state: bytes


def train(name, curve, args, text, *, start=None, rule=None, evaluate_after=()):
    """Train under a curve in both frameworks, from its first step or from another run's checkpoint.

    The losses are evaluated every `INTERVAL` updates, at the end, and after the numbers of updates
    in `evaluate_after`.
    """
    model = network(text.seed)
    adam = torch.optim.Adam(model.parameters(), lr=args.peak)
    scheduler = lambda_lr(adam, curve, clock=rule)

    weights = {name: jnp.array(values) for name, values in model.state_dict().items()}
    optimizer = optax.chain(optax.scale_by_adam(), scale_by_curve(curve, args.peak, clock=rule))
    state = weights, optimizer.init(weights)

    @jax.jit
    def jax_update(state, contexts, targets):
        weights, optimizer_state = state
        loss, gradients = jax.value_and_grad(jax_loss)(weights, contexts, targets)
        updates, optimizer_state = optimizer.update(gradients, optimizer_state, value=loss)
        lr = optax.tree_utils.tree_get(optimizer_state, "learning_rate")
        return (optax.apply_updates(weights, updates), optimizer_state), loss, lr

    def torch_update(contexts, targets):
        loss = torch_loss(model, contexts, targets)
        adam.zero_grad()
        loss.backward()
        adam.step()
        return adam.param_groups[0]["lr"]

    first = 0
    if start:
        first = start.updates.stop
        # The state in JAX does not contain the curve, so compare the histories here. lambda_lr does
        # so itself.
        state = start.jax_state
        curve_step = optax.tree_utils.tree_get(state, "curve_step")
        saved_record = resume_record(start.curve, args.peak)
        check_resume(saved_record, resume_record(curve, args.peak, rule), curve_step)
        saved = torch.load(io.BytesIO(start.torch_state))
        model.load_state_dict(saved["model"])
        adam.load_state_dict(saved["adam"])
        scheduler.load_state_dict(saved["scheduler"])

    done, learning_rates, evaluated_at, losses = first, [], [], []

    def evaluate():
        evaluated_at.append(done)
        losses.append(
            (jax_loss(state[0], *text.held_out), torch_loss(model, *text.held_out).item())
        )

    # A held run makes more updates than its curve has steps.
    bar = tqdm(desc=name, total=curve.total_steps, initial=first, unit=" updates", leave=False)
    while scheduler.curve_step < curve.total_steps:
        if done % INTERVAL == 0 or done in evaluate_after:
            evaluate()
        batch = text.batch(done)
        state, loss, jax_lr = jax_update(state, *batch)
        learning_rates.append((jax_lr, torch_update(*batch)))
        if rule is None:
            scheduler.step()
        else:
            scheduler.step(float(loss))
        done += 1
        bar.update()
    bar.close()
    evaluate()

    saved = io.BytesIO()
    parts = {"model": model, "adam": adam, "scheduler": scheduler}
    torch.save({name: part.state_dict() for name, part in parts.items()}, saved)
    learning_rates, losses = np.array(learning_rates, np.float32).T, np.array(losses).T
    differing = np.count_nonzero(
        learning_rates[0].view(np.int32) != learning_rates[1].view(np.int32)
    )
    print(f"{text.seed:4} {name:16} {first:5} {done:5} {differing:18}", end="")
    print("  {:20.4f}  {:10.4f}".format(*losses[:, -1]), flush=True)
    return Run(
        name,
        curve,
        range(first, done),
        learning_rates,
        evaluated_at,
        losses,
        state,
        saved.getvalue(),
    )


class SeedResults(NamedTuple):
    """The runs of one seed, and held-out losses in JAX where each cooldown ends."""

    number: int
    runs: list[Run]
    """The stable phase, its continuation at the constant learning rate, the cooldowns."""
    constant: list[float]
    cooled: list[float]


def train_seed(text, stable, branches, args):
    """Train the stable phase; continue it with each cooldown and at a constant learning rate."""
    trunk = train("stable phase", stable, args, text)
    cooled = [
        train(f"cooldown of {branch.steps}", branch, args, text, start=trunk) for branch in branches
    ]
    longer = stable.then(StagedCurve([(max(args.cooldowns),)], start=1.0))
    ends = [branch.total_steps for branch in branches]
    constant = train("constant lr", longer, args, text, start=trunk, evaluate_after=ends)
    at_constant = [float(constant.losses[0, constant.evaluated_at.index(end)]) for end in ends]
    at_end = [float(run.losses[0, -1]) for run in cooled]
    return SeedResults(text.seed, [trunk, constant, *cooled], at_constant, at_end)


def compare(seeds, args):
    """Print the losses at the end of each cooldown, one column per seed."""
    columns = "".join(f"{f'seed {seed.number}':>10}" for seed in seeds)
    print(f"\nheld-out loss in JAX        {columns}{'mean':>10}")
    for index, steps in enumerate(args.cooldowns):
        for field, name in NAMES.items():
            losses = [getattr(seed, field)[index] for seed in seeds]
            row = "".join(f"{loss:10.4f}" for loss in [*losses, np.mean(losses)])
            print(f"{name:14} {steps:5} updates{row}")


def draw_picture(path, seed, held):
    """Draw the learning rates and the losses in JAX of one seed."""
    figure, (above, below) = plt.subplots(
        2, 1, figsize=(7.2, 6), height_ratios=(2, 3), sharex=True, layout="constrained"
    )

    def label(axes, text, place, offset, align, color=BLACK):
        """Write a text at an offset, in points, from a place."""
        axes.annotate(
            text, place, offset, textcoords="offset points", ha=align, va="center", color=color
        )

    trunk, constant, *cooled = seed.runs
    colors = [BLUE, GREEN, ORANGE]
    runs = [held, constant, trunk, *cooled]
    for run, color in zip(runs, [PINK, GRAY, BLACK, *colors], strict=True):
        above.plot(run.updates, run.learning_rates[0], color=color, lw=2)
        below.plot(run.evaluated_at, run.losses[0], color=color, lw=2)
    for run, color in zip([held, *cooled], [PINK, *colors], strict=True):
        last = run.losses[0, -1]
        label(below, f"{last:.3f}", (run.updates.stop, last), (2, -11), "right", color)

    peak = trunk.learning_rates.max()
    branching = trunk.updates.stop
    label(above, "stable phase", (0.7 * branching, peak), (0, 8), "center")
    label(above, "constant learning rate", (constant.updates.stop, peak), (0, 8), "right", GRAY)
    at_half = np.flatnonzero(held.learning_rates[0] > peak / 2)[-1]
    label(above, "held until the\nloss is flat", (at_half, peak / 2), (8, 14), "left", PINK)
    lengths = [str(len(run.updates)) for run in cooled]
    text = f"cooldowns of\n{', '.join(lengths)}\nupdates"
    label(above, text, (branching, peak / 2), (-8, 0), "right")
    above.set_ylim(top=1.2 * peak)
    above.set_title("Learning rate", loc="left")
    below.set_title("Held-out loss, nats per byte", loc="left")
    below.set(xlabel="updates")
    # With the fall at the start in view, the differences at the end would be invisible.
    lowest = min(run.losses[0].min() for run in runs)
    below.set_ylim(lowest - 0.08, trunk.losses[0, len(trunk.evaluated_at) // 10] + 0.05)
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(x=0.02)
    program.save_picture(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--warmup", type=int, default=50)
    parser.add_argument(
        "--stable", type=int, default=1000, help="updates before the cooldowns (1000)"
    )
    parser.add_argument("--cooldowns", type=int, nargs=3, default=(100, 200, 400), metavar="STEPS")
    parser.add_argument("--peak", type=float, default=1e-2, help="peak learning rate (0.01)")
    parser.add_argument(
        "--every", type=int, default=50, help="updates per reading of the hold rule (50)"
    )
    parser.add_argument("--seed", type=int, default=0, help="the first seed (0)")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds (3)")
    parser.add_argument("--output", type=Path, default=Path("branch_cooldowns.png"), metavar="FILE")
    args = parser.parse_args()
    if not 1e-9 <= args.peak <= 1 or args.seed < 0:
        parser.error(
            f"--peak {args.peak} must lie between 1e-9 and 1, and --seed {args.seed} be at least 0"
        )
    if args.seeds < 1:
        parser.error(f"--seeds {args.seeds} must be at least 1")
    program.check_picture(parser, args.output)
    try:
        stable = StagedCurve([(args.warmup, 1.0), (args.stable - args.warmup,)])
        branches = [stable.cooldown(args.stable, steps) for steps in args.cooldowns]
        # The plateau has one step, at which the curve is held until the loss is flat.
        held = StagedCurve([(args.warmup, 1.0), (1,), (args.cooldowns[-1], 0.0, "1-sqrt")])
        rule = HoldUntilFlat(patience=4, threshold=0.005, every=args.every, limit=4 * args.stable)
    except ValueError as error:
        parser.error(str(error))

    torch.set_num_threads(1)  # a second thread does not pay for matrices this small
    print("seed run               from    to    lrs that differ  held-out loss in JAX  in PyTorch")
    texts = [Text(args.seed + number) for number in range(args.seeds)]
    seeds = [train_seed(text, stable, branches, args) for text in texts]
    until_flat = train("held until flat", held, args, texts[0], rule=rule)
    lasted = len(until_flat.updates) - held.total_steps + 1
    print(f"updates that the plateau of one step lasted: {lasted}")
    compare(seeds, args)
    draw_picture(args.output, seeds[0], until_flat)
    print(f"picture: {args.output}")


if __name__ == "__main__":
    main()
