"""Schedulers in company: optimizers whose groups change, that are wrapped or replaced, and others' states."""

import copy
import pickle
import warnings
from collections import OrderedDict
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from support.examples import examples
from support.schedulers.driven import option_of, set_option
from support.schedulers.runs import advance, learning_rate, lrs_of, optimizer_with
from support.training.models import Net, mean_loss
from support.training.trees import equal_trees, through_file
from torch.nn import Parameter
from torch.optim import SGD, Adagrad, AdamW, Optimizer
from torch.optim import lr_scheduler as torchs
from torch.optim.lr_scheduler import LambdaLR

from plateau_jax import CurveWarning, HoldBelow, PlateauCurve, StagedCurve
from torch_bridge import TrainStep, follow, lambda_lr

CURVE = PlateauCurve(100, warmup_steps=10, plateaus=[(50, 20)], min_lr_ratio=0.1)
LINEAR = PlateauCurve(200, decay_shape="linear")
CURVES = [CURVE, LINEAR, StagedCurve([(50, 0.25), (100, 1.0)], start=0.5), LINEAR.cooldown(20, 30)]


def parameter() -> Parameter:
    made = Parameter(torch.ones(1))
    made.grad = torch.ones(1)
    return made


# Groups that come, go and move.

MOVES = (
    "update",
    "update",
    "drop",
    "reverse",
    "replace",
    "split",
    "add",
    "load",
    "save",
    "peak",
    "copy",
    "pickle",
)


class Groups:
    """An optimizer whose groups change, and the value that each parameter must be trained with."""

    def __init__(self, kind: str, has_common_curve: bool) -> None:
        self.kind, self.key = kind, "lr" if kind == "scheduler" else "weight_decay"
        self.has_common_curve = has_common_curve
        groups = [{"params": [parameter(), parameter()], self.key: base} for base in (0.5, 0.25, 0.75)]
        self.optimizer: Optimizer = SGD(groups, lr=0.125)
        curves = [CURVE] * 3 if has_common_curve else CURVES[:3]
        self.wanted = {
            number: (base, curve)
            for number, (base, curve) in enumerate(zip((0.5, 0.25, 0.75), curves, strict=True))
        }
        for number, group in enumerate(self.groups):
            group["number"] = number
        curve = CURVE if has_common_curve else curves
        build = lambda_lr if kind == "scheduler" else partial(follow, key="weight_decay")
        self.part: Any = build(self.optimizer, curve=curve)
        self.step = 0

    @property
    def groups(self) -> list[Any]:
        return self.optimizer.param_groups

    def check(self) -> None:
        for group in self.groups:
            base, curve = self.wanted[group["number"]]
            assert group[self.key] == learning_rate(base, curve, self.step)

    def update(self) -> None:
        hook = self.optimizer.register_step_pre_hook(lambda *_: self.check())  # after the scheduler's
        self.optimizer.step()
        hook.remove()
        self.part.step()
        self.step += 1
        self.check()
        if self.kind == "scheduler":
            assert self.part.get_last_lr() == lrs_of(self.optimizer)

    def drop(self) -> None:
        if len(self.groups) > 1:
            del self.groups[self.step % len(self.groups)]

    def reverse(self) -> None:
        self.groups.reverse()

    def replace(self) -> None:
        self.optimizer.param_groups = [dict(group) for group in self.groups]

    def split(self) -> None:
        group = self.groups[0]
        if len(group["params"]) > 1:
            number, other = group["number"], len(self.wanted)
            first, second = group["params"]
            self.groups[:1] = [
                {**group, "params": [first]},
                {**group, "params": [second], "number": other},
            ]
            self.wanted[other] = self.wanted[number]

    def add(self) -> None:
        if self.has_common_curve:
            number = len(self.wanted)
            self.optimizer.add_param_group({"params": [parameter()], self.key: 1.0, "number": number})
            self.wanted[number] = (1.0, CURVE)

    def load(self) -> None:
        self.part.state_dict()  # else the state of the optimizer may have groups without their values
        self.optimizer.load_state_dict(through_file(self.optimizer.state_dict()))

    def save(self) -> None:
        bases = "base_lrs" if self.kind == "scheduler" else "base_values"
        state = through_file(self.part.state_dict())
        wanted = [self.wanted[group["number"]] for group in self.groups]
        assert state[bases] == [base for base, _ in wanted]
        assert state["curves"] == [curve.to_dict() for _, curve in wanted]
        self.part.load_state_dict(state)
        self.check()

    def peak(self) -> None:
        if self.kind == "scheduler":
            peaks = [0.5 + 0.125 * place for place in range(len(self.groups))]
            self.part.set_peak(peaks)
            for group, peak in zip(self.groups, peaks, strict=True):
                self.wanted[group["number"]] = (peak, self.wanted[group["number"]][1])
            self.check()

    def copy(self) -> None:
        self.optimizer, self.part = copy.deepcopy((self.optimizer, self.part))

    def pickle(self) -> None:
        self.optimizer, self.part = pickle.loads(pickle.dumps((self.optimizer, self.part)))


@pytest.mark.parametrize("kind", ["scheduler", "follower"])
@pytest.mark.parametrize("has_common_curve", [True, False])
@examples(150)
@given(moves=st.lists(st.sampled_from(MOVES), max_size=12))
def test_groups_keep_their_curves_and_peaks(kind: str, has_common_curve: bool, moves: list[str]) -> None:
    run = Groups(kind, has_common_curve)
    for move in moves:
        getattr(run, move)()
    run.update()
