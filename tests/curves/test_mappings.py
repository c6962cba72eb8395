"""Mappings that describe curves: every place that takes a curve takes them too, in both packages."""

import ast
import dataclasses
import json
from importlib import import_module

import numpy as np
import pytest
import torch
from hypothesis import given
from matplotlib.figure import Figure
from support.curves.descriptions import build, descriptions
from support.errors import check_error, each_row
from support.examples import examples
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


def _optimizer(groups=1):
    layers = [nn.Linear(2, 1, bias=False) for _ in range(groups)]
    return torch.optim.SGD([{"params": layer.parameters()} for layer in layers], lr=0.5)


# What each place makes of a curve.


def _from_dict(curve):
    return Curve.from_dict({"kind": "then", "curve": BASE, "other": curve, "scale": 0.5})


def _then(curve):
    return BASE.then(curve)


def _first_difference(curve):
    return BASE.first_difference(curve), BASE.same_until(curve, 300)


def _scale(curve):
    return PLAN.scale(curve, 4, reference=16)


def _seesaw(curve):
    return BatchPlan.seesaw(curve, 4, unit=4, largest=64)


def _stack(curve):
    return [column.tolist() for column in stack([BASE, curve]).columns().values()]


def _compare(curve):
    return compare(curve), compare([BASE, curve]), compare({"base": BASE, "other": curve})


def _plot(curve):
    axes = plot([BASE, curve], peak_value=0.5, ax=Figure().subplots())
    return [(line.get_label(), line.get_xydata().tolist()) for line in axes.lines]


def _optax_schedule(curve):
    return np.asarray(optax_schedule(curve, 0.5)(np.arange(20))).tolist()


def _scale_by_curve(curve):
    return scale_by_curve(curve, 0.5).init({})


def _resume(curve):
    record = resume_record(curve, 0.5)
    check_resume(record, resume_record(BASE.then(curve), 0.5), 0)
    return record


def _loss_run(curve):
    return repr(LossRun(curve, 1e-3, [1, 2], [3.0, 2.0]))


def _read_losses(curve):
    rows = [{"step": 1, "loss": 3.0, "lr": 1e-3}, {"step": 2, "loss": 2.0, "lr": 1e-3}]
    return repr(LossRun.read(rows, curve, 1e-3))


def _forecast(curve):
    return FIT.predict(curve), FIT.losses(curve, [100]).tolist(), FIT.compare({"base": BASE, "other": curve})


def _plot_forecast(curve):
    axes = FIT.plot({"other": curve}, ax=Figure().subplots())
    return [line.get_xydata().tolist() for line in axes.lines]


def _lambda_lr(curve):
    return repr(lambda_lr(_optimizer(), curve)), lambda_lr(_optimizer(), curve).state_dict()


def _lambda_lr_of_groups(curve):
    scheduler = lambda_lr(_optimizer(2), [curve, curve])
    return scheduler.curves, scheduler.state_dict()


def _follow(curve):
    follower = follow(_optimizer(2), "weight_decay", (curve, curve))
    return follower.curves, follower.state_dict()


def _train_step(curve):
    model = nn.Linear(2, 1)
    optimizers = [torch.optim.SGD([parameter], lr=0.5) for parameter in model.parameters()]
    step = TrainStep(model, optimizers, lambda model, batch: model(batch).sum(), [curve, [curve]])
    return repr(step), step.state_dict()["records"]


PLACES = [
    _from_dict,
    _then,
    _first_difference,
    _scale,
    _seesaw,
    _stack,
    _resume,
    _loss_run,
    _read_losses,
    _forecast,
    _lambda_lr,
    _lambda_lr_of_groups,
    _follow,
]
SLOW = [_compare, _plot, _plot_forecast, _optax_schedule, _scale_by_curve, _train_step]


