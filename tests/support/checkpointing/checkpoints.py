"""Parts of checkpoints, kills during a save, and the saves and loads of ranks."""

import os
import signal
import sys
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import numpy as np
import torch
from support.distributed.distributed_updates import Case, batch_of, step_of
from support.forkserver import FORKSERVER
from torch import Tensor, distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils import _pytree as pytree

from plateau_jax import PlateauCurve
from torch_bridge import Checkpoints, TrainStep
from torch_bridge.checkpointing import rank_files
from torch_bridge.checkpointing.encoding import Reference
from torch_bridge.checkpointing.reading import SavedCheckpoint


class Part:
    """A part with any state."""

    def __init__(self, state: Any = None) -> None:
        self.state = state

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state_dict: Any) -> None:
        self.state = state_dict


class Rejecting(Part):
    """A part that takes a state first, and then rejects it unless it is the former one."""

    def load_state_dict(self, state_dict: Any) -> None:
        before, self.state = self.state, state_dict
        if state_dict != before:
            raise KeyError("another one")


def same_bits(actual: Any, expected: Any) -> bool:
    """Return True if types, bits, the order of keys, shapes and memory layouts are equal."""
    if type(actual) is not type(expected):
        return False
    if isinstance(expected, Tensor):
        layouts = [(tensor.dtype, tensor.shape, tensor.stride()) for tensor in (actual, expected)]
        flags = [(tensor.requires_grad, tensor.is_leaf) for tensor in (actual, expected)]
        return layouts[0] == layouts[1] and flags[0] == flags[1] and _bits(actual) == _bits(expected)
    if isinstance(expected, np.ndarray | np.generic):
        return (actual.dtype, actual.shape, actual.tobytes()) == (
            expected.dtype,
            expected.shape,
            expected.tobytes(),
        )
    if isinstance(expected, Mapping):
        mappings = cast("Sequence[Mapping[Any, Any]]", (actual, expected))
        versions = [getattr(mapping, "_metadata", None) for mapping in mappings]
        return same_bits(*(list(mapping.items()) for mapping in mappings)) and same_bits(*versions)
    if isinstance(expected, list | tuple):
        items = cast("Sequence[Any]", expected)
        return len(actual) == len(items) and all(map(same_bits, actual, items))
    if isinstance(expected, float | complex):
        return np.complex128(actual).tobytes() == np.complex128(expected).tobytes()
    return actual == expected


def _bits(tensor: Tensor) -> bytes:
    flat = tensor.detach().contiguous().view(-1)
    return flat.view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def leftovers(directory: Path, counts: Sequence[int]) -> list[str]:
    """Return the names in a folder other than one complete checkpoint of each count."""
    names = [path.name for path in directory.iterdir()]
    extra = [name for name in names if name.partition(".")[0] not in map(str, counts)]
    return extra if extra or len(names) == len(counts) else names


def run_and_kill(
    function: Callable[..., Any], *arguments: Any, at: int, rank: int = 0, number: int = 1
) -> bool:
    """Run the function on some ranks, and kill one of them.

    The kill, by SIGKILL, comes just before the rank touches the disk for the `at`-th time, from 0. Returns
    whether it came: the rank may have ended before.
    """
    directory = cast("Path", arguments[0])
    store = str(directory.with_suffix(f".{at}.{rank}.{number}.store"))
    workers = [
        FORKSERVER.Process(
            target=_work, args=(function, arguments, store, at if worker == rank else None, worker, number)
        )
        for worker in range(number)
    ]
    for worker in workers:
        worker.start()
    workers[rank].join()
    was_killed = workers[rank].exitcode == -signal.SIGKILL
    for worker in workers:
        if was_killed:
            worker.kill()  # it may wait for the killed one, or have seen the connection close
        worker.join()
    assert was_killed or {worker.exitcode for worker in workers} == {0}
    return was_killed


_ON_DISK = ("open", "os.", "shutil.rmtree")


def _work(
    function: Callable[..., Any], arguments: Any, store: str, at: int | None, rank: int, number: int
) -> None:
    if number > 1:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=number)
    directory, left = str(arguments[0]), at

    def count_down(event: str, values: tuple[Any, ...]) -> None:
        nonlocal left
        if left is None or not event.startswith(_ON_DISK):
            return
        # shutil.rmtree removes files by their names alone, relative to an open folder.
        if str(values[0]).startswith(directory) or (event == "os.remove" and values[1] != -1):
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count_down)
    function(*arguments)
    os._exit(0)  # skips gloo's teardown, which can abort the process


