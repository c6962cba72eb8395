"""Any program of a scheduler or follower has the values of the curve, by definition, at every update."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from support.curves.descriptions import build, descriptions
from support.curves.strategies import magnitudes
from support.examples import examples
from support.holds.held import curves as held_curves, holds
from support.holds.hold_cases import VALUES
from support.schedulers.driven import ROUTES, Driven, counts, units
from support.schedulers.runs import modest_peaks

pytestmark = [
    pytest.mark.usefixtures("short_windows"),
    # Short curves, far past their ends.
    pytest.mark.filterwarnings("ignore:the curve has total_steps:plateau_jax.CurveWarning"),
]


def _wide(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


forms: Any = st.sampled_from((float, torch.tensor, _wide))
count_forms: Any = st.sampled_from((int, np.int64, np.array, torch.tensor))
metric_forms: Any = st.sampled_from(
    (float, np.float32, torch.tensor, _wide, lambda metric: torch.tensor(metric, requires_grad=True) * 1)
)
optimizer_kinds: Any = st.sampled_from((torch.optim.SGD, torch.optim.AdamW, torch.optim.Adagrad))
metrics = st.sampled_from((*VALUES, float("nan"), float("inf")))
updates = st.lists(st.tuples(counts, metrics), min_size=1, max_size=12)
# The index of a wrong step; and all that can happen in a run.
moves = st.one_of(updates, updates, updates, st.sampled_from(ROUTES), modest_peaks, st.integers(0, 9))

WRONG_STEPS: dict[str, list[tuple[type[Exception], dict[str, Any]]]] = {
    "updates": [(TypeError, {"count": 3})],
    "unit": [(ValueError, {"count": -1}), (TypeError, {"count": 2.0}), (TypeError, {"count": "2"})],
    "hold": [(TypeError, {}), (TypeError, {"metric": torch.ones(1)}), (TypeError, {"metric": "x"})],
}


@pytest.mark.parametrize(
    ("kind", "clock"),
    [*(("scheduler", clock) for clock in WRONG_STEPS), ("follower", "updates"), ("follower", "unit")],
)
@examples(200)
@given(data=st.data())
def test_any_program_follows_the_curve(kind: str, clock: str, data: st.DataObject) -> None:
    draw = data.draw
    count = draw(st.integers(1, 3))
    curve: Any = (
        draw(held_curves) if clock == "hold" else build(draw(descriptions(range(4), scaled=clock == "unit")))
    )
    has_common_curve = draw(st.booleans()) or clock == "hold" or curve.unit is not None
    run = Driven(
        kind,
        curve
        if has_common_curve
        else [curve, *(build(draw(descriptions(range(4)))) for _ in range(count - 1))],
        draw(st.lists(modest_peaks, min_size=count, max_size=count)),
        unit=(curve.unit or draw(units)) if clock == "unit" else None,
        hold=draw(holds) if clock == "hold" else None,
        asked=clock == "unit" and draw(st.booleans()),
        form=draw(forms),
        optimizer_kind=draw(optimizer_kinds),
        last_epoch=draw(magnitudes(0, 2**31 - 2)) - 1 if (kind, clock) == ("scheduler", "updates") else -1,
    )
    count_form, metric_form = draw(count_forms), draw(metric_forms)
    run.check()
    for move in draw(st.lists(moves, max_size=10)):
        if isinstance(move, list):
            for given_count, metric in move:
                run.update(count_form(given_count), metric_form(metric))
                run.check()
        elif isinstance(move, str):
            getattr(run, move)()
        elif isinstance(move, int):
            error, arguments = WRONG_STEPS[clock][move % len(WRONG_STEPS[clock])]
            run.rejects(error, ".", lambda arguments=arguments: run.part.step(**arguments))
            if (kind, clock) == ("scheduler", "updates"):
                run.jump(40 * move)
        elif kind == "scheduler" and draw(st.booleans()):
            run.set_peak(move, one_for_each=draw(st.booleans()))
        elif has_common_curve:
            run.add_group(move)
        run.check()
