"""Find the best start and length of a plateau: train one network under 97 curves at once.

The data are the handwritten digits that ship with scikit-learn. The networks have the same initial
weights and see the same batches; each has a different curve. The curves are one table,
`stack(curves)`, over which `jax.vmap` trains all of them in one compiled program. For comparison,
the runs are also timed one after another; that program is compiled only once too, since the table
is an argument.

    python examples/sweep.py
    python examples/sweep.py --steps 1000 --peak 0.003 --output sweep.png
    python examples/sweep.py --hidden 8 --batch-size 8

Together they are faster only while one network leaves the device idle, as a tiny one does on a CPU.
"""

from helpers import program

# isort: split
import argparse
import statistics
import time
from operator import itemgetter
from pathlib import Path

import jax
import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import optax
from sklearn.datasets import load_digits
from tqdm import tqdm

from plateau_jax import PlateauCurve, multiplier, plot, stack

matplotlib.use("Agg")  # writes files, opens no window

STARTS = range(0, 60, 5)  # in percent of the steps after the warmup
LENGTHS = range(5, 45, 5)


def initial_weights(random, hidden):
    """64 pixels → hidden units → 10 digits; biases begin at 0."""
    sizes = (64, hidden), (hidden, 10)
    return [
        (
            random.normal(0, inputs**-0.5, (inputs, outputs)).astype("float32"),
            np.zeros(outputs, "float32"),
        )
        for inputs, outputs in sizes
    ]


def loss_fn(weights, images, labels):
    (hidden, hidden_bias), (digits, digits_bias) = weights
    logits = jax.nn.relu(images @ hidden + hidden_bias) @ digits + digits_bias
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def make_train(weights, batches, held_out, peak):
    """Return a function that trains a network under a curve's table."""

    def train(table):
        """Return the loss on held-out images and the learning rates used."""
        optimizer = optax.inject_hyperparams(optax.adam)(
            lambda step: peak * multiplier(table, step)
        )

        def update(state, batch):
            weights, optimizer_state = state
            gradients = jax.grad(loss_fn)(weights, *batch)
            updates, optimizer_state = optimizer.update(gradients, optimizer_state)
            lr = optimizer_state.hyperparams["learning_rate"]
            return (optax.apply_updates(weights, updates), optimizer_state), lr

        (trained, _), learning_rates = jax.lax.scan(
            update, (weights, optimizer.init(weights)), batches
        )
        return loss_fn(trained, *held_out), learning_rates

    return train


def timed(call):
    begin = time.perf_counter()
    result = jax.block_until_ready(call())
    return result, time.perf_counter() - begin


