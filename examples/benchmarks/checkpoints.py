"""Compare `Checkpoints` with `torch.distributed.checkpoint` (DCP) as it comes.

Printed are medians over interleaved rounds, with files in the system's page cache: until a save in the
background returns, until it is complete, and of a load; and the size of a checkpoint. With several ranks
every tensor is sharded. Takes some five minutes on one process and ten on two.

    python examples/benchmarks/checkpoints.py
    torchrun --nproc-per-node 2 examples/benchmarks/checkpoints.py
"""

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from side_by_side import positive, show
from torch import Tensor, distributed
from torch.distributed import checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from torch_bridge import Checkpoints, is_main

# The number of tensors, and the shape of each.
STATES = {"101 MB in 6 tensors": (6, (2048, 2048)), "20,000 small tensors": (20_000, (64,))}


def state_of(count: int, shape: tuple[int, ...]) -> dict[str, Tensor]:
    """Return a dictionary of tensors, sharded if there are several ranks."""
    tensors = {f"layers.{number}.weight": torch.randn(shape) for number in range(count)}
    if not distributed.is_initialized():
        return tensors
    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    return {name: distribute_tensor(tensor, mesh, [Shard(0)]) for name, tensor in tensors.items()}


class Ours:
    def __init__(self, folder: Path) -> None:
        self.folder, self.checkpoints = folder, Checkpoints(folder, keep=1)

    def save(self, count: int, state: dict[str, Tensor]) -> Callable[[], object]:
        """Start a save, and return a function that waits for it."""
        self.checkpoints.save(count, state=state)
        return self.checkpoints.counts

    def load(self, count: int, state: dict[str, Tensor]) -> None:
        self.checkpoints.load(count, state=state)


class TorchDcp:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, count: int, state: dict[str, Tensor]) -> Callable[[], object]:
        return dcp.async_save({"state": state}, checkpoint_id=self.folder / str(count)).result

    def load(self, count: int, state: dict[str, Tensor]) -> None:
        dcp.load({"state": state}, checkpoint_id=self.folder / str(count))


def compare(
    title: str, state: dict[str, Tensor], contenders: Mapping[str, Ours | TorchDcp], rounds: int
) -> None:
    times: dict[str, list[list[float]]] = {name: [] for name in contenders}
    for count in range(rounds + 1):
        for name, contender in contenders.items():
            barrier()
            moments = [time.perf_counter()]
            wait = contender.save(count, state)
            moments.append(time.perf_counter())
            wait()
            barrier()
            moments.append(time.perf_counter())
            contender.load(count, state)
            barrier()
            moments.append(time.perf_counter())
            times[name].append([moments[1] - moments[0], moments[2] - moments[0], moments[3] - moments[2]])
            shutil.rmtree(contender.folder / str(count - 1), ignore_errors=True)
    if is_main():
        rows: list[list[object]] = []
        for name, contender in contenders.items():
            size = sum(path.stat().st_size for path in (contender.folder / str(rounds)).iterdir())
            columns = zip(*times[name][1:], strict=True)  # the first round warms up
            rows.append([name, *(statistics.median(column) * 1e3 for column in columns), size / 1e6])
        ranks = distributed.get_world_size() if distributed.is_initialized() else 1
        show(f"{title}, ranks: {ranks}", ["", "ms until save returns", "until complete", "load", "MB"], rows)


def barrier() -> None:
    if distributed.is_initialized():
        distributed.barrier()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=positive, default=7)
    parser.add_argument("--quick", action="store_true", help="one round, few tensors: does it run?")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    warnings.filterwarnings("ignore", module="torch.distributed")
    folders = [tempfile.mkdtemp()]
    if "RANK" in os.environ:  # of torchrun
        distributed.init_process_group("gloo")
        distributed.broadcast_object_list(folders)
    if is_main():
        print(f"torch {torch.__version__}, {os.cpu_count()} cores")
    for index, (title, (count, shape)) in enumerate(STATES.items()):
        folder = Path(folders[0], str(index))
        contenders = {"Checkpoints": Ours(folder / "ours"), "DCP": TorchDcp(folder / "dcp")}
        state = state_of(3 if args.quick else count, shape)
        compare(title, state, contenders, 1 if args.quick else args.rounds)
    barrier()
    shutil.rmtree(folders[0], ignore_errors=True)
    sys.stdout.flush()
    os._exit(0)  # gloo can abort a process that destroys its group


if __name__ == "__main__":
    main()
