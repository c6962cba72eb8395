"""A scheduler's state is plain, small and tied to its curve; rejections on loading."""

import copy
import io
import pickle
import re

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from support.curves.descriptions import build, descriptions
from support.schedulers.driven import Driven
from support.schedulers.runs import advance, learning_rate, lrs_of, modest_peaks, optimizer_with
from support.training.trees import through_file
from torch.optim.lr_scheduler import ConstantLR, LambdaLR, SequentialLR

from plateau_jax import HoldUntilFlat, PlateauCurve, StagedCurve
from torch_bridge import follow, lambda_lr

CURVE = PlateauCurve(100, warmup_steps=10, plateaus=[(50, 20)], min_lr_ratio=0.1)
OTHER = PlateauCurve(200, plateaus=[(10, 20)], decay_shape="linear")


def _kind_and_length(curve):
    return f"{type(curve).__name__} of {curve.total_steps} steps"


@given(descriptions(range(4)), descriptions(range(4)), st.integers(0, 5), st.integers(0, 5))
def test_rejection_says_the_difference(description, other, saved_at, loaded_at):
    old, new = build(description), build(other)
    saved, run = Driven("scheduler", [old, old]), Driven("scheduler", [new, new])
    saved.advance(saved_at)
    run.advance(loaded_at)
    state = saved.saved()[1]
    if new.same_until(old, saved_at):
        run.part.load_state_dict(state)
    else:
        message = run.rejects(
            ValueError, f"cannot resume at step {saved_at}: ", lambda: run.part.load_state_dict(state)
        )
        before, now = old.to_dict(), new.to_dict()
        if before.keys() != now.keys():
            assert f"with a {_kind_and_length(old)}, now a {_kind_and_length(new)}, and the" in message
        else:
            (name, *_) = (name for name in now if before[name] != now[name])
            assert f" {name}" in message
            assert isinstance(now[name], dict | list) or f", now {now[name]!r}"[:150] in message
        assert f"differ from step {new.first_difference(old)} on; resume with the" in message
        run.part.load_state_dict(state, strict=False)
    run.updates = saved_at
    run.by_file()  # the next state holds the new curve
    for _ in range(3):
        run.check()
        run.advance(1)


@given(st.integers(0, 50), modest_peaks)
def test_plain_lambda_lr_state_needs_strict_false(steps, peak):
    optimizer = optimizer_with([peak])
    plain = LambdaLR(optimizer, lambda step: 1.0)
    advance(optimizer, plain, steps)
    state = through_file(plain.state_dict())
    run = Driven("scheduler", CURVE, [0.3])
    message = r"saved by another scheduler.* strict=False"
    run.rejects(ValueError, message, lambda: run.part.load_state_dict(state))
    run.part.load_state_dict(state, strict=False)
    run.updates, run.bases = steps, [float(np.float32(peak))]
    for _ in range(3):
        run.check()
        run.advance(1)


@pytest.mark.parametrize("hold", [None, HoldUntilFlat(5, limit=20)], ids=("plain", "held"))
def test_rejection_of_long_curves_is_short(hold):
    """A staircase of 300 stages prints as more than ten thousand characters."""
    old, new = (
        StagedCurve([stage for step in range(300) for stage in ((0, 1 - step / 301), (length,))])
        for length in (7, 8)
    )
    saved = lambda_lr(optimizer_with([0.1]), old, last_epoch=900, hold=hold)
    loaded = lambda_lr(optimizer_with([0.1]), new, hold=hold)
    followed, follower = (follow(optimizer_with([0.1]), "momentum", curve) for curve in (old, new))
    for _ in range(20):
        followed.step()
    for before, after in ((saved, loaded), (followed, follower)):
        with pytest.raises(ValueError, match="differ from step 7 on") as caught:
            after.load_state_dict(through_file(before.state_dict()))
        assert len(str(caught.value)) < 900


@pytest.mark.filterwarnings("ignore:the curve has total_steps")
def test_checkpoint_stays_small_after_many_steps():
    run = Driven("scheduler", CURVE)
    run.advance(5000)
    file = io.BytesIO()
    torch.save(run.part.state_dict(), file)
    assert len(pickle.dumps(run.part)) < 10_000
    assert file.tell() < 10_000


def test_state_shares_nothing_with_schedulers():
    run, other = Driven("scheduler", CURVE), Driven("scheduler", CURVE)
    run.advance(7)
    state = run.part.state_dict()
    kept = copy.deepcopy(state)
    other.part.load_state_dict(state)
    other.updates = 7
    assert other.part.state_dict() == kept
    other.advance(3)
    assert state == kept
    state["base_lrs"].clear()
    state["curves"].clear()
    for each in (run, other):
        each.advance(1)
        each.check()


