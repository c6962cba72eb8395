"""Choose start, length and shape of a cooldown after the run has ended.

A run stays at its peak and saves a checkpoint 40 times, each with the mean of the weights over the
updates since the one before, a block. Then 50 cooldowns are drawn, the same for every seed: their
starts and ends are anywhere, also between two checkpoints. For each of them, the program compares
the held-out losses of

    block means     the merge of the means, with the averaging weights of `Curve.merge_weights`
    every update    the merge of the weights after every update
    checkpoints     the merge of the checkpoints themselves
    cooled down     a real cooldown from the drawn start
    no cooldown     the run itself, where the cooldown ends
    EMA             an exponential moving average of the weights, at the same place

It also merges fewer and more checkpoints: from 3 to 20 in each cooldown.

Each merge is a weighted sum of the weights after the updates of the run, and so is an EMA. So the
program stores neither: it adds the weights to all sums while the run is trained.

There are three tasks, all with Adam:

    digits       the network and the images of choosing_a_curve.ipynb, in batches of 8
    regression   a noisy function, of which every batch has 32 new samples: nothing is seen twice
    text         a transformer with 119,000 parameters, which reads the source of Python's standard
                 library byte by byte

    python examples/cooldowns_afterwards.py
    python examples/cooldowns_afterwards.py --task regression
    python examples/cooldowns_afterwards.py --task text --seeds 3     (five minutes per seed)
"""

import program

# isort: split
import argparse
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import optax
from small_tasks import TASKS, digits

matplotlib.use("Agg")  # writes files, opens no window

CHECKPOINTS = 40  # of a run
COUNTS = 3, 4, 6, 8, 12, 20  # checkpoints in a cooldown
SHAPES = "linear", "1-sqrt", "cosine"
DECAYS = 0.9, 0.99, 0.999  # of the EMAs
CHUNK = 10  # updates whose weights are in memory together
# Okabe and Ito, safe for colour-blind readers.
BLUE, ORANGE, GREEN = "#0072B2", "#D55E00", "#009E73"


class Cooldown(NamedTuple):
    start: int
    length: int
    shape: str

    @property
    def end(self):
        return self.start + self.length


def draw(count, updates):
    """Draw cooldowns that begin and end anywhere.

    The last ones end before the run does, so that a checkpoint follows the end.
    """
    random = np.random.default_rng(0)
    cooldowns = []
    for _ in range(count):
        length = round(np.exp(random.uniform(np.log(0.05), np.log(0.4))) * updates)
        start = int(
            random.integers(int(0.15 * updates), int(0.85 * updates) - length, endpoint=True)
        )
        cooldowns.append(Cooldown(start, length, str(random.choice(SHAPES))))
    return cooldowns


def averaging_weights(stable, cooldown, block, *, means):
    """Return the averaging weights of the weights after each number of updates, from 0 on.

    The checkpoints are `block` updates apart. They are those of the whole run: a cooldown may begin
    and end between two of them.
    """
    first = cooldown.start // block * block
    steps = np.arange(first, cooldown.end + block, block)
    branch = stable.cooldown(cooldown.start, cooldown.length, shape=cooldown.shape)
    weights = np.zeros(stable.total_steps + 1)
    if means:
        of_blocks = branch.merge_weights(steps[1:], mean_of=block)
        weights[first + 1 : steps[-1] + 1] = np.repeat(of_blocks / block, block)
    else:
        weights[steps] = branch.merge_weights(steps)
    return weights


def moving_average(stable, end, decay):
    """Return those of an exponential moving average; with decay 0, of the last weights alone."""
    weights = np.zeros(stable.total_steps + 1)
    weights[: end + 1] = (1 - decay) * decay ** np.arange(end, -1.0, -1.0)
    weights[0] = decay**end
    return weights


def all_averaging_weights(stable, cooldowns):
    """Return the averaging weights of every sum: for each name, an array for each cooldown."""
    of_names = {}
    for cooldown in cooldowns:
        block = stable.total_steps // CHECKPOINTS
        sums = {
            "block means": averaging_weights(stable, cooldown, block, means=True),
            "every update": averaging_weights(stable, cooldown, 1, means=True),
            "checkpoints": averaging_weights(stable, cooldown, block, means=False),
            "no cooldown": moving_average(stable, cooldown.end, 0.0),
        }
        for decay in DECAYS:
            sums[f"EMA {decay}"] = moving_average(stable, cooldown.end, decay)
        for count in COUNTS:
            block = max(1, round(cooldown.length / count))
            for name, means in ("block means", True), ("checkpoints", False):
                sums[f"{count} {name}"] = averaging_weights(stable, cooldown, block, means=means)
        for name, weights in sums.items():
            of_names.setdefault(name, []).append(weights)
    return of_names


