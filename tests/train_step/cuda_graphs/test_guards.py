"""Captured updates: a change to what they depend on takes effect, without false alarms.

A change that a captured update must notice is a function with the decorator `noticed`.
"""

import copy
from contextlib import nullcontext

import pytest
import torch
from hypothesis import given, strategies as st
from support.examples import examples
from support.training import models
from support.training.by_hand import ByHand
from support.training.cuda_graphs import graphs
from support.training.kind import Kind
from support.training.steps import make_step, through_file, train
from support.trees import assert_equal_trees
from torch import Tensor, nn

from plateau_jax import CurveWarning, DataClock, StagedCurve
from torch_bridge import follow
from torch_bridge.training.train_step.cuda_graphs import Guards


class Parts(models.Net):
    """A net with buffers, and with modules in a list, of which the first one's mode matters."""

    def __init__(self):
        super().__init__()
        with models.seeded(1):
            self.more = nn.ModuleList([nn.LayerNorm(2), nn.Linear(2, 2)])
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("shift", torch.zeros(3))
        self.register_buffer("scale", None)

    def forward(self, inputs):
        self.calls.add_(1)
        if self.shift is not None:
            inputs = inputs + self.shift
        if self.scale is not None:
            inputs = inputs * self.scale
        if self.more[0].training:
            inputs = inputs * 0.5
        return nn.Sequential(*self.more)(super().forward(inputs))


def check_change(device, name, change, *, is_noticed):
    """Check that the run equals an eager one, and that an update is captured again if needed."""
    kind = Kind(name, models.counting_loss, model=Parts, carry=torch.zeros(2))
    captured = kind.build(device=device, cuda_graph=True)
    eager = kind.build(device=device)

    def train_on(seed):
        """Return the graph that is in use in the end."""
        data = models.batches(6, seed=seed, device=device)
        data[4] = models.nonfinite(data[4])
        for batch in data:
            assert_equal_trees(captured(batch), eager(batch))
        (recorded,) = graphs.graphs_of(captured).captured.values()
        return recorded.graph

    graph = train_on(seed=0)
    with torch.no_grad():
        change(captured)
        change(eager)
    next_graph = train_on(seed=1)
    assert (next_graph is not graph) == is_noticed
    assert_equal_trees(captured.state_dict(), eager.state_dict())


def change_test(*names, is_noticed):
    """Return the decorator that makes a test of a change, for these optimizers."""

    def as_test(change):
        @pytest.mark.parametrize("name", names)
        def test(device, name):
            check_change(device, name, change, is_noticed=is_noticed)

        test.__name__ = change.__name__
        test.__doc__ = change.__doc__
        return test

    return as_test


noticed = change_test("adamw", "momentum", is_noticed=True)
"""A captured update must notice the change."""
unnoticed = change_test("adamw", is_noticed=False)
"""The graph sees the change without being captured again."""


# Modules, parameters and buffers.


@noticed
def test_evaluation_mode_of_a_module(step):
    step.model.more[0].eval()


@noticed
def test_frozen_parameter(step):
    step.model.first.weight.requires_grad_(False)


@noticed
def test_new_parameter(step):
    step.model.first.bias = nn.Parameter(torch.ones_like(step.model.first.bias))


@noticed
def test_new_data_of_a_parameter(step):
    step.model.first.bias.data = torch.ones_like(step.model.first.bias)


@noticed
def test_new_buffer(step):
    step.model.shift = torch.ones_like(step.model.shift)


@noticed
def test_new_module(step):
    step.model.last = copy.deepcopy(step.model.last)


@unnoticed
def test_values_of_a_buffer(step):
    step.model.shift.add_(1)


# Settings and states of the optimizer.


def settings_of(step):
    return step.optimizer.param_groups[0]


@noticed
def test_weight_decay(step):
    settings_of(step)["weight_decay"] = 0.5


@noticed
def test_cleared_states(step):
    step.optimizer.state.clear()


@noticed
def test_load_of_the_optimizer(step):
    step.optimizer.load_state_dict(copy.deepcopy(step.optimizer.state_dict()))


