"""Train one small network on real data in JAX and in PyTorch, under one learning-rate curve.

The handwritten digits that ship with scikit-learn, the same initial weights and the same batches in
flax with optax and in torch.nn with LambdaLR. At every step the two learning rates are the same
float32, bit for bit; the losses differ only by how each framework rounds its sums.

    python examples/train_digits.py
    python examples/train_digits.py --steps 2000 --plateau 50 30 --output digits.png
"""

import program

# isort: split
import argparse
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import optax
import torch
from flax import nnx
from sklearn.datasets import load_digits

from plateau_jax import PlateauCurve, optax_schedule
from torch_bridge import lambda_lr

matplotlib.use("Agg")  # writes files, opens no window

HIDDEN = 128
WEIGHT_DECAY = 0.01  # explicit, because the defaults of optax and torch differ


class Network(nnx.Module):
    """64 pixels → 128 → 10 digits, in flax."""

    def __init__(self, rngs: nnx.Rngs):
        self.hidden = nnx.Linear(64, HIDDEN, rngs=rngs)
        self.digits = nnx.Linear(HIDDEN, 10, rngs=rngs)

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


@nnx.jit
def jax_update(network, optimizer, images, labels):
    """Make one update; return the loss before it and the learning rate it used."""

    def loss_fn(network):
        return optax.softmax_cross_entropy_with_integer_labels(network(images), labels).mean()

    loss, gradients = nnx.value_and_grad(loss_fn)(network)
    optimizer.update(network, gradients)
    return loss, optimizer.opt_state.hyperparams["learning_rate"][...]


def torch_update(network, optimizer, scheduler, images, labels):
    """Make one update; return the loss before it and the learning rate it used."""
    loss = torch.nn.functional.cross_entropy(network(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    lr = optimizer.param_groups[0]["lr"]
    scheduler.step()
    return loss.item(), lr


def draw_picture(path: Path, curve: PlateauCurve, learning_rates, losses) -> None:
    """Draw the learning rate above both losses, over the steps; JAX comes first in each pair."""
    blue, orange = "#0072B2", "#D55E00"
    figure, (above, below) = plt.subplots(
        2, 1, figsize=(8, 6), sharex=True, height_ratios=(2, 3), layout="constrained"
    )
    for axes in (above, below):
        for segment in curve.segments:
            if segment.kind == "plateau":
                axes.axvspan(segment.first_step, segment.last_step + 1, color="0.93", lw=0)
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(x=0.01)

    # Losses of single batches are noisy, so the picture shows means over groups of batches.
    steps = np.arange(curve.total_steps)
    group = max(1, len(steps) // 50)
    whole = len(steps) // group * group
    grouped_steps = steps[:whole].reshape(-1, group).mean(1)
    grouped_losses = losses[:, :whole].reshape(2, -1, group).mean(2)

    above.plot(steps, learning_rates[0], color=blue, lw=4, alpha=0.45)
    above.plot(steps[::group], learning_rates[1, ::group], ".", color=orange, ms=4)
    above.set_title("Learning rate (plateaus shaded)", loc="left")
    above.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
    below.plot(
        grouped_steps, grouped_losses[0], color=blue, lw=4, alpha=0.45, label="JAX: flax, optax"
    )
    below.plot(
        grouped_steps,
        grouped_losses[1],
        ".",
        color=orange,
        ms=4,
        label="PyTorch: torch.nn, LambdaLR",
    )
    below.plot(steps, losses[0], color="0.8", lw=0.6, zorder=1, label="every batch")
    below.set_title(f"Training loss (mean of {group} batches)", loc="left")
    below.set(xlabel="step", yscale="log")
    below.legend(frameon=False)
    program.save_picture(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--peak", type=float, default=3e-3, help="peak learning rate (0.003)")
    parser.add_argument("--warmup", type=int, help="warmup steps (a tenth of all)")
    parser.add_argument(
        "--plateau",
        type=float,
        nargs=2,
        action="append",
        metavar=("START", "DURATION"),
        help="a plateau, in percent of the steps after the warmup; may be repeated (30 20, 70 15)",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("train_digits.png"), metavar="FILE")
    args = parser.parse_args()
    if args.batch_size < 1 or args.seed < 0:
        parser.error(
            f"--batch-size {args.batch_size} must be at least 1, --seed {args.seed} at least 0"
        )
    program.check_picture(parser, args.output)
    try:
        curve = PlateauCurve(
            args.steps,
            warmup_steps=args.steps // 10 if args.warmup is None else args.warmup,
            plateaus=args.plateau or [(30, 20), (70, 15)],
            min_lr_ratio=0.01,
        )
        schedule = optax_schedule(curve, args.peak)
    except ValueError as error:
        parser.error(str(error))
    print(curve.describe(), end="\n\n")

    images, labels = load_digits(return_X_y=True)
    images, labels = (images / 16).astype(np.float32), labels.astype(np.int64)
    random = np.random.default_rng(args.seed)
    train, test = np.split(random.permutation(len(images)), [1500])
    epochs = -(-args.steps * args.batch_size // len(train))
    order = np.concatenate([random.permutation(train) for _ in range(epochs)])
    batches = order[: args.steps * args.batch_size].reshape(args.steps, args.batch_size)

    jax_network = Network(nnx.Rngs(args.seed))
    adamw = optax.inject_hyperparams(optax.adamw)(schedule, weight_decay=WEIGHT_DECAY)
    jax_optimizer = nnx.Optimizer(jax_network, adamw, wrt=nnx.Param)

    torch.set_num_threads(1)  # a second thread does not pay for matrices this small
    torch_network = torch_twin(jax_network)
    torch_optimizer = torch.optim.AdamW(
        torch_network.parameters(), lr=args.peak, weight_decay=WEIGHT_DECAY
    )
    torch_scheduler = lambda_lr(torch_optimizer, curve)

    losses, learning_rates = np.empty((2, args.steps)), np.empty((2, args.steps), np.float32)
    print("   step  learning rate  loss in JAX  loss in PyTorch")
    for step, batch in enumerate(batches):
        x, y = images[batch], labels[batch]
        losses[0, step], learning_rates[0, step] = jax_update(jax_network, jax_optimizer, x, y)
        losses[1, step], learning_rates[1, step] = torch_update(
            torch_network, torch_optimizer, torch_scheduler, torch.tensor(x), torch.tensor(y)
        )
        if step % max(1, args.steps // 10) == 0 or step == args.steps - 1:
            figures = learning_rates[0, step], *losses[:, step]
            print("{:7d}  {:13.7e}  {:11.6f}  {:15.6f}".format(step, *figures), flush=True)

    with torch.no_grad():
        torch_guesses = torch_network(torch.tensor(images[test])).argmax(1).numpy()
    jax_guesses = np.argmax(jax_network(images[test]), 1)
    differing = np.count_nonzero(
        learning_rates[0].view(np.int32) != learning_rates[1].view(np.int32)
    )
    print()
    print(f"steps at which the two learning rates differ: {differing} of {args.steps}")
    print(
        f"largest difference between the two losses:    {np.abs(losses[0] - losses[1]).max():.1e}"
    )
    print(
        f"test accuracy in JAX:                         {np.mean(jax_guesses == labels[test]):.2%}"
    )
    print(
        "test accuracy in PyTorch:                     "
        f"{np.mean(torch_guesses == labels[test]):.2%}"
    )
    draw_picture(args.output, curve, learning_rates, losses)
    print(f"picture:                                      {args.output}")


if __name__ == "__main__":
    main()
