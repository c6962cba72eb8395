"""`CurveLR` takes what `lambda_lr` takes, and is what `lambda_lr` gives."""

import copy
import pickle
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.descriptions import build, descriptions
from support.examples import examples
from support.runs import advance, modest_peaks, optimizer_with, rates_of
from torch.optim.lr_scheduler import _warn_get_lr_called_within_step

from plateau_jax import PlateauCurve
from torch_bridge import CurveLR, lambda_lr

CURVE = PlateauCurve(20, warmup_steps=5, plateaus=[(50, 20)])


class Named(CurveLR):
    name = "a class of the user's"


@pytest.mark.parametrize("kind", [CurveLR, Named])
@pytest.mark.parametrize("form", [list, tuple, "one"])
@pytest.mark.filterwarnings("ignore:the curve has total_steps")  # A drawn step may be far past its end.
@examples(30)
@given(
    st.lists(st.tuples(descriptions(range(3)), modest_peaks), min_size=1, max_size=3),
    st.integers(-1, 40),
    st.booleans(),
)
def test_it_is_what_lambda_lr_gives(
    kind: type[CurveLR], form: Any, drawn: Any, last_epoch: int, strict: bool
) -> None:
    curves = [build(description) for description, _ in drawn]
    given_curves = curves[0] if form == "one" else form(curves)
    optimizers = [optimizer_with([peak for _, peak in drawn]) for _ in range(2)]
    scheduler = kind(optimizers[0], given_curves, last_epoch, strict=strict)
    reference = lambda_lr(optimizers[1], given_curves, last_epoch, strict=strict)
    assert type(scheduler) is kind
    for _ in range(3):
        assert rates_of(optimizers[0]) == rates_of(optimizers[1])
        assert scheduler.state_dict() == reference.state_dict()
        assert (scheduler.clock, scheduler.strict) == (reference.clock, strict)
        advance(optimizers[0], scheduler)
        advance(optimizers[1], reference)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
@pytest.mark.parametrize("kind", [CurveLR, Named])
@pytest.mark.parametrize("curve", [CURVE, [CURVE, CURVE.cooldown(9, 4)]])
def test_copies_go_on_alike(copied: Any, kind: type[CurveLR], curve: Any) -> None:
    optimizer = optimizer_with([0.1, 0.7])
    scheduler = kind(optimizer, curve)
    advance(optimizer, scheduler, 6)
    other, again = copied((optimizer, scheduler))
    assert type(again) is kind
    for _ in range(12):
        advance(optimizer, scheduler)
        advance(other, again)
        assert rates_of(other) == rates_of(optimizer)
        assert again.state_dict() == scheduler.state_dict()


def test_a_step_after_a_group_came_is_refused_under_a_curve_a_group() -> None:
    optimizer = optimizer_with([0.1])
    scheduler = CurveLR(optimizer, [CURVE])
    advance(optimizer, scheduler, 3)
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})
    before = str(optimizer.param_groups), scheduler.clock
    with pytest.raises(ValueError, match="2 parameter groups; it had 1 when it got its curve"):
        scheduler.step()
    assert (str(optimizer.param_groups), scheduler.clock) == before


class _TooFew(CurveLR):
    def get_lr(self) -> Any:
        return super().get_lr()[:1]


def test_a_derived_class_that_gives_too_few_rates_is_refused() -> None:
    with pytest.raises(ValueError, match=r"1 rates for 2 parameter groups"):
        _TooFew(optimizer_with([0.1, 0.2]), CURVE)


class _AsTorchs(CurveLR):
    def get_lr(self) -> Any:
        _warn_get_lr_called_within_step(self)
        return super().get_lr()


def test_a_derived_class_after_torchs_pattern_brings_no_warning() -> None:
    optimizer = optimizer_with([0.1])
    advance(optimizer, _AsTorchs(optimizer, CURVE), 3)
