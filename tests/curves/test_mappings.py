"""Arguments that are no curves, such as mappings, which only schedulers of torch take."""

import pandas as pd
import pytest
import torch
from support.raises import raises
from torch import nn

from plateau_jax import (
    BatchPlan,
    Curve,
    CurveScheduler,
    CurveWarning,
    PlateauCurve,
    StagedCurve,
    compare,
    compare_log,
    optax_schedule,
    plot,
    resume_record,
    scale_by_curve,
    stack,
)
from torch_bridge import TrainStep, follow, lambda_lr

BASE = PlateauCurve(1000, warmup_steps=50)
PLAN = BatchPlan([(0, 4), (400, 8)])


def optimizer_of(number=1):
    layers = [nn.Linear(2, 1, bias=False) for _ in range(number)]
    groups = [{"params": layer.parameters()} for layer in layers]
    return torch.optim.SGD(groups, lr=0.5, weight_decay=0.1)


def train_step_with(curve):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    return TrainStep(model, optimizer, lambda model, batch: model(batch).sum(), curve)


PLACES = [
    ("other", BASE.then),
    ("other", BASE.first_difference),
    ("other", lambda curve: BASE.same_until(curve, 300)),
    ("curve", lambda curve: PLAN.scale(curve, 4, reference=16)),
    ("curves[1]", lambda curve: stack([BASE, curve])),
    ("curves['other']", lambda curve: compare({"base": BASE, "other": curve})),
    ("curves[1]", lambda curve: plot(BASE, curve)),
    ("curve", lambda curve: optax_schedule(curve, 0.5)),
    ("curve", lambda curve: scale_by_curve(curve, 0.5)),
    ("curve", resume_record),
    ("curve", lambda curve: CurveScheduler(curve, 0.5)),
    ("curve", lambda curve: compare_log([], curve, 1e-3)),
    ("curve", train_step_with),
    ("curve", lambda curve: lambda_lr(optimizer_of(), [curve])),
]
"""The argument of each function that takes a curve, and the function."""


@pytest.mark.parametrize(("argument", "place"), PLACES)
def test_mapping_is_rejected(argument, place):
    mapping = BASE.to_dict()
    with raises(TypeError, f"{argument} = ", "'plateau'", "must be a Curve"):
        place(mapping)


def test_mapping_is_rejected_with_the_remedy():
    with raises(TypeError, "must be a Curve: Curve.from_dict builds one from a mapping"):
        BASE.then({"kind": "plateau", "total_steps": 9})


@pytest.mark.parametrize("value", [pd.Series({"total_steps": 9}), nn.ModuleDict(), PlateauCurve])
def test_neither_a_curve_nor_a_mapping(value):
    with pytest.raises(TypeError, match=r"^curve = .* must be a Curve"):
        lambda_lr(optimizer_of(), value)
    with pytest.raises(TypeError, match=r"^other = .* must be a Curve$"):
        BASE.then(value)


# Schedulers of torch.

NESTED = BASE.cooldown(600, 50).then(StagedCurve([(30, 1.0), (70,)]), scale=0.5)


def test_schedulers_take_a_mapping():
    """So a trainer can build them from text."""
    assert lambda_lr(optimizer_of(2), NESTED.to_dict()).curves == [NESTED, NESTED]
    assert follow(optimizer_of(), "weight_decay", NESTED.to_dict()).curves == [NESTED]


def test_wrong_mapping_is_named_by_its_path():
    root = {"kind": "plateau", "total_steps": 2e5}
    with raises(TypeError, match=r"^curve\.curve\.total_steps = 200000\.0 must be "):
        lambda_lr(optimizer_of(), {"kind": "part", "curve": root})


@pytest.mark.slow
def test_omegaconf():
    omegaconf = pytest.importorskip("omegaconf")
    config = omegaconf.OmegaConf.create({"curve": NESTED.to_dict(), "same": "${curve}"})
    assert Curve.from_dict(config.same) == NESTED
    assert lambda_lr(optimizer_of(), config.same).curves == [NESTED]
    config.curve.curve.at = "???"
    with pytest.raises(omegaconf.MissingMandatoryValue, match=r"curve\.curve\.at"):
        lambda_lr(optimizer_of(), config.curve)


def test_mapping_warns_once():
    early_plateau = {"kind": "plateau", "total_steps": 1000, "plateaus": [[0.5, 0.3]]}
    with pytest.warns(CurveWarning) as caught:
        lambda_lr(optimizer_of(2), early_plateau)
    assert [warning.filename for warning in caught] == [__file__]