def train(task, cooldowns, averaging):
    """Train the stable phase and each cooldown; return the merges and the cooled weights.

    Args:
        task: The network, and the batches of a seed.
        cooldowns: The cooldowns.
        averaging: Averaging weights, of shape (merges, updates + 1).
    """
    adam = optax.scale_by_adam()

    def update(state, step, lr):
        weights, moments = state
        gradient = jax.grad(task.training_loss)(weights, step)
        direction, moments = adam.update(gradient, moments)
        return weights - lr * direction, moments

    @jax.jit
    def chunk_of(state, lrs, first):
        def body(state, step):
            state = update(state, step, lrs[step])
            return state, state[0]

        return jax.lax.scan(body, state, first + jnp.arange(CHUNK))

    @jax.jit
    def last_of(state, lrs, first, last):
        def body(step, state):
            return update(state, step, lrs[step])

        return jax.lax.fori_loop(first, last, body, state)

    updates = task.stable.total_steps
    lrs = jnp.array(task.stable.learning_rate(range(updates), task.peak))
    state = task.weights, adam.init(task.weights)
    merged = np.outer(averaging[:, 0], task.weights).astype(np.float32)
    starts = {cooldown.start // CHUNK * CHUNK for cooldown in cooldowns}
    saved = {}
    for first in range(0, updates, CHUNK):
        if first in starts:
            saved[first] = state
        state, weights = chunk_of(state, lrs, first)
        factors = averaging[:, first + 1 : first + CHUNK + 1].astype(np.float32)
        changed = np.flatnonzero(factors.any(1))
        merged[changed] += factors[changed] @ np.asarray(weights)

    cooled = []
    for cooldown in cooldowns:
        branch = task.stable.cooldown(cooldown.start, cooldown.length, shape=cooldown.shape)
        lrs = branch.learning_rate(range(updates), task.peak)
        first = cooldown.start // CHUNK * CHUNK  # up to the start, the branch is the stable phase
        weights, _ = last_of(saved[first], jnp.array(lrs), first, cooldown.end)
        cooled.append(weights)
    return merged, cooled


def losses_of_seed(task, cooldowns):
    """Return the held-out losses, an array of shape (cooldowns,) for each name."""
    of_names = all_averaging_weights(task.stable, cooldowns)
    averaging = np.concatenate([*of_names.values()])
    merged, cooled = train(task, cooldowns, averaging)
    held_out_loss = jax.jit(task.held_out_loss)
    losses = np.array([held_out_loss(weights) for weights in merged])
    losses = dict(zip(of_names, losses.reshape(len(of_names), -1), strict=True))
    losses["cooled down"] = np.array([held_out_loss(weights) for weights in cooled])
    return losses


class Difference(NamedTuple):
    """The mean of differences between losses, of shape (seeds, cooldowns)."""

    mean: float
    error: float
    """The standard error over the seeds."""

    @classmethod
    def of(cls, differences):
        of_seeds = differences.mean(1)
        return cls(of_seeds.mean(), of_seeds.std(ddof=1) / len(of_seeds) ** 0.5)

    def __str__(self):
        return f"{self.mean:+.4f} ± {self.error:.4f}"


def with_best_average(losses):
    """Return the losses, with those of the EMA whose decay is best for each cooldown."""
    averages = np.array([losses[f"EMA {decay}"] for decay in DECAYS])
    best = averages.mean(1).argmin(0)
    return losses | {"best EMA": averages[best, :, np.arange(len(best))].T}


def report(losses, cooldowns):
    """Print the losses, arrays of shape (seeds, cooldowns) for each name."""
    cooled, every = losses["cooled down"], losses["every update"]
    names = "cooled down", "block means", "every update", "checkpoints"
    names += *(f"EMA {decay}" for decay in DECAYS), "best EMA", "no cooldown"
    print(f"{'held-out loss':26}{'- cooled down':>17}{'- every update, lowest and highest':>38}")
    for name in names:
        line = f"{name:16}{losses[name].mean():10.4f}"
        if name != "cooled down":
            line += f"{Difference.of(losses[name] - cooled)!s:>17}"
        if name != "every update":
            of_cooldowns = (losses[name] - every).mean(0)
            line += f"{of_cooldowns.min():+20.4f} {of_cooldowns.max():+.4f}"
        print(line)
    print("\ncheckpoints in a cooldown: the same differences")
    for count in COUNTS:
        for name in "block means", "checkpoints":
            line = f"{count:2} {name:13}"
            of_cooldowns = (losses[f"{count} {name}"] - every).mean(0)
            line += f"{losses[f'{count} {name}'].mean():10.4f}"
            line += f"{Difference.of(losses[f'{count} {name}'] - cooled)!s:>17}"
            line += f"{of_cooldowns.min():+20.4f} {of_cooldowns.max():+.4f}"
            print(line)
    differences = losses["block means"] - cooled
    by_length = np.argsort([cooldown.length for cooldown in cooldowns])
    for name, half in zip(("shorter", "longer"), np.array_split(by_length, 2), strict=True):
        difference = Difference.of(differences[:, half])
        print(f"\nblock means - cooled down, {name} half of the cooldowns: {difference}", end="")
    print("\nwhere it is highest:")
    for index in differences.mean(0).argsort()[:-4:-1]:
        of_cooldown = Difference.of(differences[:, [index]])
        start, length, shape = cooldowns[index]
        print(f"{shape:7} from {start:4} over {length:3} updates: {of_cooldown}")


def draw_picture(path, losses):
    """Draw the losses against the number of checkpoints in a cooldown."""
    figure, axes = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
    for name, color, up in ("checkpoints", ORANGE, 4), ("block means", BLUE, -16):
        means = [losses[f"{count} {name}"].mean() for count in COUNTS]
        axes.plot(COUNTS, means, "o-", color=color, lw=2)
        axes.annotate(name, (COUNTS[0], means[0]), (8, up), textcoords="offset points", color=color)
    cooled = losses["cooled down"].mean()
    axes.axhline(cooled, color=GREEN, lw=2)
    axes.annotate(
        "cooled down",
        (COUNTS[-1], cooled),
        (0, 5),
        textcoords="offset points",
        color=GREEN,
        ha="right",
    )
    axes.set(xlabel="checkpoints in a cooldown", xticks=COUNTS)
    axes.set_title("Held-out loss", loc="left")
    axes.yaxis.set_major_formatter("{x:.3f}")
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(y=0.15)
    program.save_picture(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", choices=TASKS, default="digits", help="(digits)")
    parser.add_argument("--batch-norm", action="store_true", help="of the hidden units, for digits")
    parser.add_argument("--seeds", type=int, default=16, help="number of seeds (16)")
    parser.add_argument("--cooldowns", type=int, default=50, help="number of cooldowns (50)")
    parser.add_argument("--updates", type=int, help="of the run (2000; for text 1200)")
    parser.add_argument(
        "--peak", type=float, help="of digits 0.02, of regression 0.01, of text 0.003"
    )
    default = Path("cooldowns_afterwards.png")
    parser.add_argument("--output", type=Path, default=default, metavar="FILE")
    args = parser.parse_args()
    make_task, updates = TASKS[args.task]
    updates = args.updates or updates
    if args.batch_norm:
        make_task = partial(digits, batch_norm=True)
    if updates % CHECKPOINTS or updates < 10 * CHECKPOINTS:
        parser.error(f"--updates {updates} must be a multiple of {CHECKPOINTS}, at least 400")
    if min(args.seeds, args.cooldowns) < 2:
        parser.error(f"--seeds {args.seeds} and --cooldowns {args.cooldowns} must be at least 2")
    program.check_picture(parser, args.output)
    program.leave_on_ctrl_c()

    cooldowns = draw(args.cooldowns, updates)
    of_seeds = []
    for seed in range(args.seeds):
        task = make_task(seed, updates)
        if args.peak:
            task = task._replace(peak=args.peak)
        losses = losses_of_seed(task, cooldowns)
        of_seeds.append(losses)
        names = "block means", "every update", "cooled down", "no cooldown"
        means = ", ".join(f"{name} {losses[name].mean():.4f}" for name in names)
        print(f"seed {seed}: {means}", flush=True)
    print()
    losses = {name: np.array([losses[name] for losses in of_seeds]) for name in of_seeds[0]}
    report(with_best_average(losses), cooldowns)
    draw_picture(args.output, losses)


if __name__ == "__main__":
    main()
