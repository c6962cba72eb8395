"""A curve in torch's sequences and chains, and before weight averaging; their states."""

import copy
from functools import partial

import pytest
import torch
from hypothesis import given, strategies as st
from schedulers.builders import CURVE
from support.examples import examples
from support.schedulers.runs import lrs_of, optimizer_with
from support.training.steps import through_file
from torch.optim import lr_scheduler as torchs
from torch.optim.swa_utils import SWALR

from plateau_jax import DataClock, HoldBelow, PlateauCurve
from torch_bridge import follow, lambda_lr


def constant(optimizer, factor=0.5):
    return torchs.ConstantLR(optimizer, factor, total_iters=100)


# The schedulers that a program steps: the first one from step 0, the last one from step 20 on.


def sequence(optimizer, first, second):
    return torchs.SequentialLR(optimizer, [first, second], [20])


def curve_first(optimizer, scheduler):
    second = constant(optimizer)
    return [sequence(optimizer, scheduler, second)]


def curve_second(optimizer, scheduler):
    first = constant(optimizer)
    return [sequence(optimizer, first, scheduler)]


def after_a_curve(optimizer, scheduler):
    first = lambda_lr(optimizer, CURVE)
    return [sequence(optimizer, first, scheduler)]


def chained(optimizer, scheduler):
    decay = torchs.ExponentialLR(optimizer, 0.9)
    return [torchs.ChainedScheduler([scheduler, decay], optimizer)]


def chained_alone(optimizer, scheduler):
    return [torchs.ChainedScheduler([scheduler], optimizer)]


def then_averaging(optimizer, scheduler):
    return [scheduler, SWALR(optimizer, swa_lr=0.03, anneal_epochs=10)]


@pytest.mark.parametrize(
    "compose", [curve_first, curve_second, after_a_curve, chained, then_averaging]
)
@examples(20)
@given(
    saved_at=st.one_of(st.integers(1, 40), st.sampled_from((19, 20, 21))),
    optimizer_first=st.booleans(),
    make_value=st.sampled_from((float, partial(torch.tensor, dtype=torch.bfloat16))),
    branch=st.sampled_from((CURVE, CURVE.cooldown(45, 9))),
    strict=st.booleans(),
)
def test_resume_with_other_schedulers_matches(
    compose, saved_at, optimizer_first, make_value, branch, strict
):
    """The scheduler in charge before a load is in charge afterwards, also under another curve."""

    def start(curve):
        optimizer = optimizer_with([make_value(0.5), make_value(0.25)])
        scheduler = lambda_lr(optimizer, curve, strict=strict)
        return [optimizer, *compose(optimizer, scheduler)]

    def run(parts, steps):
        optimizer, *schedulers = parts
        lrs = [lrs_of(optimizer)]
        for step in steps:
            optimizer.step()
            if step < 20:
                schedulers[0].step()
            else:
                schedulers[-1].step()
            lrs.append(lrs_of(optimizer))
        return lrs

    first = start(CURVE)
    run(first, range(saved_at))
    # Copies, because before torch 2.10 the state of a SWALR holds a function.
    states = copy.deepcopy([part.state_dict() for part in first])
    uninterrupted = start(branch)
    run(uninterrupted, range(saved_at))
    resumed = start(branch)
    # Under another curve, the optimizer's state comes first.
    load(resumed, states, in_order=optimizer_first or branch != CURVE)
    steps = range(saved_at, saved_at + 24)
    lrs = run(resumed, steps)
    expected = run(uninterrupted, steps)
    assert lrs == expected


def test_loaded_value_that_is_the_peak_is_kept():
    """It is that of the second scheduler, and what the first one wrote when it was built."""

    def start():
        optimizer = optimizer_with([0.5])
        scheduler = lambda_lr(optimizer, PlateauCurve(100))
        return optimizer, sequence(optimizer, scheduler, torchs.ConstantLR(optimizer, 1.0))

    optimizer, stepped = start()
    for _ in range(30):
        optimizer.step()
        stepped.step()
    optimizer.param_groups[0]["lr"] = 0.5
    resumed = start()
    load(resumed, [optimizer.state_dict(), stepped.state_dict()], in_order=True)
    assert lrs_of(resumed[0]) == [0.5]


def load(parts, states, *, in_order):
    pairs = list(zip(parts, states, strict=True))
    if not in_order:
        pairs.reverse()
    for part, state in pairs:
        part.load_state_dict(state)


@pytest.mark.parametrize(
    ("compose", "begin", "end"),
    [(curve_first, 0, 19), (curve_second, 20, 41), (chained_alone, 0, 41)],
)
@examples(20)
@given(
    counts=st.lists(st.integers(0, 60), min_size=41, max_size=41),
    saved_at=st.integers(0, 39),
    optimizer_first=st.booleans(),
)
def test_clock_inside_torchs_schedulers(compose, begin, end, counts, saved_at, optimizer_first):
    """A count is used by the next step; counts outside the scheduler's turn are discarded."""

    def start():
        optimizer = optimizer_with([0.5])
        scheduler = lambda_lr(optimizer, CURVE, clock=DataClock(8))
        (stepped,) = compose(optimizer, scheduler)
        return optimizer, scheduler, stepped

    def check():
        if not begin <= update <= end:
            assert lrs_of(optimizer) == [0.25]
            return
        consumed = sum(counts[begin : min(update, end)])
        assert lrs_of(optimizer) == [0.5 * CURVE(consumed // 8)]
        assert scheduler.consumed == consumed
        assert scheduler.curve_step == consumed // 8

    optimizer, scheduler, stepped = start()
    for update in range(41):
        check()
        if update == saved_at:
            states = through_file([optimizer.state_dict(), stepped.state_dict()])
            before = scheduler
            optimizer, scheduler, stepped = start()
            load([optimizer, stepped], states, in_order=optimizer_first)
            assert scheduler.consumed == before.consumed
            assert scheduler.last_epoch == before.last_epoch
            check()
        optimizer.step()
        scheduler.count = counts[update]
        stepped.step()


@pytest.mark.filterwarnings("ignore:Detected call")  # torch's constructor makes it
@pytest.mark.parametrize(
    "clock", [DataClock(4, count=4), DataClock(4), HoldBelow(-1.0, 1)], ids=str
)
def test_chain_in_a_sequence_begins_at_the_first_step(clock):
    optimizer = optimizer_with([0.5])
    scheduler = lambda_lr(optimizer, CURVE, clock=clock)
    sequence(optimizer, torchs.ChainedScheduler([scheduler]), constant(optimizer))
    assert scheduler.curve_step == 0
    assert lrs_of(optimizer) == [0.5 * CURVE(0)]


def test_followers_take_turns():
    """The second one writes its own option when its turn comes."""
    optimizer = optimizer_with([0.5], weight_decay=0.25)
    constant(optimizer, 1.0)  # torch's class needs an `initial_lr`
    followers = [follow(optimizer, "weight_decay", CURVE) for _ in range(2)]
    stepped = torchs.SequentialLR(optimizer, followers, [3])
    for update in range(9):
        assert lrs_of(optimizer) == [0.5]
        (group,) = optimizer.param_groups
        assert group["weight_decay"] == 0.25 * CURVE(update if update < 3 else update - 3)
        optimizer.step()
        stepped.step()
