"""`Checkpoints`: all parts of a run, saved in the background, checked and loaded again."""

import os
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Never, TypeVar

import torch
from torch import nn

from torch_bridge.checkpointing import folders, parts
from torch_bridge.checkpointing.background import Background
from torch_bridge.checkpointing.loading_parts import LoadingModel, LoadingPart, load_all_or_none
from torch_bridge.checkpointing.missing_ranks import named_when_missing
from torch_bridge.checkpointing.parts import Part, Snapshot
from torch_bridge.checkpointing.writing_ranks import WritingRanks
from torch_bridge.core import at_this_line, checks
from torch_bridge.distributed import processes
from torch_bridge.distributed.agreement import on_all_ranks

Value = TypeVar("Value")

_MOST_READS = 100  # attempts to read a checkpoint before it is removed


class Checkpoints:
    """The checkpoints of a run in a folder. Each has a count: of updates, for instance.

    A checkpoint holds parts, given by name. A part is an object with `state_dict` and `load_state_dict` (a
    `TrainStep`, a loader, a `MetricLog`, a module, an optimizer, a scheduler), or a dictionary or a list of
    plain values, which `load` refills in place. Values may be whatever JSON has, and tuples, sets, bytes,
    dictionaries with other keys than strings, NumPy's arrays, tensors; they come back as they were.

    `save` copies the current state and returns; the copy is written in the background, with
    `torch.distributed.checkpoint`. If a process is killed, the last complete checkpoint is still there, and a
    later save removes the files of the unfinished one. When a program ends by itself, it first completes a
    pending save. The next call raises an error that came in the background; without a next call, it is
    printed at the end.

    `load` first compares the SHA-256 of every file, and runs no code from a checkpoint.

    Under several processes each of them calls `save` and `load`, with the same arguments, on a folder
    that they share. The ranks that hold the shards of a tensor write them. When the tensor is loaded it
    takes the form that the part has now: on another number of processes, under DDP, FSDP2 or on one
    process. DTensors that an optimizer keeps in another form than its parameters are placed under FSDP2 as
    they were. A value that is the same on all ranks is written once, any other value (random numbers, for
    instance) once for each rank. When fewer processes load, the values of the missing ranks are dropped.
    When more processes load, a `TrainStep` on a new rank keeps its own random numbers and carry, and every
    other value there is rank 0's. A warning says so.

    Args:
        directory: The folder; it is made by the first save.
        keep: How many checkpoints are kept: those that were saved last. What else lies in the folder, under
            whatever name, is left alone.

    Raises:
        NotADirectoryError: The directory is a file.
        TypeError, ValueError: `keep` is not a positive integer.

    >>> import tempfile, torch
    >>> from torch_bridge import Checkpoints
    >>> folder, model, progress = tempfile.TemporaryDirectory(), torch.nn.Linear(2, 1), {"epoch": 1}
    >>> checkpoints = Checkpoints(folder.name)
    >>> checkpoints.save(10, model=model, progress=progress)
    >>> progress["epoch"] = 2
    >>> checkpoints.load(model=model, progress=progress)
    10
    >>> progress
    {'epoch': 1}
    >>> folder.cleanup()
    """

    def __init__(self, directory: str | os.PathLike[str], *, keep: int = 3) -> None:
        self.keep = checks.at_least("keep", keep, 1)
        self.directory = Path(directory).absolute()
        if self.directory.exists() and not self.directory.is_dir():
            raise NotADirectoryError(f"directory = {str(directory)!r} is not a folder")
        self._background = Background.of(os.path.realpath(self.directory))

    def counts(self) -> list[int]:
        """The counts of the complete checkpoints, ascending, once a pending save has ended."""
        self._background.finish()
        return sorted({found.count for found in folders.complete(self.directory)})

    def save(self, /, count: int, wait: bool = False, **parts_by_name: Part) -> None:
        """Save the parts as they are now, once a pending save has ended.

        Args:
            count: The checkpoint's count, at least 0. An older checkpoint of the same count is replaced.
            wait: Whether to return only when the checkpoint is complete.
            **parts_by_name: The parts.

        Raises:
            TypeError: `count` is not an integer; a part was passed without its name; a part has no state, or
                its state holds something that a checkpoint does not hold.
            ValueError: There are no parts; the count is negative; the count or the names are not the same
                on all ranks.
            Exception: What a part or the system raises. The other ranks then raise RuntimeError.
        """
        # For the start-up: torch.distributed.checkpoint takes half as long to import as torch.
        from torch_bridge.checkpointing.writing import CheckpointWriter

        unfinished: folders.Unfinished | None = None
        ranks: WritingRanks | None = None
        snapshots: dict[str, Snapshot] = {}

        def begin() -> tuple[int, list[str], tuple[str, str, int]]:
            nonlocal unfinished
            self._background.finish()
            called = checks.at_least("count", count, 0)
            parts.check_flag("wait", wait)
            parts.check(parts_by_name)
            for name, part in parts_by_name.items():
                snapshots[name] = Snapshot.of(name, part)
            if processes.is_main():
                unfinished = folders.Unfinished(self.directory, called)
            folder = (unfinished.path.name, unfinished.save, unfinished.number) if unfinished else ("", "", 0)
            return called, list(parts_by_name), folder

        try:
            with _ordinary_mode(), named_when_missing("Checkpoints.save", at_this_line()):
                begun = on_all_ranks(begin)
            _check_same([each[:2] for each in begun])
            (called, _, (name, save, number)), *_ = begun
            ranks = WritingRanks(self.directory / name, processes.rank())
            writer = CheckpointWriter(
                path=self.directory / name,
                unfinished=unfinished,
                count=called,
                save=save,
                number=number,
                ranks=ranks,
                rank=processes.rank(),
                processes=processes.count(),
                parts={name: each.encoded for name, each in snapshots.items()},
                tensors={key: tensor for each in snapshots.values() for key, tensor in each.tensors.items()},
                keep=self.keep,
            )
            self._background.start(writer.write)
        except BaseException:
            if self._background.is_idle:
                if unfinished is not None:
                    unfinished.discard()
                    unfinished.unlock()
                if ranks is not None:
                    ranks.release()
            raise
        if wait:
            self._background.finish()

    def load(self, /, count: int | None = None, **parts_by_name: Part) -> int | None:
        """Load the saved states into the parts, into all of them or none.

        Args:
            count: Which checkpoint; by default the one that was saved last and is not damaged. A warning
                names the damaged ones that were skipped.
            **parts_by_name: The parts, or some of them, under the names that they were saved by.

        Returns:
            The count of the checkpoint; None where there is none, and none was asked for.

        Raises:
            TypeError: `count` is not an integer; a part has no state.
            ValueError: There are no parts; there is no checkpoint of this count; it has no parts of these
                names, or parts of another kind; the arguments are not the same on all ranks.
            RuntimeError: The checkpoint is damaged, or all are; or another rank has failed.
            Exception: What a part raises that refuses its state. After any error all parts are as before.
        """
        return self._load(count, parts.check, parts_by_name, LoadingPart)

    def load_model(self, model: nn.Module, count: int | None = None, *, part: str = "step") -> int | None:
        """Load a model's weights and buffers from a checkpoint, without an optimizer or a training step.

        The model may be plain or wrapped, on any number of ranks, whatever it was when it was saved. Where
        ranks had buffers of their own (running statistics under DDP, for instance), all get those of rank 0.

        Args:
            model: The module; its names and shapes are those of the saved one, its dtypes may be others.
            count: Which checkpoint; by default the one that `load` takes.
            part: The name of the part: a `TrainStep`, or a module.

        Returns:
            The count of the checkpoint; None where there is none, and none was asked for.

        Raises:
            TypeError: `model` is not a module; `count` is not an integer.
            ValueError: There is no checkpoint of this count; it has no such part; the part is neither a
                `TrainStep` nor a module, or of another model; the model has no memory; the arguments are not
                the same on all ranks. The model is as before.
            RuntimeError: The checkpoint is damaged, or all are; or another rank has failed.

        >>> import tempfile, torch
        >>> from torch_bridge import Checkpoints
        >>> folder = tempfile.TemporaryDirectory()
        >>> trained, model = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
        >>> Checkpoints(folder.name).save(10, model=trained, wait=True)
        >>> Checkpoints(folder.name).load_model(model, part="model")
        10
        >>> torch.equal(model.weight, trained.weight)
        True
        >>> folder.cleanup()
        """

        def check(parts_by_name: Mapping[str, Any]) -> None:
            ((name, part),) = parts_by_name.items()
            parts.check_model(name, "model", part)

        return self._load(count, check, {part: model}, LoadingModel)

    def merge(
        self, counts: Sequence[int], weights: Sequence[float], *, into: nn.Module, part: str = "step"
    ) -> None:
        """Load the weighted mean of a model's weights in several checkpoints.

            tensor = Σ weights[i] · (the tensor in checkpoint counts[i])

        This is the mean of all floating-point tensors, buffers among them. Everything else, an integer buffer
        for instance, comes from the last of `counts`. `Curve.merge_weights` gives the weights that take the
        place of a cooldown.

        A tensor that is float64 in a checkpoint is summed in float64, any other in float32, and the sum is
        rounded to the module's dtype at the end. The result has the same bits on any number of ranks. The
        tensors are read one by one: on each rank, beside the module, there is at most one whole model in
        memory and what the sum of one tensor takes; at the end, two. All files are compared with their
        SHA-256 first.

        Args:
            counts: The checkpoints, each once.
            weights: A number for each checkpoint; they add up to 1, to within 10⁻⁶, which leaves room for
                weights of dtype float32. Weights below 0 are taken too. A checkpoint of weight 0 is checked,
                and not summed.
            into: The module, plain or wrapped, on any number of ranks, as for `load_model`. It is loaded
                with `load_state_dict`.
            part: The name of the part: a `TrainStep`, or a module.

        Raises:
            TypeError: `counts` is not a sequence of integers, or `weights` is not a sequence of numbers;
                `into` is not a module.
            ValueError: `counts` is empty or names a checkpoint twice; there are more or fewer weights than
                counts, one is not finite, or they don't add up to 1; there is no checkpoint of one of the
                counts; it has no such part; the part is neither a `TrainStep` nor a module, or of another
                model; a tensor has floating point in one checkpoint and not in another, or not in the module;
                the module has no memory; the arguments are not the same on all ranks.
            RuntimeError: A checkpoint is damaged; or another rank has failed.
            Exception: What the module raises that refuses the state. After any error the module is as before.

        >>> import tempfile, torch
        >>> from torch_bridge import Checkpoints
        >>> folder, model = tempfile.TemporaryDirectory(), torch.nn.Linear(1, 1, bias=False)
        >>> checkpoints = Checkpoints(folder.name)
        >>> for count in (10, 20):
        ...     _ = model.weight.data.fill_(count)
        ...     checkpoints.save(count, model=model)
        >>> checkpoints.merge([10, 20], [0.25, 0.75], into=model, part="model")
        >>> model.weight.item()
        17.5
        >>> folder.cleanup()
        """
        # For the start-up, as in save.
        from torch_bridge.checkpointing import merging

        def begin() -> tuple[list[int], list[float], str]:
            self._background.finish()
            parts.check_model(part, "into", into)
            return *merging.check(counts, weights), part

        with named_when_missing("Checkpoints.merge", at_this_line()):
            begun = on_all_ranks(begin)
        for rank, asked in enumerate(begun):
            if asked != begun[0]:
                raise ValueError(
                    f"rank 0 merges (counts, weights, part) = {begun[0]}, and rank {rank} merges {asked}"
                )
        called, shares, name = begun[0]

        def work(held: ExitStack) -> None:
            loading = LoadingModel(name, into)
            merging.read(self.directory, called, shares, loading, held)
            load_all_or_none([loading])

        self._unless_removed(work)

    def _load(
        self,
        count: int | None,
        check: Callable[[Mapping[str, Any]], None],
        parts_by_name: Mapping[str, Part],
        kind: Callable[[str, Part], LoadingPart],
    ) -> int | None:
        def begin() -> tuple[int | None, list[str]]:
            self._background.finish()
            called = None if count is None else checks.at_least("count", count, 0)
            check(parts_by_name)
            return called, list(parts_by_name)

        call = f"Checkpoints.{'load' if kind is LoadingPart else 'load_model'}"
        with named_when_missing(call, at_this_line()):
            begun = on_all_ranks(begin)
        _check_same(begun)
        called, _ = begun[0]
        # For the start-up, as in save.
        from torch_bridge.checkpointing.loading import read

        def work(held: ExitStack) -> int | None:
            loading = [kind(name, part) for name, part in parts_by_name.items()]
            found, messages = read(self.directory, called, loading, held)
            if found is not None:
                for message in messages:
                    warnings.warn(message, UserWarning, stacklevel=5)
                load_all_or_none(loading)
            return found

        return self._unless_removed(work)

    def _unless_removed(self, work: Callable[[ExitStack], Value]) -> Value:
        """Do what reads checkpoints; once more where one of them was removed meanwhile.

        Args:
            work: Gets a stack: until it is closed, the checkpoints that it holds are not removed.
        """
        # For the start-up, as in save.
        from torch_bridge.checkpointing.loading import RemovedError

        for _ in range(_MOST_READS):
            try:
                with _ordinary_mode(), ExitStack() as held:
                    return work(held)
            except RemovedError:
                continue
        raise RuntimeError(f"the checkpoints in {self.directory} are removed faster than they are read")

    def __reduce__(self) -> Never:
        raise TypeError("Checkpoints can't be copied or pickled: build others on the same folder")


def _check_same(asked: Sequence[tuple[int | None, list[str]]]) -> None:
    """Raises ValueError where a rank asks for another count or other names than rank 0."""
    for rank, (count, names) in enumerate(asked):
        if (count, names) != asked[0]:
            raise ValueError(
                f"rank 0 asks for checkpoint {asked[0][0]} of the parts {asked[0][1]}, "
                f"and rank {rank} for {count} of {names}"
            )


@contextmanager
def _ordinary_mode() -> Generator[None]:
    """Leave inference mode: its tensors can't be trained on later. Gradients stay on or off as they are."""
    grad_mode = torch.set_grad_enabled(torch.is_grad_enabled())
    with torch.inference_mode(False), grad_mode:
        yield