def state_of(count: int) -> dict[str, Any]:
    return {"weights": torch.full((50,), float(count)), "count": count, "none": {}}


def save_each(directory: Path, counts: Sequence[int], keep: int = 2) -> None:
    """Save these checkpoints one after the other. The part's state depends on the count."""
    checkpoints = Checkpoints(directory, keep=keep)
    for count in counts:
        checkpoints.save(count, part=Part(state_of(count)), wait=True)


def rank() -> int:
    return distributed.get_rank()


def sharded(seed: int) -> nn.Module:
    """Return two layers under FSDP2, in which two ranks hold shards of unequal size."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 1))
    for module in (*model, model):
        fully_shard(module)
    return model


def gather_tensors(state: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Return every tensor of a state, gathered, by path."""
    tensors: dict[str, np.ndarray[Any, Any]] = {}
    for path, leaf in cast("list[tuple[Any, Any]]", pytree.tree_leaves_with_path(state)):
        if isinstance(leaf, Tensor):
            full = leaf.full_tensor() if isinstance(leaf, DTensor) else leaf
            tensors[pytree.keystr(path)] = full.detach().numpy().copy()
    return tensors


def own_and_common(directory: Path) -> list[bool]:
    """Save and load a part, plain values, a sharded model and optimizer; return whether each comes back."""
    model, common = sharded(0), torch.arange(1000.0)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    of_rank = torch.full((3,), float(rank()))
    expected: dict[str, Any] = {"common": common.clone(), "own": of_rank, "rank": [rank()], "e": {}}
    part, values = Part(expected), {"rank": rank(), "all": [1]}
    before = gather_tensors([model.state_dict(), optimizer.state_dict()])
    checkpoints = Checkpoints(directory)
    checkpoints.save(1, part=part, values=values, model=model, optimizer=optimizer)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    common.zero_()
    fresh = torch.optim.Adam(model.parameters())
    part.state = None
    values.clear()
    assert checkpoints.load(part=part, values=values, model=model, optimizer=fresh) == 1
    after = gather_tensors([model.state_dict(), fresh.state_dict()])
    model(torch.ones(2, 3)).sum().backward()
    fresh.step()
    return [
        same_bits(part.state, expected),
        values == {"rank": rank(), "all": [1]},
        after.keys() == before.keys() and all(np.array_equal(after[key], before[key]) for key in before),
    ]


def tied_shards(directory: Path) -> None:
    """Save a step and its model under FSDP2, with a tied weight of which rank 1 has no row."""
    first, second = nn.Linear(3, 1), nn.Linear(3, 1)
    second.weight = first.weight
    nn.init.constant_(first.weight, 7.0)
    model = nn.Sequential(first, second)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = TrainStep(model, optimizer, lambda model, batch: model(batch).mean(), PlateauCurve(100))
    Checkpoints(directory).save(1, step=step, model=model, wait=True)


def saved_with_other_orders(directory: Path, wrapper: str) -> list[str]:
    """Save a step, and an optimizer with names, whose parameters have another order on each rank.

    Returns:
        The errors of the saves.
    """
    model = nn.Sequential(*(nn.Linear(2, 2, bias=False) for _ in range(3)))
    named = list(model.named_parameters())
    if wrapper == "fsdp":
        fully_shard(model)
        named = list(model.named_parameters())
    wrapped = DistributedDataParallel(model) if wrapper == "ddp" else model
    optimizer = torch.optim.AdamW(named[rank() :] + named[: rank()])
    step = TrainStep(wrapped, optimizer, lambda model, batch: model(batch).square().mean(), PlateauCurve(100))
    step(torch.ones(1, 2))
    checkpoints, errors = Checkpoints(directory), list[str]()
    parts: list[dict[str, Any]] = [{"step": step}, {"optimizer": optimizer}]
    for part in parts:
        try:
            checkpoints.save(1, wait=True, **part)
            checkpoints.load(**part)
        except ValueError as error:
            errors.append(str(error))
    return errors


