"""Train GPT-2 (124 million parameters) in several ways, and compare their speed, MFU and memory.

The ways are a naive loop (small kernels of AdamW, each loss read twice, copies that the host waits
for), the leanest hand-written loop with the options of a fast `TrainStep`, `TrainStep` itself, and,
if they are installed, Lightning Fabric and accelerate, which compile the model together with its
loss, as the lean loop does. Every round times all of them, in a new order.

MFU is the fraction of the card's peak in dense bf16 that goes into the 6·N + 12·L·D·T operations
per token of the model itself (Chowdhery et al., 2022, "PaLM: Scaling Language Modeling with
Pathways", appendix B; arXiv:2204.02311): N parameters without those of the positions, L layers of
width D, context T. What checkpointing recomputes does not count. Memory is the peak during the
first updates, in addition to what the other ways hold. The losses, after equally many updates of
one batch, show that all rows do the same work.

    pip install -e '.[test-all]'    (for Fabric and accelerate)
    python examples/benchmarks/gpt2.py           on a GPU: two minutes
    python examples/benchmarks/gpt2.py --tiny    anywhere: does it run?
"""

import argparse
import statistics
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from side_by_side import positive, repeat, seconds, show
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
)
from torch.nn import functional

from torch_bridge import StagedCurve, TrainStep, lambda_lr

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CURVE = StagedCurve.wsd(10_000, warmup_steps=10, decay_steps="20%")
PEAK_LR = 3e-4
MAX_NORM = 1.0
FLOPS = {"A100": 312e12, "H100": 989e12, "H200": 989e12}
"""The peak of each card (SXM) in dense bf16, from its data sheet."""

Update = Callable[[], Any]


@dataclass(frozen=True)
class Size:
    layers: int
    width: int
    heads: int
    context: int
    vocabulary: int


GPT2 = Size(layers=12, width=768, heads=12, context=1024, vocabulary=50_304)
TINY = Size(layers=2, width=64, heads=2, context=64, vocabulary=512)


class Block(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        width = size.width
        self.heads = size.heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.qkv(self.ln_1(x)).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in qkv)
        attention = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(attention.transpose(1, 2).flatten(-2))
        return x + self.down(functional.gelu(self.up(self.ln_2(x)), approximate="tanh"))


class GPT(nn.Module):
    """Tokens (batch, time) → logits of the next token, with tied embeddings."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.wte = nn.Embedding(size.vocabulary, size.width)
        self.wpe = nn.Embedding(size.context, size.width)
        self.blocks = nn.Sequential(*(Block(size) for _ in range(size.layers)))
        self.ln_f = nn.LayerNorm(size.width)
        for embedding in (self.wte, self.wpe):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        return functional.linear(self.ln_f(self.blocks(x)), self.wte.weight)


def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
    tokens = batch.long()
    logits = model(tokens[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


class WithLoss(nn.Module):
    """A model that returns its loss, so that a wrapper compiles and casts the loss too."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Tensor) -> Tensor:
        return loss_fn(self.model, batch)


def build(size: Size) -> nn.Module:
    torch.manual_seed(0)
    return GPT(size).to(DEVICE)


def adamw(model: nn.Module, *, capturable: bool = False) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=PEAK_LR, fused=True, capturable=capturable)


def naive(size: Size, host_batch: Tensor) -> Update:
    model = build(size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LR, foreach=False, fused=False)
    scheduler = lambda_lr(optimizer, CURVE)
    losses: list[float] = []

    def update() -> float:
        optimizer.zero_grad()
        loss = loss_fn(model, host_batch.to(DEVICE))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())  # for a plot
        return loss.item()  # for a progress bar

    return update


def with_tf32(update: Update) -> Update:
    """Multiply float32 matrices in TF32 during the update; the setting is global."""

    def update_in_tf32() -> Any:
        torch.set_float32_matmul_precision("high")
        loss = update()
        torch.set_float32_matmul_precision("highest")
        return loss

    return update_in_tf32


def lean(size: Size, batch: Tensor, *, compiled: bool) -> Update:
    model = build(size)
    optimizer = adamw(model)
    scheduler = lambda_lr(optimizer, CURVE)
    parameters = list(model.parameters())
    compute: Callable[[nn.Module, Tensor], Tensor] = loss_fn
    if compiled:
        compute = torch.compile(loss_fn)

    def update() -> Tensor:
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = compute(model, batch)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, MAX_NORM)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        return loss.detach()

    return update


def with_train_step(size: Size, batch: Tensor, *, blocks: Any = None, **options: Any) -> Update:
    model = build(size)
    if blocks:
        apply_activation_checkpointing(model, check_fn=lambda module: isinstance(module, blocks))
    optimizer = adamw(model, capturable=options.get("cuda_graph", False))
    train_step = TrainStep(model, optimizer, loss_fn, CURVE, max_norm=MAX_NORM, **options)
    return lambda: train_step(batch).loss


def with_backward_of(
    runner: Any, model: Any, optimizer: Any, batch: Tensor, clip: Callable[[], Any]
) -> Update:
    """Return an update of a model and an optimizer that a library has wrapped."""
    scheduler = lambda_lr(optimizer, CURVE)

    def update() -> Tensor:
        loss = model(batch)
        runner.backward(loss)
        clip()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        return loss.detach()

    return update


def fabric(size: Size, batch: Tensor) -> Update:
    from lightning_fabric import Fabric

    runner = Fabric(accelerator=DEVICE, devices=1, precision="bf16-mixed")
    model: Any = torch.compile(WithLoss(build(size)))
    model, optimizer = runner.setup(model, adamw(model))
    clip = partial(runner.clip_gradients, model, optimizer, max_norm=MAX_NORM)
    return with_backward_of(runner, model, optimizer, batch, clip)


