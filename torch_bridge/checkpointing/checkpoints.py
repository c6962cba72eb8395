"""`Checkpoints`: save all parts of a training run in the background, and verify and load them."""

import os
import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Never, TypeVar

import torch
from torch import nn

from torch_bridge.checkpointing import checkpoint_dirs, merging, parts, reading
from torch_bridge.checkpointing.background import BackgroundTask
from torch_bridge.checkpointing.loading_parts import LoadingModel, LoadingPart, load_all_or_none
from torch_bridge.checkpointing.parts import Part, Snapshot, Stateful
from torch_bridge.checkpointing.rank_content import DigestSummary, RankContent
from torch_bridge.checkpointing.reading import SavedCheckpoint
from torch_bridge.curve_api import checks
from torch_bridge.distributed import processes
from torch_bridge.distributed.processes import collective_call, describe_error, raise_error_of_any_rank

Arguments = TypeVar("Arguments")


class Checkpoints:
    """The checkpoints of a training run in a directory. Each has a count, usually that of updates.

    A checkpoint holds parts, given by name. A part is an object with `state_dict` and `load_state_dict` (a
    `TrainStep`, a loader, a `MetricLog`, a module, an optimizer, a scheduler), or a dictionary or a list of
    plain values, which `load` refills in place. Values may be those of JSON, tuples, sets, bytes,
    dictionaries with any of these as keys, NumPy arrays, tensors and parameters; they are restored exactly,
    without gradients.

    `save` copies the current state and returns; a background thread writes the copy as safetensors and JSON
    files. If a process is killed, the last complete checkpoint survives, and a later save removes the
    unfinished files. A program that ends normally completes a pending save first. The next call raises an
    error from the background (if that call is a `save`, it starts first); if there is no next call, the error
    is printed when the program ends. Several threads of a single process may save: each waits for the others.
    With several ranks, save from one thread.

    `load` verifies the SHA-256 of every tensor first, and never runs code from a checkpoint. One run at a
    time may save to a directory; others may load from it meanwhile.

    With several processes, each of them calls `save` and `load`, with the same arguments, on a directory
    that they share. Each rank writes its shards of DTensors; rank 0 writes everything else, and other ranks
    only what differs from rank 0 (random numbers, for instance). Any number of processes can load, under DDP,
    FSDP2 or on one process: each rank reads its shards of what is sharded now. If fewer processes load than
    saved, the values of the missing ranks are dropped. If more load, a `TrainStep` on a new rank keeps its
    random numbers and carry, and gets every other value from rank 0. A warning says so.

    Args:
        directory: The directory; the first save creates it.
        keep: Number of checkpoints to keep: the last saved ones. Anything in the directory that this library
            has not written is left alone.

    Raises:
        NotADirectoryError: The directory is a file or a broken link, or lies in one.
        TypeError, ValueError: `keep` is not a positive integer.

    >>> import tempfile, torch
    >>> from torch_bridge import Checkpoints
    >>> directory, model, progress = tempfile.TemporaryDirectory(), torch.nn.Linear(2, 1), {"epoch": 1}
    >>> checkpoints = Checkpoints(directory.name)
    >>> checkpoints.save(10, model=model, progress=progress)
    >>> progress["epoch"] = 2
    >>> checkpoints.load(model=model, progress=progress)
    10
    >>> progress
    {'epoch': 1}
    >>> directory.cleanup()
    """

    def __init__(self, directory: str | os.PathLike[str], *, keep: int = 3) -> None:
        self.keep = checks.at_least("keep", keep, 1)
        self.directory = Path(directory).absolute()
        existing = next(filter(os.path.lexists, (self.directory, *self.directory.parents)), self.directory)
        if not existing.is_dir():
            what = "not a directory" if existing.exists() else "a link to a missing directory"
            raise NotADirectoryError(f"directory = {str(directory)!r}: {existing} is {what}")
        self._background = BackgroundTask.named(os.path.realpath(self.directory))

    def counts(self) -> list[int]:
        """Return the counts of the complete checkpoints, ascending, after waiting for a pending save.

        This waits for this rank only: call `save(..., wait=True)` to wait for all.
        """
        self._background.finish()
        return sorted({checkpoint.count for checkpoint in checkpoint_dirs.list_complete(self.directory)})

    def save(self, /, count: int, wait: bool = False, **parts_by_name: Part) -> None:
        """Save the parts as they are now, after waiting for a pending save.

        Args:
            count: The checkpoint's count, at least 0. An older checkpoint of the same count is replaced.
            wait: If True, return only when the checkpoint is complete, on all ranks.
            **parts_by_name: The parts.

        Raises:
            TypeError: `count` is not an integer; a part was passed without its name; a part has no state, or
                its state holds a value that a checkpoint can't hold.
            ValueError: There are no parts; the count is negative; the count, the names, or the order of
                sharded parameters in an optimizer differ between ranks.
            Exception: An error of a part or of the system. The other ranks then raise RuntimeError. An error
                of an earlier save is raised once this save has started.
        """
        content: RankContent | None = None
        earlier_error: BaseException | None = None

        def copy_parts() -> _Copied:
            nonlocal content, earlier_error
            earlier_error = self._background.wait()
            checked_count = checks.at_least("count", count, 0)
            if isinstance(wait, Stateful | dict | list):  # a part without a name, which would not be saved
                raise TypeError(
                    f"wait = {checks.short_repr(wait)} must be True or False: pass parts by name, such as "
                    "step=step"
                )
            parts.check_parts(parts_by_name)
            content = RankContent({name: Snapshot.take(name, part) for name, part in parts_by_name.items()})
            save_id = uuid.uuid4().hex
            if processes.is_main() and processes.world_size() > 1:  # the other ranks check that they share it
                checkpoint_dirs.partial_path(self.directory, checked_count, save_id).mkdir(parents=True)
            arguments = checked_count, list(parts_by_name)
            summary = content.summarize() if processes.is_main() else None
            return _Copied(arguments, content.name_digests, save_id, summary, describe_error(earlier_error))

        with self._background.lock:
            with (
                torch.inference_mode(False),
                torch.no_grad(),
            ):  # tensors of inference mode can't be trained on
                copied = collective_call(copy_parts)
            checked_count, _ = _agreed("save", "(count, parts)", [rank.arguments for rank in copied])
            for name in copied[0].name_digests:
                parts.check_same_order(name, [rank.name_digests.get(name) for rank in copied])
            assert content is not None
            content.drop_equal(copied[0].summary)
            rank, ranks = processes.rank(), processes.world_size()
            arguments = self.directory, copied[0].save_id, checked_count, rank, ranks, self.keep
            self._background.start(partial(content.write_files, *arguments))
            # An earlier save's error must not cost this checkpoint as well, so it is raised only now.
            try:
                raise_error_of_any_rank(earlier_error, [rank.earlier_error for rank in copied])
            except BaseException as error:
                error.add_note(f"An earlier save failed. The save of checkpoint {checked_count} has started.")
                raise
            finally:
                earlier_error = None  # as in collective_call
                if wait:
                    collective_call(self._background.finish)

    def load(self, /, count: int | None = None, **parts_by_name: Part) -> int | None:
        """Load the saved states into all of the parts, or into none.

        Args:
            count: Which checkpoint; by default the last saved one that is not damaged. A warning names the
                damaged ones that were skipped.
            **parts_by_name: The parts, or some of them, under the names that they were saved under.

        Returns:
            The count of the checkpoint; None if the directory has no checkpoint and `count` is None.

        Raises:
            TypeError: `count` is not an integer; a part has no state.
            ValueError: There are no parts; no checkpoint has this count; it has no parts of these
                names, or parts of another kind; the arguments differ between ranks.
            RuntimeError: The checkpoint is damaged, or all are; or another rank has failed.
            Exception: An error of a part that rejects its state. After any error all parts are as before.
        """
        return self._load(count, parts.check_parts, parts_by_name, LoadingPart)

    def load_model(self, model: nn.Module, count: int | None = None, *, part: str = "step") -> int:
        """Load a model's weights and buffers from a checkpoint, without an optimizer or a training step.

        The model may be plain or wrapped, on any number of ranks, however it was saved. If buffers differed
        between ranks (running statistics under DDP, for instance), all ranks get those of rank 0.

        Args:
            model: The module. It has the names and shapes of the saved one; its dtypes may differ.
            count: Which checkpoint; by default the one that `load` would choose.
            part: The name of the part: a `TrainStep`, or a module.

        Returns:
            The count of the checkpoint.

        Raises:
            TypeError: `model` is not a module; `count` is not an integer.
            ValueError: The directory has no checkpoint, or none of this count; it has no such part; the part
                is neither a `TrainStep` nor a module, or of a different model; the model has no memory; the
                arguments differ between ranks. The model is as before.
            RuntimeError: The checkpoint is damaged, or all are; or another rank has failed.

        >>> import tempfile, torch
        >>> from torch_bridge import Checkpoints
        >>> directory = tempfile.TemporaryDirectory()
        >>> trained, model = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
        >>> Checkpoints(directory.name).save(10, model=trained, wait=True)
        >>> Checkpoints(directory.name).load_model(model, part="model")
        10
        >>> torch.equal(model.weight, trained.weight)
        True
        >>> directory.cleanup()
        """

        def check(parts_by_name: Mapping[str, Any]) -> None:
            ((name, part),) = parts_by_name.items()
            parts.check_model(name, "model", part)

        loaded = self._load(count, check, {part: model}, LoadingModel)
        if loaded is None:  # a new training run may start without a checkpoint, but a model would stay random
            raise ValueError(
                f"{self.directory} has no checkpoint to load: Checkpoints takes the directory given to the "
                "run that saved them"
            )
        return loaded

    def merge(
        self, counts: Sequence[int], weights: Sequence[float], *, into: nn.Module, part: str = "step"
    ) -> None:
        """Load the weighted mean of a model's weights in several checkpoints.

            tensor = Σ weights[i] · (the tensor in checkpoint counts[i])

        All floating-point tensors are averaged, buffers included. Everything else, such as an integer buffer,
        comes from the last of `counts`. `Curve.merge_weights` returns the weights that replace a cooldown.

        A tensor that is float64 in any checkpoint is summed in float64, every other one in float32; the sum
        is rounded to the module's dtype at the end. The result has the same bits on any number of ranks.
        Tensors are read one by one. In addition to the module, each rank needs memory for one whole model and
        the sum of one tensor, and for two models at the end. The SHA-256 of every tensor is verified first.

        Args:
            counts: The checkpoints, each once.
            weights: A number for each checkpoint. They add up to 1 within 10⁻⁶, which leaves room for float32
                rounding, and may be negative. A checkpoint of weight 0 is verified, but not summed.
            into: The module, plain or wrapped, on any number of ranks, as for `load_model`. Its
                `load_state_dict` loads the result.
            part: The name of the part: a `TrainStep`, or a module.

        Raises:
            TypeError: `counts` is not a sequence of integers, or `weights` is not a sequence of numbers;
                `into` is not a module.
            ValueError: `counts` is empty or names a checkpoint twice; there are more or fewer weights than
                counts, one is not finite, or they don't add up to 1; a checkpoint is missing, or has no such
                part; the part is neither a `TrainStep` nor a module, or of a different model; a tensor is
                floating-point in one checkpoint, but not in another or in the module; the module has no
                memory; the arguments differ between ranks.
            RuntimeError: A checkpoint is damaged; or another rank has failed.
            Exception: An error of the module that rejects the state. After any error it is as before.

        >>> import tempfile, torch
        >>> from torch_bridge import Checkpoints
        >>> directory, model = tempfile.TemporaryDirectory(), torch.nn.Linear(1, 1, bias=False)
        >>> checkpoints = Checkpoints(directory.name)
        >>> for count in (10, 20):
        ...     _ = model.weight.data.fill_(count)
        ...     checkpoints.save(count, model=model)
        >>> checkpoints.merge([10, 20], [0.25, 0.75], into=model, part="model")
        >>> model.weight.item()
        17.5
        >>> directory.cleanup()
        """

        def check_arguments() -> tuple[list[int], list[float], str]:
            self._background.finish()
            parts.check_model(part, "into", into)
            return *merging.check_arguments(counts, weights), part

        arguments = collective_call(check_arguments)
        checked_counts, checked_weights, name = _agreed("merge", "(counts, weights, part)", arguments)
        with torch.inference_mode(False), torch.no_grad(), ExitStack() as opened:
            model, saved = LoadingModel(name, into), list[SavedCheckpoint]()
            for count in checked_counts:
                checkpoint, _ = reading.open_newest_intact(self.directory, count, opened)
                assert checkpoint is not None  # it raises if there is none of this count
                checkpoint.check_parts([name])
                saved.append(checkpoint)
            collective_call(lambda: model.stage(merging.merge_states(saved, checked_weights, model)))
            load_all_or_none([model])

    def _load(
        self,
        count: int | None,
        check: Callable[[Mapping[str, Any]], None],
        parts_by_name: Mapping[str, Part],
        kind: Callable[[str, Part], LoadingPart],
    ) -> int | None:
        def check_arguments() -> tuple[int | None, list[str]]:
            self._background.finish()
            checked_count = None if count is None else checks.at_least("count", count, 0)
            check(parts_by_name)
            return checked_count, list(parts_by_name)

        checked_count, names = _agreed("load", "(count, parts)", collective_call(check_arguments))
        with torch.inference_mode(False), torch.no_grad(), ExitStack() as opened:
            saved, damage = reading.open_newest_intact(self.directory, checked_count, opened)
            if saved is None:
                return None
            saved.check_parts(names)
            loading = [kind(name, part) for name, part in parts_by_name.items()]

            def read_states() -> None:
                for part in loading:
                    part.read_state(saved)

            collective_call(read_states)
            # Before any part changes: under an error filter a warning raises.
            for message in _load_warnings(saved, loading, damage):
                warnings.warn(message, UserWarning, stacklevel=3)
            load_all_or_none(loading)
            return saved.count

    def __reduce__(self) -> Never:
        raise TypeError("Checkpoints can't be copied or pickled: build others on the same directory")


