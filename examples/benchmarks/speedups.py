"""Measure what options of a training run gain or cost, for the model and the data of train_gpt.py.

Every row is timed in turn with the first of its table, round by round. Ratios are medians; below 1
is faster. Uses the GPU if there is one. Takes some six minutes on two cores.

    pip install -e '.[examples]'
    python examples/benchmarks/speedups.py
"""

import argparse
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from side_by_side import positive, ratios_to_first, repeat, seconds, show
from torch import Tensor
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
)
from torch.utils.data import Dataset

from plateau_jax import PlateauCurve
from torch_bridge import TrainStep, make_loader, prefetch

sys.path.append(str(Path(__file__).parents[1]))  # the example whose model is used here
from train_gpt import GPT, Block, loss_fn

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CURVE = PlateauCurve(1_000_000, warmup_steps=1_000)
CONTEXT = 128


def text(rows: int) -> Tensor:
    return torch.randint(256, (rows, CONTEXT + 1), dtype=torch.uint8, device=DEVICE)


def make_train_step(
    layers: int,
    *,
    fused: bool | None = True,
    foreach: bool = False,
    blocks: Any = None,
    **options: Any,
) -> TrainStep:
    torch.manual_seed(0)
    model = GPT(layers, 128, CONTEXT).to(DEVICE)
    if blocks:
        apply_activation_checkpointing(model, check_fn=lambda module: isinstance(module, blocks))
    capturable = DEVICE == "cuda" and bool(fused)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-3, fused=fused, foreach=foreach or None, capturable=capturable
    )
    return TrainStep(model, optimizer, loss_fn, CURVE, max_norm=1.0, **options)


def read_each_loss(train_step: TrainStep, batch: Tensor) -> None:
    train_step(batch).loss.item()


def updates(rounds: int, calls: int, rows: int, layers: int) -> None:
    batch, build = text(rows), partial(make_train_step, layers)
    quarters = batch.chunk(4)
    ways: dict[str, Callable[[], object]] = {
        "fp32, fused AdamW": partial(build(), batch),
        'precision="bf16"': partial(build(precision="bf16"), batch),
        'precision="fp16"': partial(build(precision="fp16"), batch),
        "compile=True": partial(build(compile=True), batch),
        'compile=True, precision="bf16"': partial(build(compile=True, precision="bf16"), batch),
        "AdamW(foreach=True)": partial(build(fused=None, foreach=True), batch),
        "AdamW(fused=False)": partial(build(fused=False), batch),
        "the loss is read at each update": partial(read_each_loss, build(), batch),
        "four micro-batches of a quarter": partial(build(), *quarters),
        "activation checkpointing": partial(build(blocks=Block), batch),
    }
    if DEVICE == "cuda":
        ways["cuda_graph=True"] = partial(build(cuda_graph=True), batch)
        ways["cuda_graph=True, compile, bf16"] = partial(
            build(cuda_graph=True, compile=True, precision="bf16"), batch
        )
    for way in ways.values():
        repeat(3, way)  # compiles, captures, lowers the loss scale
    settle = torch.cuda.synchronize if DEVICE == "cuda" else bool
    contenders = {name: partial(repeat, calls, way) for name, way in ways.items()}
    table = ratios_to_first(seconds(rounds, contenders, settle=settle), calls)
    show(f"An update of {rows} rows of {CONTEXT} bytes, on {DEVICE}", ["", "µs", "ratio"], table)


class Compressed(Dataset[Tensor]):
    """Samples that cost CPU time: rows of bytes that are decompressed on access."""

    def __init__(self, samples: int) -> None:
        noise = torch.randint(8, (samples, 200_000), dtype=torch.uint8)
        self._samples = [zlib.compress(row.numpy().tobytes()) for row in noise]

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> Tensor:
        row = torch.frombuffer(bytearray(zlib.decompress(self._samples[index])), dtype=torch.uint8)
        return row[: CONTEXT + 1]


def epochs(rounds: int, samples: int, rows: int, layers: int) -> None:
    dataset = Compressed(samples)
    train_step = make_train_step(layers)

    def epoch(batches: Iterable[Any]) -> None:
        for batch in batches:
            train_step(batch.to(DEVICE))

    loaders = {
        f"num_workers={workers}": make_loader(
            dataset, rows, num_workers=workers, device=DEVICE, persistent_workers=workers > 0
        )
        for workers in (0, 1, 2)
    }
    ways = {name: partial(epoch, loader) for name, loader in loaders.items()}
    if DEVICE == "cuda":
        ways["num_workers=2, prefetch"] = partial(epoch, prefetch(loaders["num_workers=2"], DEVICE))
    settle = torch.cuda.synchronize if DEVICE == "cuda" else bool
    table = ratios_to_first(seconds(rounds, ways, settle=settle), 1)
    show(f"An epoch of {samples} samples that are decompressed", ["", "µs", "ratio"], table)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description="Measure what each option of a training run gains or costs here."
    )
    parser.add_argument("--rounds", type=positive, default=11)
    parser.add_argument("--calls", type=positive, default=5, help="updates a round")
    parser.add_argument(
        "--rows", type=positive, default=16, help="rows of a batch, a multiple of 4"
    )
    parser.add_argument("--samples", type=positive, default=512, help="samples of an epoch")
    parser.add_argument("--layers", type=positive, default=4, help="of the model")
    options = parser.parse_args(arguments)
    begin = time.perf_counter()
    updates(options.rounds, options.calls, options.rows, options.layers)
    epochs(options.rounds, options.samples, options.rows, options.layers)
    print(f"\n{time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main()
