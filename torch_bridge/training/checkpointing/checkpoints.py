"""`Checkpoints`: save all parts of a training run in the background, and verify and load them."""

import os
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from threading import RLock
from typing import Any, TypeVar

from torch import nn

from plateau_jax.arguments import checks
from plateau_jax.arguments.curve_warning import warn
from torch_bridge.training.checkpointing import checkpoint_dirs, loading, parts, saving
from torch_bridge.training.checkpointing.checkpoint_dirs import CheckpointDir
from torch_bridge.training.checkpointing.loading import CheckpointReader
from torch_bridge.training.checkpointing.parts import CheckpointPart
from torch_bridge.training.checkpointing.states import SplitState
from torch_bridge.training.distributed import processes
from torch_bridge.training.distributed.processes import collective_call
from torch_bridge.training.random_states import get_states_of_process, set_states_of_process

Value = TypeVar("Value")

_lock = RLock()
"""Locked by a thread while it starts a save, or takes the error of one."""
_pending: dict[str, saving.BackgroundSave] = {}
"""The last save into each directory, until its error is raised."""


class Checkpoints:
    """The checkpoints of a training run, in a directory.

    A checkpoint has a number, usually the number of updates, and contains parts, which you pass by
    name. A part is an object with `state_dict` and `load_state_dict`, such as a `TrainStep`, a
    loader, a module, an optimizer or a scheduler. A dictionary or a list can be a part too, if it
    contains only plain values, tensors, NumPy arrays of numbers, and dictionaries, lists and tuples
    of them. `load` refills it in place.

    `save` copies the current state and returns; a background thread writes the files. A checkpoint
    is complete or absent, even if a process is killed. If writing fails, the error is printed, and
    the next call raises it. Let the last save of a program be `save(..., wait=True)`.

    A checkpoint also contains the states of the default random number generators of Python, NumPy
    and torch, on each rank. `load` restores them, so a loop with dropout resumes bit for bit.

    In a loop with a `TrainStep`, name it `step`, the default of `load_model`:

        done = checkpoints.load(step=train_step, loader=loader) or 0
        checkpoints.save(done, step=train_step, loader=loader)

    With several processes, each of them calls `save` and `load` with the same arguments, on a
    directory that all of them share. Any number of processes can load a checkpoint, whether the
    model is wrapped in DDP, in FSDP2 or not at all; keep the batch of all ranks together the same,
    as with `make_loader(dataset, 512 // world_size)`.

    Only one run at a time may save to a directory; other runs may load from it. A branch loads from
    the directory of its run, and saves to its own: `Checkpoints("run").load(5000, step=train_step)`
    is followed by `Checkpoints("branch").save(5100, step=train_step)`.

    Args:
        directory: The directory of the run; the first save creates it.
        keep: Number of checkpoints to keep: those that were saved last. To branch from an earlier
            one, save it to a second directory as well. Files in the directory that this library has
            not written are never removed.

    Raises:
        TypeError, ValueError: `keep` is not a positive integer; the directory is itself a
            checkpoint.

    >>> import tempfile, torch
    >>> from torch_bridge import Checkpoints
    >>> directory = tempfile.TemporaryDirectory()
    >>> model, progress = torch.nn.Linear(2, 1), {"epoch": 1}
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
        checkpoint_dirs.check_run_directory(self.directory)
        self._key = os.path.realpath(self.directory)

    def steps(self) -> list[int]:
        """Return the numbers of the complete checkpoints, ascending.

        Waits for a pending save of this rank. To wait for all ranks, save with `wait=True`.
        """
        self._finish()
        complete = checkpoint_dirs.list_complete(self.directory)
        return sorted({checkpoint.step for checkpoint in complete})

    def save(self, step: int, /, *, wait: bool = False, **parts_by_name: CheckpointPart) -> None:
        """Save the parts as they are now. Waits for an earlier save that is still pending.

        Args:
            step: The number of the checkpoint, at least 0, by position. An older checkpoint with
                this number is replaced.
            wait: If True, return only when the checkpoint is complete on all ranks. Without it,
                `torch.distributed.destroy_process_group` loses a pending save.
            **parts_by_name: The parts, each under a name of your choice.

        Raises:
            TypeError: `step` is not an integer, or `wait` no bool; a part was passed without its
                name; a part has no state, or its state contains a value that a checkpoint can't
                contain.
            ValueError: There are no parts; the number is negative; or one of these differs between
                ranks:

                - the number, or the names of the parts;
                - the order of sharded parameters in an optimizer;
                - a schedule: the step of its curve, its counters, its hold rules, its curves or its
                  peaks.
            OSError: A file cannot be written, for example because the disk is full.
            Exception: A part or the system raised an error; the other ranks raise RuntimeError.
                Or an earlier save failed: its error is raised after this save has started.
        """
        states: dict[str, SplitState] = {}

        def copy_parts() -> tuple[int, dict[str, str], str]:
            checked_step = checks.at_least("step", step, 0)
            checks.boolean("wait", wait, "be a bool; no part can have this name")
            parts.check_parts(parts_by_name)
            for name, part in parts_by_name.items():
                states[name] = parts.copy_state(name, part)
            name = parts.RANDOM_STATES_PART
            states[name] = parts.copy_state(name, get_states_of_process())
            entries = {"step": str(checked_step), "parts": str(list(parts_by_name))}
            entries.update(parts.shared_entries(states))
            return checked_step, entries, uuid.uuid4().hex

        with _lock:
            earlier = _pending.get(self._key)
            if earlier is not None:
                earlier.join()  # so that its copy is freed
            ranks = collective_call(copy_parts)
            parts.check_same_entries([entries for _, entries, _ in ranks])
            checked_step, _, save_id = ranks[0]
            path = checkpoint_dirs.partial_path(self.directory, checked_step, save_id)
            save = saving.Save(checked_step, states, list(parts_by_name), path, self.keep)
            _pending[self._key] = saving.BackgroundSave(save)
            try:
                # An earlier save's error must not cost this checkpoint as well, so it is raised
                # only now.
                if earlier is not None and earlier.error is not None:
                    earlier.error.add_note(f"The save of checkpoint {checked_step} has started.")
                    raise earlier.error
            finally:
                if wait:
                    self._finish()

    def load(
        self,
        step: int | None = None,
        /,
        *,
        verify: bool = True,
        partial: bool = False,
        **parts_by_name: CheckpointPart,
    ) -> int | None:
        """Load the saved states into the parts, one after the other, then the random states.

        Call it when everything is built, right before the training loop, so that nothing draws
        random numbers in between.

        Everything is read and verified before the first part changes; no code from a checkpoint
        runs. If a part then rejects its state, the parts before it are already loaded: stop, or
        load again. If a `TrainStep` fails in the middle of its load, it makes no update until a
        state is loaded.

        If fewer ranks load a checkpoint than saved it, the values of the missing ranks are dropped.
        If more ranks load it, a new rank keeps its random states and the carry of its `TrainStep`,
        and gets every other value from rank 0. A warning says so, unless `partial` is True and no
        `TrainStep` is loaded.

        Args:
            step: The number of the checkpoint, by position; `step=` names a part. By default, the
                last one saved that is not damaged; a warning names the damaged ones that were
                skipped.
            verify: Compare the SHA-256 of every file. With False, a load is faster, but a flipped
                bit may go unnoticed.
            partial: True to load some of the parts without resuming the run. You may then leave
                parts out, and the random states stay as they are, except that a `TrainStep`
                restores those of torch.
            **parts_by_name: The parts, under the names that they were saved under.

        Returns:
            The number of the checkpoint; None if the directory has no checkpoint and `step` is
            None.

        Raises:
            TypeError: `step` is not an integer; a part has no state.
            ValueError: One of these:

                - There are no parts, or a part is on the meta device.
                - No checkpoint has this number, or it lacks a part of this name and form.
                - A tensor of a subclass, such as torchao's 8-bit moments, is sharded here.
                - The arguments differ between ranks.
                - A different version saved the checkpoint.
            RuntimeError: The checkpoint is damaged, or all are; or another rank has failed.
            UnpicklingError: The class of a tensor is not in torch's list of safe globals.
            Exception: The error that a part raises if it rejects its state, with a note that names
                the part; or a generator if it rejects its random state.

        Warns:
            CurveWarning: The checkpoint has parts that were not passed, and `partial` is False.
            UserWarning: A damaged checkpoint was skipped; or the number of ranks has changed, and
                values that differ between ranks are dropped or copied.
        """
        names = list(parts_by_name)

        def start() -> dict[str, str]:
            self._finish()
            parts.check_parts(parts_by_name)
            return {"step": str(step), "parts": str(names), "partial": str(partial)}

        def read(saved: CheckpointReader) -> tuple[CheckpointReader, dict[str, Any]]:
            _check_saved_parts(saved, names)
            states: dict[str, Any] = {}
            for name, part in parts_by_name.items():
                states[name] = loading.read_part(saved, name, part)
            if not partial:
                states[parts.RANDOM_STATES_PART] = loading.read_random_states(saved)
            return saved, states

        parts.check_same_entries(collective_call(start))
        loaded = self._read_newest(step, read, verify=verify)
        if loaded is None:
            return None
        saved, states = loaded
        # Before any part changes: under an error filter a warning raises.
        has_step = any(
            isinstance(part, parts.TrainStepInterface) for part in parts_by_name.values()
        )
        if not partial or has_step:
            _warn_of_world_size(saved)
        if not partial:
            _warn_of_left_out_parts(saved, names)
        for name, part in parts_by_name.items():
            state = states[name]
            try:
                collective_call(lambda part=part, state=state: parts.set_state(part, state))
            except Exception as error:
                error.add_note(f"The part {name!r} has rejected its state.")
                raise
        # Last, because a part may draw random numbers while it loads its state.
        random_states = states.get(parts.RANDOM_STATES_PART)
        if random_states is not None:
            try:
                set_states_of_process(random_states)
            except Exception as error:
                error.add_note("To keep the random states of this process, pass partial=True.")
                raise
        return saved.step

    def load_model(self, model: nn.Module, step: int | None = None, *, part: str = "step") -> int:
        """Load a model's weights and buffers from a checkpoint, without an optimizer.

        The model may be plain or wrapped, on any number of ranks, no matter how it was saved. If
        buffers differed between ranks, such as running statistics under DDP, all ranks get those of
        rank 0.

        Args:
            model: The module to load into. Its parameters and buffers must have the names and
                shapes of the saved ones; their dtypes may differ.
            step: The number of the checkpoint; by default the one that `load` would choose.
            part: The name under which a `TrainStep` or a module was saved. An `AveragedModel` of
                torch loads into the module that it averages, too.

        Returns:
            The number of the checkpoint.

        Raises:
            TypeError: `step` is not an integer.
            ValueError: One of these:

                - The directory has no checkpoint, or none with this number.
                - The checkpoint has no such part, or the part is neither a `TrainStep` nor a
                  module, or it is of a different model.
                - The model is on the meta device.
                - The arguments differ between ranks.
                - A different version saved the checkpoint.
            RuntimeError: The checkpoint is damaged, or all are; or another rank has failed.

        Warns:
            UserWarning: A damaged checkpoint was skipped.

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

        def start() -> dict[str, str]:
            self._finish()
            parts.check_parts({"model": model})
            return {"step": str(step), "part": part}

        def read(saved: CheckpointReader) -> tuple[int, Any]:
            _check_saved_parts(saved, [part], advice=': pass the name of the model as part="…"')
            return saved.step, loading.read_model(saved, part, model)

        parts.check_same_entries(collective_call(start))
        newest = self._read_newest(step, read, verify=True)
        # A new training run may start without a checkpoint, but a model would stay random.
        if newest is None:
            raise ValueError(
                f"{self.directory} has no checkpoint to load: Checkpoints takes the directory "
                "given to the run that saved them"
            )
        loaded_step, state = newest
        collective_call(lambda: parts.set_state(model, state))
        return loaded_step

    def _finish(self) -> None:
        """Wait for the pending save, and raise its error once."""
        with _lock:
            pending = _pending.get(self._key)
            if pending is not None:
                pending.join()
                _pending.pop(self._key, None)
                if pending.error is not None:
                    raise pending.error

    def _list(self) -> list[CheckpointDir]:
        """Return the checkpoints that rank 0 lists: other ranks may see different ones by now."""
        listed = collective_call(lambda: checkpoint_dirs.list_with_damaged(self.directory))[0]
        # The directory's path may differ by rank.
        return [replace(found, path=self.directory / found.path.name) for found in listed]

    def _read_newest(
        self,
        step: int | None,
        read: Callable[[CheckpointReader], Value],
        *,
        verify: bool,
    ) -> Value | None:
        """Read from the checkpoint of this step, or from the newest that is not damaged.

        A collective. If a save in another process changes the directory meanwhile, this starts
        again.
        """
        listed = self._list()
        candidates = listed
        if step is not None:
            step = checks.at_least("step", step, 0)
            candidates = [checkpoint for checkpoint in listed if checkpoint.step == step]
            if not candidates:
                steps = checks.short_repr(sorted({checkpoint.step for checkpoint in listed}))
                raise ValueError(f"{self.directory} has no checkpoint {step}; it has {steps}")

        damages: list[str] = []
        for checkpoint in reversed(candidates):
            value, damage = loading.read_verified(checkpoint, read, verify=verify)
            if not damage:
                if damages:
                    message = (
                        f"{checkpoint.path} is loaded: newer ones are damaged: {'; '.join(damages)}"
                    )
                    warn(message, UserWarning)
                return value
            if self._list() != listed:
                return self._read_newest(step, read, verify=verify)
            damages.append(damage)

        if not damages:
            return None
        what = "a damaged checkpoint"
        if step is None:
            what = "only damaged checkpoints"
        raise RuntimeError(f"{self.directory} has {what}: {'; '.join(damages)}")


def _check_saved_parts(saved: CheckpointReader, names: Sequence[str], advice: str = "") -> None:
    """Raise ValueError if the checkpoint lacks a part."""
    saved_names = saved.manifest["parts"]
    unknown = sorted(set(names) - set(saved_names))
    if unknown:
        problem = f"has the parts {saved_names}, and not {unknown}"
        raise ValueError(f"{saved.path} {problem}{advice}")


def _warn_of_world_size(saved: CheckpointReader) -> None:
    before = saved.manifest["world_size"]
    now = processes.world_size()
    if now != before:
        warn(
            f"{saved.path} was saved with a world size of {before}, which is now {now}: values "
            "that differ between processes, such as random states, are dropped with the missing "
            "processes; new processes keep their random numbers and the carry of their training "
            "steps, and get process 0's values of everything else",
            UserWarning,
        )


def _warn_of_left_out_parts(saved: CheckpointReader, names: Sequence[str]) -> None:
    left_out = [name for name in saved.manifest["parts"] if name not in names]
    if left_out:
        warn(
            f"{saved.path} also contains the parts {left_out}, which were not passed. "
            "To resume the run, pass them too; to load only some parts, write partial=True"
        )
