"""Compare `Checkpoints` with `torch.distributed.checkpoint` (DCP), and with `torch.save`.

The script prints medians over interleaved rounds, with files in the system's page cache: the time
until `save` returns and training continues, the time until the checkpoint is on disk, the time of a
load, the size of the checkpoint, and the peak memory of the first save above the memory before it
(only Linux measures it).

Every contender has its own process, which has made a small save beforehand, so that no import is
measured. All contenders flush their files to the disk: `Checkpoints` and DCP do it in the
background, and the script does it after `torch.save`, which blocks training until then. Only
`Checkpoints` verifies digests in a load.

With several ranks every tensor is sharded, `torch.save` does not take part, and the memory is that
of rank 0.

    python examples/benchmarks/checkpoints.py
    python examples/benchmarks/checkpoints.py --other ../earlier    (and another checkout's)
    python examples/benchmarks/checkpoints.py --device cuda    (the tensors are on a GPU)
    torchrun --nproc-per-node 2 examples/benchmarks/checkpoints.py
"""

import argparse
import ctypes
import gc
import multiprocessing
import os
import shutil
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from side_by_side import positive, show
from torch import Tensor, distributed, nn
from torch.distributed import checkpoint as dcp
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard

COLUMNS = ["ms until training continues", "until on disk", "load", "MB", "MB of memory"]
THIS_CHECKOUT = Path(__file__).resolve().parents[2]

Parts = dict[str, Any]
"""Parts of a checkpoint by name: modules, optimizers and dictionaries of tensors."""


def transformer_with_adamw(layers: int, mesh: DeviceMesh | None) -> Parts:
    """Return a transformer and its optimizer after one update."""
    layer = nn.TransformerEncoderLayer(d_model=192, nhead=6, dim_feedforward=768)
    model = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    if mesh is not None:
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    return {"model": model, "optimizer": optimizer}


def plain_tensors(count: int, shape: tuple[int, ...], mesh: DeviceMesh | None) -> Parts:
    """Return a dictionary of tensors."""
    tensors: dict[str, Tensor] = {}
    for number in range(count):
        if mesh is None:
            tensor = torch.randn(shape)
        else:
            shard = torch.randn(shape[0] // mesh.size(), *shape[1:])
            tensor = DTensor.from_local(shard, mesh, [Shard(0)], run_check=False)
        tensors[f"layers.{number}.weight"] = tensor
    return {"state": tensors}


def make_parts(state: str, mesh: DeviceMesh | None, *, quick: bool) -> Parts:
    if state == "transformer":
        return transformer_with_adamw(1 if quick else 24, mesh)
    if state == "large":
        return plain_tensors(6, (2048, 2048), mesh)
    return plain_tensors(20_000, (64,), mesh)


STATES = {
    "transformer": "a transformer with AdamW after one update",
    "large": "large tensors",
    "small": "small tensors",
}


class Ours:
    """The `Checkpoints` of a checkout."""

    def __init__(self, directory: Path, checkout: Path) -> None:
        sys.path.insert(0, str(checkout))
        # Not at the top: which checkout it comes from is known only now.
        from torch_bridge import Checkpoints

        self.checkpoints = Checkpoints(directory, keep=1)

    def save(self, number: int, parts: Parts) -> Callable[[], object]:
        """Start a save, and return a function that waits until it is on disk."""
        self.checkpoints.save(number, **parts)
        return getattr(self.checkpoints, "steps", None) or self.checkpoints.counts

    def load(self, number: int, parts: Parts) -> None:
        self.checkpoints.load(number, **parts)


class TorchDcp:
    def __init__(self, directory: Path, checkout: Path) -> None:
        self.directory = directory

    def save(self, number: int, parts: Parts) -> Callable[[], object]:
        return dcp.async_save(parts, checkpoint_id=self.directory / str(number)).result

    def load(self, number: int, parts: Parts) -> None:
        dcp.load(parts, checkpoint_id=self.directory / str(number))


class TorchSave:
    def __init__(self, directory: Path, checkout: Path) -> None:
        self.directory = directory

    def save(self, number: int, parts: Parts) -> Callable[[], object]:
        states = {name: state_of(part) for name, part in parts.items()}
        self.directory.mkdir(exist_ok=True)
        with (self.directory / str(number)).open("wb") as file:
            torch.save(states, file)
            file.flush()
            os.fsync(file.fileno())
        return bool

    def load(self, number: int, parts: Parts) -> None:
        states = torch.load(self.directory / str(number), weights_only=True)
        for name, part in parts.items():
            if isinstance(part, dict):
                part.update(states[name])
            else:
                part.load_state_dict(states[name])


def state_of(part: Any) -> Any:
    if isinstance(part, dict):
        return part
    return part.state_dict()


def tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)