@given(
    st.sampled_from((lambda pair: pair, copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair)))),
    st.integers(1, 150),
)
def test_trainer_loads_by_builders_strict(copied, saved_at):
    saved = Driven("scheduler", CURVE, [0.1])
    saved.advance(saved_at)
    state = saved.saved()[1]

    optimizer = optimizer_with([0.1])
    scheduler = lambda_lr(optimizer, OTHER, strict=False)
    advance(optimizer, scheduler)
    optimizer, scheduler = copied((optimizer, scheduler))
    scheduler.load_state_dict(state)  # as a trainer does
    assert scheduler.last_epoch == saved_at
    assert lrs_of(optimizer) == [learning_rate(0.1, OTHER, saved_at)]
    with pytest.raises(ValueError, match="cannot resume at step"):
        scheduler.load_state_dict(state, strict=True)
    strict = lambda_lr(optimizer_with([0.1]), OTHER)
    with pytest.raises(ValueError, match=r"strict=False to load_state_dict, or to lambda_lr if .* loads"):
        strict.load_state_dict(state)
    strict.load_state_dict(state, strict=False)
    assert strict.last_epoch == saved_at


@given(st.integers(1, 19))
def test_strict_false_keeps_lrs_of_other_scheduler(saved_at):
    # Another scheduler wrote the learning rate, so a load must not replace it by the curve's.
    def start():
        optimizer = optimizer_with([0.5])
        schedulers = [ConstantLR(optimizer, 0.5, total_iters=100), lambda_lr(optimizer, CURVE, strict=False)]
        return optimizer, SequentialLR(optimizer, schedulers, [20])

    optimizer, scheduler = start()
    advance(optimizer, scheduler, saved_at)
    state = through_file(scheduler.state_dict())
    resumed, again = start()
    again.load_state_dict(state)
    assert lrs_of(resumed) == lrs_of(optimizer) == [0.25]


@pytest.mark.parametrize(
    ("curve", "message"),
    [
        (CURVE, "1 base_lrs for 2 parameter groups"),
        ([CURVE], "2 parameter groups; it had 1 when it got its curve"),
    ],
    ids=("one for all", "one a group"),
)
def test_state_of_fewer_groups_is_rejected(curve, message):
    optimizer = optimizer_with([0.1])
    scheduler = lambda_lr(optimizer, curve)
    state = scheduler.state_dict() | {"base_lrs": [0.3]}
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))], "lr": 0.2})
    before = str(optimizer.param_groups)
    with pytest.raises(ValueError, match=message):
        scheduler.load_state_dict(state)
    assert str(optimizer.param_groups) == before


def test_rejection_shows_only_what_differs():
    old = PlateauCurve(64, warmup_steps=5)
    state = lambda_lr(optimizer_with([0.1]), old, last_epoch=39).state_dict()
    nested = lambda_lr(optimizer_with([0.1]), old.cooldown(20, 10), last_epoch=39).state_dict()
    follower = follow(optimizer_with([0.1]), "momentum", old)
    for _ in range(40):
        follower.step()
    longer, other = PlateauCurve(96, warmup_steps=5), PlateauCurve(96, plateaus=[(10, 20)])
    optimizer = optimizer_with([0.1])
    stages = [(1, 1 - 0.01 * stage, "cosine") for stage in range(50)]
    changed = [*stages[:38], (1, 0.5, "cosine"), *stages[39:]]
    staged = lambda_lr(optimizer_with([0.1]), StagedCurve(stages), last_epoch=39).state_dict()
    for new, saved, message in (
        (longer, state, "total_steps=64, now 96, and the learning rates differ from step 6 on"),
        (other, state, "total_steps=64, now 96; warmup_steps=5, now 0; …, and the learning"),
        (longer.cooldown(20, 10), nested, "curve.total_steps=64, now 96, and the learning"),
        (old.cooldown(20, 11), nested, " steps=10, now 11, and the learning rates differ"),
        (StagedCurve(changed), staged, "stages[38]=[1, 0.62, 'cosine'], now [1, 0.5, 'cos"),
        (StagedCurve(stages[:38]), staged, "stages[38]=[1, 0.62, 'cosine'], now None, and the"),
        (longer, staged, "a StagedCurve of 50 steps, now a PlateauCurve of 96 steps, and the"),
        (
            old.then(longer).cooldown(9, 9), nested,
            "curve=a PlateauCurve of 64 steps, now a Then of 160 steps; at=20, now 9; …, and the",
        ),
        (longer, follower.state_dict(), "now 96, and the values differ from step 6 on"),
    ):  # fmt: skip
        is_followed = "key" in saved
        part = follow(optimizer, "momentum", new) if is_followed else lambda_lr(optimizer, new)
        with pytest.raises(ValueError, match=f"^state_dict cannot resume at step 40: .*{re.escape(message)}"):
            part.load_state_dict(through_file(saved))


@pytest.mark.parametrize("form", [float, torch.tensor])
def test_print_shows_curve_clock_and_values(form):
    optimizer = optimizer_with([form(0.5)], momentum=0.5)
    scheduler, follower = lambda_lr(optimizer, CURVE), follow(optimizer, "momentum", CURVE, unit=4)
    advance(optimizer, scheduler, 5)
    follower.step(count=20)
    assert str(scheduler) == f"CurveLR({CURVE}, clock=5, lr=0.25)"
    assert str(follower) == f"Follower({CURVE}, clock=5, unit=4, momentum=0.25)"
    several = lambda_lr(optimizer_with([0.5, 0.25]), [CURVE, OTHER])
    assert str(several) == f"CurveLR([{CURVE}, {OTHER}], clock=0, lr=[0.0, 0.25])"
