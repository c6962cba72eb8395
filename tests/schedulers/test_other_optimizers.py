"""Optimizers of other libraries, which wrap a torch optimizer or scale the learning rates of groups.

The tests with timm are skipped without it. They read single files, because timm itself imports torchvision.
"""

import re
import runpy
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_optimizer
import torch
from support.schedulers.runs import advance, learning_rate, lrs_of
from support.training.trees import equal_trees, through_file
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from transformers.trainer_pt_utils import LayerWiseDummyOptimizer

from plateau_jax import CurveWarning, PlateauCurve
from torch_bridge import follow, lambda_lr

pytestmark = pytest.mark.slow

CURVE = PlateauCurve(30, warmup_steps=6, plateaus=[(20, 30)], min_lr_ratio=0.1)
# In float32 without rounding, so that torch's products with the curve are exact too.
PEAKS = [0.5, 0.25, 0.125]
ADDED_AFTER, SAVED_AFTER, UPDATES = 5, 9, 20


def from_timm(file: str, name: str) -> Any:
    spec = find_spec("timm")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("needs timm")
    return runpy.run_path(str(Path(spec.submodule_search_locations[0], file)))[name]


WRAPPERS: dict[str, Callable[[Optimizer], Any]] = {
    "timm Lookahead": lambda inner: from_timm("optim/lookahead.py", "Lookahead")(inner),
    "Lookahead": pytorch_optimizer.Lookahead,
    "OrthoGrad": pytorch_optimizer.OrthoGrad,
    "ScheduleFreeWrapper": pytorch_optimizer.ScheduleFreeWrapper,
    "PCGrad": pytorch_optimizer.PCGrad,
    "TRAC": pytorch_optimizer.TRAC,
}
ADDS_GROUPS = [name for name in WRAPPERS if name != "TRAC"]
"""TRAC itself raises an error at the step after a group was added."""


class Run:
    """A wrapper around SGD, and the learning rates and weights of each update.

    Args:
        wrap: Builds the wrapper.
        build: Builds the scheduler from the wrapper.
        groups: The number of groups at first.
    """

    def __init__(
        self, wrap: Callable[[Optimizer], Any], build: Callable[[Any], LRScheduler], groups: int
    ) -> None:
        self.inner = SGD([self.group(index) for index in range(groups)], momentum=0.5)
        self.optimizer = wrap(self.inner)
        if hasattr(self.optimizer, "train"):  # a schedule-free optimizer
            self.optimizer.train()
        self.scheduler = build(self.optimizer)
        self.used: list[list[float]] = []
        self.weights: list[list[list[float]]] = []
        # The scheduler's own hook, if it has one, comes first.
        self.inner.register_step_pre_hook(lambda *_: self.used.append(lrs_of(self.inner)))

    @staticmethod
    def group(index: int) -> dict[str, Any]:
        parameter = torch.nn.Parameter(torch.full((2,), 1.0 + index))
        return {"params": [parameter], "lr": PEAKS[index]}

    def advance(self, updates: int) -> None:
        for _ in range(updates):
            for group in self.inner.param_groups:
                (parameter,) = group["params"]
                parameter.grad = parameter.detach() * torch.tensor([0.5, -0.25])
            advance(self.optimizer, self.scheduler)
            self.weights.append([group["params"][0].tolist() for group in self.inner.param_groups])

    def load(self, other: "Run") -> None:
        parameters = [group["params"][0] for group in self.inner.param_groups]
        for parameter, weights in zip(parameters, other.weights[-1], strict=True):
            parameter.data.copy_(torch.tensor(weights))
        for part, saved in ((self.optimizer, other.optimizer), (self.scheduler, other.scheduler)):
            part.load_state_dict(through_file(saved.state_dict()))


def by_curve(optimizer: Any) -> LRScheduler:
    return lambda_lr(optimizer, CURVE)


def by_torch(optimizer: Any) -> LRScheduler:
    return LambdaLR(optimizer, lambda step: float(CURVE(step)))


def in_float32(rows: list[list[float]]) -> list[list[float]]:
    return np.array(rows, np.float32).tolist()


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_wrapped_optimizer_trains_as_with_lambda_lr(wrapper: str) -> None:
    run, with_torch, resumed, resumed_with_torch = (
        Run(WRAPPERS[wrapper], build, groups=3) for build in (by_curve, by_torch, by_curve, by_torch)
    )
    run.advance(SAVED_AFTER)
    with_torch.advance(SAVED_AFTER)
    resumed.load(run)
    resumed_with_torch.load(with_torch)
    for each in (run, with_torch, resumed, resumed_with_torch):
        each.advance(UPDATES - SAVED_AFTER)
    expected = [[learning_rate(peak, CURVE, step) for peak in PEAKS] for step in range(UPDATES)]
    assert run.used == in_float32(with_torch.used) == expected
    assert resumed.used == in_float32(resumed_with_torch.used) == expected[SAVED_AFTER:]
    assert run.weights == with_torch.weights
    assert resumed.weights == resumed_with_torch.weights
    assert run.scheduler.get_last_lr() == lrs_of(run.inner)


