"""See what plateau-jax promises, on real data, in half a minute.

A small network learns the handwritten digits that ship with scikit-learn, in flax with optax and in
torch.nn with `lambda_lr`: the same curve, initial weights and batches.

1. One curve, warmup–stable–decay: at every step both frameworks use the same float32.
2. A branch: from a checkpoint on the plateau, a cooldown gives a finished model after half of the
   updates.
3. A resume: a run under a cosine continues under one that is twice as long. The schedules of optax
   and torch say nothing; `lambda_lr` raises an error.

The exit status is 1 if any of this does not hold.

    python examples/first_run.py
    python examples/first_run.py --steps 2000 --output digits.png
"""

from helpers import program

# isort: split
import argparse
import copy
import sys
import textwrap
import warnings
from pathlib import Path
from typing import NamedTuple

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import optax
import torch
from flax import nnx
from sklearn.datasets import load_digits
from torch.nn import functional
from torch.optim.lr_scheduler import CosineAnnealingLR

from plateau_jax import PlateauCurve, StagedCurve, optax_schedule
from torch_bridge import lambda_lr

matplotlib.use("Agg")  # writes files, opens no window

BATCH_SIZE = 16  # small, so that the loss on the plateau is noisy and a cooldown lowers it
INTERVAL = 20  # updates between two evaluations
PEAK = 1e-2
WEIGHT_DECAY = 0.01  # explicit, because the defaults of optax and torch differ
# Okabe and Ito, safe for color-blind readers
BLUE, ORANGE, GREEN = "#0072B2", "#D55E00", "#009E73"


