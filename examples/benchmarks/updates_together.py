"""Updates over several processes, with `TrainStep` and with other libraries; scale.py runs this."""

import os
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from accelerate.state import AcceleratorState
from lightning_fabric import Fabric
from lightning_fabric.strategies import DDPStrategy, ModelParallelStrategy
from side_by_side import ratios_to_first, repeat, seconds, show
from step import CURVE, MAX_NORM, ByHand, adamw, batch_for, loss_fn, mlp
from torch import Tensor, distributed, multiprocessing, nn
from torch.distributed.fsdp import fully_shard

from torch_bridge import TrainStep, distribute, lambda_lr

DEVICE = "cuda" if torch.cuda.device_count() > 1 else "cpu"


class Size(NamedTuple):
    """A model, its batches, and the number of updates timed together."""

    name: str
    width: int
    depth: int
    rows: int
    calls: int


Update = Callable[[Sequence[Any]], Tensor]


def with_train_step(mode: str, model: nn.Module, device: str, synchronize: str) -> Update:
    model = distribute(model, mode, blocks=nn.Linear, device=device)
    options = {"max_norm": MAX_NORM, "synchronize": synchronize}
    train_step = TrainStep(model, adamw(model, device), loss_fn, CURVE, **options)
    return lambda batches: train_step(*batches).loss


class ByHandTogether(ByHand):
    """The operations and collectives of a `TrainStep` over several ranks, written by hand."""

    def __init__(self, mode: str, model: nn.Module, device: str, synchronize: str) -> None:
        super().__init__(distribute(model, mode, blocks=nn.Linear, device=device), device)
        self.sharded, self.waits = mode == "fsdp", synchronize == "update"

    def __call__(self, batches: Sequence[Any]) -> Tensor:
        losses = []
        for number, batch in enumerate(batches, 1):
            sends = not self.waits or number == len(batches)
            if self.sharded:
                self.model.set_requires_gradient_sync(sends)
            with nullcontext() if self.sharded or sends else self.model.no_sync():
                loss = loss_fn(self.model, batch) / len(batches)
                loss.backward()
            losses.append(loss.detach())
        with torch.no_grad():
            gradients = [parameter.grad for parameter in self.parameters]
            if self.sharded:
                gradients = [gradient.to_local() for gradient in gradients]
            norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients, 2.0)))
            sums = torch.stack([torch.stack(losses).sum(), norm.square()])
            distributed.all_reduce(sums)
            loss = sums[0] / distributed.get_world_size()
            return self.finish(loss, sums[1].sqrt() if self.sharded else norm, gradients)[0]


def fabric(mode: str, model: nn.Module, device: str) -> Update:
    count = distributed.get_world_size()

    def shard(model: nn.Module, mesh: Any) -> nn.Module:
        for module in model:
            if isinstance(module, nn.Linear):
                fully_shard(module, mesh=mesh["data_parallel"])
        return fully_shard(model, mesh=mesh["data_parallel"])

    strategy = DDPStrategy() if mode == "ddp" else ModelParallelStrategy(shard, count, 1)
    runner = Fabric(accelerator=device, devices=count, strategy=strategy)
    runner.launch()
    model = runner.setup_module(model)
    optimizer = runner.setup_optimizers(adamw(model, device))
    scheduler = lambda_lr(optimizer.optimizer, CURVE)

    def update(batches: Sequence[Any]) -> Tensor:
        total = 0.0
        for number, batch in enumerate(batches, 1):
            with runner.no_backward_sync(model, enabled=number < len(batches)):
                loss = loss_fn(model, batch) / len(batches)
                runner.backward(loss)
            total = total + loss.detach()
        runner.clip_gradients(model, optimizer, max_norm=MAX_NORM)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        return total

    return update


