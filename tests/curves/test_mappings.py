"""Mappings that describe curves: every place in both packages that takes a curve takes them too."""

import ast
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from matplotlib.figure import Figure
from support.curves.descriptions import build, descriptions
from support.examples import examples
from support.forecasts.logs import logged
from support.numerics.oracle import Description
from torch import nn

from plateau_jax import (
    BatchPlan,
    Curve,
    CurveWarning,
    DataClock,
    LossRun,
    PlateauCurve,
    StagedCurve,
    check_resume,
    compare,
    fit_losses,
    optax_schedule,
    plot,
    resume_record,
    scale_by_curve,
    stack,
)
from plateau_jax.tools.theory.comparison import Comparison
from torch_bridge import TrainStep, follow, lambda_lr

Place = Callable[[Any], Any]

BASE = PlateauCurve(1000, warmup_steps=50)
PLAN = BatchPlan([(0, 4), (400, 8)])
FIT = fit_losses(logged(BASE))


def optimizer_of(groups: int = 1) -> torch.optim.SGD:
    layers = [nn.Linear(2, 1, bias=False) for _ in range(groups)]
    return torch.optim.SGD([{"params": layer.parameters()} for layer in layers], lr=0.5)


def sum_of_outputs(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).sum()


# Each place, with what it makes of a curve.


def as_part_of_a_mapping(curve: Any) -> Curve:
    return Curve.from_dict({"kind": "then", "curve": BASE, "other": curve, "scale": 0.5})


def as_continuation(curve: Any) -> Curve:
    return BASE.then(curve)


def in_first_difference(curve: Any) -> tuple[int | None, bool]:
    return BASE.first_difference(curve), BASE.same_until(curve, 300)


def in_scale(curve: Any) -> Curve:
    return PLAN.scale(curve, 4, reference=16)


def in_seesaw(curve: Any) -> BatchPlan:
    return BatchPlan.seesaw(curve, 4, unit=4, largest=64)


def in_stack(curve: Any) -> list[Any]:
    return [column.tolist() for column in stack([BASE, curve])]


def in_compare(curve: Any) -> tuple[Comparison, ...]:
    return compare(curve), compare([BASE, curve]), compare({"base": BASE, "other": curve})


def in_plot(curve: Any) -> list[Any]:
    axes = plot([BASE, curve], peak_value=0.5, ax=Figure().subplots())
    return [(line.get_label(), line.get_xydata().tolist()) for line in axes.lines]


def in_optax_schedule(curve: Any) -> list[float]:
    return np.asarray(optax_schedule(curve, 0.5)(np.arange(20))).tolist()


def in_scale_by_curve(curve: Any) -> Any:
    return scale_by_curve(curve, 0.5).init({})


def in_resume_record(curve: Any) -> dict[str, Any]:
    record = resume_record(curve, 0.5)
    check_resume(record, resume_record(BASE.then(curve), 0.5), 0)
    return record


def in_loss_run(curve: Any) -> LossRun:
    return LossRun(curve, 1e-3, [1, 2], [3.0, 2.0])


def in_read_losses(curve: Any) -> LossRun:
    rows = [{"step": 1, "loss": 3.0}, {"step": 2, "loss": 2.0}]
    return LossRun.read(rows, curve, 1e-3)


def in_forecast(curve: Any) -> tuple[Any, ...]:
    compared = FIT.compare({"base": BASE, "other": curve})
    return FIT.predict(curve), FIT.losses(curve, [100]).tolist(), compared


def in_plot_of_a_forecast(curve: Any) -> list[Any]:
    axes = FIT.plot({"other": curve}, ax=Figure().subplots())
    return [line.get_xydata().tolist() for line in axes.lines]


def in_lambda_lr(curve: Any) -> tuple[str, dict[str, Any]]:
    scheduler = lambda_lr(optimizer_of(), curve)
    return repr(scheduler), scheduler.state_dict()


def in_lambda_lr_of_groups(curve: Any) -> tuple[list[Curve], dict[str, Any]]:
    scheduler = lambda_lr(optimizer_of(2), [curve, curve])
    return scheduler.curves, scheduler.state_dict()


def in_follow(curve: Any) -> tuple[list[Curve], dict[str, Any]]:
    follower = follow(optimizer_of(2), "weight_decay", (curve, curve))
    return follower.curves, follower.state_dict()


def in_train_step(curve: Any) -> tuple[str, Any]:
    model = nn.Linear(2, 1)
    optimizers = [torch.optim.SGD([parameter], lr=0.5) for parameter in model.parameters()]
    step = TrainStep(model, optimizers, sum_of_outputs, [curve, [curve]])
    return repr(step), step.state_dict()["records"]


