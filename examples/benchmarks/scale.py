"""Measure training at scale: several processes, activation checkpointing, saves, cached arrays.

Printed are medians over interleaved rounds: updates under DDP and FSDP2 by
`TrainStep`, by hand-written loops with the same operations and collectives, by Lightning Fabric and
by accelerate, on two processes, or on all GPUs if there are several; activations with and without
torch's activation checkpointing; the time that training waits for a save; the second start of
train_bloom.py, which maps cached arrays into memory, against the first. An update on 8 to 1,024
devices is estimated. Takes some six minutes on two cores.

    pip install -e '.[test]'        (for Lightning Fabric and accelerate)
    python examples/benchmarks/scale.py
    python examples/benchmarks/scale.py --parameters 7e9 --compute 2 --bandwidth 50e9
"""

import argparse
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count, product
from pathlib import Path

import torch
from side_by_side import medians, positive, repeat, seconds, show
from step import CURVE, MAX_NORM, adamw, batch_for, make_train_step, mlp
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
)
from updates_together import Size, run

from torch_bridge import Checkpoints, TrainStep

sys.path.append(str(Path(__file__).parents[1]))  # the examples whose models and data are used here
from helpers.bloom_filters import SURNAMES, compare, positions
from train_bloom import cached
from train_gpt import GPT, Block, loss_fn

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def bytes_kept_for_backward(model: nn.Module, forward: Callable[[], object]) -> int:
    """Return the bytes kept by a forward pass for its backward pass; parameters do not count."""
    parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    storages: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()  # keeping the tensor itself would make a reference cycle

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        result = forward()  # keeps the storages alive, so that no address is reused and missed
    del result
    return sum(storages.values())


def activations(sizes: list[tuple[int, int, int, int]], rounds: int) -> None:
    rows: list[list[object]] = []
    for layers, width, context, batch_size in sizes:
        text = torch.randint(256, (batch_size, context + 1), dtype=torch.uint8, device=DEVICE)
        inputs = torch.randn(batch_size, context, width, device=DEVICE, requires_grad=True)
        plain, checkpointed = (GPT(layers, width, context).to(DEVICE) for _ in range(2))
        of_block = bytes_kept_for_backward(plain, partial(plain.blocks[0], inputs))
        apply_activation_checkpointing(
            checkpointed, check_fn=lambda module: isinstance(module, Block)
        )
        memory = [
            bytes_kept_for_backward(model, partial(loss_fn, model, text))
            for model in (plain, checkpointed)
        ]
        memory[1] += of_block  # the backward pass recomputes one block at a time
        updates = [
            TrainStep(model, adamw(model, DEVICE), loss_fn, CURVE, max_norm=MAX_NORM)
            for model in (plain, checkpointed)
        ]
        if DEVICE == "cuda":
            memory = [peak_memory(partial(update, text)) for update in updates]
        settle = torch.cuda.synchronize if DEVICE == "cuda" else bool
        times = seconds(
            rounds, {update: partial(update, text) for update in updates}, settle=settle
        )
        before, after = (statistics.median(own) * 1e3 for own in times.values())
        longer = statistics.median(one / other for other, one in zip(*times.values(), strict=True))
        size = f"{layers} blocks of width {width}, {batch_size} x {context} bytes"
        less = f"{1 - memory[1] / memory[0]:.0%}"
        rows.append([size, *(each / 1e6 for each in memory), less, before, after, longer])
    show(
        "Activations of train_gpt.py's model, and an update, without and with activation "
        "checkpointing",
        ["", "MB without", "MB with", "less", "ms without", "ms with", "ratio"],
        rows,
    )


def peak_memory(update: Callable[[], object]) -> int:
    """Return the peak of additional GPU memory during an update, in bytes."""
    update()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    update()
    return torch.cuda.max_memory_allocated() - before


def saves(width: int, updates: int, rounds: int) -> None:
    """Time the call that saves, and updates during the save."""
    train_step = make_train_step(mlp(width), DEVICE)
    train = partial(repeat, updates, train_step, batch_for(DEVICE, 16, width))
    numbers = count()
    with tempfile.TemporaryDirectory() as folder:
        checkpoints = Checkpoints(f"{folder}/checkpoints", keep=1)

        def save(wait: bool) -> None:
            checkpoints.save(next(numbers), wait=wait, step=train_step)

        def torch_save(on_disk: bool) -> None:
            with Path(folder, "state.pt").open("wb") as file:
                torch.save(train_step.state_dict(), file)
                if on_disk:
                    file.flush()
                    os.fsync(file.fileno())

        ways = {
            "none": bool,
            "torch.save": partial(torch_save, False),
            "torch.save and fsync": partial(torch_save, True),
            "Checkpoints.save": partial(save, False),
            "Checkpoints.save(wait=True)": partial(save, True),
        }
        calls: dict[str, list[float]] = {name: [] for name in ways}

        def save_and_train(name: str) -> None:
            begin = time.perf_counter()
            ways[name]()
            calls[name].append(time.perf_counter() - begin)
            train()

        contenders = {name: partial(save_and_train, name) for name in ways}
        times = seconds(rounds, contenders, settle=checkpoints.steps)  # waits for a running save
        size = Path(folder, "state.pt").stat().st_size
    rows = []
    for name, own in times.items():
        more = statistics.median(
            mine - plain for mine, plain in zip(own, times["none"], strict=True)
        )
        waited = statistics.median(calls[name][1:])
        rows.append([name, waited * 1e3, statistics.median(own) * 1e3, more * 1e3])
    title = f"A save of {size / 1e6:.0f} MB and {updates} updates, until both are complete: ms"
    show(title, ["", "the call", "all of it", "more than without"], rows)