def _outcome(place, curve):
    """Return the result as text, or the error: a drawn curve may be 0 everywhere, or too long."""
    try:
        return repr(place(curve))
    except (TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"


def _check_places(places, description):
    curve = build(description)
    for place in places:
        expected = _outcome(place, curve)
        assert _outcome(place, curve.to_dict()) == expected, place.__name__
        assert _outcome(place, dataclasses.asdict(curve)) == expected, place.__name__


@pytest.mark.filterwarnings("ignore::plateau_jax.CurveWarning")
@examples(20)
@given(descriptions(counts=range(4), depth=2, scaled=True))
def test_every_place_takes_a_mapping(description):
    _check_places(PLACES, description)


@pytest.mark.filterwarnings("ignore::plateau_jax.CurveWarning")
@pytest.mark.slow
@examples(4)
@given(descriptions(counts=range(4), depth=2, scaled=True))
def test_slow_places_take_a_mapping(description):
    _check_places(SLOW, description)


CURVES = [BASE, StagedCurve([(5, 1.0), (20,)]), BASE.cooldown(500, 100), BASE.then(BASE.part(100))]
CURVES += [PLAN.scale(BASE, 4, reference=16)]


@pytest.mark.parametrize("place", [_compare, _optax_schedule, _train_step])
def test_places_take_what_a_mapping_describes(place):
    assert _outcome(place, BASE.to_dict()) == _outcome(place, BASE)


@pytest.mark.parametrize("curve", CURVES, ids=lambda curve: type(curve).__name__)
def test_omegaconf_writes_curves_in_lists_as_mappings(curve):
    """Hydra's list of `_target_`s arrives in this form, which lacks the kind."""
    omegaconf = pytest.importorskip("omegaconf")
    curves = omegaconf.OmegaConf.create([curve, BASE.to_dict()], flags={"allow_objects": True})
    assert lambda_lr(_optimizer(2), curves).curves == [curve, BASE]
    assert follow(_optimizer(2), "weight_decay", curves).curves == [curve, BASE]
    assert compare(curves).names == compare([curve, BASE]).names
    np.testing.assert_equal(stack(curves).columns(), stack([curve, BASE]).columns())
    config = omegaconf.OmegaConf.create({"curve": curve.to_dict(), "other": "${curve}"})
    assert BASE.then(config.other) == BASE.then(curve)


# Arguments of a scheduler's class as trainers write them: kohya's sd-scripts and OneTrainer read Python
# literals, others JSON.
LITERALS = {"curve": "{'kind': 'wsd', 'total_steps': 100, 'warmup_steps': '5%', 'decay_steps': 20}"}
JSON = '{"curve": {"kind": "wsd", "total_steps": 100, "warmup_steps": "5%", "decay_steps": 20}}'


def test_trainer_builds_a_scheduler_from_text():
    scheduler_class = import_module("torch_bridge").lambda_lr
    of_literals = {name: ast.literal_eval(text) for name, text in LITERALS.items()}
    for arguments in (of_literals, json.loads(JSON)):
        scheduler = scheduler_class(_optimizer(), last_epoch=-1, **arguments)
        assert scheduler.curves == [StagedCurve.wsd(100, warmup_steps=5, decay_steps=20)]


def test_omegaconf_names_missing_values():
    omegaconf = pytest.importorskip("omegaconf")
    config = omegaconf.OmegaConf.create({"curve": [{"total_steps": 9}, {"total_steps": "???"}]})
    with pytest.raises(omegaconf.MissingMandatoryValue, match=r"curve\[1\]\.total_steps"):
        lambda_lr(_optimizer(2), config.curve)


# Wrong mappings. The path begins with the argument that takes the curve.
WRONG = {"kind": "cooldown", "curve": {"total_steps": 2e5}, "at": 3, "steps": 4}
MESSAGE = "curve.total_steps = 200000.0 must be an integer: write 200000"
ERRORS = [
    (lambda: BASE.then(WRONG), TypeError, f"other.{MESSAGE}"),
    (lambda: BASE.same_until(WRONG, 5), TypeError, f"other.{MESSAGE}"),
    (lambda: PLAN.scale(WRONG, 4, reference=8), TypeError, f"curve.{MESSAGE}"),
    (lambda: BatchPlan.seesaw(WRONG, 4, unit=4, largest=64), TypeError, f"curve.{MESSAGE}"),
    (lambda: stack([BASE, WRONG]), TypeError, f"curves[1].{MESSAGE}"),
    (lambda: compare(BASE, WRONG), TypeError, f"curves[1].{MESSAGE}"),
    (lambda: compare({"wrong": WRONG}), TypeError, f"curves['wrong'].{MESSAGE}"),
    (lambda: plot({"wrong": WRONG}), TypeError, f"curves['wrong'].{MESSAGE}"),
    (lambda: optax_schedule(WRONG, 0.5), TypeError, f"curve.{MESSAGE}"),
    (lambda: scale_by_curve(WRONG, 0.5), TypeError, f"curve.{MESSAGE}"),
    (lambda: resume_record(WRONG), TypeError, f"curve.{MESSAGE}"),
    (lambda: LossRun(WRONG, 1e-3, [1], [2.0]), TypeError, f"curve.{MESSAGE}"),
    (lambda: LossRun.read([], WRONG, 1e-3), TypeError, f"curve.{MESSAGE}"),
    (lambda: FIT.predict(WRONG), TypeError, f"curve.{MESSAGE}"),
    (lambda: FIT.losses(WRONG, [1]), TypeError, f"curve.{MESSAGE}"),
    (lambda: FIT.compare({"wrong": WRONG}), TypeError, f"curves['wrong'].{MESSAGE}"),
    (lambda: lambda_lr(_optimizer(), WRONG), TypeError, f"curve.{MESSAGE}"),
    (lambda: lambda_lr(_optimizer(2), [BASE, WRONG]), TypeError, f"curve[1].{MESSAGE}"),
    (lambda: follow(_optimizer(), "weight_decay", WRONG), TypeError, f"curve.{MESSAGE}"),
    (lambda: _train_step(WRONG), TypeError, f"curve[0].{MESSAGE}"),
    (lambda: lambda_lr(_optimizer(), {}), TypeError, "curve.total_steps is missing: PlateauCurve needs"),
    (lambda: lambda_lr(_optimizer(), {"stages": [[9, 2]]}), ValueError, "curve.stages[0].to = 2 must lie in"),
    (lambda: lambda_lr(_optimizer(), {"total_steps": 9, "min_lr": 0}), ValueError,
     "curve: 'min_lr' is not an argument of PlateauCurve"),
    (lambda: lambda_lr(_optimizer(), {"kind": "wds"}), ValueError, "curve.kind = 'wds' must be one of"),
    (lambda: lambda_lr(_optimizer(2), [{"total_steps": 9}]), ValueError, "curve has 1 items"),
    (lambda: lambda_lr(_optimizer(2), [[BASE], [BASE]]), TypeError, "curve = [[", "must be a Curve, such as"),
    (lambda: lambda_lr(_optimizer(2), [BASE, 5]), TypeError, "curve = [", "must be a Curve, such as"),
    (lambda: lambda_lr(_optimizer(), {"total_steps": 3 * 10**10}), ValueError,
     "curve.total_steps = 30000000000 must lie in", "here 457763", "clock=DataClock(65536)"),
]  # fmt: skip


@each_row(ERRORS)
def test_wrong_mapping_is_named_by_its_path(row):
    error = check_error(row)
    assert str(error).startswith(row[2])


def _train_with(curve):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    lambda_lr(_optimizer(2), curve)
    follow(_optimizer(2), "weight_decay", curve)
    TrainStep(model, [optimizer], lambda model, batch: model(batch).sum(), curve)
    scale_by_curve(curve, 0.5)
    resume_record(curve)
    compare(curve)


def test_each_place_warns_once_about_a_mapping():
    """Also those that use the curve several times."""
    with pytest.warns(CurveWarning) as caught:
        _train_with({"total_steps": 1000, "plateaus": [[0.5, 0.3]]})
    assert [warning.filename for warning in caught] == [__file__] * 6