class _Copied(NamedTuple):
    """A rank's message to the others, once it has copied its parts."""

    arguments: tuple[int, list[str]]
    name_digests: dict[str, str]
    save_id: str
    """The id of the save; all ranks use that of rank 0."""
    summary: DigestSummary | None
    earlier_error: str | None


def _agreed(call: str, names: str, arguments: Sequence[Arguments]) -> Arguments:
    """Return the arguments of a call; raise ValueError if they differ between ranks."""
    for rank, of_rank in enumerate(arguments):
        if of_rank != arguments[0]:
            raise ValueError(
                f"rank 0 calls {call} with {names} = {checks.short_repr(arguments[0])}, and rank {rank} with "
                f"{checks.short_repr(of_rank)}"
            )
    return arguments[0]


def _load_warnings(saved: SavedCheckpoint, loading: Sequence[LoadingPart], damage: list[str]) -> list[str]:
    """Return the warnings of a load: about damage, and about values dropped or copied between ranks."""
    warned = [f"{saved.path} is loaded: newer ones are damaged: {'; '.join(damage)}"] if damage else []
    before, now = saved.world_size, processes.world_size()
    if before == now:
        return warned
    names = {part.name for part in loading if part.is_per_rank}
    # The values that the missing ranks saved themselves, or any ranks, by two components such as step.random.
    differing = {
        ".".join(key.split(".")[:2])
        for rank in range(now if now < before else 1, before)
        for key in saved.keys_saved_by(rank)
        if key.split(".")[0] in names
    }
    change = ""
    if now < before and differing:
        change = f"the values of the missing processes in {', '.join(sorted(differing))} are dropped"
    elif now > before and (differing or any(part.is_step for part in loading)):
        change = (
            "the new processes keep the random numbers and the carry of their training steps, and get "
            "process 0's values of everything else"
        )
    if change:
        warned.insert(0, f"{saved.path} was saved by {before} processes, and now there are {now}: {change}")
    return warned