def draw_picture(path, curves, losses, peak):
    """Draw the losses relative to the loss without a plateau, and the best and the worst curve."""
    *swept, plain = losses
    chosen = {"best": np.argmin(swept), "worst": np.argmax(swept), "no plateau": len(swept)}
    most = np.abs(np.array(swept) - plain).max()
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(12, 4.8), width_ratios=(4, 3), layout="constrained"
    )

    shown = np.reshape(swept, (len(LENGTHS), len(STARTS)))
    image = left.imshow(
        shown, "RdBu_r", origin="lower", aspect="auto", vmin=plain - most, vmax=plain + most
    )
    for name in ("best", "worst"):
        row, column = divmod(chosen[name], len(STARTS))
        dark = abs(swept[chosen[name]] - plain) > most / 2
        left.text(column, row, name, color="white" if dark else "black", ha="center", va="center")
    left.set_xticks(range(len(STARTS)), STARTS)
    left.set_yticks(range(len(LENGTHS)), LENGTHS)
    left.set(
        xlabel="start of the plateau (% of the steps after the warmup)", ylabel="its length (%)"
    )
    left.set_title(f"Held-out loss (white: {plain:.4f}, without a plateau)", loc="left")
    left.tick_params(length=0)
    left.spines[:].set_visible(False)
    bar = figure.colorbar(image, ax=left)
    bar.outline.set_visible(False)
    bar.ax.set_ylim(shown.min(), shown.max())  # the colors reach as far below as above the white

    plot([curves[index] for index in chosen.values()], peak_value=peak, ax=right)
    for line, (name, index) in zip(right.lines, chosen.items(), strict=True):
        line.set(
            label=f"{name}: {losses[index]:.4f}", color=image.to_rgba(losses[index]), linewidth=2
        )
    right.lines[-1].set_color("0.5")
    right.set_ylim(top=1.35 * peak)
    right.legend(frameon=False, loc="upper right")
    right.set_title("Learning rate, and final held-out loss", loc="left")
    right.set_ylabel(None)
    right.yaxis.set_major_formatter("{x:g}")
    right.spines[["top", "right"]].set_visible(False)
    program.save_picture(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=32, help="hidden units of a network (32)")
    parser.add_argument("--peak", type=float, default=1e-2, help="peak learning rate (0.01)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of timing (5)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("sweep.png"), metavar="FILE")
    args = parser.parse_args()
    if min(args.batch_size, args.hidden, args.rounds) < 1 or args.seed < 0:
        parser.error("--batch-size, --hidden and --rounds must be at least 1, --seed at least 0")
    if not 1e-9 <= args.peak <= 1:
        parser.error(f"--peak {args.peak} must lie between 1e-9 and 1")
    program.check_picture(parser, args.output)
    plateaus = [[(start, length)] for length in LENGTHS for start in STARTS]
    try:
        curves = [
            PlateauCurve(args.steps, warmup_steps=args.steps // 10, plateaus=chosen)
            for chosen in [*plateaus, []]
        ]
    except ValueError as error:
        parser.error(str(error))

    images, labels = load_digits(return_X_y=True)
    images, labels = (images / 16).astype(np.float32), labels.astype(np.int32)
    random = np.random.default_rng(args.seed)
    for_training, held_out = np.split(random.permutation(len(images)), [1000])
    batches = random.choice(for_training, (args.steps, args.batch_size))
    train = make_train(
        initial_weights(random, args.hidden),
        (images[batches], labels[batches]),
        (images[held_out], labels[held_out]),
        np.float32(args.peak),
    )

    # Compiled ahead of time, because such a program raises an error where jit would compile again.
    stacked = stack(curves)
    rows = [jax.tree.map(itemgetter(index), stacked) for index in range(len(curves))]
    table, *tables = jax.device_put([stacked, *rows])
    print("compiling", flush=True)
    together, compiling = timed(lambda: jax.jit(jax.vmap(train)).lower(table).compile())
    alone, compiling_one = timed(lambda: jax.jit(train).lower(tables[0]).compile())
    seconds = {together: [], alone: []}
    with tqdm(
        desc="training", total=(1 + args.rounds) * 2 * len(curves), unit=" networks", leave=False
    ) as bar:
        for _ in range(1 + args.rounds):  # the first warms up
            (losses, learning_rates), taken = timed(lambda: together(table))
            seconds[together].append(taken)
            bar.update(len(curves))
            runs, taken = timed(lambda: [alone(one_table) for one_table in tables])
            seconds[alone].append(taken)
            bar.update(len(curves))
    at_once, in_turn = (statistics.median(seconds[way][1:]) for way in (together, alone))
    ratios = [one / other for one, other in zip(seconds[alone], seconds[together], strict=True)][1:]

    losses, learning_rates = np.asarray(losses), np.asarray(learning_rates)
    alone_losses = np.array([loss for loss, _ in runs])
    expected = np.float32(args.peak) * np.array([curve(range(args.steps)) for curve in curves])
    differing = np.count_nonzero(learning_rates.view(np.int32) != expected.view(np.int32))
    best = int(np.argmin(losses[:-1]))
    ((start, length),) = curves[best].plateaus
    print(f"learning rates ≠ peak · curve(step):        {differing} of {learning_rates.size}")
    print(f"held-out loss without a plateau:            {losses[-1]:.4f}")
    print(f"the best, a plateau at {start} % for {length} %:".ljust(43), f"{losses[best]:.4f}")
    print(
        f"{len(curves)} runs at once:".ljust(43),
        f"{at_once:.3f} s, after {compiling:.1f} s to compile",
    )
    print(
        f"one after another:                          {in_turn:.3f} s, after {compiling_one:.1f} s"
    )
    print(f"times as fast at once:                      {statistics.median(ratios):.2f}")
    print(f"largest difference between their losses:    {np.abs(losses - alone_losses).max():.1e}")
    draw_picture(args.output, curves, losses, args.peak)
    print(f"picture:                                    {args.output}")


if __name__ == "__main__":
    main()
