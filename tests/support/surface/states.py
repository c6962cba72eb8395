"""The entries of saved states, records and curves, with their types.

An entry is marked as optional if one of the samples lacks it. The samples are the states of the
golden programs, and of a few other runs.
"""

import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from clocks.rules.specs import SAMPLES, SPECS
from support.golden.curves import CURVES
from support.golden.files import read_json, run_program, save
from support.golden.programs import CASES, CURVE, UNTIL_FLAT
from support.surface import samples
from support.surface.shown import kind_of, types_of

from plateau_jax import (
    BatchPlan,
    CurveScheduler,
    DataClock,
    resume_record,
    scale_by_curve,
)
from torch_bridge import MetricLog
from torch_bridge.random_states import get_states_of_process

State = Mapping[str, Any]

_NOT_OPENED = ("hold", "model", "optimizer", "numpy")
"""Entries whose own entries torch or NumPy defines, or which depend on the rule."""

_LEFT_OUT = (
    "checkpoint_of_two_processes",
    "optax_state",
    "optax_state_held",
    "optax_state_in_samples",
    "values",
)
"""Programs of several processes, and those whose states have no kind."""


def states() -> Iterator[str]:
    samples_by_name: dict[str, list[Any]] = {
        "state": [*_golden_states(), *_other_states()],
        "BatchPlan": [BatchPlan([(0, 8)]).to_dict()],
        "random_states": _random_states(),
        "train_step.optimizer.param_groups[]": _param_groups(),
    }
    for rule, spec in SPECS.items():
        samples_by_name[f"state of {rule.__name__}"] = _hold_states(spec.saved)
    yield from entries(samples_by_name)


def states_in_jax() -> Iterator[str]:
    yield from entries(
        {
            "scale_by_curve": [_optax_state(None)],
            "scale_by_curve with DataClock": [_optax_state(DataClock(8))],
            "scale_by_curve with HoldUntilFlat": [_optax_state(UNTIL_FLAT)],
        }
    )


def entries(samples_by_name: Mapping[str, list[Any]]) -> Iterator[str]:
    """Yield a line per entry of these samples: its name, its types, and if it may be absent."""
    values: dict[tuple[str, str], list[Any]] = defaultdict(list)
    dictionaries: Counter[str] = Counter()
    for name, samples_of_name in samples_by_name.items():
        for kind, dictionary in _dictionaries(name, samples_of_name):
            dictionaries[kind] += 1
            for entry, value in dictionary.items():
                values[kind, entry].append(value)
    for (kind, entry), samples_of_entry in values.items():
        line = f"{kind}.{entry}: {types_of(samples_of_entry)}"
        if entry in ("kind", "format"):
            line = f"{kind}.{entry} = {samples_of_entry[0]!r}"
        if len(samples_of_entry) < dictionaries[kind]:
            line += ", optional"
        yield line


def _dictionaries(name: str, state: Any) -> Iterator[tuple[str, State]]:
    """Yield each dictionary or named tuple in a state, with its kind, or else where it is."""
    if hasattr(state, "_asdict"):
        state = state._asdict()
    if isinstance(state, Mapping):
        dictionary = cast("State", state)
        kind = kind_of(dictionary) or name
        yield kind, dictionary
        for entry, value in dictionary.items():
            if entry not in _NOT_OPENED:
                yield from _dictionaries(f"{kind}.{entry}", value)
    elif isinstance(state, list | tuple):
        for item in cast("list[Any]", state):
            yield from _dictionaries(name, item)


def _golden_states() -> Iterator[State]:
    for curve in CURVES.values():
        yield curve.to_dict()
    for name, case in CASES.items():
        if name in _LEFT_OUT:
            continue
        program = run_program(name)
        if case.file != "checkpoint":
            yield program.saved.state_dict()
            continue
        with tempfile.TemporaryDirectory() as folder:
            save(case, program, Path(folder))
            yield read_json(Path(folder, "checkpoints", str(case.updates), "checkpoint.json"))


def _other_states() -> list[State]:
    """With types that no golden program saves."""
    log_of_two_groups = MetricLog()
    log_of_two_groups(samples.step_result(groups=2))
    return [
        log_of_two_groups.state_dict(),
        MetricLog().state_dict(),
        resume_record(CURVES["staged_linear"]),
        *[rule.to_dict() for rule in SAMPLES],
    ]


def _param_groups() -> list[State]:
    """Only what a step adds, or changes."""
    [group] = cast("Any", samples.train_step().state_dict())["optimizer"]["param_groups"]
    return [{"initial_lr": group["initial_lr"], "lr": group["lr"]}]


def _hold_states(rule: Any) -> list[State]:
    scheduler = CurveScheduler(CURVE, 0.1, clock=rule)
    for _ in range(12):
        scheduler.step(metric=0.5)
    return scheduler.state_dict()["hold"]


def _optax_state(clock: Any) -> Any:
    return scale_by_curve(CURVE, 0.1, clock).init({})


def _random_states() -> list[State]:
    """Of a process without CUDA, and with it."""
    # A test that has called `random.gauss` would change the types.
    states = get_states_of_process()
    states["python"]["gauss_next"] = None
    return [states, {**states, "cuda": torch.zeros(1, 16, dtype=torch.uint8)}]