def accelerate(size: Size, batch: Tensor) -> Update:
    from accelerate import Accelerator

    runner = Accelerator(cpu=DEVICE == "cpu", mixed_precision="bf16")
    model: Any = torch.compile(WithLoss(build(size)))
    model, optimizer = runner.prepare(model, adamw(model))
    parameters = list(model.parameters())
    clip = partial(runner.clip_grad_norm_, parameters, MAX_NORM)
    return with_backward_of(runner, model, optimizer, batch, clip)


def ways(size: Size, host_batch: Tensor) -> dict[str, Callable[[], Update]]:
    """Return a function for each row that builds its model and returns its update."""
    batch = host_batch.to(DEVICE)
    update_with = partial(with_train_step, size, batch)
    fast: dict[str, Any] = {"precision": "bf16", "compile": True}
    rows: dict[str, Callable[[], Update]] = {
        "lean loop, bf16, compiled": partial(lean, size, batch, compiled=True),
        "TrainStep, bf16, compiled": partial(update_with, **fast),
    }
    if DEVICE == "cuda":
        rows["TrainStep, bf16, compiled, captured"] = partial(update_with, cuda_graph=True, **fast)
    if find_spec("lightning_fabric"):
        rows["Lightning Fabric, bf16, compiled"] = partial(fabric, size, batch)
    else:
        print("without Lightning Fabric, which is not installed")
    if find_spec("accelerate"):
        rows["accelerate, bf16, compiled"] = partial(accelerate, size, batch)
    else:
        print("without accelerate, which is not installed")
    return rows | {
        "lean loop, bf16": partial(lean, size, batch, compiled=False),
        "TrainStep, bf16": partial(update_with, precision="bf16"),
        "TrainStep, bf16, activation checkpointing": partial(
            update_with, blocks=Block, precision="bf16"
        ),
        "TrainStep, fp32": update_with,
        "naive loop, fp32": partial(naive, size, host_batch),
        "naive loop, fp32 with TF32": lambda: with_tf32(naive(size, host_batch)),
    }


def prepare(make: Callable[[], Update]) -> tuple[Update, float]:
    """Return an update that has compiled and captured, and the peak of its memory in GiB."""
    if DEVICE == "cpu":
        update = make()
        repeat(4, update)
        return update, 0.0
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    update = make()
    repeat(4, update)
    torch.cuda.synchronize()
    return update, (torch.cuda.max_memory_allocated() - before) / 2**30


def operations_per_token(size: Size) -> int:
    parameters = sum(parameter.numel() for parameter in GPT(size).parameters())
    parameters -= size.context * size.width
    return 6 * parameters + 12 * size.layers * size.width * size.context


def peak_of_card() -> float | None:
    if DEVICE == "cpu":
        return None
    name = torch.cuda.get_device_name()
    known = [flops for card, flops in FLOPS.items() if card in name]
    return known[0] if known else None


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Compare ways to train GPT-2.")
    parser.add_argument("--rows", type=positive, default=16, help="sequences of a batch")
    parser.add_argument("--rounds", type=positive, default=7)
    parser.add_argument("--calls", type=positive, default=3, help="updates per round")
    parser.add_argument("--tiny", action="store_true", help="a tiny model, 2 rows and 2 rounds")
    options = parser.parse_args(arguments)
    size = GPT2
    if options.tiny:
        size, options.rows, options.rounds, options.calls = TINY, 2, 2, 1
    warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
    torch.manual_seed(1)
    host_batch = torch.randint(size.vocabulary, (options.rows, size.context + 1), dtype=torch.int32)

    updates: dict[str, Update] = {}
    memory: dict[str, float] = {}
    failed = False
    for name, make in ways(size, host_batch).items():
        try:
            updates[name], memory[name] = prepare(make)
        except Exception as error:  # one row must not cost the GPU time of all others
            print(f"{name}: {type(error).__name__}: {error}", flush=True)
            failed = True
        else:
            print(f"ready: {name}", flush=True)

    contenders = {name: partial(repeat, options.calls, way) for name, way in updates.items()}
    settle = torch.cuda.synchronize if DEVICE == "cuda" else bool
    times = seconds(options.rounds, contenders, settle=settle)

    flops = operations_per_token(size)
    peak = peak_of_card()
    tokens = options.rows * size.context
    first = next(iter(times.values()))
    table: list[list[str]] = []
    for name, update in updates.items():
        update_seconds = statistics.median(times[name]) / options.calls
        ratios = [time / lean_time for time, lean_time in zip(times[name], first, strict=True)]
        mfu = "-"
        if peak:
            mfu = f"{100 * flops * tokens / update_seconds / peak:.1f} %"
        table.append(
            [
                name,
                f"{1e3 * update_seconds:.2f}",
                f"{tokens / update_seconds:,.0f}",
                mfu,
                f"{memory[name]:.2f}",
                f"{statistics.median(ratios):.3f}",
                f"{float(update()):.3f}",
            ]
        )
    card = "CPU"
    if DEVICE == "cuda":
        card = torch.cuda.get_device_name()
    show(
        f"{card}, torch {torch.__version__}: an update of {options.rows} x {size.context} tokens",
        ["", "ms", "tokens/s", "MFU", "peak GiB", "ratio", "loss"],
        table,
    )
    if failed:
        sys.exit(1)


if __name__ == "__main__":
    main()
