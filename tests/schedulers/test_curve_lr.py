"""`CurveLR` takes what `lambda_lr` takes, and is what `lambda_lr` gives."""

import copy
import pickle
from typing import Any

import pytest
from support.runs import advance, optimizer_with, rates_of
from torch.optim.lr_scheduler import _warn_get_lr_called_within_step

from plateau_jax import PlateauCurve
from torch_bridge import CurveLR

CURVE = PlateauCurve(20, warmup_steps=5, plateaus=[(50, 20)])


class Named(CurveLR):
    name = "a class of the user's"


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
