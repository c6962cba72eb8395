"""States that contradict themselves: an error names the entry, before anything is written.

A number that a state has twice is compared. What it has once, such as a moment, only a digest could
protect: that of `Checkpoints`.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import pytest
import torch
from support.trees import equal_trees
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from plateau_jax import CurveScheduler, CurveWarning, DataClock, HoldUntilFlat, PlateauCurve
from torch_bridge import TrainStep, follow, lambda_lr

CURVE = PlateauCurve(64, warmup_steps=4, plateaus=[(0, 50)], init_lr_ratio=0.25)
HOLD = HoldUntilFlat(2, limit=9)
UPDATES = 6
BATCH = torch.ones(3, 2)


def new_optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.5, momentum=0.9)


def scheduler(clock: Any = None, **options: Any) -> Any:
    part = lambda_lr(new_optimizer(), CURVE, clock=clock)
    for _ in range(UPDATES):
        part.optimizer.step()
        part.step(**options)
    return part


def counting_scheduler() -> Any:
    return scheduler(DataClock(8, count=4))


def held_scheduler() -> Any:
    return scheduler(HOLD, metric=1.0)


def follower() -> Any:
    part = follow(new_optimizer(), "momentum", CURVE)
    for _ in range(UPDATES):
        part.step()
    return part


def curve_scheduler() -> Any:
    part = CurveScheduler(CURVE, 0.5)
    for _ in range(UPDATES):
        part.step()
    return part


def mean_square(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).square().mean()


def step(clock: Any = None, optimizer_class: Any = torch.optim.AdamW, **options: Any) -> Any:
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimizer = optimizer_class(model.parameters(), lr=0.5, **options)
    part = TrainStep(model, optimizer, mean_square, CURVE, clock=clock)
    for _ in range(UPDATES):
        part(BATCH)
    return part


def counting_step() -> Any:
    return step(DataClock(8, count=4))


def held_step() -> Any:
    return step(HOLD)


def momentum_step() -> Any:
    return step(optimizer_class=torch.optim.SGD, momentum=0.9)


def fused_step() -> Any:
    return step(fused=True)


Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Contradiction:
    """An entry of a part's state that no longer fits the others."""

    build: Callable[[], Any]
    path: Path
    value: Any
    message: str

    def __str__(self) -> str:
        return f"{self.build.__name__}-{'.'.join(map(str, self.path))}"


GROUP = "optimizer", "param_groups", 0
PEAK = *GROUP, "initial_lr"
MOMENTS = "optimizer", "state", 0
MOMENT = "optimizer", "state", 0, "exp_avg"
BEST = "hold", 0, "best"

PEAK_IN_RECORD = "records", 0, "peak_value"

