"""The history of a run in a file: which records it ran under, and from which steps."""

import json
import os
import re
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, SupportsIndex, TypedDict

from plateau_jax.arguments import checks
from plateau_jax.arguments.curve_warning import warn
from plateau_jax.runs.comparison import StateOwner, compare_runs, may_share_steps
from plateau_jax.runs.record import Record, dump_records, read_records
from plateau_jax.runs.resume import A_STEP, SavedRecords
from plateau_jax.saved_states.formats import Format, check_entries, describe_error


class _SavedHistory(TypedDict):
    kind: str
    format: int
    entries: list[dict[str, Any]]
    """The fields of an `_Entry`, with its records as dictionaries."""


_FORMAT = Format("resume_history", _SavedHistory)


class _Entry(NamedTuple):
    """A start of the run under records that it did not have before."""

    step: int
    records: list[Record]


def check_resume_file(
    path: str | os.PathLike[str], record: SavedRecords, step: SupportsIndex, *, strict: bool = True
) -> None:
    """Raise an error if a run cannot resume under this record; keep the record in a file.

    Use it for trainers whose state has no place for a record. Call it on every process, once the
    trainer has restored its step. The file is the history of the run, in JSON: each entry has a
    step, and the record under which the run continued from that step on. What a call does depends
    on the step, and on the record that was in force before it:

        step 0                      adds an entry: a new run begins (a warning, if there was one);
                                    does nothing if the last entry is the same
        the current record          does nothing, unless the run goes back before its entry
        equal below the step        adds an entry, as for a branch or an appended curve
        any other record            raises an error; with strict=False warns, and adds an entry

    A run may go back to an earlier step. It is then compared with the record that was in force
    before that step. Delete the later checkpoints that it leaves behind: an entry contains only a
    step, so a resume from one of them under the new record is accepted. With a clock, a run may
    have made updates at step 0, so step 0 is compared too. If the file is missing at a step above
    0, a warning says so, and the history begins there.

    Each process that adds an entry replaces the file as a whole, so one that is killed leaves the
    old file or the new one. The processes of a run write the same entry. No entry is ever removed.
    Give each run and each branch its own file, in the folder of its checkpoints: two runs that
    write at once lose an entry. A branch begins with a copy of the file of its run.

    Args:
        path: The file, on a file system that all processes see. Folders that do not exist are
            created. A relative path belongs to the working directory.
        record: What `resume_record` returns for the run, or a list of records, one for each
            parameter group.
        step: The step of the curve that gives the next learning rate; 0 in a new run. As in
            `check_resume`.
        strict: As in `check_resume`.

    Raises:
        TypeError: `step` is not an integer.
        ValueError: The run had a different record at a step so far (unless `strict` is False);
            `record` is not a record; `path` is a URL; or the file is damaged, or was saved by a
            different version.
        OSError: The file cannot be read or written.

    Warns:
        CurveWarning: As above.

    >>> import tempfile
    >>> from plateau_jax import PlateauCurve, check_resume_file, resume_record
    >>> path = tempfile.mkdtemp() + "/curve.json"
    >>> curve = PlateauCurve(1000, warmup_steps=100, plateaus=[(0, 60)])
    >>> check_resume_file(path, resume_record(curve, 3e-4), 0)
    >>> check_resume_file(path, resume_record(curve.cooldown(500, 100), 3e-4), 500)
    >>> check_resume_file(path, resume_record(curve, 1e-4), 550)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    ValueError: ...curve.json: the run cannot resume at step 550: ...
    """
    checks.boolean("strict", strict)
    new_entry = _Entry(checks.at_least("step", step, 0, A_STEP), read_records("record", record))
    if not new_entry.records:
        raise ValueError("record = [] has no record: pass what resume_record returns")
    text = os.fsdecode(path)
    if re.match(r"[a-zA-Z][a-zA-Z0-9+.-]+:/", text):  # `Path` shortens gs://bucket to gs:/bucket
        raise ValueError(f"path = {text!r} is a URL: pass the path of a file that can be opened")
    file = Path(text).expanduser().resolve()  # of a link, the file itself, because it is replaced
    history = _read_history(file)
    if history and history[-1].records == new_entry.records and history[-1].step <= new_entry.step:
        return  # without a write, because the folder may be read-only
    # Before the write, since a warning may be an error.
    _compare_with_history(file, history, new_entry, strict=strict)
    _write_history(file, [*history, new_entry])


