"""One stable phase, three cooldowns off its checkpoint, and a plateau that ends when the loss is flat.

A small network learns to guess the next byte of Python's standard library from the eight before it: in
JAX with optax and in PyTorch with LambdaLR, from the same weights, with the same batches. After the stable
phase both save a checkpoint, from which three runs go on, each under a cooldown of its own. One more run
starts anew, holds its peak until the loss has stopped falling, and then cools down. At every update the
two learning rates are the same float32, bit for bit.

The losses of two frameworks differ in their last bits, and a rule may decide on these. So both get the loss
of the JAX run, and hold at the same updates.

    python examples/branch_cooldowns.py
    python examples/branch_cooldowns.py --stable 2000 --cooldowns 200 400 800 --output branches.png
"""

import program

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

from plateau_jax import Curve, HoldUntilFlat, StagedCurve, scale_by_curve
from torch_bridge import lambda_lr

matplotlib.use("Agg")  # A file, no window.

CONTEXT = 8  # bytes
LOOK = 20  # updates between two evaluations on the held-out text
# Colours by Okabe and Ito, which colour-blind eyes tell apart; and marks, for black and white.
LOOKS = ("#000000", "."), ("#0072B2", "^"), ("#009E73", "s"), ("#D55E00", "D"), ("#CC79A7", "v")


def network(seed):
    """8 bytes → 16 numbers each → 128 → 256 bytes.

    Source: Bengio et al. 2003, "A Neural Probabilistic Language Model".
    """
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Embedding(256, 16), nn.Flatten(), nn.Linear(16 * CONTEXT, 128), nn.Tanh(), nn.Linear(128, 256)
    )