def trained(directory: Path, cases: Sequence[Case]) -> list[Any]:
    """Train and save each case, and return the gathered content of each checkpoint."""
    contents: list[Any] = []
    for number, case in enumerate(cases):
        step = step_of(case)
        for update in range(3):
            step(batch_of(case, update, rank() if distributed.is_initialized() else 0, 0))
        Checkpoints(directory / str(number)).save(3, step=step, wait=True)
        contents.append(content(step))
    return contents


_read_tensor = SavedCheckpoint.read_tensor


def loaded(directory: Path, cases: Sequence[tuple[int, Case]]) -> list[Any]:
    """Load the numbered checkpoints into new steps; return their content and the warnings.

    Also return the number of elements of model and optimizer that this rank has read.
    """
    results: list[Any] = []
    for number, case in cases:
        step, elements = step_of(case), 0

        def counting(saved: SavedCheckpoint, reference: Reference, *arguments: Any) -> Tensor:
            nonlocal elements
            tensor = _read_tensor(saved, reference, *arguments)
            elements += tensor.numel() if "random" not in reference.key else 0
            return tensor

        with (
            warnings.catch_warnings(record=True) as warned,
            patch.object(SavedCheckpoint, "read_tensor", counting),
        ):
            warnings.simplefilter("always")
            before = torch.get_rng_state().clone()
            assert Checkpoints(directory / str(number)).load(step=step) == 3
        kept = torch.equal(before, torch.get_rng_state())
        results.append((*content(step), kept, [str(warning.message) for warning in warned], elements))
    return results


def content(step: TrainStep) -> tuple[dict[str, np.ndarray[Any, Any]], tuple[int, int], bytes]:
    state = step.state_dict()
    tensors = gather_tensors({"model": dict(state["model"]), "optimizer": state["optimizer"]})
    return tensors, (state["applied"], state["clock"]), state["random"]["cpu"].numpy().tobytes()


def fail_on_one_rank(directory: Path, how: str) -> Any:
    """Let one rank fail in a save or a load.

    Returns what this rank raised, the states of its parts, the counts then, and those after another save.
    """
    part, second = Part({"a": rank()}), Part(OrderedDict(b=1))
    checkpoints = Checkpoints(directory)
    checkpoints.save(1, part=part, second=second, wait=True)
    raised = ""
    try:
        if how == "state" and rank() == 1:
            with patch.object(Part, "state_dict", side_effect=OSError("none")):
                checkpoints.save(2, part=part, second=second)
        elif how == "count":
            checkpoints.save(2 + rank(), part=part, second=second)
        elif how == "names":
            checkpoints.load(None, **{f"part{rank()}": part})
        elif how in ("writing", "earlier"):
            writing: Any = cast("Any", rank_files).save_file
            failing, wait = Part({"a": torch.ones(2) * rank()}), how == "writing"
            with patch.object(rank_files, "save_file", _fails if rank() == 1 else writing):
                checkpoints.save(2, part=failing, second=second, wait=wait)
                checkpoints._background.wait()
            checkpoints.save(4, part=part, second=second, wait=True)
        elif how == "rejection":
            part.state, second.state = {"a": 7}, {"b": 7}
            rejecting = Rejecting({"a": 7}) if rank() == 1 else part
            checkpoints.load(second=second, part=rejecting)
        else:
            checkpoints.save(2, part=part, second=second)
    except Exception as error:
        raised = f"{type(error).__name__}: {error}"
    left = part.state, second.state
    counts = checkpoints.counts()
    checkpoints.save(3, part=part, second=second, wait=True)
    return raised, left, counts, checkpoints.counts()


def load_any(directory: Path) -> str:
    """Return the message of the error that a load raises."""
    try:
        Checkpoints(directory).load(part=Part(), values={}, model=Part(), optimizer=Part())
    except RuntimeError as error:
        return str(error)
    return ""


def _fails(*_: object) -> Any:
    raise OSError("the disk is full")


def without_group(directory: Path) -> None:
    """Save, destroy the process group at once, and wait for the save to end."""
    checkpoints = Checkpoints(directory)
    checkpoints.save(1, model=sharded(0), part=Part(torch.full((3,), float(rank()))))
    distributed.destroy_process_group()
    checkpoints.counts()


def unshared(directory: Path) -> str:
    """Return the error message of a save into a folder that only this rank has."""
    try:
        Checkpoints(directory / str(rank())).save(1, part=Part(1), wait=True)
    except RuntimeError as error:
        return str(error)
    return ""
