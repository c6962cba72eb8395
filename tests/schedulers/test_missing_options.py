"""A follower of an option that only some parameter groups have, such as Muon's momentum."""

import copy
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from support.examples import examples
from support.runs.run import Run
from support.runs.torch_run import TorchRun
from support.wrong import wrong
from torch.optim import Optimizer

from plateau_jax import Curve, PlateauCurve, StagedCurve
from torch_bridge import follow

RISING = StagedCurve([(10, 1.0)], start=0.5)
FALLING = PlateauCurve(8)

Options = dict[str, Any]
Layout = list[Curve | None]

WITH_MOMENTUM = {"momentum": 0.95}
WITHOUT_MOMENTUM = {"betas": (0.9, 0.95)}


def new_group(options: Options) -> Options:
    """Return a group of one parameter with these options."""
    return {"params": [torch.nn.Parameter(torch.ones(1))], **options}


class MuonWithAdam(Optimizer):
    """Its groups have either a momentum, or Adam's betas."""

    def __init__(self, options: Sequence[Options]) -> None:
        groups = [new_group(item) for item in options]
        super().__init__(groups, {"lr": 0.1})

    def step(self, closure: Any = None) -> None:
        pass


def options_of(layout: Layout) -> list[Options]:
    options: list[Options] = []
    for index, curve in enumerate(layout):
        if curve is None:
            options.append(dict(WITHOUT_MOMENTUM))
        else:
            options.append({"momentum": 0.95 - index / 16})
    return options


class MomentumRun(TorchRun):
    """An optimizer with a follower of its momentum."""

    def __init__(self, layout: Layout, options: list[Options]) -> None:
        self.options = options
        Run.__init__(self, layout, [])

    def build(self) -> None:
        self.optimizer = MuonWithAdam(self.options)
        self.use(follow(self.optimizer, "momentum", self.curve))

    def values(self) -> list[float]:
        return [group["momentum"] for group in self.groups if "momentum" in group]


def run_of(layout: Layout) -> MomentumRun:
    return MomentumRun(layout, options_of(layout))


def load_optimizer(run: MomentumRun) -> None:
    run.optimizer.load_state_dict(run.optimizer.state_dict())


def reverse_groups(run: MomentumRun) -> None:
    run.groups.reverse()


def add_group_without_momentum(run: MomentumRun) -> None:
    if None in run.curve:
        group = new_group(WITHOUT_MOMENTUM)
        run.optimizer.add_param_group(group)


def remove_groups_without_momentum(run: MomentumRun) -> None:
    groups = run.groups
    groups[:] = [group for group in groups if "momentum" in group]


def set_base(run: MomentumRun) -> None:
    run.part.set_base_value(0.75)


def pickle_all(run: MomentumRun) -> None:
    pickled = pickle.dumps((run.optimizer, run.schedulers))
    run.optimizer, run.schedulers = pickle.loads(pickled)


def copy_all(run: MomentumRun) -> None:
    copied = copy.deepcopy((run.optimizer, run.schedulers))
    run.optimizer, run.schedulers = copied


CHANGES = (
    MomentumRun.update,
    load_optimizer,
    reverse_groups,
    add_group_without_momentum,
    remove_groups_without_momentum,
    set_base,
    pickle_all,
    copy_all,
)

curves_or_none = st.sampled_from([None, RISING, FALLING])
layouts = st.lists(curves_or_none, min_size=1, max_size=4).filter(any)


@examples(200)
@given(layouts, st.lists(st.sampled_from(CHANGES), max_size=8))
def test_groups_without_the_option_do_not_matter(
    layout: Layout, changes: list[Callable[[MomentumRun], None]]
) -> None:
    """The others follow their curves as in an optimizer that has only those."""
    options = options_of(layout)
    run = MomentumRun(layout, options)
    curves: Layout = [curve for curve in layout if curve is not None]
    options_with_momentum = [item for item in options if "momentum" in item]
    only_with_momentum = MomentumRun(curves, options_with_momentum)
    for change in changes:
        change(run)
        change(only_with_momentum)
        run.update()
        only_with_momentum.update()
        assert run.values() == only_with_momentum.values()
    indices: list[int] = []
    for index, group in enumerate(run.groups):
        if "momentum" in group:
            indices.append(index)
        else:
            assert "initial_momentum" not in group
            assert group["betas"] == WITHOUT_MOMENTUM["betas"]
    state = run.part.state_dict()
    assert state.pop("groups") == indices
    expected_state = only_with_momentum.part.state_dict()
    del expected_state["groups"]
    assert state == expected_state


@examples(50)
@given(layouts, st.integers(0, 12))
def test_follower_of_some_groups_resumes(layout: Layout, saved_at: int) -> None:
    run = run_of(layout)
    run.train(saved_at)
    resumed = run_of(layout)
    state = run.save()
    resumed.load_schedulers(state)
    resumed.load_optimizer(state)
    for _ in range(3):
        run.update()
        resumed.update()
        assert resumed.values() == run.values()


def test_item_that_only_some_groups_have() -> None:
    optimizer = MuonWithAdam([WITH_MOMENTUM, {"betas": (0.9, 0.99)}])
    curve = StagedCurve([(4, 1.0)], start=0.95 / 0.99)
    follower = follow(optimizer, ("betas", 1), [None, curve])
    with_momentum, with_betas = optimizer.param_groups
    assert with_betas["betas"] == (0.9, pytest.approx(0.95))
    for _ in range(4):
        follower.step()
    assert with_betas["betas"] == (0.9, pytest.approx(0.99))
    assert with_momentum.keys() == {"params", "lr", "momentum"}


@pytest.fixture
def optimizer() -> MuonWithAdam:
    return MuonWithAdam([WITH_MOMENTUM, WITHOUT_MOMENTUM])


@wrong(ValueError, "param_groups[1] has no momentum: its curve must be None")
@pytest.mark.parametrize("curve", [RISING, [RISING, FALLING]])
def test_curve_of_a_group_without_the_option(optimizer: MuonWithAdam, curve: Any) -> None:
    follow(optimizer, "momentum", curve)


@wrong(ValueError, "param_groups[2] has no momentum: its curve must be None")
def test_added_group_without_the_option() -> None:
    optimizer = MuonWithAdam([WITH_MOMENTUM, WITH_MOMENTUM])
    follower = follow(optimizer, "momentum", RISING)
    group = new_group(WITHOUT_MOMENTUM)
    optimizer.add_param_group(group)
    follower.step()


@wrong(ValueError, "curve[0] is None, but param_groups[0] has momentum = 0.95", "StagedCurve([(1,)")
def test_none_for_a_group_with_the_option(optimizer: MuonWithAdam) -> None:
    follow(optimizer, "momentum", [None, None])


@wrong(ValueError, "is new, and has no curve")
def test_added_group_with_the_option_needs_a_curve() -> None:
    optimizer = MuonWithAdam([WITH_MOMENTUM, WITHOUT_MOMENTUM])
    follower = follow(optimizer, "momentum", [RISING, None])
    group = new_group(WITH_MOMENTUM)
    optimizer.add_param_group(group)
    follower.step()