@jax.jit
def jax_loss(weights, contexts, targets):
    """The same network and its loss in JAX, with the weights by their names in torch."""
    inputs = weights["0.weight"][contexts].reshape(len(contexts), -1)
    hidden = jnp.tanh(inputs @ weights["2.weight"].T + weights["2.bias"])
    logits = hidden @ weights["4.weight"].T + weights["4.bias"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()


def torch_loss(model, contexts, targets):
    return nn.functional.cross_entropy(model(torch.tensor(contexts)), torch.tensor(targets))


class Text:
    """Contexts of eight bytes, each with the byte that follows."""

    def __init__(self, seed):
        files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
        text = np.frombuffer(b"".join(file.read_bytes() for file in files), np.uint8).astype(np.int32)
        windows = np.lib.stride_tricks.sliding_window_view(text, CONTEXT + 1)
        self.training, held_out = np.split(windows, [len(windows) * 9 // 10])
        self.held_out = self._pairs(held_out[:: len(held_out) // 4000])
        self.seed = seed

    def batch(self, update, size=64):
        """The batch of an update; it is the same in every run."""
        random = np.random.default_rng([self.seed, update])
        return self._pairs(self.training[random.integers(len(self.training), size=size)])

    def _pairs(self, windows):
        return windows[:, :-1], windows[:, -1].astype(np.int64)


class Run(NamedTuple):
    """The rates and losses of a run, JAX first in each pair, and the checkpoint at its end."""

    name: str
    curve: Curve
    updates: range
    rates: np.ndarray
    """Of each update, float32."""
    looks: list[int]
    losses: np.ndarray
    """On the held-out text, at `looks`."""
    jax_state: tuple
    """Weights and the optimizer's state. Arrays of JAX never change: this is a checkpoint as it is."""
    torch_state: bytes


def train(name, curve, args, text, *, start=None, hold=None):
    """Follow a curve to its end in both frameworks, from its first step or from another run's checkpoint."""
    model = network(args.seed)
    adam = torch.optim.Adam(model.parameters(), lr=args.peak)
    scheduler = lambda_lr(adam, curve, hold=hold)

    weights = {name: jnp.array(values) for name, values in model.state_dict().items()}
    optimizer = optax.chain(optax.scale_by_adam(), scale_by_curve(curve, args.peak, hold=hold))
    state = weights, optimizer.init(weights)

    @jax.jit
    def jax_update(state, contexts, targets):
        weights, optimizer_state = state
        loss, gradients = jax.value_and_grad(jax_loss)(weights, contexts, targets)
        updates, optimizer_state = optimizer.update(gradients, optimizer_state, value=loss)
        rate = optax.tree_utils.tree_get(optimizer_state, "learning_rate")
        return (optax.apply_updates(weights, updates), optimizer_state), loss, rate

    def torch_update(contexts, targets):
        loss = torch_loss(model, contexts, targets)
        adam.zero_grad()
        loss.backward()
        adam.step()
        return adam.param_groups[0]["lr"]

    first = 0
    if start:
        first = start.updates.stop
        # JAX's state holds no curve, so the past is compared here; torch's scheduler compares it itself.
        state = start.jax_state
        if not start.curve.same_until(curve, int(optax.tree_utils.tree_get(state, "clock"))):
            raise ValueError("the checkpoint has another past")
        saved = torch.load(io.BytesIO(start.torch_state))
        model.load_state_dict(saved["model"])
        adam.load_state_dict(saved["adam"])
        scheduler.load_state_dict(saved["scheduler"])

    done, rates, looks, losses = first, [], [], []

    def look():
        looks.append(done)
        losses.append((jax_loss(state[0], *text.held_out), torch_loss(model, *text.held_out).item()))

    # A run that is held takes some updates more than its curve has steps.
    bar = tqdm(desc=name, total=curve.total_steps, initial=first, unit=" updates", leave=False)
    while scheduler.clock < curve.total_steps:
        if done % LOOK == 0:
            look()
        batch = text.batch(done)
        state, loss, jax_rate = jax_update(state, *batch)
        rates.append((jax_rate, torch_update(*batch)))
        scheduler.step(*([float(loss)] if hold else []))
        done += 1
        bar.update()
    bar.close()
    look()

    saved = io.BytesIO()
    parts = {"model": model, "adam": adam, "scheduler": scheduler}
    torch.save({name: part.state_dict() for name, part in parts.items()}, saved)
    rates, losses = np.array(rates, np.float32).T, np.array(losses).T
    differing = np.count_nonzero(rates[0].view(np.int32) != rates[1].view(np.int32))
    print(f"{name:16} {first:5} {done:5} {differing:18}", end="")
    print("  {:20.4f}  {:10.4f}".format(*losses[:, -1]), flush=True)
    return Run(name, curve, range(first, done), rates, looks, losses, state, saved.getvalue())


def picture(path, runs):
    """The learning rates above, the losses below, over one axis of updates; JAX first in each pair."""
    figure, (above, below) = plt.subplots(
        2, 1, figsize=(10, 7), sharex=True, height_ratios=(2, 3), layout="constrained"
    )
    named = {}
    for run, (color, marker) in reversed([*zip(runs, LOOKS, strict=True)]):
        line = {"color": color, "lw": 4, "alpha": 0.45}
        marks = {"color": color, "marker": marker, "ls": "", "ms": 4.5}
        above.plot(run.updates, run.rates[0], **line)
        above.plot(run.updates[::LOOK], run.rates[1, ::LOOK], **marks)
        in_jax, in_torch = run.losses
        named[f"{run.name}, {in_jax[-1]:.3f} at the end"] = (
            *below.plot(run.looks, in_jax, **line),
            *below.plot(run.looks, in_torch, **marks),
        )
    above.set_title("Learning rate (lines: JAX, marks: PyTorch)", loc="left")
    below.set_title("Loss on the text held out, nats a byte", loc="left")
    below.set(xlabel="updates")
    # The fall at the start would hide the differences at the end.
    first, *_ = runs
    lowest = min(run.losses.min() for run in runs)
    below.set_ylim(lowest - 0.05, first.losses[0, len(first.looks) // 10] + 0.05)
    below.legend([*named.values()][::-1], [*named][::-1], frameon=False)
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(x=0.01)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--warmup", type=int, default=50)
    parser.add_argument("--stable", type=int, default=1000, help="updates before the cooldowns (1000)")
    parser.add_argument("--cooldowns", type=int, nargs=3, default=(100, 200, 400), metavar="STEPS")
    parser.add_argument("--peak", type=float, default=1e-2, help="peak learning rate (0.01)")
    parser.add_argument("--every", type=int, default=50, help="updates in a reading of the hold (50)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("branch_cooldowns.png"), metavar="FILE")
    args = parser.parse_args()
    if not 1e-9 <= args.peak <= 1 or args.seed < 0:
        parser.error(f"--peak {args.peak} must lie between 1e-9 and 1, and --seed {args.seed} be at least 0")
    program.check_picture(parser, args.output)
    try:
        stable = StagedCurve([(args.warmup, 1.0), (args.stable - args.warmup,)])
        branches = [stable.cooldown(args.stable, steps) for steps in args.cooldowns]
        # Its plateau has one step; the clock stands there until the loss is flat.
        held = StagedCurve([(args.warmup, 1.0), (1,), (args.cooldowns[-1], 0.0, "1-sqrt")])
        rule = HoldUntilFlat(patience=4, threshold=0.005, every=args.every, limit=4 * args.stable)
    except ValueError as error:
        parser.error(str(error))

    torch.set_num_threads(1)  # Matrices this small gain nothing from a second thread.
    text = Text(args.seed)
    print("run               from    to  rates that differ  held-out loss in JAX  in PyTorch")
    trunk = train("stable phase", stable, args, text)
    cooled = [train(f"cooldown of {branch.steps}", branch, args, text, start=trunk) for branch in branches]
    until_flat = train("held until flat", held, args, text, hold=rule)
    lasted = len(until_flat.updates) - held.total_steps + 1
    print(f"updates that the plateau of one step lasted: {lasted}")
    picture(args.output, [trunk, *cooled, until_flat])
    print(f"picture: {args.output}")


if __name__ == "__main__":
    main()
