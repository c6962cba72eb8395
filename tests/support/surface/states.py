"""The entries of saved states, records and curves, with their types."""

import json
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from support.clocks.rules import ONE_OF_EACH, SAMPLES
from support.golden.curves import CURVES
from support.surface import samples
from support.surface.shown import kind_of, types_of

from plateau_jax import (
    BatchPlan,
    CurveScheduler,
    DataClock,
    HoldUntilFlat,
    PlateauCurve,
    check_resume_file,
    resume_record,
    scale_by_curve,
)
from torch_bridge import Checkpoints, MetricLog, follow, lambda_lr, make_loader
from torch_bridge.training.random_states import get_states_of_process

State = Mapping[str, Any]

_NOT_OPENED = ("hold", "model", "optimizer", "numpy")
"""Entries whose own entries torch or NumPy defines, or which depend on the rule."""

CURVE = PlateauCurve(40, warmup_steps=4, plateaus=[(20, 15)], min_lr_ratio=0.1)
UNTIL_FLAT = HoldUntilFlat(2, every=2, limit=15)
CLOCKS = None, UNTIL_FLAT, DataClock(8), DataClock(8, count=16)


def states() -> Iterator[str]:
    samples_by_name: dict[str, list[Any]] = {
        "state": list(_states()),
        "BatchPlan": [BatchPlan([(0, 8)]).to_dict()],
        "random_states": _random_states(),
    }
    for rule in ONE_OF_EACH:
        samples_by_name[f"state of {type(rule).__name__}"] = _hold_states(rule)
    yield from entries(samples_by_name)


def states_in_jax() -> Iterator[str]:
    clocks = {"": None, " with DataClock": DataClock(8), " with HoldUntilFlat": UNTIL_FLAT}
    yield from entries(
        {
            f"scale_by_curve{name}": [scale_by_curve(CURVE, 0.1, clock).init({})]
            for name, clock in clocks.items()
        }
    )


def entries(samples_by_name: Mapping[str, list[Any]]) -> Iterator[str]:
    """Yield a line per entry of these samples: its name and its types."""
    values: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for name, samples_of_name in samples_by_name.items():
        for kind, dictionary in _dictionaries(name, samples_of_name):
            for entry, value in dictionary.items():
                values[kind, entry].append(value)
    for (kind, entry), samples_of_entry in values.items():
        line = f"{kind}.{entry}: {types_of(samples_of_entry)}"
        if entry in ("kind", "format"):
            line = f"{kind}.{entry} = {samples_of_entry[0]!r}"
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


def _states() -> Iterator[State]:
    for curve in CURVES.values():
        yield curve.to_dict()
    yield resume_record(CURVE)
    for rule in SAMPLES:
        yield rule.to_dict()
    for clock in CLOCKS:
        yield lambda_lr(samples.optimizer(), CURVE, clock=clock).state_dict()
        yield CurveScheduler(CURVE, 0.1, clock=clock).state_dict()
        yield samples.train_step(CURVE, clock=clock).state_dict()
    yield samples.train_step(precision="fp16").state_dict()
    yield samples.train_step(carry=[torch.zeros(3)]).state_dict()
    yield samples.step_with_two_optimizers().state_dict()
    yield follow(samples.optimizer(), "momentum", CURVE).state_dict()
    yield follow(torch.optim.Adam(samples.parameters()), ("betas", 0), CURVE).state_dict()
    yield make_loader(range(23), 4, num_workers=0).state_dict()
    yield MetricLog().state_dict()
    for groups in (1, 2):
        log = MetricLog()
        log(samples.step_result(groups))
        yield log.state_dict()
    with tempfile.TemporaryDirectory() as folder:
        Checkpoints(folder).save(0, wait=True, log=MetricLog(), progress={"best": 1.0})
        yield json.loads(Path(folder, "0", "checkpoint.json").read_text(encoding="utf-8"))
        history = Path(folder, "curve.json")
        check_resume_file(history, resume_record(CURVE, 0.1), 0)
        yield json.loads(history.read_text(encoding="utf-8"))


def _hold_states(rule: Any) -> list[State]:
    scheduler = CurveScheduler(CURVE, 0.1, clock=rule)
    for _ in range(12):
        scheduler.step(metric=0.5)
    return scheduler.state_dict()["hold"]


def _random_states() -> list[State]:
    """Of a process without CUDA, and with it."""
    # A test that has called `random.gauss` would change the types.
    states = get_states_of_process()
    states["python"]["gauss_next"] = None
    return [states, {**states, "cuda": torch.zeros(1, 16, dtype=torch.uint8)}]