def accelerate(mode: str, model: nn.Module, device: str) -> Update:
    AcceleratorState._reset_state()
    plugin = None
    if mode == "fsdp":
        plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2,
            auto_wrap_policy="transformer_based_wrap",
            transformer_cls_names_to_wrap=["Linear"],
        )
    runner = Accelerator(
        cpu=device == "cpu", fsdp_plugin=plugin, step_scheduler_with_optimizer=False
    )
    optimizer = adamw(model, device)
    model, optimizer = runner.prepare(model, optimizer)
    scheduler = runner.prepare(lambda_lr(optimizer.optimizer, CURVE))

    def update(batches: Sequence[Any]) -> Tensor:
        total = 0.0
        for number, batch in enumerate(batches, 1):
            with runner.no_sync(model) if number < len(batches) else nullcontext():
                loss = loss_fn(model, batch) / len(batches)
                runner.backward(loss)
            total = total + loss.detach()
        runner.clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        return total

    return update


def contenders(mode: str, size: Size, count: int) -> dict[str, Update]:
    """Return the updates to compare, each with a separate model; accelerate shards on GPUs only."""

    def make(kind: Callable[..., Update], *arguments: object) -> Update:
        return kind(mode, mlp(size.width, size.depth), DEVICE, *arguments)

    updates = {
        "TrainStep": make(with_train_step, "update"),
        "hand-written, the same operations": make(ByHandTogether, "update"),
    }
    if count > 1:
        updates['TrainStep, synchronize="micro"'] = make(with_train_step, "micro")
        updates['hand-written, as synchronize="micro"'] = make(ByHandTogether, "micro")
    updates["Lightning Fabric, LambdaLR"] = make(fabric)
    if mode == "ddp" or DEVICE == "cuda":
        updates["accelerate, LambdaLR"] = make(accelerate)
    return updates


def compare(mode: str, size: Size, count: int, rounds: int) -> None:
    """Time updates of `count` micro-batches; every rank calls it."""
    everyone, rank = distributed.get_world_size(), distributed.get_rank()
    updates = contenders(mode, size, count)
    whole = batch_for(DEVICE, everyone * count * size.rows, size.width)
    batches = list(zip(*(part.chunk(everyone * count) for part in whole), strict=True))
    own = batches[rank * count :][:count]

    losses = torch.zeros(len(updates), device=DEVICE)
    for _ in range(5):
        for index, update in enumerate(updates.values()):
            losses[index] = update(own)
    distributed.all_reduce(losses)  # some return the loss over all ranks, others that of one rank
    torch.testing.assert_close(losses, losses[:1].expand_as(losses), rtol=1e-4, atol=0)

    calls = {name: partial(repeat, size.calls, update, own) for name, update in updates.items()}
    times = seconds(rounds, calls, settle=settle)
    if rank == 0:
        parameters = sum(
            parameter.numel() for parameter in mlp(size.width, size.depth).parameters()
        )
        model = f"{size.name} model of {parameters:,} parameters"
        title = f"{mode}, {model}, micro-batches an update: {count}"
        show(title, ["", "µs", "to TrainStep"], ratios_to_first(times, size.calls))


def settle() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    distributed.barrier()


def work(rank: int, count: int, port: int, sizes: Sequence[Size], rounds: int) -> None:
    """Time the updates in one process."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # so that Ctrl-C ends it without a traceback
    # The names are torchrun's.
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
    os.environ |= {name: str(number) for name, number in names.items()} | {"OMP_NUM_THREADS": "1"}
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
    store = distributed.TCPStore("127.0.0.1", port)
    kind, device = ("nccl", torch.device("cuda", rank)) if DEVICE == "cuda" else ("gloo", None)
    distributed.init_process_group(kind, store=store, rank=rank, world_size=count, device_id=device)
    for mode, size, micro_batches in product(("ddp", "fsdp"), sizes, (1, 4)):
        compare(mode, size, micro_batches, rounds)
    # gloo can abort a process that destroys the group: ranks wait for each other, and exit without
    # doing so.
    store.set(f"done {rank}", "")
    store.wait([f"done {each}" for each in range(count)])
    sys.stdout.flush()
    os._exit(0)


def run(sizes: Sequence[Size], rounds: int) -> None:
    """Start one process per GPU, or two if there are fewer than two GPUs, and wait for them."""
    count = max(2, torch.cuda.device_count())
    store = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    print(f"\n{count} processes", flush=True)
    # New processes inherit it, until `work` begins.
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        processes = multiprocessing.spawn(
            work, (count, store.port, sizes, rounds), nprocs=count, join=False, daemon=True
        )
    finally:
        signal.signal(signal.SIGINT, handler)
    while not processes.join():
        pass