def encoding(names: int, rounds: int) -> None:
    sizes = {"bits": 64, "positions": positions(64, 8)}
    with tempfile.TemporaryDirectory() as folder:
        newest = Path()

        def start(again: bool) -> None:
            nonlocal newest
            if not again:
                newest = Path(tempfile.mkdtemp(dir=folder))
            cached(newest, count=names, **sizes)

        times = medians(
            rounds, {"the first": partial(start, False), "the second": partial(start, True)}
        )
    first = times["the first"]
    title = f"Two starts of train_bloom.py's data, {names:,} names, with joblib.Memory: ms"
    rows = [[name, own * 1e3, first / own] for name, own in times.items()]
    show(title, ["start", "ms", "times as fast"], rows)
    few = min(names, 4000)
    slow, fast = compare(SURNAMES, few, *sizes.values())
    rows = [["row by row", slow * 1e3, 1.0], ["at once", fast * 1e3, slow / fast]]
    show(f"Encoding {few:,} names: ms", ["", "ms", "times as fast"], rows)


def estimate(parameters: float, compute: float, bandwidth: float, overlap: float) -> None:
    title = f"""An ESTIMATE, nothing of it measured: P = {parameters:.3g} parameters in fp32 on
n devices, each with its own batch. An update takes c + m - min(o*m, c) seconds: c = {compute:g}
of compute, m of communication, bytes / {bandwidth:.3g}; a fraction o = {overlap:g} of it can hide
behind compute. A device sends
  DDP    2(n-1)/n * 4P bytes: an all-reduce of the gradients, by rings
  FSDP2  3(n-1)/n * 4P bytes: two all-gathers of the weights, a reduce-scatter of the gradients
and holds weights, gradients and AdamW's two moments: 16P bytes, under FSDP2 16P/n. Latency is
left out."""
    rows = []
    for n in (2**exponent for exponent in range(3, 11)):
        row: list[object] = [n]
        for collectives, memory in ((2, 16 * parameters), (3, 16 * parameters / n)):
            sent = collectives * (n - 1) / n * 4 * parameters
            took = sent / bandwidth
            total = compute + took - min(overlap * took, compute)
            row += [sent / 1e9, total, f"{compute / total:.0%}", memory / 1e9]
        rows.append(row)
    columns = product(("DDP", "FSDP2"), ("GB sent", "s", "computing", "GB held"))
    show(title, ["n", *(" ".join(pair) for pair in columns)], rows)


def amount(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} must be a positive number")
    return value


def share(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} must lie between 0 and 1")
    return value


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=positive, default=11)
    parser.add_argument(
        "--quick", action="store_true", help="one round, small models: does it run?"
    )
    estimated = parser.add_argument_group("of the estimate, for each device")
    estimated.add_argument("--parameters", type=amount, default=1e9, help="of the model (1e9)")
    estimated.add_argument(
        "--compute", type=amount, default=0.5, help="seconds of compute an update (0.5)"
    )
    estimated.add_argument(
        "--bandwidth", type=amount, default=25e9, help="bytes a second (25e9: 200 Gbit/s)"
    )
    estimated.add_argument(
        "--overlap", type=share, default=0.8, help="communication behind compute (0.8)"
    )
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    where = torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU"
    print(
        f"torch {torch.__version__}, {os.cpu_count()} cores, {torch.cuda.device_count()} GPUs; on "
        f"{where}"
    )
    if args.quick:
        run([Size("tiny", 16, 1, 4, 1)], 1)
        activations([(2, 32, 32, 4)], 1)
        saves(16, 1, 1)
        encoding(100, 1)
    else:
        run([Size("tiny", 32, 2, 16, 40), Size("medium", 1024, 3, 16, 4)], args.rounds)
        activations([(3, 64, 64, 16), (8, 128, 128, 8)], args.rounds)
        saves(2048, 10, (args.rounds + 1) // 2)
        encoding(88_799, (args.rounds + 1) // 2)
    estimate(args.parameters, args.compute, args.bandwidth, args.overlap)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print("\nstopped")
        sys.exit(130)
