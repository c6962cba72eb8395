"""`Checkpoints`: all parts of a run, saved in the background, checked and loaded again."""

import os
import uuid
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Never

import torch
from torch import nn

from torch_bridge.checkpointing import folders, merging, parts, reading
from torch_bridge.checkpointing.background import Background
from torch_bridge.checkpointing.loading_parts import LoadingModel, LoadingPart, load_all_or_none
from torch_bridge.checkpointing.missing_ranks import named_when_missing
from torch_bridge.checkpointing.parts import Part, Snapshot
from torch_bridge.checkpointing.reading import SavedCheckpoint
from torch_bridge.checkpointing.writing import RankContent, Summary
from torch_bridge.curve_api import checks, warner_at_this_line
from torch_bridge.distributed import processes
from torch_bridge.distributed.processes import collective_call


class Checkpoints:
    """The checkpoints of a run in a folder. Each has a count: of updates, for instance.

    A checkpoint holds parts, given by name. A part is an object with `state_dict` and `load_state_dict` (a
    `TrainStep`, a loader, a `MetricLog`, a module, an optimizer, a scheduler), or a dictionary or a list of
    plain values, which `load` refills in place. Values may be those of JSON, tuples, sets, bytes,
    dictionaries with any of these as keys, NumPy arrays and tensors; they come back as they were.

    `save` copies the current state and returns; the copy is written in the background, as safetensors and
    JSON files. If a process is killed, the last complete checkpoint is still there, and a later save removes
    the files of the unfinished one. A program that ends first completes a pending save. The next call raises
    an error that came in the background; without a next call, it is printed at the end.

    `load` first compares the SHA-256 of every tensor, and runs no code from a checkpoint. One run at a time
    may save to a directory; others may load from it meanwhile.

    Under several processes each of them calls `save` and `load`, with the same arguments, on a folder that
    they share. Each rank writes its shards of DTensors, rank 0 writes everything else, and another rank what
    differs there (random numbers, for instance). A load may run on another number of processes, under DDP,
    FSDP2 or on one process: each rank reads its shards of what is sharded now. When fewer processes load, the
    values of the missing ranks are dropped. When more processes load, a `TrainStep` on a new rank keeps its
    random numbers and carry, and gets every other value from rank 0. A warning says so.

    Args:
        directory: The folder; the first save makes it.
        keep: Number of checkpoints to keep: those that were saved last. Anything in the folder that this
            library has not written is left alone.

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
        """Return the counts of the complete checkpoints, ascending, after waiting for a pending save.

        Of several ranks this one alone is waited for: call `save(..., wait=True)` to wait for all.
        """
        self._background.finish()
        return sorted({folder.count for folder in folders.complete(self.directory)})

    def save(self, /, count: int, wait: bool = False, **parts_by_name: Part) -> None:
        """Save the parts as they are now, after waiting for a pending save.

        Args:
            count: The checkpoint's count, at least 0. An older checkpoint of the same count is replaced.
            wait: Whether to return only when the checkpoint is complete, on all ranks.
            **parts_by_name: The parts.

        Raises:
            TypeError: `count` is not an integer; a part was passed without its name; a part has no state, or
                its state holds something that a checkpoint does not hold.
            ValueError: There are no parts; the count is negative; the count or the names are not the same
                on all ranks.
            Exception: What a part or the system raises. The other ranks then raise RuntimeError.
        """
        content: RankContent | None = None

        def begin() -> tuple[int, list[str], tuple[str, Summary | None] | None]:
            nonlocal content
            self._background.finish()
            called = checks.at_least("count", count, 0)
            parts.check_flag("wait", wait)
            parts.check(parts_by_name)
            content = RankContent({name: Snapshot.of(name, part) for name, part in parts_by_name.items()})
            main = None
            if processes.is_main():
                main = (uuid.uuid4().hex, content.summary())
                if processes.world_size() > 1:  # before the others look for it
                    folders.partial(self.directory, called, main[0]).mkdir(parents=True)
            return called, list(parts_by_name), main

        with _ordinary_mode(), named_when_missing("Checkpoints.save", warner_at_this_line()):
            begun = collective_call(begin)
        _check_same([asked[:2] for asked in begun])
        called, _, main = begun[0]
        assert content is not None
        assert main is not None
        save, summary = main
        content.drop_equal(summary)
        rank, ranks = processes.rank(), processes.world_size()
        self._background.start(
            lambda content=content: content.write(self.directory, save, called, rank, ranks, self.keep)
        )
        if wait:
            collective_call(self._background.finish)

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

        def begin() -> tuple[list[int], list[float], str]:
            self._background.finish()
            parts.check_model(part, "into", into)
            return *merging.check(counts, weights), part

        with named_when_missing("Checkpoints.merge", warner_at_this_line()):
            begun = collective_call(begin)
        for rank, asked in enumerate(begun):
            if asked != begun[0]:
                raise ValueError(
                    f"rank 0 merges (counts, weights, part) = {begun[0]}, and rank {rank} merges {asked}"
                )
        called, shares, name = begun[0]
        with _ordinary_mode(), ExitStack() as opened:
            model, saved = LoadingModel(name, into), list[SavedCheckpoint]()
            for each in called:
                checkpoint, _ = reading.newest_sound(self.directory, each, opened)
                assert checkpoint is not None  # a missing one is an error
                checkpoint.check_parts([name])
                saved.append(checkpoint)
            collective_call(lambda: model.take(merging.merge(saved, shares, model)))
            load_all_or_none([model])

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
        with named_when_missing(call, warner_at_this_line()):
            begun = collective_call(begin)
        _check_same(begun)
        called, names = begun[0]
        with _ordinary_mode(), ExitStack() as opened:
            saved, wrong = reading.newest_sound(self.directory, called, opened)
            if saved is None:
                return None
            saved.check_parts(names)
            loading = [kind(name, part) for name, part in parts_by_name.items()]

            def read() -> None:
                for part in loading:
                    part.read(saved)

            collective_call(read)
            for message in _messages(saved, loading, wrong):
                warnings.warn(message, UserWarning, stacklevel=3)
            load_all_or_none(loading)
            return saved.count

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


def _messages(saved: SavedCheckpoint, loading: Sequence[LoadingPart], wrong: list[str]) -> list[str]:
    """Return the warnings of a load: of damage, and of values that are lost or copied between ranks."""
    found = [f"{saved.path} is loaded: newer ones are damaged: {'; '.join(wrong)}"] if wrong else []
    before, now = saved.ranks, processes.world_size()
    if before == now:
        return found
    names = {part.name for part in loading if part.is_of_each_rank}
    kept = {key for part in loading for key in part.values_of_one_rank()}
    own = [
        {".".join(key.split(".")[:2]) for key in saved.values_of_rank(rank) if key.split(".")[0] in names}
        for rank in range(before)
    ]
    lost, copied = set[str]().union(*own[now:]), set[str]().union(*own) - kept
    messages: list[str] = []
    if lost:
        messages.append(f"the values of the missing processes in {', '.join(sorted(lost))} are dropped")
    if now > before and kept:
        messages.append(f"the new processes keep their own {', '.join(sorted(kept))}")
    if now > before and copied:
        messages.append(f"the new processes get process 0's {', '.join(sorted(copied))}")
    if messages:
        found.insert(
            0, f"{saved.path} was saved by {before} processes, and now there are {now}: {'; '.join(messages)}"
        )
    return found


@contextmanager
def _ordinary_mode() -> Generator[None]:
    """Leave inference mode: its tensors can't be trained on later. Gradients stay on or off as they are."""
    grad_mode = torch.set_grad_enabled(torch.is_grad_enabled())
    with torch.inference_mode(False), grad_mode:
        yield