@unnoticed
def test_lr_as_a_number(step):
    settings_of(step)["lr"] = 0.3


# The step.


@noticed
def test_load_of_the_step(step):
    step.load_state_dict(through_file(step.state_dict()))


@unnoticed
def test_new_peak(step):
    step.set_peak(0.5)


@unnoticed
def test_reset_carry(step):
    step.reset_carry()


def test_guards_run_no_operator():
    """Neither on a tensor in a tuple of settings."""
    step = make_step()
    train(step, models.batches(1))
    (group,) = step.optimizer.param_groups
    group["betas"] = (0.9, torch.tensor(0.99))
    guards = Guards(step.model, step.optimizers)
    with graphs.Tape() as tape:
        assert not guards.failed()
        group["betas"] = (0.5, group["betas"][1])
        assert guards.failed()
    assert not tape.operators


def test_followed_settings_match_hand_written_loop(device):
    """A graph is captured once the values have been constant for some updates."""

    def build(model):
        parameters = model.parameters()
        return torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.5, fused=True, capturable=True)

    def build_model():
        return models.Net().to(device)

    kind = Kind(build, model=build_model)
    step = kind.build(device=device, cuda_graph=True)
    by_hand = ByHand(kind)
    stairs = StagedCurve([(4,), (4, 0.5), (8,), (0, 0.25), (8,)], start=1.0)
    constant = StagedCurve([(30,)], start=0.5)
    weight_decay = follow(step.optimizer, "weight_decay", stairs)
    beta = follow(step.optimizer, ("betas", 0), constant)
    num_graphs = []
    for number, batch in enumerate(models.batches(26, device=device)):
        context = nullcontext()
        if number == 7:
            context = pytest.warns(CurveWarning, match="weight_decay keeps")
        with context:
            step(batch)
        num_graphs.append(len(graphs.graphs_of(step).captured))
        weight_decay.step()
        beta.step()
        by_hand.groups[0]["weight_decay"] = 0.5 * stairs(number)
        by_hand.groups[0]["betas"] = (0.9 * constant(number), 0.999)
        by_hand.update([batch])
    assert_equal_trees(step.model.state_dict(), by_hand.model.state_dict())
    assert num_graphs == [0] * 3 + [1] * 2 + [0] * 6 + [1] * 5 + [0] * 3 + [1] * 7


def test_setting_that_always_changes_warns(device):
    """Once, at the third drop without a replay: before a capture, and after a few replays."""
    step = Kind().build(device=device, cuda_graph=True)
    (batch,) = models.batches(1, device=device)
    (group,) = step.optimizer.param_groups
    for num_constant in (0, 6):
        for _ in range(num_constant):
            step(batch)
        for number in range(1, 6):
            group["weight_decay"] = number / 64 + num_constant
            context = nullcontext()
            if number == (4 if num_constant == 0 else 3):
                context = pytest.warns(CurveWarning, match="weight_decay keeps .* cuda_graph=False")
            with context:
                step(batch)


def test_module_that_always_changes_warns(device):
    step = Kind().build(device=device, cuda_graph=True)
    (batch,) = models.batches(1, device=device)
    for number in range(3):
        step.model.train(number % 2 == 0)
        step(batch)
    step.model.train(False)
    with pytest.warns(CurveWarning, match="a module, parameter, .* keeps changing"):
        step(batch)


@pytest.mark.parametrize("form", [int, torch.tensor])
@examples(10)
@given(st.lists(st.integers(0, 2**40), min_size=8, max_size=12))
def test_new_count_needs_no_capture(device, form, counts):
    """Nor does a count of the other form; a replay reads what was written before it."""
    step = Kind(clock=DataClock(3)).build(device=device, cuda_graph=True)
    consumed = 0
    data = models.batches(len(counts), device=device)
    for count, batch in zip(counts, data, strict=True):
        passed = count
        if count % 2 == 1:
            passed = form(count)
        if isinstance(passed, Tensor):
            passed = passed.to(device)
        result = step(batch, count=passed)
        assert int(result.curve_step) == consumed // 3
        consumed += count
        assert int(result.consumed) == consumed
    assert len(graphs.graphs_of(step).captured) == 1