@pytest.mark.parametrize("wrapper", ADDS_GROUPS)
def test_group_added_to_wrapped_optimizer_joins(wrapper: str) -> None:
    """Torch's scheduler takes no new groups, so there all groups take part from the start."""
    run, with_torch = Run(WRAPPERS[wrapper], by_curve, groups=2), Run(WRAPPERS[wrapper], by_torch, groups=3)
    with_torch.advance(UPDATES)
    run.advance(ADDED_AFTER)
    run.optimizer.add_param_group(Run.group(2))
    run.advance(SAVED_AFTER - ADDED_AFTER)
    resumed = Run(WRAPPERS[wrapper], by_curve, groups=3)
    resumed.load(run)
    for each in (run, resumed):
        each.advance(UPDATES - SAVED_AFTER)
    all_groups = in_float32(with_torch.used)
    assert run.used == [lrs[:2] for lrs in all_groups[:ADDED_AFTER]] + all_groups[ADDED_AFTER:]
    assert resumed.used == all_groups[SAVED_AFTER:]
    first_two = [weights[:2] for weights in run.weights]
    assert equal_trees(first_two, [weights[:2] for weights in with_torch.weights])


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_option_of_wrapped_optimizer_follows(wrapper: str) -> None:
    inner = SGD([Run.group(0)], weight_decay=0.5)
    optimizer = WRAPPERS[wrapper](inner)
    follower = follow(optimizer, "weight_decay", CURVE)
    for step in range(UPDATES):
        assert inner.param_groups[0]["weight_decay"] == learning_rate(0.5, CURVE, step)
        follower.step()
    again = follow(optimizer, "weight_decay", CURVE)
    again.load_state_dict(through_file(follower.state_dict()))
    again.step()
    assert inner.param_groups[0]["weight_decay"] == learning_rate(0.5, CURVE, UPDATES + 1)


def test_dummy_of_layerwise_optimizers_is_rejected() -> None:
    """Transformers steps the real optimizers in hooks, where no scheduler reaches them."""
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = LayerWiseDummyOptimizer({parameter: SGD([parameter], lr=0.5)}, lr=0.5)
    with pytest.raises(ValueError, match="LayerWiseDummyOptimizer"):
        lambda_lr(optimizer, CURVE)


SCALES = [0.25, 0.5, 1.0]


def scaled_groups() -> Optimizer:
    """Build an optimizer with the groups that timm's `param_groups_layer_decay` returns."""
    groups = [
        {"lr_scale": scale, "weight_decay": 0.1, "params": [torch.nn.Parameter(torch.ones(2))]}
        for scale in SCALES
    ]
    return SGD(groups, lr=0.5)


def test_lr_scale_warns_and_names_the_line() -> None:
    """With that line, the learning rates are those of timm's schedulers."""
    optimizer = scaled_groups()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        advance(optimizer, lambda_lr(optimizer, CURVE), 30)
    (warning,) = caught
    assert warning.category is CurveWarning
    (line,) = re.findall(r'group\["lr"\] \*= group\.pop\("lr_scale"\)', str(warning.message))
    optimizer = scaled_groups()
    for group in optimizer.param_groups:
        exec(line, {"group": group})
    scheduler = lambda_lr(optimizer, CURVE)  # silent: a warning would be an error
    for step in range(UPDATES):
        assert lrs_of(optimizer) == [learning_rate(0.5 * scale, CURVE, step) for scale in SCALES]
        advance(optimizer, scheduler)


def test_lr_scale_line_gives_timms_learning_rates() -> None:
    timms_scheduler = from_timm("scheduler/scheduler.py", "Scheduler")

    class CurveScheduler(timms_scheduler):
        def _get_lr(self, t: int) -> list[float]:
            return [base * float(CURVE(t)) for base in self.base_values]

    optimizer, with_timm = scaled_groups(), scaled_groups()
    scheduler_of_timm = CurveScheduler(with_timm, "lr", t_in_epochs=False)
    for group in optimizer.param_groups:
        group["lr"] *= group.pop("lr_scale")
    scheduler = lambda_lr(optimizer, CURVE)
    for step in range(UPDATES):
        scheduler_of_timm.step_update(step)
        assert lrs_of(optimizer) == in_float32([lrs_of(with_timm)])[0]
        advance(optimizer, scheduler)
