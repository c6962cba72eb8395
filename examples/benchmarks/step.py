"""Compare the cost of training updates: medians over interleaved rounds, ratios to the first row.

On a CPU: one update of a tiny model by `TrainStep`, by a lean hand-written loop with the same
results, by Lightning Fabric and by accelerate; and building a `TrainStep`. On a GPU, also: captured
against eager, bf16 and compiled against fp32 eager, captured against a hand-written captured loop,
the cost of following the curve, and the time spent waiting for data.

    pip install -e '.[test-all]'    (for Lightning Fabric and accelerate)
    python examples/benchmarks/step.py
"""

import argparse
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from accelerate import Accelerator
from lightning_fabric import Fabric
from side_by_side import positive, ratios_to_first, repeat, seconds, show
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from torch_bridge import (
    DataClock,
    HoldUntilFlat,
    PlateauCurve,
    TrainStep,
    lambda_lr,
    make_loader,
    prefetch,
)

CURVE = PlateauCurve(1_000_000, warmup_steps=1_000, plateaus=[(50, 30)], min_lr_ratio=0.1)
HOLD = HoldUntilFlat(10, every=100, limit=100_000)
PEAK = 1e-3
MAX_NORM = 1.0

Update = Callable[[Any], Any]


def mlp(width: int = 32, depth: int = 2) -> nn.Module:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 8))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lstm = nn.LSTM(32, 64, batch_first=True)
        self.head = nn.Linear(64, 8)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.lstm(inputs)[0][:, -1])


def transformer() -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.0, batch_first=True, norm_first=True)
    return nn.Sequential(
        nn.Linear(32, 512), nn.TransformerEncoder(layer, 6, enable_nested_tensor=False), Mean()
    )


class Mean(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(512, 8)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.head(hidden.mean(1))


def loss_fn(model: nn.Module, batch: Any) -> Tensor:
    inputs, targets = batch
    return nn.functional.cross_entropy(model(inputs), targets)


def adamw(model: nn.Module, device: str, lr: Any = PEAK) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=lr, fused=True, capturable=device == "cuda")


def batch_for(device: str, *shape: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(*shape, device=device), torch.randint(8, shape[:1], device=device)


def make_train_step(model: nn.Module, device: str, **options: Any) -> TrainStep:
    model = model.to(device)
    options = {"curve": CURVE, "max_norm": MAX_NORM} | options
    return TrainStep(model, adamw(model, device), loss_fn, **options)


def counting_samples(model: nn.Module, device: str, **options: Any) -> Update:
    train_step = make_train_step(model, device, clock=DataClock(64), **options)

    def update(batch: Any) -> Any:
        return train_step(batch, count=len(batch[0]))

    return update


class ByHand:
    """The leanest loop with the results of a TrainStep: one micro-batch, one group, fp32.

    It looks up the first steps of the curve, and returns the counts as one tensor: the step of the
    curve after the update, updates applied, updates skipped.
    """

    def __init__(self, model: nn.Module, device: str, *, follow_curve: bool = True) -> None:
        self.model = model.to(device)
        self.lr = torch.full((1,), PEAK, device=device)
        self.optimizer = adamw(self.model, device, self.lr[0])
        self.parameters = list(self.model.parameters())
        self.table = torch.tensor(PEAK * CURVE(range(1 << 16)), device=device)
        self.counts = torch.zeros(3, dtype=torch.int64, device=device)
        self.curve_step = self.counts[:1]
        self.if_applied = torch.tensor([1, 1, 0], device=device)
        self.if_skipped = torch.tensor([0, 0, 1], device=device)
        self.follow_curve = follow_curve

    def __call__(self, batch: Any) -> tuple[Tensor, ...]:
        loss = loss_fn(self.model, batch)
        loss.backward()
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients, 2.0)))
        return self.finish(loss.detach(), norm, gradients)

    def finish(self, loss: Tensor, norm: Tensor, gradients: list[Tensor]) -> tuple[Tensor, ...]:
        """Clip, decide, step, count."""
        torch._foreach_mul_(gradients, torch.clamp(MAX_NORM / (norm + 1e-6), max=1.0))
        skip = loss.mul(0).add(norm, alpha=0).ne(0)
        if self.follow_curve:
            torch.index_select(self.table, 0, self.curve_step, out=self.lr)
        self.optimizer.found_inf = skip.float()
        self.optimizer.step()
        del self.optimizer.found_inf
        self.counts.add_(torch.where(skip, self.if_skipped, self.if_applied))
        for parameter in self.parameters:
            parameter.grad = None
        return loss, norm, self.lr.clone(), self.counts.clone()


class Captured:
    """A hand-written loop around one CUDA graph; keeps `by_hand`, whose tensors it uses."""

    def __init__(self, by_hand: ByHand, batch: Any) -> None:
        self.by_hand = by_hand
        self.inputs = [tensor.clone() for tensor in batch]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                by_hand(self.inputs)
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=stream):
            self.outputs = by_hand(self.inputs)

    def __call__(self, batch: Any) -> list[Tensor]:
        torch._foreach_copy_(self.inputs, list(batch), non_blocking=True)
        self.graph.replay()
        return [output.clone() for output in self.outputs]


def fabric() -> Update:
    runner = Fabric(accelerator="cpu")
    model = mlp()
    model, optimizer = runner.setup(model, adamw(model, "cpu"))
    scheduler = lambda_lr(optimizer.optimizer, CURVE)

    def update(batch: Any) -> Tensor:
        loss = loss_fn(model, batch)
        runner.backward(loss)
        runner.clip_gradients(model, optimizer, max_norm=MAX_NORM)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        return loss.detach()

    return update


