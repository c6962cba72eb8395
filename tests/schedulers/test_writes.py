"""When a scheduler or follower writes into the groups of its optimizer, and when it does not."""

import copy
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from schedulers.kinds import with_arguments
from support.examples import examples
from support.schedulers.runs import advance, learning_rate, lrs_of, optimizer_with
from support.training.steps import through_file
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, ExponentialLR, LambdaLR, SequentialLR

from plateau_jax import DataClock, HoldBelow, PlateauCurve, StagedCurve
from torch_bridge import follow, lambda_lr

pytestmark = [
    pytest.mark.usefixtures("frozen"),
    # An optimizer is loaded on purpose without the state of its scheduler.
    pytest.mark.filterwarnings("ignore:the optimizer has made|the optimizer was loaded"),
]

LINE = StagedCurve([(100, 0.0, "linear")], start=1.0)
COSINE = PlateauCurve(100, warmup_steps=10)


def options_of(optimizer: Optimizer) -> list[dict[str, Any]]:
    """Return all options of the groups, as `load_state_dict` reads them."""
    return copy.deepcopy(optimizer.state_dict()["param_groups"])


# Schedulers and followers that are alive, and that nobody steps any more.


def build_scheduler(optimizer: Optimizer) -> Any:
    return lambda_lr(optimizer, LINE)


def build_held(optimizer: Optimizer) -> Any:
    return with_arguments(lambda_lr(optimizer, COSINE, clock=HoldBelow(0.5, 2)), metric=0.7)


def build_counting(optimizer: Optimizer) -> Any:
    return lambda_lr(optimizer, COSINE, clock=DataClock(8, count=4))


def build_curve_per_group(optimizer: Optimizer) -> Any:
    return lambda_lr(optimizer, [LINE, COSINE])


def build_follower(optimizer: Optimizer) -> Any:
    return follow(optimizer, "weight_decay", LINE)


def build_follower_of_betas(optimizer: Optimizer) -> Any:
    return follow(optimizer, ("betas", 0), COSINE)


def build_sequence(optimizer: Optimizer) -> Any:
    return SequentialLR(optimizer, [lambda_lr(optimizer, LINE), lambda_lr(optimizer, COSINE)], [4])


BUILDERS = [
    build_scheduler,
    build_held,
    build_counting,
    build_curve_per_group,
    build_follower,
    build_follower_of_betas,
    build_sequence,
]


def new_optimizer(lr: float = 0.5) -> Optimizer:
    return optimizer_with([lr, lr / 2], AdamW, weight_decay=0.1)


def train(optimizer: Optimizer, part: Any, updates: int) -> None:
    for _ in range(updates):
        optimizer.step()
        part.step()


# What a program may do with them, that writes nothing.


def read_state(part: Any) -> None:
    part.state_dict()


def read_attributes(part: Any) -> None:
    for name in ("base_lrs", "base_values", "curves", "curve_step", "last_epoch"):
        getattr(part, name, None)
    repr(part)


def read_last_lr(part: Any) -> None:
    if hasattr(part, "get_last_lr"):
        part.get_last_lr()


def read_lr(part: Any) -> None:
    if isinstance(part, lambda_lr):
        part.get_lr()


def deepcopy_it(part: Any) -> None:
    copy.deepcopy(part)


def update(part: Any) -> None:
    part.optimizer.step()


def collect_garbage(part: Any) -> None:
    gc.collect()


LOOKS = [read_state, read_attributes, read_last_lr, read_lr, deepcopy_it, update, collect_garbage]
Look = Callable[[Any], None]


@pytest.mark.parametrize("build", BUILDERS)
@examples(20)
@given(
    updates=st.integers(0, 12),
    has_scheduler=st.booleans(),
    looks=st.lists(st.sampled_from(LOOKS), max_size=6),
)
def test_loaded_optimizer_keeps_its_options(
    build: Callable[[Optimizer], Any], updates: int, has_scheduler: bool, looks: list[Look]
) -> None:
    """Whatever is alive from before, as long as nothing is stepped."""
    source = new_optimizer(lr=0.03)
    if has_scheduler:
        advance(source, lambda_lr(source, COSINE), 7)
    optimizer = new_optimizer()
    part = build(optimizer)
    train(optimizer, part, updates)
    optimizer.load_state_dict(through_file(source.state_dict()))
    for look in looks:
        look(part)
    assert options_of(optimizer) == options_of(source)


@pytest.mark.parametrize("build", BUILDERS)
@pytest.mark.parametrize("updates", [1, 9])
@pytest.mark.parametrize("has_scheduler", [True, False])
def test_next_step_writes_with_the_known_base(
    build: Callable[[Optimizer], Any], updates: int, has_scheduler: bool
) -> None:
    """The parameters are known, so a loaded group is not a new one, whatever its options are."""
    uninterrupted = new_optimizer()
    part = build(uninterrupted)
    train(uninterrupted, part, updates)
    before = values_of(uninterrupted)
    train(uninterrupted, part, 1)

    source = optimizer_with([0.03, 0.04], AdamW, weight_decay=0.7, betas=(0.5, 0.999))
    if has_scheduler:
        build(source)
    optimizer = new_optimizer()
    part = build(optimizer)
    train(optimizer, part, updates)
    optimizer.load_state_dict(source.state_dict())
    train(optimizer, part, 1)
    for key, expected in values_of(uninterrupted).items():
        if expected != before[key]:  # what it has written
            assert values_of(optimizer)[key] == expected
        else:
            assert values_of(optimizer)[key] == values_of(source)[key]


