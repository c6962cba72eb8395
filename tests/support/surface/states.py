"""The entries of saved states, records and checkpoints, with their types, at every depth.

An entry is marked as optional if one of the samples lacks it. So there is a sample in which as much
as possible differs from the defaults, and one in which as little as possible does.
"""

import json
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from support.surface import samples
from support.surface.samples import CLOCK, CURVE, PLAN, SCALED_CURVE, UNTIL_FLAT
from support.surface.shown import types_of
from torch.utils.data import TensorDataset

from plateau_jax import (
    CurveScheduler,
    DataClock,
    HoldBelow,
    HoldUntilFlat,
    PlateauCurve,
    StagedCurve,
    check_resume_file,
    resume_record,
    scale_by_curve,
)
from plateau_jax.arguments.curve_warning import suppress_warnings
from torch_bridge import Checkpoints, MetricLog, follow, lambda_lr, make_loader
from torch_bridge.random_states import get_states_of_process

State = Mapping[str, Any]

_OF_OTHERS = ("TrainStep model", "TrainStep optimizer", "random-states numpy")
"""Entries whose own entries torch or NumPy defines."""

_UPDATES = 12
"""To the first steps of the plateau of the curve."""


def states() -> Iterator[str]:
    kinds: dict[str, list[State]] = {
        **_states_of_values(),
        "CurveScheduler": _curve_scheduler_states(),
        "MetricLog": _log_states(),
        "TrainStep": _step_states(),
        "TrainStep optimizer.param_groups[]": _param_groups(),
        "check_resume_file": [_history()],
        "checkpoint.json": [_manifest()],
        "follow": _follower_states(),
        "hold[] of HoldBelow": _hold_states(HoldBelow(0.5, 3)),
        "hold[] of HoldUntilFlat": _hold_states(UNTIL_FLAT),
        "lambda_lr": _scheduler_states(),
        "make_loader": _loader_states(),
        "random-states": _random_states(),
        "resume_record": [resume_record(CURVE), resume_record(CURVE, 0.1, CLOCK)],
    }
    for kind, states_of_kind in kinds.items():
        yield from entries(kind, states_of_kind)


def states_in_jax() -> Iterator[str]:
    yield from entries("scale_by_curve", [_optax_state(None)])
    yield from entries("scale_by_curve with DataClock", [_optax_state(CLOCK)])
    yield from entries("scale_by_curve with HoldUntilFlat", [_optax_state(UNTIL_FLAT)])


def entries(kind: str, states: list[State]) -> Iterator[str]:
    """Yield a line per entry of these samples: its name, its types, and if it may be absent."""
    values: dict[tuple[str, str], list[Any]] = defaultdict(list)
    dictionaries: Counter[str] = Counter()
    for state in states:
        for path, dictionary in _dictionaries(f"{kind} ", state):
            dictionaries[path] += 1
            for name, value in dictionary.items():
                values[path, name].append(value)
    for (path, name), samples_of_entry in values.items():
        line = f"{path}{name}: {types_of(samples_of_entry)}"
        if name in ("kind", "format"):
            line = f"{path}{name} = {samples_of_entry[0]!r}"
        if len(samples_of_entry) < dictionaries[path]:
            line += ", optional"
        yield line


def _dictionaries(path: str, state: Any) -> Iterator[tuple[str, State]]:
    """Yield each dictionary or named tuple in a state, with the beginning of its entries' names."""
    if path.rstrip(".") in _OF_OTHERS:
        return
    if hasattr(state, "_asdict"):
        state = state._asdict()
    if isinstance(state, Mapping):
        dictionary = cast("State", state)
        yield path, dictionary
        for name, value in dictionary.items():
            yield from _dictionaries(f"{path}{name}.", value)
    elif isinstance(state, list | tuple):
        for item in cast("list[Any]", state):
            yield from _dictionaries(f"{path.removesuffix('.')}[].", item)


def _states_of_values() -> dict[str, list[State]]:
    """Of curves, plans, clocks and rules: with few arguments, and with all."""
    rule = HoldUntilFlat(3, threshold=0.1, threshold_mode="abs", every=2, limit=9)
    curve = PlateauCurve(
        100,
        warmup_steps=10,
        plateaus=[(12.5, 10)],
        absolute_plateaus=[(60, 5)],
        min_lr_ratio=0.1,
        init_lr_ratio=0.1,
        warmup_shape="cosine",
        decay_shape="linear",
    )
    values: dict[str, list[Any]] = {
        "BatchPlan": [PLAN],
        "DataClock": [DataClock(8), CLOCK],
        "HoldBelow": [HoldBelow(0.5, 3), HoldBelow([(0.5, 3), (0.2, 9)], every=2)],
        "HoldUntilFlat": [UNTIL_FLAT, rule],
        "PlateauCurve": [PlateauCurve(100), curve],
        "StagedCurve": [CURVE, StagedCurve([(10, 1.0), (50,)], start=0.5)],
        "a cooldown": [CURVE.cooldown(50, 10), CURVE.cooldown(50, 10, to=0.1, shape="linear")],
        "a curve and the next": [CURVE.then(CURVE), CURVE.then(CURVE, scale=0.5)],
        "a part": [CURVE.part(), CURVE.part(10, 50)],
        "a scaled curve": [SCALED_CURVE, PLAN.scale(CURVE, 8, reference=16, exponent=1.0)],
    }
    states: dict[str, list[State]] = {}
    for kind, values_of_kind in values.items():
        states[kind] = [value.to_dict() for value in values_of_kind]
    return states


