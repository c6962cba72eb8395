"""Optimizers of other libraries, which wrap a torch optimizer."""

import pytest
import pytorch_optimizer
import torch
from support.runs.torch_run import SchedulerRun
from support.schedulers.runs import learning_rate, lrs_of, optimizer_with
from support.wrong import wrong
from torch.optim import SGD
from transformers.trainer_pt_utils import LayerWiseDummyOptimizer

from plateau_jax import PlateauCurve
from torch_bridge import follow, lambda_lr

pytestmark = pytest.mark.slow

CURVE = PlateauCurve(30, warmup_steps=6, plateaus=[(20, 30)], min_lr_ratio=0.1)
PEAKS = [0.5, 0.25, 0.125]
SAVED_AFTER = 9
UPDATES = 20


class WrappedRun(SchedulerRun):
    """SGD in a wrapper, a scheduler of the wrapper, and the learning rates of the updates."""

    def __init__(self, wrapper):
        self.wrapper = wrapper
        super().__init__(CURVE, PEAKS)

    def build(self):
        self.lrs = []
        self.inner = optimizer_with(PEAKS, momentum=0.5, weight_decay=0.5)
        self.optimizer = getattr(pytorch_optimizer, self.wrapper)(self.inner)
        if hasattr(self.optimizer, "train"):  # a schedule-free optimizer
            self.optimizer.train()
        self.use(self.new_part(-1))
        # The scheduler's own hook, if it has one, comes first.
        self.inner.register_step_pre_hook(self.note_learning_rates)

    def note_learning_rates(self, *_):
        self.lrs.append(lrs_of(self.inner))


@pytest.mark.parametrize(
    "wrapper", ["Lookahead", "OrthoGrad", "ScheduleFreeWrapper", "PCGrad", "TRAC"]
)
def test_wrapped_optimizer_trains_with_the_curve(wrapper):
    run = WrappedRun(wrapper)
    run.train(SAVED_AFTER)
    resumed = WrappedRun(wrapper)
    state = run.save()
    resumed.load_optimizer(state)
    resumed.load_schedulers(state)
    run.train(UPDATES - SAVED_AFTER)
    resumed.train(UPDATES - SAVED_AFTER)

    expected = [[learning_rate(peak, CURVE, step) for peak in PEAKS] for step in range(UPDATES)]
    assert run.lrs == expected
    assert resumed.lrs == expected[SAVED_AFTER:]
    assert run.part.get_last_lr() == lrs_of(run.inner)

    follower = follow(run.optimizer, "weight_decay", CURVE)
    follower.step()
    weight_decay = run.inner.param_groups[0]["weight_decay"]
    assert weight_decay == learning_rate(0.5, CURVE, 1)
    if wrapper == "TRAC":
        return  # it raises an error at the step after a group was added
    (new_group,) = optimizer_with([1.0]).param_groups
    run.optimizer.add_param_group(new_group)
    run.train(1)
    last_lrs = [learning_rate(peak, CURVE, UPDATES + 1) for peak in (*PEAKS, 1.0)]
    assert lrs_of(run.inner) == last_lrs


@wrong(ValueError, "LayerWiseDummyOptimizer")
def test_dummy_of_layerwise_optimizers():
    """Transformers steps the real optimizers in hooks, where no scheduler reaches them."""
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = SGD([parameter], lr=0.5)
    dummy = LayerWiseDummyOptimizer({parameter: optimizer}, lr=0.5)
    lambda_lr(dummy, CURVE)