CONTRADICTIONS = [
    # The peak, in an entry and in the record of the group.
    Contradiction(scheduler, ("base_lrs", 0), 0.25, "base_lrs = 0.25 .* 0.5: .*set_peak"),
    Contradiction(scheduler, PEAK_IN_RECORD, 0.25, "base_lrs = 0.5 .* = 0.25"),
    Contradiction(scheduler, PEAK_IN_RECORD, None, "base_lrs = 0.5 .* = None"),
    Contradiction(curve_scheduler, PEAK_IN_RECORD, None, "must have a record"),
    Contradiction(curve_scheduler, ("records",), [], "must have a record"),
    Contradiction(counting_scheduler, ("base_lrs", 0), 0.25, "base_lrs = 0.25"),
    Contradiction(follower, ("base_values", 0), 0.5, "base_values = 0.5 .* 0.9: .*set_base_value"),
    Contradiction(step, PEAK, 0.25, "initial_lr = 0.25 .* 0.5: .*step.set_peak"),
    # The number of updates, three times.
    Contradiction(scheduler, ("curve_step",), 5, "curve_step = 5 after 6 updates: .*last_epoch"),
    Contradiction(scheduler, ("last_epoch",), 5, "curve_step = 6 after 5 updates"),
    Contradiction(scheduler, ("consumed",), 5, "consumed = 5 after 6 updates"),
    Contradiction(held_scheduler, ("consumed",), 5, "consumed = 5 after 6 updates"),
    Contradiction(held_scheduler, ("curve_step",), 7, "curve_step = 7 after 6 updates"),
    Contradiction(curve_scheduler, ("consumed",), 5, "consumed = 5 after 6 updates"),
    Contradiction(
        curve_scheduler, ("updates",), 5, "curve_step = 6 after 5 updates: .* was saved$"
    ),
    Contradiction(step, ("applied",), 5, "curve_step = 6 after 5 updates: .* was saved$"),
    Contradiction(step, ("curve_step",), 5, "curve_step = 5 after 6 updates"),
    Contradiction(step, ("consumed",), 5, "consumed = 5 after 6 updates"),
    Contradiction(step, ("step_offset",), 3, "curve_step = 6 after 6 updates"),
    Contradiction(held_step, ("curve_step",), 7, "curve_step = 7 after 6 updates"),
    Contradiction(held_step, ("consumed",), 5, "consumed = 5 after 6 updates"),
    Contradiction(counting_scheduler, ("consumed",), 32, "curve_step = 3, consumed = 32"),
    Contradiction(counting_step, ("curve_step",), 4, "curve_step = 4, consumed = 24"),
    # Numbers that no run can have.
    Contradiction(held_scheduler, BEST, torch.nan, "not a state of the rule"),
    Contradiction(held_step, BEST, torch.nan, "not a state of the rule"),
    # Moments with which the next update would fail.
    Contradiction(step, MOMENT, torch.zeros(1, 2, dtype=torch.float16), "exp_avg in torch.float16"),
    Contradiction(fused_step, MOMENT, torch.zeros(1, 2).double(), "exp_avg in torch.float64"),
    Contradiction(step, MOMENT, None, "exp_avg in None instead of torch.float32 for parameter 0"),
    Contradiction(step, MOMENTS, {"step": torch.tensor(6.0)}, "no exp_avg for parameter 0"),
    Contradiction(step, MOMENTS, {"exp_avg": torch.zeros(1, 2)}, "no step for parameter 0"),
    Contradiction(step, (*GROUP, "params"), [7, 8], "moments of parameter 0, which no group has"),
    Contradiction(step, ("optimizer", "state"), {"0": {}}, "parameter '0', which no group has"),
    Contradiction(momentum_step, MOMENTS, {"momentum": torch.zeros(1, 2)}, "no momentum_buffer"),
]


def with_changed_entry(state: Any, path: Path, value: Any) -> Any:
    """Return a copy of a state with another value in one place."""
    changed = copy.deepcopy(state)
    *parents, name = path
    place = changed
    for parent in parents:
        place = place[parent]
    place[name] = value
    return changed


@pytest.mark.parametrize("strict", [True, False], ids=["strict", "not strict"])
@pytest.mark.parametrize("contradiction", CONTRADICTIONS, ids=str)
def test_contradiction_is_rejected(contradiction: Contradiction, strict: bool) -> None:
    state = contradiction.build().state_dict()
    part = contradiction.build()
    damaged = with_changed_entry(state, contradiction.path, contradiction.value)
    options: dict[str, Any] = {}
    if not isinstance(part, follow):
        options["strict"] = strict
    with pytest.raises(ValueError, match=contradiction.message):
        part.load_state_dict(damaged, **options)
    assert equal_trees(part.state_dict(), state)
    part.load_state_dict(state, **options)
    assert equal_trees(part.state_dict(), state)


# Moments.


