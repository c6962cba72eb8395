"""Mappings that describe curves: every place in both packages that takes a curve takes them too."""

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.figure import Figure
from support.forecasts.logs import logged
from torch import nn

from plateau_jax import (
    BatchPlan,
    Curve,
    CurveWarning,
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
from torch_bridge import TrainStep, follow, lambda_lr

BASE = PlateauCurve(1000, warmup_steps=50)
PLAN = BatchPlan([(0, 4), (400, 8)])
FIT = fit_losses(logged(BASE))


def optimizer_of(groups=1):
    layers = [nn.Linear(2, 1, bias=False) for _ in range(groups)]
    return torch.optim.SGD([{"params": layer.parameters()} for layer in layers], lr=0.5)


def sum_of_outputs(model, batch):
    return model(batch).sum()


# Each place, with what it makes of a curve.


def as_part_of_a_mapping(curve):
    return Curve.from_dict({"kind": "then", "curve": BASE, "other": curve, "scale": 0.5})


def as_continuation(curve):
    return BASE.then(curve)


def in_first_difference(curve):
    return BASE.first_difference(curve), BASE.same_until(curve, 300)


def in_scale(curve):
    return PLAN.scale(curve, 4, reference=16)


def in_seesaw(curve):
    return BatchPlan.seesaw(curve, 4, unit=4, largest=64)


def in_stack(curve):
    return [column.tolist() for column in stack([BASE, curve])]


def in_compare(curve):
    return compare({"base": BASE, "other": curve}), compare([BASE, curve]), compare(curve)


def in_plot(curve):
    axes = plot({"base": BASE, "other": curve}, peak_value=0.5, ax=Figure().subplots())
    return [(line.get_label(), line.get_xydata().tolist()) for line in axes.lines]


def in_optax_schedule(curve):
    return np.asarray(optax_schedule(curve, 0.5)(np.arange(20))).tolist()


def in_scale_by_curve(curve):
    return scale_by_curve(curve, 0.5).init({})


def in_resume_record(curve):
    record = resume_record(curve, 0.5)
    check_resume(record, resume_record(BASE.then(curve), 0.5), 0)
    return record


def in_loss_run(curve):
    return LossRun(curve, 1e-3, [1, 2], [3.0, 2.0])


def in_read_losses(curve):
    rows = [{"step": 1, "loss": 3.0}, {"step": 2, "loss": 2.0}]
    return LossRun.read(rows, curve, 1e-3)


def in_prediction(curve):
    return FIT.predict(curve)


def in_forecast_losses(curve):
    return FIT.losses(curve, [100]).tolist()


def in_compared_forecasts(curve):
    return FIT.compare({"base": BASE, "other": curve})


def in_plot_of_a_forecast(curve):
    axes = FIT.plot({"other": curve}, ax=Figure().subplots())
    return [line.get_xydata().tolist() for line in axes.lines]


def in_lambda_lr(curve):
    scheduler = lambda_lr(optimizer_of(), curve)
    return repr(scheduler), scheduler.state_dict()


def in_lambda_lr_of_groups(curve):
    scheduler = lambda_lr(optimizer_of(2), [curve, curve])
    return scheduler.curves, scheduler.state_dict()


def in_follow(curve):
    follower = follow(optimizer_of(2), "weight_decay", (curve, curve))
    return follower.curves, follower.state_dict()


def in_train_step(curve):
    model = nn.Linear(2, 1)
    optimizers = [torch.optim.SGD([parameter], lr=0.5) for parameter in model.parameters()]
    step = TrainStep(model, optimizers, sum_of_outputs, [curve, [curve]])
    return repr(step), step.state_dict()["records"]


PLACES = {
    as_part_of_a_mapping: "other",
    as_continuation: "other",
    in_first_difference: "other",
    in_scale: "curve",
    in_seesaw: "curve",
    in_stack: "curves[1]",
    in_compare: "curves['other']",
    in_plot: "curves['other']",
    in_optax_schedule: "curve",
    in_scale_by_curve: "curve",
    in_resume_record: "curve",
    in_loss_run: "curve",
    in_read_losses: "curve",
    in_prediction: "curve",
    in_forecast_losses: "curve",
    in_compared_forecasts: "curves['other']",
    in_plot_of_a_forecast: "curves['other']",
    in_lambda_lr: "curve",
    in_lambda_lr_of_groups: "curve[0]",
    in_follow: "curve[0]",
    in_train_step: "curve[0]",
}
"""Each place, with the argument that takes the curve."""

NESTED = BASE.cooldown(600, 50).then(StagedCurve([(30, 1.0), (70,)]), scale=0.5)


@pytest.mark.parametrize("place", PLACES)
def test_every_place_takes_a_mapping(place):
    arguments = NESTED.to_dict()
    assert repr(place(arguments)) == repr(place(NESTED))


WRONG_ROOT = {"kind": "plateau", "total_steps": 2e5}
WRONG = {"kind": "cooldown", "curve": WRONG_ROOT, "at": 3, "steps": 4}


@pytest.mark.parametrize("place", PLACES)
def test_wrong_curve_is_named_by_its_path(place):
    with pytest.raises(TypeError) as caught:
        place(WRONG)
    assert type(caught.value) is TypeError
    path = f"{PLACES[place]}.curve.total_steps"
    assert str(caught.value).startswith(f"{path} = 200000.0 must be ")


@pytest.mark.slow
def test_places_take_omegaconf_nodes():
    omegaconf = pytest.importorskip("omegaconf")
    curves = omegaconf.OmegaConf.create([BASE.to_dict(), "${0}"])
    assert lambda_lr(optimizer_of(2), curves).curves == [BASE, BASE]
    np.testing.assert_equal(stack(curves), stack([BASE, BASE]))


@pytest.mark.slow
def test_omegaconf_names_missing_values():
    omegaconf = pytest.importorskip("omegaconf")
    config = omegaconf.OmegaConf.create(
        {"curve": [BASE.to_dict(), {"kind": "plateau", "total_steps": "???"}]}
    )
    with pytest.raises(omegaconf.MissingMandatoryValue, match=r"curve\[1\]\.total_steps"):
        lambda_lr(optimizer_of(2), config.curve)


@pytest.mark.parametrize("value", [pd.Series({"total_steps": 9}), nn.ModuleDict(), PlateauCurve])
def test_neither_a_curve_nor_a_mapping(value):
    with pytest.raises(TypeError, match=r"^curve = .* must be a Curve"):
        lambda_lr(optimizer_of(), value)
    with pytest.raises(TypeError, match=r"^other = .* must be a Curve$"):
        BASE.then(value)


def test_list_of_something_else():
    with pytest.raises(TypeError, match=r"^curve = \[.*must be a Curve, such as"):
        lambda_lr(optimizer_of(2), [BASE, 5])


def train_with(curve):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    lambda_lr(optimizer_of(2), curve)
    follow(optimizer_of(2), "weight_decay", curve)
    TrainStep(model, [optimizer], sum_of_outputs, curve)
    scale_by_curve(curve, 0.5)
    resume_record(curve)
    compare(curve)


def test_each_place_warns_once_about_a_mapping():
    """Also those that use the curve several times."""
    with pytest.warns(CurveWarning) as caught:
        train_with({"kind": "plateau", "total_steps": 1000, "plateaus": [[0.5, 0.3]]})
    assert [warning.filename for warning in caught] == [__file__] * 6