PLACES = [
    as_part_of_a_mapping,
    as_continuation,
    in_first_difference,
    in_scale,
    in_seesaw,
    in_stack,
    in_resume_record,
    in_loss_run,
    in_read_losses,
    in_forecast,
    in_lambda_lr,
    in_lambda_lr_of_groups,
    in_follow,
]
SLOW_PLACES = [
    in_compare,
    in_plot,
    in_plot_of_a_forecast,
    in_optax_schedule,
    in_scale_by_curve,
    in_train_step,
]


def outcome(place: Place, curve: Any) -> str:
    """Return the result as text, or the error: a drawn curve may be 0 everywhere, or too long."""
    try:
        return repr(place(curve))
    except (TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"


def check_places(places: list[Place], description: Description) -> None:
    curve = build(description)
    for place in places:
        expected = outcome(place, curve)
        assert outcome(place, curve.to_dict()) == expected, place.__name__


@pytest.mark.filterwarnings("ignore::plateau_jax.CurveWarning")
@examples(20)
@given(descriptions(counts=range(4), depth=2, scaled=True))
def test_every_place_takes_a_mapping(description: Description) -> None:
    check_places(PLACES, description)


@pytest.mark.filterwarnings("ignore::plateau_jax.CurveWarning")
@pytest.mark.slow
@examples(4)
@given(descriptions(counts=range(4), depth=2, scaled=True))
def test_slow_places_take_a_mapping(description: Description) -> None:
    check_places(SLOW_PLACES, description)


@pytest.mark.parametrize("place", [in_compare, in_optax_schedule, in_train_step])
def test_places_take_what_a_mapping_describes(place: Place) -> None:
    assert outcome(place, BASE.to_dict()) == outcome(place, BASE)


def test_places_take_omegaconf_nodes() -> None:
    omegaconf = pytest.importorskip("omegaconf")
    curves = omegaconf.OmegaConf.create([BASE.to_dict(), "${0}"])
    assert lambda_lr(optimizer_of(2), curves).curves == [BASE, BASE]
    np.testing.assert_equal(stack(curves), stack([BASE, BASE]))


def check_scheduler_from(arguments: dict[str, Any]) -> None:
    """Build a scheduler as trainers do, from the name of its class."""
    scheduler_class = import_module("torch_bridge").lambda_lr
    scheduler = scheduler_class(optimizer_of(), last_epoch=-1, **arguments)
    assert scheduler.curves == [StagedCurve.wsd(100, warmup_steps=5, decay_steps=20)]


def test_scheduler_from_python_literals() -> None:
    """Of sd-scripts and OneTrainer."""
    text = "{'kind': 'staged', 'stages': [('5%', 1.0), ('rest',), (20, 0.0, '1-sqrt')], "
    text += "'total_steps': 100}"
    check_scheduler_from({"curve": ast.literal_eval(text)})


def test_scheduler_from_json() -> None:
    stages = '[["5%", 1.0], ["rest"], [20, 0.0, "1-sqrt"]]'
    curve = f'{{"kind": "staged", "total_steps": 100, "stages": {stages}}}'
    check_scheduler_from(json.loads(f'{{"curve": {curve}}}'))


def test_omegaconf_names_missing_values() -> None:
    omegaconf = pytest.importorskip("omegaconf")
    config = omegaconf.OmegaConf.create(
        {"curve": [BASE.to_dict(), {"kind": "plateau", "total_steps": "???"}]}
    )
    with pytest.raises(omegaconf.MissingMandatoryValue, match=r"curve\[1\]\.total_steps"):
        lambda_lr(optimizer_of(2), config.curve)


# Wrong mappings. The path begins with the argument that takes the curve.

WRONG_ROOT = {"kind": "plateau", "total_steps": 2e5}
WRONG = {"kind": "cooldown", "curve": WRONG_ROOT, "at": 3, "steps": 4}


@contextmanager
def wrong_curve(argument: str) -> Iterator[None]:
    """Check the message about `WRONG` in an argument."""
    with pytest.raises(TypeError) as caught:
        yield
    assert type(caught.value) is TypeError
    path = f"{argument}.curve.total_steps"
    assert str(caught.value).startswith(
        f"{path} = 200000.0 must be an integer or text such as '10k': write 200000"
    )


def test_wrong_continuation() -> None:
    with wrong_curve("other"):
        BASE.then(WRONG)


def test_wrong_curve_to_compare_steps_with() -> None:
    with wrong_curve("other"):
        BASE.same_until(WRONG, 5)


def test_wrong_curve_to_scale() -> None:
    with wrong_curve("curve"):
        PLAN.scale(WRONG, 4, reference=8)


def test_wrong_curve_of_a_seesaw() -> None:
    with wrong_curve("curve"):
        BatchPlan.seesaw(WRONG, 4, unit=4, largest=64)


def test_wrong_curve_in_a_stack() -> None:
    with wrong_curve("curves[1]"):
        stack([BASE, WRONG])


def test_wrong_curve_in_a_comparison() -> None:
    with wrong_curve("curves[1]"):
        compare(BASE, WRONG)


def test_wrong_named_curve_in_a_comparison() -> None:
    with wrong_curve("curves['wrong']"):
        compare({"wrong": WRONG})


def test_wrong_named_curve_in_a_plot() -> None:
    with wrong_curve("curves['wrong']"):
        plot({"wrong": WRONG})


def test_wrong_curve_of_a_schedule() -> None:
    with wrong_curve("curve"):
        optax_schedule(WRONG, 0.5)


def test_wrong_curve_of_a_transformation() -> None:
    with wrong_curve("curve"):
        scale_by_curve(WRONG, 0.5)


def test_wrong_curve_in_a_record() -> None:
    with wrong_curve("curve"):
        resume_record(WRONG)


def test_wrong_curve_of_a_run() -> None:
    with wrong_curve("curve"):
        LossRun(WRONG, 1e-3, [1], [2.0])


def test_wrong_curve_of_a_log() -> None:
    with wrong_curve("curve"):
        LossRun.read([], WRONG, 1e-3)


def test_wrong_curve_in_a_forecast() -> None:
    with wrong_curve("curve"):
        FIT.predict(WRONG)


def test_wrong_curve_of_forecast_losses() -> None:
    with wrong_curve("curve"):
        FIT.losses(WRONG, [1])


def test_wrong_named_curve_in_compared_forecasts() -> None:
    with wrong_curve("curves['wrong']"):
        FIT.compare({"wrong": WRONG})


def test_wrong_curve_of_a_scheduler() -> None:
    with wrong_curve("curve"):
        lambda_lr(optimizer_of(), WRONG)


def test_wrong_curve_of_a_group() -> None:
    with wrong_curve("curve[1]"):
        lambda_lr(optimizer_of(2), [BASE, WRONG])


def test_wrong_curve_of_a_follower() -> None:
    with wrong_curve("curve"):
        follow(optimizer_of(), "weight_decay", WRONG)


def test_wrong_curve_of_an_optimizer() -> None:
    with wrong_curve("curve[0]"):
        in_train_step(WRONG)


@pytest.mark.parametrize(
    ("mapping", "error", "message"),
    [
        ({"kind": "plateau"}, TypeError, "curve.total_steps is missing: PlateauCurve needs"),
        ({"total_steps": 9}, ValueError, "curve.kind is missing: write one of"),
        ({"kind": "staged", "stages": [[9, 2]]}, ValueError, "curve.stages[0].to = 2 must lie in"),
        (
            {"kind": "plateau", "total_steps": 9, "min_lr": 0},
            ValueError,
            "curve: 'min_lr' is not an argument of PlateauCurve",
        ),
        ({"kind": "wds"}, ValueError, "curve.kind = 'wds' must be one of"),
    ],
)
def test_wrong_mapping_for_a_scheduler(
    mapping: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as caught:
        lambda_lr(optimizer_of(), mapping)
    assert type(caught.value) is error
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    "value",
    [
        pd.Series({"total_steps": 1000}),
        pd.DataFrame({"total_steps": [1000]}),
        nn.ModuleDict(),
        nn.ParameterDict(),
        DataClock(8),
        PLAN,
        PlateauCurve,
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_only_resembles_a_mapping(value: Any) -> None:
    with pytest.raises(TypeError, match=r"^curve = .* must be a Curve"):
        lambda_lr(optimizer_of(), value)
    with pytest.raises(TypeError, match=r"^arguments = .* must be a mapping"):
        Curve.from_dict(value)


def test_number_of_tokens_for_a_scheduler() -> None:
    with pytest.raises(
        ValueError, match=r"^curve\.total_steps = 30000000000 must lie in"
    ) as caught:
        lambda_lr(optimizer_of(), {"kind": "plateau", "total_steps": 3 * 10**10})
    assert "here 457763" in str(caught.value)
    assert "clock=DataClock(65536)" in str(caught.value)


def test_fewer_curves_than_groups() -> None:
    with pytest.raises(ValueError, match=r"^curve has length 1"):
        lambda_lr(optimizer_of(2), [BASE.to_dict()])


@pytest.mark.parametrize("curves", [[[BASE], [BASE]], [BASE, 5]])
def test_list_of_something_else(curves: list[Any]) -> None:
    with pytest.raises(TypeError, match=r"^curve = \[.*must be a Curve, such as"):
        lambda_lr(optimizer_of(2), curves)


def train_with(curve: dict[str, Any]) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    lambda_lr(optimizer_of(2), curve)
    follow(optimizer_of(2), "weight_decay", curve)
    TrainStep(model, [optimizer], sum_of_outputs, curve)
    scale_by_curve(curve, 0.5)
    resume_record(curve)
    compare(curve)


def test_each_place_warns_once_about_a_mapping() -> None:
    """Also those that use the curve several times."""
    with pytest.warns(CurveWarning) as caught:
        train_with({"kind": "plateau", "total_steps": 1000, "plateaus": [[0.5, 0.3]]})
    assert [warning.filename for warning in caught] == [__file__] * 6