def test_parameter_without_moments_is_accepted() -> None:
    """It had no gradient so far."""
    part = step()
    state = part.state_dict()
    without_moments = with_changed_entry(state, ("optimizer", "state", 1), {})
    part.load_state_dict(without_moments)
    result = part(BATCH)
    assert result.applied == UPDATES + 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_moments_that_an_update_can_use_are_accepted(dtype: torch.dtype) -> None:
    """SGD adds a gradient to a momentum of any dtype: a program may keep it in another one."""
    part = momentum_step()
    for values in part.optimizer.state.values():
        values["momentum_buffer"] = values["momentum_buffer"].to(dtype)
    part(BATCH)
    check_resumed_step(momentum_step(), part)


def check_resumed_step(resumed: TrainStep, part: TrainStep) -> None:
    """Load the state of a step into another one: the next update of both is the same."""
    state = part.state_dict()
    resumed.load_state_dict(state)
    assert equal_trees(resumed.state_dict(), state)
    assert equal_trees(resumed(BATCH), part(BATCH))


# torch's optimizers that make an update from a gradient alone; Muon needs a matrix.
TORCHS = [
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.ASGD,
    torch.optim.Adamax,
    torch.optim.Adagrad,
    torch.optim.Adadelta,
    torch.optim.RMSprop,
    torch.optim.Rprop,
    torch.optim.Adafactor,
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("optimizer_class", TORCHS)
def test_moments_of_torchs_optimizers_are_accepted(
    optimizer_class: Any, dtype: torch.dtype
) -> None:
    def trained() -> TrainStep:
        torch.manual_seed(0)
        model = nn.Linear(2, 1).to(dtype)
        optimizer = optimizer_class(model.parameters(), lr=0.5)
        part = TrainStep(model, optimizer, mean_square, CURVE)
        part(BATCH.to(dtype))
        return part

    part = trained()
    part.load_state_dict(trained().state_dict())
    part(BATCH.to(dtype))


def test_load_calls_no_hook_of_all_optimizers() -> None:
    """Programs count updates by such a hook."""
    updates: list[Any] = []

    def count(optimizer: Any, args: Any, kwargs: Any) -> None:
        updates.append(optimizer)

    part = step()
    state = part.state_dict()
    handle = register_optimizer_step_pre_hook(count)
    try:
        part.load_state_dict(state)
        assert updates == []
        part(BATCH)
        assert updates == [part.optimizer]
    finally:
        handle.remove()


# A run that has changed its clock: its steps of the curve no longer equal its updates.

CLOCKS = {"updates": None, "samples": DataClock(8, count=4), "held": HOLD}


def step_with_a_new_clock(before: str, after: str) -> Any:
    """Return a step that has resumed under a different clock, after one more update."""
    state = step(CLOCKS[before]).state_dict()
    part = step(CLOCKS[after])
    with pytest.warns(CurveWarning, match="belongs to a different clock"):
        part.load_state_dict(state, strict=False)
    part(BATCH)
    return part


@pytest.mark.parametrize(("before", "after"), list(permutations(CLOCKS, 2)))
def test_run_with_a_new_clock_resumes(before: str, after: str) -> None:
    part = step_with_a_new_clock(before, after)
    check_resumed_step(step(CLOCKS[after]), part)


@pytest.mark.parametrize("clock", CLOCKS)
def test_only_a_new_clock_saves_an_offset(clock: str) -> None:
    state = step(CLOCKS[clock]).state_dict()
    assert "step_offset" not in state


@pytest.mark.parametrize("before", ["updates", "held"])
def test_data_clock_saves_no_offset(before: str) -> None:
    """Its steps follow from what was consumed, not from the number of updates."""
    state = step_with_a_new_clock(before, "samples").state_dict()
    assert "step_offset" not in state


@pytest.mark.parametrize(
    ("after", "applied"),
    [
        ("updates", UPDATES),
        ("updates", UPDATES + 2),
        ("held", UPDATES),
    ],
)
def test_wrong_number_of_updates_after_a_new_clock(after: str, applied: int) -> None:
    part = step_with_a_new_clock("samples", after)
    damaged = {**part.state_dict(), "applied": applied, "consumed": applied}
    with pytest.raises(ValueError, match=f"after {applied} updates"):
        part.load_state_dict(damaged)
