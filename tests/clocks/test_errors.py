"""Errors of clocks and hold rules, and of the counts, metrics and peaks that a clock gets during a run."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.clocks.holds import CURVE, PATIENT
from support.curves.descriptions import OF_UNIT_8
from support.errors import Row, check_error, each, each_row
from support.schedulers.driven import Driven
from support.training.models import Net, batches, mean_loss
from support.training.steps import make_step

from plateau_jax import DataClock, HoldBelow, HoldUntilFlat
from torch_bridge import TrainStep

nan, inf = float("nan"), float("inf")

CLOCKS: list[Any] = [
    (lambda: HoldUntilFlat(0, limit=9), ValueError, "patience = 0"),
    (lambda: HoldUntilFlat(1.0, limit=9), TypeError, "patience = 1.0", "integer"),
    (lambda: HoldUntilFlat(2**31, limit=9), ValueError, "patience = 2147483648"),
    (lambda: HoldUntilFlat(2, limit=0), ValueError, "limit = 0"),
    (lambda: HoldUntilFlat(2, limit=None), TypeError, "limit = None"),
    (lambda: HoldUntilFlat(2, every=0, limit=9), ValueError, "every = 0"),
    (lambda: HoldUntilFlat(2, every=10, limit=9), ValueError, "every = 10", "limit = 9", "no reading"),
    (lambda: HoldUntilFlat(2, threshold=-1e-9, limit=9), ValueError, "threshold = -1e-09", "negative"),
    (lambda: HoldUntilFlat(2, threshold=1.5, limit=9), ValueError, "threshold = 1.5", "rel"),
    (lambda: HoldUntilFlat(2, threshold=inf, threshold_mode="abs", limit=9), ValueError, "threshold = inf"),
    (lambda: HoldUntilFlat(2, threshold=1e39, threshold_mode="abs", limit=9), ValueError, "1e+39", "float32"),
    (lambda: HoldUntilFlat(2, threshold="0.1", limit=9), TypeError, "threshold = '0.1'"),
    (lambda: HoldUntilFlat(2, threshold_mode="low", limit=9), ValueError, "threshold_mode = 'low'", "'rel'"),
    (lambda: HoldBelow(0.5), TypeError, "value = 0.5", "steps"),
    (lambda: HoldBelow("0.5"), TypeError, "value = '0.5'", "pairs"),
    (lambda: HoldBelow([(0.5, 3)], 3), TypeError, "value = [(0.5, 3)]", "number"),
    (lambda: HoldBelow([0.5, 3]), TypeError, "value[0] = 0.5", "pair (value, steps)"),
    (lambda: HoldBelow({0.5: 3}), TypeError, "value = {0.5: 3}", "pairs (value, steps)"),
    (lambda: HoldBelow([]), ValueError, "the sum of all steps = 0"),
    (lambda: HoldBelow(nan, 3), ValueError, "value = nan"),
    (lambda: HoldBelow(-1e39, 3), ValueError, "value = -1e+39", "float32"),
    (lambda: HoldBelow(0.5, 0), ValueError, "steps = 0"),
    (lambda: HoldBelow(0.5, 3.0), TypeError, "steps = 3.0"),
    (lambda: HoldBelow(0.5, 3, every=0), ValueError, "every = 0"),
    (lambda: HoldBelow([(0.5, 3), (0.2, -1)]), ValueError, "value[1].steps = -1"),
    (lambda: HoldBelow([(0.5, 3), (0.5, 3)]), ValueError, "falling", "0.5 follows 0.5"),
    (lambda: HoldBelow([(0.5, 3), (0.2, 3), (0.3, 3)]), ValueError, "falling", "0.3 follows 0.2"),
    (lambda: HoldBelow([(0.5, 2**31 - 1), (0.2, 1)]), ValueError, "the sum of all steps = 2147483648"),
    *(
        row
        for call, name in (
            (lambda value: DataClock(value), "unit"),
            (lambda value: DataClock(8, count=value), "count"),
        )
        for row in (
            *each(call, [0, -1, 2**62 + 1], ValueError, f"{name} = {{}}", "lie in 1 … 2**62"),
            *each(call, [True, np.True_, 8.0, "8", nan], TypeError, f"{name} = {{}}", "be an integer"),
        )
    ),
    (lambda: DataClock(8, 2**62), ValueError, f"count = {2**62} must lie in 1 … 2**62 - 1"),
    (lambda: DataClock(None), TypeError, "unit = None", "integer"),
]  # fmt: skip


@each_row(CLOCKS)
def test_errors_of_clocks(row: Any) -> None:
    check_error(row)


def started(kind: str, updates: int, **options: Any) -> Driven:
    run = Driven(kind, CURVE, [0.5], **options)
    run.advance(updates)
    return run


def check_call(row: Row, **runs: Driven) -> None:
    optimizers = {f"optimizer_of_{name}": run.optimizer for name, run in runs.items()}
    check_error(row, **{name: run.part for name, run in runs.items()}, **optimizers)


COUNTS: list[Any] = [
    (lambda counted: counted.step(count=-1), ValueError, "count = -1", "at least 0"),
    (lambda counted: counted.step(count=torch.tensor(-2)), ValueError, "count = -2"),
    (lambda counted: counted.step(count=2**62 - counted.consumed + 1), ValueError, "would have consumed ",
     "2**62"),
    *each(lambda counted, value: counted.step(count=value),
          [True, np.True_, 2.0, "2", torch.tensor(True), torch.tensor(2.0), torch.tensor([2, 2])],
          TypeError, "count = {}", "integer"),
    (lambda counted: counted.step(), TypeError, "DataClock(8)", "step(count=n)", "scheduler.count = n",
     "DataClock(8, count=n)"),
    (lambda told: told.step(), TypeError, "count = '2'", "integer"),
    (lambda plain: plain.step(count=8), TypeError, "count = 8", "clock=DataClock(unit)"),
]  # fmt: skip


@each_row(COUNTS)
@pytest.mark.parametrize("updates", [0, 3])
def test_errors_of_counts(row: Any, updates: int) -> None:
    counted, told = (started("scheduler", updates, clock=DataClock(8)) for _ in range(2))
    told.part.count = "2"
    check_call(row, counted=counted, told=told, plain=started("scheduler", updates))


METRICS: list[Any] = [
    (lambda held: held.step(), TypeError, "metric"),
    (lambda held: held.step(3, metric=0.5), TypeError, "one metric"),
    (lambda held: held.step(count=8), TypeError, "count = 8", "clock=DataClock(unit)"),
    (lambda plain: plain.step(3, count=8), TypeError, "count = 8", "clock=DataClock(unit)"),
    (lambda plain: plain.step(metric=0.5), TypeError, "step(metric=0.5)", "clock=rule"),
    (lambda plain: plain.step(3, metric=0.5), TypeError, "step(metric=0.5)", "clock=rule"),
    (lambda counted: counted.step(metric=0.5), TypeError, "step(metric=0.5)", "clock=rule"),
    (lambda counted: counted.step(0), TypeError, "step(0) with DataClock(8)", "step(count=n)"),
    (lambda counted: counted.step(8, count=8), TypeError, "step(8) with DataClock(8)"),
    (lambda held: held.step(8), TypeError, "metric = 8 must be a real scalar", "step(loss)"),
    (lambda follower: follower.step(0.5), TypeError, "curve_step = 0.5", "integer"),
    (lambda follower: follower.step(-1), ValueError, "curve_step = -1", "at least 0"),
    (lambda of_plan: of_plan.step(), TypeError, "units of 8", "step(scheduler.curve_step)"),
    *each(
        lambda held, value: held.step(value),
        [
            *("0.5", True, 1j, [0.5], (), np.ones(1), np.True_, torch.ones(1)),
            *(torch.ones(2, requires_grad=True), torch.tensor(True), torch.tensor(1j)),
            *(np.zeros((), "i4,i4"), np.ones((), [("loss", "f4")]), 10**400, [[1], [1, 2]]),
            *({}, SimpleNamespace()),
        ],
        *(TypeError, "metric", "real scalar"),
    ),
]  # fmt: skip


@each_row(METRICS)
@pytest.mark.parametrize("updates", [0, 5])
def test_errors_of_metrics(row: Any, updates: int) -> None:
    held = started("scheduler", updates, clock=[PATIENT, HoldBelow(0.7, 3)])
    plain, counted = started("scheduler", updates), started("scheduler", updates, clock=DataClock(8))
    of_plan = Driven("follower", OF_UNIT_8[0], [0.5])
    follower = started("follower", updates)
    check_call(row, held=held, plain=plain, counted=counted, follower=follower, of_plan=of_plan)


STEPS: list[Any] = [
    (lambda counted: counted(*DATA), TypeError, "step(batch, count=n)", "DataClock(2, count=n)"),
    (lambda counted: counted(*DATA, count=-1), ValueError, "count = -1"),
    (lambda counted: counted(*DATA, count=2**62), ValueError, "count = 4611686018427387904", "2**62"),
    *each(lambda counted, value: counted(*DATA, count=value), [2.0, True, "2"], TypeError,
          "count = {}", "integer"),
    (lambda counted: counted(*DATA, count=torch.tensor(2.0)), TypeError, "count", "torch.float32", "integer"),
    (lambda counted: counted(*DATA, count=torch.tensor(2j)), TypeError, "count", "torch.complex64"),
    (lambda counted: counted(*DATA, count=torch.tensor(True)), TypeError, "count", "torch.bool"),
    (lambda counted: counted(*DATA, count=torch.tensor([2])), ValueError, "count", "(1,)", "scalar"),
    (lambda two_groups: two_groups(*DATA, count=2), TypeError, "count = 2", "clock=DataClock(unit)"),
    (lambda: make_step(clock=DataClock(8), initial_updates=3), ValueError, "initial_updates = 3",
     "DataClock(8, count=n)"),
    (lambda two_groups: two_groups.set_peak([0.5]), ValueError, "peak has 1", "parameter groups is 2"),
    (lambda two_groups: two_groups.set_peak([0.5, nan]), ValueError, "peak[1] = nan"),
    (lambda model, stepped: TrainStep(model, stepped, mean_loss, CURVE, initial_updates=3), ValueError,
     "initial_updates = 3, but param_groups[0]", '"initial_lr"'),
]  # fmt: skip
DATA = batches(2)


@each_row(STEPS)
def test_errors_of_training_steps(row: Any) -> None:
    model = Net()
    groups = [{"params": module.parameters()} for module in (model.first, model.last)]
    two_groups = TrainStep(model, torch.optim.SGD(groups), mean_loss, CURVE)
    counted = make_step(clock=DataClock(2))
    stepped = torch.optim.Adam(model.parameters())
    mean_loss(model, DATA[0]).backward()
    stepped.step()
    objects = {"model": model, "stepped": stepped, "two_groups": two_groups, "counted": counted}
    check_error(row, **objects)