def accelerate() -> Update:
    runner = Accelerator(cpu=True)
    model = mlp()
    optimizer = adamw(model, "cpu")
    model, optimizer, scheduler = runner.prepare(model, optimizer, lambda_lr(optimizer, CURVE))

    def update(batch: Any) -> Tensor:
        loss = loss_fn(model, batch)
        runner.backward(loss)
        runner.clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        return loss.detach()

    return update


def compare(title: str, updates: dict[str, Update], batch: Any, *, rounds: int, calls: int) -> None:
    """Time the updates in turn; a ratio is the median of the rounds' ratios to the first."""
    for update in updates.values():
        repeat(12, update, batch)
    contenders = {name: partial(repeat, calls, update, batch) for name, update in updates.items()}
    settle = torch.cuda.synchronize if batch[0].is_cuda else bool
    times = seconds(rounds, contenders, settle=settle)
    show(title, ["", "µs", "ratio"], ratios_to_first(times, calls))


def on_cpu(rounds: int, calls: int) -> None:
    compare(
        "tiny MLP, fp32, CPU, clipping",
        {
            "TrainStep": make_train_step(mlp(), "cpu"),
            "TrainStep, a hold rule": make_train_step(mlp(), "cpu", clock=HOLD),
            "TrainStep, a clock of samples": counting_samples(mlp(), "cpu"),
            "hand-written, as lean as can be": ByHand(mlp(), "cpu"),
            "Lightning Fabric, LambdaLR": fabric(),
            "accelerate, LambdaLR": accelerate(),
        },
        batch_for("cpu", 16, 32),
        rounds=rounds,
        calls=calls,
    )
    builds = {
        steps: partial(
            make_train_step, mlp(), "cpu", curve=PlateauCurve(steps, plateaus=[(50, 30)])
        )
        for steps in (1_000, 1_000_000)
    }
    times = seconds(min(rounds, 21), builds)
    rows = [[steps, 1e3 * statistics.median(of_steps)] for steps, of_steps in times.items()]
    show("building a TrainStep", ["steps of its curve", "ms"], rows)


def on_gpu(rounds: int, calls: int) -> None:
    print(f"\n{torch.cuda.get_device_name()}, torch {torch.__version__}")
    for name, make, shape in (
        ("small MLP", lambda: mlp(256, 3), (64, 256)),
        ("LSTM", Recurrent, (64, 32, 32)),
    ):
        compare(
            f"{name}, fp32",
            {
                "captured": make_train_step(make(), "cuda", cuda_graph=True),
                "eager": make_train_step(make(), "cuda"),
            },
            batch_for("cuda", *shape),
            rounds=rounds,
            calls=calls,
        )
    compare(
        "transformer, 19 M parameters",
        {
            "bf16, compiled": make_train_step(
                transformer(), "cuda", precision="bf16", compile=True
            ),
            "fp32, eager": make_train_step(transformer(), "cuda"),
        },
        batch_for("cuda", 64, 128, 32),
        rounds=rounds,
        calls=max(1, calls // 10),
    )
    batch = batch_for("cuda", 64, 256)
    make_captured = partial(make_train_step, device="cuda", cuda_graph=True)
    compare(
        "small MLP, captured",
        {
            "TrainStep": make_captured(mlp(256, 3)),
            "TrainStep, a hold rule": make_captured(mlp(256, 3), clock=HOLD),
            "TrainStep, compiled": make_captured(mlp(256, 3), compile=True),
            "TrainStep, compiled, a hold rule": make_captured(
                mlp(256, 3), compile=True, clock=HOLD
            ),
            "TrainStep, a clock of samples": counting_samples(mlp(256, 3), "cuda", cuda_graph=True),
            "TrainStep, eager": make_train_step(mlp(256, 3), "cuda"),
            "TrainStep, eager, a clock of samples": counting_samples(mlp(256, 3), "cuda"),
            "hand-written": Captured(ByHand(mlp(256, 3), "cuda"), batch),
            "hand-written, constant rate": Captured(
                ByHand(mlp(256, 3), "cuda", follow_curve=False), batch
            ),
        },
        batch,
        rounds=rounds,
        calls=calls,
    )
    waiting_for_data()


def waiting_for_data() -> None:
    """Measure the share of an epoch during which the loop waits for its next batch."""
    torch.manual_seed(1)
    examples = TensorDataset(torch.randn(20_000, 128, 32), torch.randint(8, (20_000,)))
    train_step = make_train_step(transformer(), "cuda", precision="bf16")
    batches = prefetch(make_loader(examples, 64, device="cuda"), "cuda")
    for _ in range(2):  # the first epoch starts the workers
        waited, start, before = 0.0, time.perf_counter(), time.perf_counter()
        for batch in batches:
            waited += time.perf_counter() - before
            train_step(batch)
            before = time.perf_counter()
        torch.cuda.synchronize()
        total = time.perf_counter() - start
    print(f"\nwaiting for data: {100 * waited / total:.2f} % of an epoch of {total:.2f} s")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Compare the cost of training updates.")
    parser.add_argument("--rounds", type=positive, default=201)
    parser.add_argument("--calls", type=positive, default=20, help="updates a round")
    options = parser.parse_args(arguments)
    warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
    on_cpu(options.rounds, options.calls)
    if torch.cuda.is_available():
        on_gpu(options.rounds, options.calls)
    else:
        print("\nNo GPU here: its part did not run.")


if __name__ == "__main__":
    main()