def _compare_with_history(
    file: Path, history: Sequence[_Entry], new_entry: _Entry, *, strict: bool
) -> None:
    """Warn about a history that the run does not continue, or raise a ValueError."""
    step, records = new_entry
    if not history:
        if step > 0:
            warn(
                f"{file} has no entry yet, so nothing shows whether the run has followed this "
                f"curve before step {step}. Its history begins here. If the run, or the one that "
                "it branched from, has such a file elsewhere, copy it to this path"
            )
        return
    # With a clock, now or before, updates may have been made at this step.
    has_clock = may_share_steps([*history[-1].records, *records])
    last_step = step if has_clock else step - 1
    if last_step >= 0:
        in_force = _records_at(history, last_step)
        owner = StateOwner(f"{file}: the run", "pass strict=False to check_resume_file")
        is_step_used = may_share_steps([*in_force, *records])
        for message in compare_runs(
            in_force, records, step, owner, is_step_used=is_step_used, strict=strict
        ):
            warn(message)
    if step == 0:
        warn(
            f"{file} already has the history of a run, and a start at step 0 begins another: from "
            "now on, checkpoints are compared with this record. If the run should have resumed, "
            "delete the entry that this start adds to the file, and restore the checkpoint before "
            "this call. Give a new run its own file"
        )


def _records_at(history: Sequence[_Entry], step: int) -> list[Record]:
    """Return the records that gave the learning rate of a step: the last ones to begin by then.

    A run that goes back leaves later entries behind. After

        step 0: A,  step 600: B,  step 300: C

    the learning rates below step 300 are those of A, and the later ones those of C. What was
    before the first entry is not known, and counts as that entry's.
    """
    begun = [entry for entry in history if entry.step <= step]
    if not begun:
        return history[0].records
    return begun[-1].records


def _read_history(file: Path) -> list[_Entry]:
    """Read the entries of a file; without a file, there are none."""
    try:
        state = _FORMAT.read(str(file), checks.parse_json(file.read_text(encoding="utf-8")))
        return [_read_entry(file, entry) for entry in state["entries"]]
    except FileNotFoundError:
        return []
    except OSError:
        raise
    except Exception as error:  # a wrong type can raise anything
        raise ValueError(
            f"{file} is not the history of a run, or is damaged: {describe_error(error)}. Restore "
            "it from a copy; or move it away, to resume without a comparison"
        ) from None


def _read_entry(file: Path, entry: dict[str, Any]) -> _Entry:
    check_entries(f"an entry of {file}", entry, _Entry._fields)
    step = checks.at_least("step", entry["step"], 0)
    return _Entry(step, read_records(f"{file}: records", entry["records"]))


def _write_history(file: Path, history: Sequence[_Entry]) -> None:
    """Replace the file as a whole: a process that is killed leaves the old one or the new one."""
    entries = [{"step": step, "records": dump_records(records)} for step, records in history]
    file.parent.mkdir(parents=True, exist_ok=True)
    # The processes of a run write at once, and each needs a different name.
    new = file.with_name(f"{file.name}.{uuid.uuid4().hex}")
    try:
        new.write_text(json.dumps(_FORMAT.build(entries=entries)) + "\n", encoding="utf-8")
        new.replace(file)
    except PermissionError as error:
        advice = "copy the file, if there is one, to a writable folder, and pass that path"
        raise PermissionError(error.errno, f"{error.strerror}: {advice}", str(file)) from None
    finally:
        new.unlink(missing_ok=True)
