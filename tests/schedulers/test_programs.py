"""Any program of a scheduler or follower has the values of the curve, by definition, at every update.

Then states, which programs load, and the printed form.
"""

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from support.clocks.holds import VALUES, curves as held_curves, holds
from support.curves.descriptions import build, descriptions
from support.curves.strategies import magnitudes
from support.examples import examples
from support.schedulers.driven import FOLLOWED, ROUTES, Driven
from support.schedulers.runs import modest_peaks, optimizer_with
from support.training.optimizers import ADAGRAD_RECREATES_STATES
from torch.optim import SGD, Adagrad, AdamW

from plateau_jax import CurveWarning, DataClock, PlateauCurve
from torch_bridge import follow, lambda_lr

pytestmark = [
    pytest.mark.usefixtures("short_windows"),
    # Short curves, far past their ends.
    pytest.mark.filterwarnings("ignore:the curve has total_steps:plateau_jax.CurveWarning"),
]

CURVE = PlateauCurve(100, warmup_steps=10, plateaus=[(50, 20)], min_lr_ratio=0.1)
OTHER = PlateauCurve(200, plateaus=[(10, 20)], decay_shape="linear")


def _tensor(dtype: torch.dtype) -> Any:
    return lambda value: torch.tensor(float(value), dtype=dtype)


FORMS: dict[str, Any] = {
    "number": st.sampled_from((float, float, np.float32, np.float64)),
    "tensor": st.sampled_from([_tensor(getattr(torch, name)) for name in ("float32", "float64", "bfloat16")]),
}
last_epochs = st.one_of(magnitudes(-1, 2**31 - 3), st.sampled_from((np.int32(-1), 2**63 - 5, 2**80)))
count_forms: Any = st.sampled_from((int, np.int64, np.array, torch.tensor))
metric_forms: Any = st.sampled_from(
    (float, np.float32, _tensor(torch.float64), lambda metric: torch.tensor(metric, requires_grad=True) * 1)
)
metrics = st.sampled_from((*VALUES, float("nan"), float("inf")))
counts = magnitudes(0, 2**45) | st.integers(0, 300)
updates = st.lists(st.tuples(counts, metrics), min_size=1, max_size=12)
# All that can happen in a run; an integer is a jump.
moves = st.one_of(updates, updates, updates, st.sampled_from(ROUTES), modest_peaks, st.integers(0, 9))

DRIVERS = [*(("scheduler", clock) for clock in ("updates", "unit", "hold")), ("follower", "updates")]


@pytest.mark.parametrize(("kind", "clock_kind"), DRIVERS)
@pytest.mark.parametrize("form", FORMS)
@examples(80)
@given(data=st.data())
def test_any_program_follows_the_curve(kind: str, clock_kind: str, form: str, data: st.DataObject) -> None:
    draw = data.draw
    count = draw(st.integers(1, 3))
    clock: Any = None
    if clock_kind == "hold":
        curve: Any = draw(held_curves)
        clock = draw(holds)
    else:
        curve = build(draw(descriptions(range(4), scaled=clock_kind == "unit")))
    if clock_kind == "unit" and (curve.unit is None or draw(st.booleans())):
        clock = DataClock(curve.unit or draw(magnitudes(1, 2**40)))
    has_common_curve = draw(st.booleans()) or clock_kind == "hold" or curve.unit is not None
    kinds = [SGD, AdamW, *[Adagrad] * ADAGRAD_RECREATES_STATES]  # else it could not train new groups
    optimizer_kind, key = draw(st.sampled_from(kinds)), "lr"
    if kind == "follower":
        optimizer_kind, key = draw(st.sampled_from(FOLLOWED))
    # A beta of 1 would divide by zero.
    bases = modest_peaks if isinstance(key, str) else st.sampled_from((0.0, 0.3, 0.5, 0.9))
    run = Driven(
        kind,
        curve
        if has_common_curve
        else [curve, *(build(draw(descriptions(range(4)))) for _ in range(count - 1))],
        draw(st.lists(bases, min_size=count, max_size=count)),
        clock=clock,
        form=draw(FORMS[form]),
        optimizer_kind=optimizer_kind,
        key=key,
        last_epoch=draw(last_epochs) if (kind, clock_kind) == ("scheduler", "updates") else -1,
    )
    count_form, metric_form = draw(count_forms), draw(metric_forms)
    run.check()
    for move in draw(st.lists(moves, max_size=10)):
        if isinstance(move, list):
            for given_count, metric in move:
                run.update(count_form(given_count), metric_form(metric), check=True)
                run.check()
        elif isinstance(move, str):
            getattr(run, move)()
        elif isinstance(move, int):
            if (kind, clock_kind) == ("scheduler", "updates"):
                run.jump(count_form(40 * move - 80) if count_form is np.int64 else 40 * move - 80)
        elif kind == "scheduler" and run.updates >= 0 and draw(st.booleans()):
            run.set_peak(move, one_for_each=draw(st.booleans()))
        elif has_common_curve:
            run.add_group(move if isinstance(key, str) else draw(bases))
        run.check()


@pytest.mark.parametrize("then", [Driven.check, Driven.by_copy, Driven.by_pickle])
def test_trainer_loads_by_builders_strict(then: Callable[[Driven], None]) -> None:
    saved, run = Driven("scheduler", CURVE), Driven("scheduler", OTHER, strict=False)
    saved.advance(40)
    _, state = saved.saved()
    then(run)
    run.rejects(ValueError, "cannot resume at step 40", lambda: run.part.load_state_dict(state, strict=True))
    with pytest.warns(CurveWarning, match=r"differ from step 0 on\. .* continues at step 40"):
        run.part.load_state_dict(state)  # as a trainer does
    run.updates = 40
    run.check()


def test_state_is_small_and_shares_nothing() -> None:
    run, other = Driven("scheduler", CURVE), Driven("scheduler", CURVE)
    run.advance(2000)
    state = run.part.state_dict()
    file = io.BytesIO()
    torch.save(state, file)
    assert max(len(pickle.dumps(run.part)), file.tell()) < 10_000
    kept = copy.deepcopy(state)
    other.part.load_state_dict(state)
    other.updates = 2000
    assert other.part.state_dict() == kept
    other.advance(3)
    assert state == kept
    for entry in ("base_lrs", "records", "_last_lr"):
        state[entry].clear()
    for each in (run, other):
        each.advance(1)
        each.check()


@pytest.mark.parametrize("form", [float, torch.tensor])
def test_print_shows_curve_clock_and_values(form: Any) -> None:
    optimizer = optimizer_with([form(0.5)], momentum=0.5)
    scheduler, follower = (
        lambda_lr(optimizer, CURVE, clock=DataClock(4)),
        follow(optimizer, "momentum", CURVE),
    )
    optimizer.step()
    scheduler.step(count=20)
    follower.step(scheduler.curve_step)
    assert str(scheduler) == f"lambda_lr({CURVE}, curve_step=5, unit=4, lr=0.25)"
    assert str(follower) == f"follow({CURVE}, curve_step=5, momentum=0.25)"
    several = lambda_lr(optimizer_with([0.5, 0.25]), [CURVE, OTHER])
    assert str(several) == f"lambda_lr([{CURVE}, {OTHER}], curve_step=0, lr=[0.0, 0.25])"