def _scheduler_states() -> list[State]:
    """Fresh, with each clock, and after whatever a program may have changed."""
    fresh = lambda_lr(samples.optimizer(), CURVE)
    with_new_peak = lambda_lr(samples.optimizer(), CURVE, clock=CLOCK)
    with_new_peak.set_peak(0.25)
    held = lambda_lr(samples.optimizer(), CURVE, clock=UNTIL_FLAT)
    for _ in range(_UPDATES):
        with_new_peak.optimizer.step()
        with_new_peak.step()
        held.optimizer.step()
        held.step(metric=0.5)
    with_new_bases = lambda_lr(samples.optimizer(), CURVE)
    with_new_bases.base_lrs[0] = 0.25
    not_in_charge = lambda_lr(samples.optimizer(), CURVE)
    not_in_charge.optimizer.param_groups[0]["lr"] = 0.25
    schedulers = [fresh, with_new_peak, held, with_new_bases, not_in_charge]
    return [scheduler.state_dict() for scheduler in schedulers]


def _curve_scheduler_states() -> list[State]:
    fresh = CurveScheduler(CURVE, 0.1)
    counting = CurveScheduler(CURVE, 0.1, clock=CLOCK)
    for _ in range(_UPDATES):
        counting.step()
    return [fresh.state_dict(), counting.state_dict(), _held(UNTIL_FLAT).state_dict()]


def _hold_states(rule: Any) -> list[State]:
    return _held(rule).state_dict()["hold"]


def _held(rule: Any) -> CurveScheduler:
    scheduler = CurveScheduler(CURVE, 0.1, clock=rule)
    for _ in range(_UPDATES):
        scheduler.step(metric=0.5)
    return scheduler


def _follower_states() -> list[State]:
    fresh = follow(samples.optimizer(), "momentum", CURVE)
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(2))])
    with_new_base = follow(optimizer, ("betas", 0), CURVE)
    with_new_base.set_base_value(0.5)
    with_new_base.step()
    return [fresh.state_dict(), with_new_base.state_dict()]


def _step_states() -> list[State]:
    """Fresh, and with each entry: the last update is skipped."""
    fresh = samples.train_step()
    with_new_peak = samples.train_step(precision="fp16", clock=CLOCK)
    with_new_peak.set_peak(0.25)
    carrying = samples.train_step(
        loss_fn=samples.carrying_loss, carry=torch.zeros(1), clock=UNTIL_FLAT
    )
    for batch in (torch.ones(3, 2), torch.ones(3, 2), torch.full((3, 2), torch.nan)):
        with_new_peak(batch)
        carrying(batch)
    with_new_clock = samples.train_step(strict=False)
    with suppress_warnings():
        with_new_clock.load_state_dict(_counting_step_state())
    steps = [fresh, with_new_peak, carrying, with_new_clock]
    return [step.state_dict() for step in steps]


def _counting_step_state() -> State:
    counting = samples.train_step(clock=CLOCK)
    counting(torch.ones(3, 2))
    return counting.state_dict()


def _param_groups() -> list[State]:
    """Only what a step adds, or changes."""
    groups = cast("Any", samples.train_step().state_dict())["optimizer"]["param_groups"]
    return [{"initial_lr": group["initial_lr"], "lr": group["lr"]} for group in groups]


def _log_states() -> list[State]:
    """Empty, and with a row of one parameter group and one of two."""
    states: list[State] = [MetricLog().state_dict()]
    for groups in (1, 2):
        log = MetricLog()
        log(samples.step_result(groups))
        states.append(log.state_dict())
    return states


def _loader_states() -> list[State]:
    loader = make_loader(TensorDataset(torch.zeros(4)), 2, num_workers=0)
    states: list[State] = [loader.state_dict()]
    for _ in loader:
        states.append(loader.state_dict())
    return states


def _optax_state(clock: Any) -> State:
    state: Any = scale_by_curve(CURVE, 0.1, clock).init({})
    return state._asdict()


def _history() -> State:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "curve.json")
        check_resume_file(path, resume_record(CURVE, 0.1, UNTIL_FLAT), 0)
        return json.loads(path.read_text(encoding="utf-8"))


def _random_states() -> list[State]:
    """Of a process without CUDA, and with it."""
    # A test that has called `random.gauss` would change the types.
    states = get_states_of_process()
    states["python"]["gauss_next"] = None
    return [states, {**states, "cuda": torch.zeros(1, 16, dtype=torch.uint8)}]


def _manifest() -> State:
    with tempfile.TemporaryDirectory() as directory:
        log = MetricLog()
        checkpoints = Checkpoints(directory)
        checkpoints.save(10, log=log)
        checkpoints.save(20, progress={"epoch": 1}, log=log, wait=True)
        return json.loads(Path(directory, "20", "checkpoint.json").read_text(encoding="utf-8"))