class Data:
    """The digits: batches in a fixed order, and 297 held-out images."""

    def __init__(self, steps, seed):
        images, labels = load_digits(return_X_y=True)
        images, labels = (images / 16).astype(np.float32), labels.astype(np.int64)
        random = np.random.default_rng(seed)
        train, test = np.split(random.permutation(len(images)), [1500])
        epochs = -(-steps * BATCH_SIZE // len(train))
        order = np.concatenate([random.permutation(train) for _ in range(epochs)])
        indices = order[: steps * BATCH_SIZE].reshape(steps, BATCH_SIZE)
        self.batches = [(images[batch], labels[batch]) for batch in indices]
        self.held_out = images[test], labels[test]


class Network(nnx.Module):
    """64 pixels → 128 → 10 digits, in flax."""

    def __init__(self, rngs: nnx.Rngs):
        self.hidden = nnx.Linear(64, 128, rngs=rngs)
        self.digits = nnx.Linear(128, 10, rngs=rngs)

    def __call__(self, images):
        return self.digits(nnx.relu(self.hidden(images)))


def torch_twin(network: Network) -> torch.nn.Sequential:
    """Build the same network, with the same weights, in torch, whose kernels are transposed."""
    layers = []
    for flax_layer in (network.hidden, network.digits):
        layer = torch.nn.Linear(flax_layer.in_features, flax_layer.out_features)
        with torch.no_grad():
            layer.weight.copy_(torch.tensor(np.array(flax_layer.kernel[...]).T))
            layer.bias.copy_(torch.tensor(np.array(flax_layer.bias[...])))
        layers.append(layer)
    return torch.nn.Sequential(layers[0], torch.nn.ReLU(), layers[1])


def jax_loss(network, images, labels):
    return optax.softmax_cross_entropy_with_integer_labels(network(images), labels).mean()


@nnx.jit
def jax_update(network, optimizer, images, labels):
    loss, gradients = nnx.value_and_grad(jax_loss)(network, images, labels)
    optimizer.update(network, gradients)
    return loss, optimizer.opt_state.hyperparams["learning_rate"][...]


class JaxRun:
    """A run in flax with an optax schedule."""

    def __init__(self, seed, schedule):
        self.network = Network(nnx.Rngs(seed))
        adamw = optax.inject_hyperparams(optax.adamw)(schedule, weight_decay=WEIGHT_DECAY)
        self.optimizer = nnx.Optimizer(self.network, adamw, wrt=nnx.Param)

    def update(self, images, labels):
        """Make one update; return the loss before it and the learning rate it used."""
        return jax_update(self.network, self.optimizer, images, labels)

    def checkpoint(self):
        return copy.deepcopy([nnx.state(part) for part in (self.network, self.optimizer)])

    def load(self, checkpoint):
        for part, state in zip((self.network, self.optimizer), checkpoint, strict=True):
            nnx.update(part, state)

    def evaluate(self, images, labels):
        """Return the loss and the accuracy."""
        accuracy = np.mean(np.argmax(self.network(images), 1) == labels)
        return float(jax_loss(self.network, images, labels)), accuracy


class TorchRun:
    """The same run in torch, with one of its schedulers."""

    def __init__(self, seed, make_scheduler):
        self.network = torch_twin(Network(nnx.Rngs(seed)))
        parameters = self.network.parameters()
        self.optimizer = torch.optim.AdamW(parameters, lr=PEAK, weight_decay=WEIGHT_DECAY)
        self.scheduler = make_scheduler(self.optimizer)
        self.parts = self.network, self.optimizer, self.scheduler

    def update(self, images, labels):
        """Make one update; return the loss before it and the learning rate it used."""
        loss = functional.cross_entropy(self.network(torch.tensor(images)), torch.tensor(labels))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        lr = self.optimizer.param_groups[0]["lr"]
        self.scheduler.step()
        return loss.item(), lr

    def checkpoint(self):
        return copy.deepcopy([part.state_dict() for part in self.parts])

    def load(self, checkpoint):
        for part, state in zip(self.parts, checkpoint, strict=True):
            part.load_state_dict(state)

    def evaluate(self, images, labels):
        """Return the loss and the accuracy."""
        with torch.no_grad():
            outputs = self.network(torch.tensor(images))
        loss = functional.cross_entropy(outputs, torch.tensor(labels)).item()
        return loss, np.mean(outputs.argmax(1).numpy() == labels)


class Trace(NamedTuple):
    """Learning rates and losses by update, and held-out losses by number of updates."""

    lrs: dict[int, float]
    losses: dict[int, float]
    held_out: dict[int, float]


def train(runs, data, first, last, checkpoint_at=None):
    """Make the updates from `first` to `last` - 1 in each run.

    Returns the traces, and the checkpoint of the last run before update `checkpoint_at`.
    """
    traces = [Trace({}, {}, {}) for _ in runs]
    checkpoint = None
    for step in range(first, last):
        if step == checkpoint_at:
            checkpoint = runs[-1].checkpoint()
        for run, trace in zip(runs, traces, strict=True):
            if step % INTERVAL == 0:
                trace.held_out[step], _ = run.evaluate(*data.held_out)
            loss, lr = run.update(*data.batches[step])
            trace.losses[step], trace.lrs[step] = float(loss), np.float32(lr)
        if step % (5 * INTERVAL) == 0 or step == last - 1:
            shown = [f"{trace.lrs[step]:.7e}  {trace.losses[step]:.6f}" for trace in traces]
            print(f"{step:6d}  {'     '.join(shown)}", flush=True)
    for run, trace in zip(runs, traces, strict=True):
        trace.held_out[last], _ = run.evaluate(*data.held_out)
    return traces, checkpoint


class Resume(NamedTuple):
    """A run that was resumed under a changed schedule.

    Attributes:
        planned: The learning rate of each update without the resume.
        resumed: The learning rate of each update after the resume; empty after an error. In torch,
            the first one is that of the optimizer's state.
        said: Every warning and error.
    """

    planned: dict[int, float]
    resumed: dict[int, float]
    said: str


def resume_longer(make_run, data, at, steps):
    """Train for `steps` updates, and from the checkpoint of `at` in a run of twice the length."""
    planned, resumed = {}, {}
    run, longer = make_run(steps), make_run(2 * steps)
    for step, batch in enumerate(data.batches):
        if step == at:
            checkpoint = run.checkpoint()
        planned[step] = float(run.update(*batch)[1])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            longer.load(checkpoint)
        except ValueError as error:
            return Resume(planned, {}, f"{type(error).__name__}: {error}")
        for step in range(at, steps):
            resumed[step] = float(longer.update(*data.batches[step])[1])
    return Resume(planned, resumed, "; ".join(str(warning.message) for warning in caught))


def draw_picture(path, in_jax, in_torch, branch, resumes):
    """Draw learning rates, losses, and the learning rates of the resumes, over the updates."""
    figure, (rates, losses, cosines) = plt.subplots(
        3, 1, figsize=(8, 8), sharex=True, height_ratios=(2, 3, 2), layout="constrained"
    )
    band = {"color": BLUE, "lw": 4, "alpha": 0.45}
    dots = {"color": ORANGE, "marker": ".", "ls": "", "ms": 5, "markevery": INTERVAL}
    rates.plot(in_jax.lrs.keys(), in_jax.lrs.values(), label="JAX", **band)
    rates.plot(in_torch.lrs.keys(), in_torch.lrs.values(), label="PyTorch", **dots)
    rates.plot(branch.lrs.keys(), branch.lrs.values(), color=GREEN, lw=2, label="branch")
    rates.set_title("Learning rate: the same in JAX and PyTorch", loc="left")
    rates.legend(frameon=False, loc="center", bbox_to_anchor=(0.64, 0.4))

    losses.plot(in_jax.held_out.keys(), in_jax.held_out.values(), **band)
    losses.plot(in_torch.held_out.keys(), in_torch.held_out.values(), **dots | {"markevery": 1})
    losses.plot(branch.held_out.keys(), branch.held_out.values(), color=GREEN, lw=2)
    end, last = max(branch.held_out.items())
    losses.plot(end, last, "o", color=GREEN, ms=7, mfc="white")
    losses.annotate(f"{last:.3f}", (end, last), (0, -16), textcoords="offset points", color=GREEN)
    losses.set_title("Held-out loss", loc="left")
    losses.set(yscale="log")

    planned, of_optax, _ = resumes["optax"]
    of_torch = resumes["torch"].resumed
    at = min(of_optax)
    cosines.plot(planned.keys(), planned.values(), color="0.6", label="as planned")
    cosines.plot(of_optax.keys(), of_optax.values(), label="optax jumps", **band)
    cosines.plot(of_torch.keys(), of_torch.values(), label="torch ignores it", **dots)
    cosines.plot(at, planned[at], "X", color=GREEN, ms=9, label="here: an error")
    cosines.set_title(
        f"Learning rate of a cosine, resumed at {at} with twice the length", loc="left"
    )
    cosines.legend(frameon=False, loc="lower left")
    cosines.set(xlabel="updates")
    for axes in (rates, cosines):
        axes.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
    for axes in (rates, losses, cosines):
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(x=0.01)
    program.save_picture(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1000, help="updates (1000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("first_run.png"), metavar="FILE")
    args = parser.parse_args()
    if args.steps < 100 or args.seed < 0:
        parser.error(f"--steps {args.steps} must be at least 100, --seed {args.seed} at least 0")
    program.check_picture(parser, args.output)
    torch.set_num_threads(1)  # a second thread does not pay for matrices this small
    steps, seed = args.steps, args.seed
    data = Data(steps, seed)

    curve = StagedCurve.wsd(steps, warmup_steps=steps // 10, decay_steps="20%")
    start, end = 3 * steps // 10, steps // 2
    print("update  learning rate and loss in JAX, and in PyTorch")
    runs = [
        JaxRun(seed, optax_schedule(curve, PEAK)),
        TorchRun(seed, lambda optimizer: lambda_lr(optimizer, curve)),
    ]
    (in_jax, in_torch), checkpoint = train(runs, data, 0, steps, checkpoint_at=start)
    print(f"\nthe cooldown, from the checkpoint of update {start}")
    cooldown = curve.cooldown(at=start, steps=end - start)
    finished = TorchRun(seed, lambda optimizer: lambda_lr(optimizer, cooldown))
    finished.load(checkpoint)
    (branch,), _ = train([finished], data, start, end)

    differing = sum(in_jax.lrs[step] != in_torch.lrs[step] for step in range(steps))
    print(f"\nsteps at which the learning rates differ: {differing} of {steps}")
    for name, run in zip(("JAX", "PyTorch"), runs, strict=True):
        loss, accuracy = run.evaluate(*data.held_out)
        print(f"{name} after {steps} updates: held-out loss {loss:.4f}, {accuracy:.2%} right")
    loss, accuracy = finished.evaluate(*data.held_out)
    print(f"the branch after {end} updates: held-out loss {loss:.4f}, {accuracy:.2%} right", end="")
    near_end = end // INTERVAL * INTERVAL
    print(f" ({in_torch.held_out[near_end]:.4f} without the cooldown)")

    at = 6 * steps // 10
    print(f"\na cosine over {steps} updates, resumed at update {at} with a length of {2 * steps}:")
    cosines = {
        "optax": lambda total: JaxRun(seed, optax.cosine_decay_schedule(PEAK, total)),
        "torch": lambda total: TorchRun(seed, lambda adamw: CosineAnnealingLR(adamw, total)),
        "here": lambda total: TorchRun(seed, lambda adamw: lambda_lr(adamw, PlateauCurve(total))),
    }
    resumes = {name: resume_longer(make, data, at, steps) for name, make in cosines.items()}
    for name, (planned, resumed, said) in resumes.items():
        next_lr = f"{resumed[at]:.2e}" if resumed else "no update"
        outcome = f"{name}: {planned[at]:.2e} -> {next_lr}, {said or 'without a word'}"
        print(textwrap.fill(outcome, 96, subsequent_indent="  "))
    draw_picture(args.output, in_jax, in_torch, branch, resumes)
    print(f"picture: {args.output}")

    claims = {
        "the learning rates are equal": differing == 0,
        "the cooldown lowers the loss": branch.held_out[end] < in_torch.held_out[near_end],
        "optax and torch say nothing": not (resumes["optax"].said or resumes["torch"].said),
        "lambda_lr refuses the resume": not resumes["here"].resumed,
    }
    failed = [claim for claim, holds in claims.items() if not holds]
    if failed:
        sys.exit(f"not so: {', '.join(failed)}")


if __name__ == "__main__":
    main()