def values_of(optimizer: Optimizer) -> dict[str, list[Any]]:
    """Return the options that the builders schedule, of each group."""
    values: dict[str, list[Any]] = {}
    for key in ("lr", "weight_decay", "betas"):
        values[key] = [group[key] for group in optimizer.param_groups]
    return values


@pytest.mark.parametrize("build", BUILDERS)
def test_scheduler_that_is_no_longer_stepped_rejects_no_group(
    build: Callable[[Optimizer], Any],
) -> None:
    """Not one that is copied, and not one for which it has no curve: torch's scheduler trains."""
    optimizer = new_optimizer()
    part = build(optimizer)
    train(optimizer, part, 5)
    for group in optimizer.param_groups:
        group["weight_decay"] = 0.01
        group["betas"] = (0.6, 0.999)
    scheduler = ExponentialLR(optimizer, 0.9)
    advance(optimizer, scheduler, 3)
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    own = {"params": [parameter], "lr": 1e-3, "weight_decay": 0.3, "betas": (0.7, 0.999)}
    optimizer.add_param_group({**optimizer.param_groups[0], **own})
    for _ in range(3):
        optimizer.step()
    assert {key: optimizer.param_groups[-1][key] for key in own} == own
    assert len(optimizer.param_groups) == 3
    assert part is not None


# Programs that load the optimizer's state and then build new schedulers.


@pytest.mark.parametrize("following", [CosineAnnealingLR, LambdaLR, lambda_lr])
@pytest.mark.parametrize("loaded_lr", [1e-2, 3e-3])
def test_second_phase_starts_at_the_loaded_learning_rate(following: Any, loaded_lr: float) -> None:
    optimizer = new_optimizer(lr=1e-2)
    scheduler = lambda_lr(optimizer, LINE)
    advance(optimizer, scheduler, 50)
    optimizer.load_state_dict(new_optimizer(lr=loaded_lr).state_dict())
    if following is CosineAnnealingLR:
        following(optimizer, 50)
    else:
        following(optimizer, LINE)
    assert lrs_of(optimizer) == pytest.approx([loaded_lr, loaded_lr / 2])


def test_each_fold_starts_with_the_initial_options() -> None:
    optimizer = new_optimizer()
    initial = through_file(optimizer.state_dict())
    for _ in range(3):
        optimizer.load_state_dict(copy.deepcopy(initial))
        scheduler = lambda_lr(optimizer, LINE)
        decay = follow(optimizer, "weight_decay", LINE)
        assert lrs_of(optimizer) == [0.5, 0.25]
        weight_decays = [group["weight_decay"] for group in optimizer.param_groups]
        assert weight_decays == [learning_rate(0.1, LINE, 0)] * 2
        for _ in range(20):
            optimizer.step()
            scheduler.step()
            decay.step()


def test_rebuilt_parts_start_with_the_same_options() -> None:
    """As in a notebook's cell that is run again."""
    optimizer = new_optimizer()
    for _ in range(3):
        scheduler = lambda_lr(optimizer, LINE)
        parts = [
            follow(optimizer, "weight_decay", LINE),
            follow(optimizer, ("betas", 0), COSINE),
        ]
        for update_count in range(20):
            group = optimizer.param_groups[0]
            assert group["lr"] == learning_rate(0.5, LINE, update_count)
            assert group["weight_decay"] == learning_rate(0.1, LINE, update_count)
            assert group["betas"][0] == learning_rate(0.9, COSINE, update_count)
            optimizer.step()
            scheduler.step()
            for part in parts:
                part.step()


# What a scheduler has written stays in its state.


@pytest.mark.parametrize("optimizer_is_loaded", ["before", "after", "not at all"])
@pytest.mark.parametrize("updates", [0, 1, 10])
@pytest.mark.parametrize("form", [float, torch.tensor])
def test_bases_written_before_a_save_count_from_the_next_step(
    form: Any, updates: int, optimizer_is_loaded: str
) -> None:
    optimizer = optimizer_with([form(0.5)])
    scheduler = lambda_lr(optimizer, LINE)
    advance(optimizer, scheduler, updates)
    scheduler.base_lrs[0] *= 0.5
    state = through_file(scheduler.state_dict())
    optimizer_state = through_file(optimizer.state_dict())

    resumed_optimizer = optimizer_with([form(0.5)])
    resumed = lambda_lr(resumed_optimizer, LINE)
    if optimizer_is_loaded == "before":
        resumed_optimizer.load_state_dict(optimizer_state)
    with pytest.warns(UserWarning, match="has a different peak"):
        resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    if optimizer_is_loaded == "after":
        resumed_optimizer.load_state_dict(optimizer_state)
    for _ in range(3):
        assert lrs_of(resumed_optimizer) == lrs_of(optimizer)
        advance(optimizer, scheduler)
        advance(resumed_optimizer, resumed)