def forget_peak_memory() -> None:
    """Return free memory to the system, and let the peak start from what is left."""
    gc.collect()
    try:
        Path("/proc/self/clear_refs").write_text("5")
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError, TypeError):
        return  # not Linux, or not glibc


def memory(key: str) -> float | None:
    """Return this process's memory in MB: now (`VmRSS`) or at its peak (`VmHWM`)."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return None
    _, _, rest = status.partition(f"{key}:")
    return int(rest.split()[0]) * 1024 / 1e6


@dataclass(frozen=True)
class Task:
    """The work of one process: a contender, and the state that it saves."""

    contender_class: type[Ours | TorchDcp | TorchSave]
    checkout: Path
    state: str
    directory: Path
    device: str
    quick: bool

    def run(self, pipe: Connection) -> None:
        """Send a description of the state, then an answer per save: a first one, timed rounds."""
        torch.set_num_threads(1)
        torch.manual_seed(0)
        warnings.filterwarnings("ignore", module="torch.distributed")
        mesh = None
        if "RANK" in os.environ:  # of torchrun
            rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
            store = f"file://{self.directory}.group"
            distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks)
            mesh = init_device_mesh("cpu", (ranks,))
        contender = self.contender_class(self.directory, self.checkout)
        contender.save(0, {"state": {"number": torch.zeros(1)}})()
        barrier()
        with torch.device(self.device):
            parts = make_parts(self.state, mesh, quick=self.quick)
        pipe.send(describe(parts))
        while True:
            number = pipe.recv()
            if number == 1:
                answer = [measure_memory(contender, number, parts)]
            else:
                answer = [*measure_times(contender, number, parts), megabytes_in(self.directory)]
            barrier()
            if is_main():
                shutil.rmtree(self.directory)
            barrier()
            pipe.send(answer)


def describe(parts: Parts) -> str:
    states = {name: state_of(part) for name, part in parts.items()}
    tensors = list(tensors_in(states))
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    return f"{len(tensors):,} tensors, {size / 1e6:.3g} MB"


def measure_memory(
    contender: Ours | TorchDcp | TorchSave, number: int, parts: Parts
) -> float | None:
    """Save and load as a warmup; return by how many MB the save raises the peak memory."""
    forget_peak_memory()
    before = memory("VmRSS")
    contender.save(number, parts)()
    peak = memory("VmHWM")
    barrier()
    contender.load(number, parts)
    if before is None or peak is None:
        return None
    return peak - before


def measure_times(contender: Ours | TorchDcp | TorchSave, number: int, parts: Parts) -> list[float]:
    """Return milliseconds: until `save` returns, until the checkpoint is on disk, and of a load."""
    barrier()
    start = time.perf_counter()
    wait = contender.save(number, parts)
    continued = time.perf_counter()
    wait()
    barrier()
    on_disk = time.perf_counter()
    contender.load(number, parts)
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    barrier()
    loaded = time.perf_counter()
    return [(continued - start) * 1e3, (on_disk - start) * 1e3, (loaded - on_disk) * 1e3]


def megabytes_in(directory: Path) -> float:
    files = [path for path in directory.rglob("*") if path.is_file()]
    return sum(path.stat().st_size for path in files) / 1e6


class Worker:
    """The process of a contender."""

    def __init__(self, task: Task) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, child_pipe = context.Pipe()
        self._process = context.Process(target=task.run, args=(child_pipe,))
        self._process.start()
        child_pipe.close()
        self.answers: list[Any] = []
        self.too_slow = False
        try:
            self.description: str = self._pipe.recv()
        except BaseException:
            self.end()
            raise

    def run(self, number: int, limit: float) -> None:
        """Save and load once; keep the answer unless it takes longer than the limit in seconds."""
        self._pipe.send(number)
        if on_all_ranks(self._pipe.poll(limit)):
            self.answers.append(self._pipe.recv())
        else:
            self.too_slow = True
            self.end()

    def end(self) -> None:
        self._process.kill()
        self._process.join()


def compare(
    contenders: Mapping[str, tuple[type, Path]],
    state: str,
    directory: Path,
    args: argparse.Namespace,
) -> None:
    """Measure the contenders with one state, and print the table."""
    workers: dict[str, Worker] = {}
    try:
        for name, (contender_class, checkout) in contenders.items():
            files = directory / f"{state}-{len(workers)}"
            workers[name] = Worker(
                Task(contender_class, checkout, state, files, args.device, args.quick)
            )
        for number in range(1, args.rounds + 2):
            for worker in workers.values():
                if not worker.too_slow:
                    worker.run(number, args.limit)
    finally:
        for worker in workers.values():
            worker.end()
    if is_main():
        description = workers["Checkpoints"].description
        ranks = os.environ.get("WORLD_SIZE", "1")
        rows = [[name, *table_row(worker, args.limit)] for name, worker in workers.items()]
        show(f"{STATES[state]}: {description}, ranks: {ranks}", ["", *COLUMNS], rows)


def table_row(worker: Worker, limit: float) -> list[object]:
    if worker.too_slow:
        return [f"> {limit:g} s", *["—"] * (len(COLUMNS) - 1)]
    (peak_memory,), *rounds = worker.answers
    columns = zip(*rounds, strict=True)
    return [*map(statistics.median, columns), "—" if peak_memory is None else peak_memory]


def is_main() -> bool:
    return os.environ.get("RANK", "0") == "0"


def barrier() -> None:
    if distributed.is_initialized():
        distributed.barrier()


def on_all_ranks(condition: bool) -> bool:
    """Return True if the condition holds on every rank."""
    if not distributed.is_initialized():
        return condition
    flag = torch.tensor(int(condition))
    distributed.all_reduce(flag, distributed.ReduceOp.MIN)
    return bool(flag)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=positive, default=7)
    parser.add_argument("--limit", type=positive, default=120, help="seconds for one save and load")
    parser.add_argument(
        "--other", type=Path, help="a different checkout, whose Checkpoints take part too"
    )
    parser.add_argument("--device", default="cpu", help="of a single process: cpu or cuda")
    parser.add_argument(
        "--quick", action="store_true", help="one round of one small state: does it run?"
    )
    args = parser.parse_args()
    states = list(STATES)
    if args.quick:
        args.rounds = 1
        states = states[:1]
    contenders: dict[str, tuple[type, Path]] = {"Checkpoints": (Ours, THIS_CHECKOUT)}
    if args.other is not None:
        contenders[f"Checkpoints of {args.other}"] = (Ours, args.other.resolve())
    contenders["DCP"] = (TorchDcp, THIS_CHECKOUT)
    if "RANK" in os.environ:  # of torchrun
        distributed.init_process_group("gloo")
    else:
        contenders["torch.save"] = (TorchSave, THIS_CHECKOUT)
    folders: list[str | None] = [None]
    if is_main():
        folders = [tempfile.mkdtemp()]
        gpu = f", {torch.cuda.get_device_name()}" if args.device == "cuda" else ""
        print(f"torch {torch.__version__}, {os.cpu_count()} cores{gpu}")
    if distributed.is_initialized():
        distributed.broadcast_object_list(folders)
    try:
        for state in states:
            compare(contenders, state, Path(folders[0]), args)
        barrier()
    finally:
        shutil.rmtree(folders[0], ignore_errors=True)
    if distributed.is_initialized():
        sys.stdout.flush()
        os._exit(0)  # gloo can abort a process that destroys its group


if __name__ == "__main__":
    main()
