"""See the cooled-down model without a cooldown: running averages at a constant learning rate.

The network and the data are those of choosing_a_curve.ipynb: handwritten digits, 32 hidden units,
Adam, batches of 8. The learning rate stays constant. Three times, a running average of the weights
takes the place of a cooldown: its averaging weights are those of `Curve.merge_weights`, so at the
end of each window it is the merge of the checkpoints that it replaces. It is compared with the
cooldown over the same updates, with exponential moving averages (EMA) of the same run, and with the
weights at the constant learning rate. All seeds are trained at once.

    python examples/running_averages.py
    python examples/running_averages.py --seeds 4 --interval 20
"""

import program

# isort: split
import argparse
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

from plateau_jax import StagedCurve, multiplier

PEAK, WARMUP = 0.02, 30
WINDOWS = (200, 300), (400, 600), (800, 1200)  # updates: first, last
DECAYS = 0.9, 0.99, 0.999  # of the EMAs; the last is the default of torch.optim.swa_utils


def prepare(seed, images):
    """Return initial weights, the images of each batch, and those held out."""
    random = np.random.default_rng(seed)
    training, held_out = np.split(random.permutation(images), [1000])
    sizes = (64, 32), (32, 10)
    weights = [
        (random.normal(0, n**-0.5, (n, m)).astype("float32"), np.zeros(m, "float32"))
        for n, m in sizes
    ]
    return weights, random.choice(training, (WINDOWS[-1][1], 8)), held_out


def averaging_factors(curve, interval):
    """Return how far the average moves to the weights after each update: mostly 0."""
    factors = np.zeros(WINDOWS[-1][1] + 1, np.float32)
    for first, last in WINDOWS:
        steps = [*range(first, last, interval), last]
        weights = curve.cooldown(first, last - first).merge_weights(steps)
        factors[steps] = weights / weights.cumsum().clip(1e-30)
    return factors


def make_train(images, labels, factors):
    """Return the held-out loss, and a function that trains one network and keeps its averages."""

    def loss_of(weights, chosen):
        (hidden, hidden_bias), (digits, digits_bias) = weights
        logits = jax.nn.relu(images[chosen] @ hidden + hidden_bias) @ digits + digits_bias
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels[chosen]).mean()

    def adam(table):
        return optax.adam(lambda count: PEAK * multiplier(table, count))

    def start(table, weights):
        return weights, adam(table).init(weights), weights, [weights] * len(DECAYS)

    def train(table, state, batches, done):
        def update(state, step_and_batch):
            step, batch = step_and_batch
            weights, adam_state, average, emas = state
            changes, adam_state = adam(table).update(jax.grad(loss_of)(weights, batch), adam_state)
            weights = optax.apply_updates(weights, changes)
            average = optax.incremental_update(weights, average, factors[step])
            emas = [
                optax.incremental_update(weights, ema, 1 - decay)
                for decay, ema in zip(DECAYS, emas, strict=True)
            ]
            return (weights, adam_state, average, emas), weights

        return jax.lax.scan(update, state, (done + 1 + np.arange(len(batches)), batches))

    return jax.vmap(loss_of), start, train


def merge(kept, curve, first, last, interval):
    """Return the weighted mean of the weights that were kept after each update from `first` on."""
    steps = [*range(first, last, interval), last]
    weights = curve.cooldown(first, last - first).merge_weights(steps).tolist()
    at = [step - first for step in steps]
    return jax.tree.map(
        lambda leaf: sum(w * leaf[:, index] for w, index in zip(weights, at, strict=True)), kept
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=16, help="number of seeds (16)")
    parser.add_argument("--interval", type=int, default=5, help="updates between two averages (5)")
    args = parser.parse_args()
    if args.seeds < 2 or args.interval < 1:
        parser.error(
            f"--seeds {args.seeds} must be at least 2, and --interval {args.interval} at least 1"
        )
    program.leave_on_ctrl_c()

    images, labels = load_digits(return_X_y=True)
    images, labels = jnp.array(images / 16, "float32"), jnp.array(labels)
    stable = StagedCurve([(WARMUP, 1.0), (WINDOWS[-1][1] - WARMUP,)])
    factors = averaging_factors(stable, args.interval)
    prepared = [prepare(seed, len(images)) for seed in range(args.seeds)]
    weights, batches, held_out = jax.tree.map(lambda *leaves: np.stack(leaves), *prepared)
    loss_of, start, train = make_train(images, labels, jnp.array(factors))
    train = jax.jit(jax.vmap(train, in_axes=(None, 0, 0, None)))

    def losses(weights):
        return np.asarray(loss_of(weights, held_out))

    state = jax.vmap(partial(start, stable.table))(weights)
    done, difference, rows = 0, 0.0, []
    for first, last in WINDOWS:
        state, _ = train(stable.table, state, batches[:, done:first], done)
        branch = stable.cooldown(first, last - first)
        cooled, _ = train(branch.table, state, batches[:, first:last], first)
        before = state[0]
        state, after = train(stable.table, state, batches[:, first:last], first)
        done = last
        constant, _, average, emas = state
        kept = jax.tree.map(
            lambda leaf, rest: np.concatenate([leaf[:, None], rest], 1), before, after
        )
        merged = merge(kept, stable, first, last, args.interval)
        apart = jax.tree.map(lambda one, other: np.abs(one - other).max(), average, merged)
        difference = max(difference, *map(float, jax.tree.leaves(apart)))
        rows.append([losses(tree) for tree in (cooled[0], average, *emas, constant)])

    names = "cooled down", "running average", *(f"EMA {decay}" for decay in DECAYS), "constant lr"
    print(
        f"held-out loss, mean of {args.seeds} seeds, and the difference from the cooldown ± "
        "standard error"
    )
    print(" " * 16 + "".join(f"{f'updates {first} to {last}':>26}" for first, last in WINDOWS))
    for index, name in enumerate(names):
        line = f"{name:16}"
        for row in rows:
            apart = row[index] - row[0]
            error = apart.std(ddof=1) / args.seeds**0.5
            line += f"{row[index].mean():10.3f}" + (
                f" {apart.mean():+.3f} ± {error:.3f}" if index else " " * 16
            )
        print(line.rstrip())
    print(f"largest difference between a running average and the merge: {difference:.1e}")


if __name__ == "__main__":
    main()
