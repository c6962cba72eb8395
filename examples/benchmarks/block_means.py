"""What it costs to keep the mean of the weights between two checkpoints.

An MLP of three layers is trained with Adam: without a mean, with the mean of the weights after
every update, and after every tenth. Printed are medians of alternating rounds, in CPU time, and the
bytes that the mean adds to the memory and to a checkpoint.

    pip install -e '.[examples]'
    python examples/benchmarks/block_means.py
    python examples/benchmarks/block_means.py --width 64 --rounds 1     does it run?
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
from side_by_side import positive, ratios_to_first, seconds, show
from torch import nn
from torch.optim.swa_utils import AveragedModel

from torch_bridge import Checkpoints

UPDATES = 10  # timed together, of which the tenth may be averaged
LAYERS = 3

Ways = dict[str, Callable[[], object]]


def torch_ways(width: int, rows: int) -> Ways:
    """Return ten updates for each way to average."""

    def ten_updates(every: int | None) -> Callable[[], object]:
        model = nn.Sequential()
        for _ in range(LAYERS):
            model.extend([nn.Linear(width, width), nn.ReLU()])
        mean = AveragedModel(model)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
        inputs = torch.randn(rows, width)

        def update() -> None:
            for number in range(1, UPDATES + 1):
                model(inputs).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                if every and number % every == 0:
                    mean.update_parameters(model)

        return update

    return {
        "no mean": ten_updates(None),
        "every update": ten_updates(1),
        "every tenth": ten_updates(10),
    }


def jax_ways(width: int, rows: int) -> Ways:
    """Return the same in JAX."""
    random = np.random.default_rng(0)
    layers = random.normal(0, width**-0.5, (LAYERS, width, width)).astype("float32")
    inputs = random.standard_normal((rows, width), np.float32)
    adam = optax.adam(1e-3)

    def loss_fn(weights: Any) -> Any:
        x = inputs
        for layer in weights:
            x = jax.nn.relu(x @ layer)
        return jnp.square(x).mean()

    @jax.jit
    def update(weights: Any, state: Any) -> Any:
        changes, state = adam.update(jax.grad(loss_fn)(weights), state)
        return optax.apply_updates(weights, changes), state

    @jax.jit
    def update_with_mean(weights: Any, state: Any, mean: Any, number: int) -> Any:
        weights, state = update(weights, state)
        return weights, state, optax.incremental_update(weights, mean, 1 / number)

    def ten_updates(every: int | None) -> Callable[[], object]:
        run: dict[str, Any] = {"weights": list(map(jnp.array, layers))}
        run["state"], run["mean"] = adam.init(run["weights"]), run["weights"]

        def train() -> None:
            weights, state, mean = run["weights"], run["state"], run["mean"]
            for number in range(1, UPDATES + 1):
                if every and number % every == 0:
                    weights, state, mean = update_with_mean(weights, state, mean, number)
                else:
                    weights, state = update(weights, state)
            jax.block_until_ready((weights, mean))
            run.update(weights=weights, state=state, mean=mean)

        return train

    return {
        "no mean": ten_updates(None),
        "every update": ten_updates(1),
        "every tenth": ten_updates(10),
    }


def bytes_of_mean(width: int) -> list[list[object]]:
    """Return bytes per parameter: of the mean in memory, and of checkpoints without and with it."""
    model = nn.Linear(width, width, bias=False)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, width)).sum().backward()
    optimizer.step()
    mean = AveragedModel(model)
    parts: dict[str, Any] = {"model": model, "optimizer": optimizer}
    in_memory = sum(parameter.nbytes for parameter in mean.parameters())
    sizes: list[object] = [in_memory / model.weight.numel()]
    for saved in (parts, parts | {"mean": mean}):
        with tempfile.TemporaryDirectory() as folder:
            Checkpoints(folder).save(1, wait=True, **saved)
            files = [path for path in Path(folder).rglob("*") if path.is_file()]
            written = sum(path.stat().st_size for path in files)
        sizes.append(written / model.weight.numel())
    return [sizes]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=positive, default=1024)
    parser.add_argument("--rows", type=positive, default=64, help="samples in a batch (64)")
    parser.add_argument("--rounds", type=positive, default=15)
    args = parser.parse_args()
    torch.set_num_threads(1)
    size = f"{LAYERS * args.width**2 / 1e6:.1f} million weights, {args.rows} rows"
    for framework, ways in ("PyTorch", torch_ways), ("JAX", jax_ways):
        contenders = ways(args.width, args.rows)
        times = seconds(args.rounds, contenders, clock=time.process_time)
        rows = ratios_to_first(times, UPDATES)
        show(f"{framework}, {size}", ["mean of", "µs per update", "ratio"], rows)
    header = ["mean", "checkpoint", "with the mean"]
    show("Bytes per parameter", header, bytes_of_mean(args.width))


if __name__ == "__main__":
    main()
