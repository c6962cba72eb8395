"""Resuming under another curve: if the past is the same, a run continues under it, bit for bit."""

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from support.curves.descriptions import build, descriptions
from support.examples import examples
from support.numerics.oracle import Description
from support.schedulers.driven import Driven
from support.schedulers.runs import advance, learning_rate, lrs_of, optimizer_with
from support.training.models import Net, batches, mean_loss, nonfinite
from support.training.optimizers import FUSED
from support.training.steps import make_step, train
from support.training.trees import equal_trees, through_file

from plateau_jax import Curve, PlateauCurve, StagedCurve
from torch_bridge import follow, lambda_lr

pytestmark = [
    pytest.mark.usefixtures("short_windows"),
    pytest.mark.filterwarnings("ignore:at = :plateau_jax.CurveWarning"),
    pytest.mark.filterwarnings("ignore:the curve has total_steps:plateau_jax.CurveWarning"),
]

CURVE = PlateauCurve(100, warmup_steps=10, plateaus=[(50, 20)], min_lr_ratio=0.1)
OTHER = PlateauCurve(200, plateaus=[(10, 20)], decay_shape="linear")
LONG = PlateauCurve(60, warmup_steps=4, plateaus=[(0, 60)], min_lr_ratio=0.1)
AFTER = PlateauCurve(20, warmup_steps=3, init_lr_ratio=0.5)
forms: Any = st.sampled_from((float, torch.tensor, lambda value: torch.tensor(value, dtype=torch.bfloat16)))


def _difference(old: Curve, new: Curve) -> str:
    """Return what the message shows of the first argument that differs."""
    before, now = old.to_dict(), new.to_dict()
    if before.keys() != now.keys():
        return "a {} of {} steps, now a {} of {} steps, and the".format(
            *(part for curve in (old, new) for part in (type(curve).__name__, curve.total_steps))
        )
    (name, *_) = (name for name in now if before[name] != now[name])
    return (
        f" {name}"
        if isinstance(now[name], dict | list)
        else f" {name}={before[name]!r}, now {now[name]!r}"[:150]
    )


@pytest.mark.parametrize("kind", ["scheduler", "follower"])
@examples(32)
@given(
    descriptions(range(3)),
    descriptions(range(3), depth=1),
    *(st.integers(0, most) for most in (30, 40, 5)),
    forms,
    st.booleans(),
)
def test_state_loads_if_the_past_is_the_same(
    kind: str,
    description: Description,
    other: Description,
    at: int,
    saved_at: int,
    loaded_at: int,
    form: Any,
    loads_optimizer: bool,
) -> None:
    """An error names the first step that differs, and `strict=False` loads the state all the same."""
    old = build(description)
    if old.total_steps > 2**30:
        old = old.cooldown(at, 20)
    saved = Driven(kind, [old, old], form=form)
    saved.advance(saved_at)
    optimizer_state, state = saved.saved()
    for new in (build(other), old.cooldown(at, 7), PlateauCurve(20).then(old), old.then(AFTER)):
        run = Driven(kind, [new, new], form=form)
        run.advance(loaded_at)
        if loads_optimizer:
            run.optimizer.load_state_dict(optimizer_state)
        strict = new.same_until(old, saved_at)
        if strict:
            assert old(list(range(saved_at))).tolist() == new(list(range(saved_at))).tolist()
        else:
            message = run.rejects(
                ValueError,
                f"cannot resume at step {saved_at}: ",
                lambda run=run: run.part.load_state_dict(state),
            )
            assert _difference(old, new) in message
            assert f"differ from step {new.first_difference(old)} on; resume with the old curve" in message
        run.part.load_state_dict(state, strict=strict)
        run.updates = saved_at
        run.check()
        run.by_file()  # the next state holds the new curve
        run.update()
        run.check()


@given(
    st.sampled_from((lambda pair: pair, copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair)))),
    st.integers(1, 150),
)
def test_trainer_loads_by_builders_strict(copied: Callable[[Any], Any], saved_at: int) -> None:
    state = through_file(lambda_lr(optimizer_with([0.1]), CURVE, saved_at - 1).state_dict())
    optimizer = optimizer_with([0.1])
    scheduler = lambda_lr(optimizer, OTHER, strict=False)
    advance(optimizer, scheduler)
    optimizer, scheduler = copied((optimizer, scheduler))
    scheduler.load_state_dict(state)  # as a trainer does
    assert scheduler.last_epoch == saved_at
    assert lrs_of(optimizer) == [learning_rate(0.1, OTHER, saved_at)]
    with pytest.raises(ValueError, match="cannot resume at step"):
        scheduler.load_state_dict(state, strict=True)
    saved, follower = (
        follow(optimizer_with([0.1], weight_decay=0.5), "weight_decay", curve, strict=curve is CURVE)
        for curve in (CURVE, OTHER)
    )
    for _ in range(saved_at):
        saved.step()
    follower.load_state_dict(saved.state_dict())
    assert follower.optimizer.param_groups[0]["weight_decay"] == learning_rate(0.5, OTHER, saved_at)


def test_state_is_small_and_shares_nothing() -> None:
    run, other = Driven("scheduler", CURVE), Driven("scheduler", CURVE)
    run.advance(2000)
    state = run.part.state_dict()
    file = io.BytesIO()
    torch.save(state, file)
    assert max(len(pickle.dumps(run.part)), file.tell()) < 10_000
    kept = copy.deepcopy(state)
    other.part.load_state_dict(state)
    other.updates = 2000
    assert other.part.state_dict() == kept
    other.advance(3)
    assert state == kept
    for entry in ("base_lrs", "curves", "rates", "_last_lr"):
        state[entry].clear()
    for each in (run, other):
        each.advance(1)
        each.check()


@pytest.mark.parametrize("form", [float, torch.tensor])
def test_print_shows_curve_clock_and_values(form: Any) -> None:
    optimizer = optimizer_with([form(0.5)], momentum=0.5)
    scheduler, follower = lambda_lr(optimizer, CURVE), follow(optimizer, "momentum", CURVE, unit=4)
    advance(optimizer, scheduler, 5)
    follower.step(count=20)
    assert str(scheduler) == f"CurveLR({CURVE}, clock=5, lr=0.25)"
    assert str(follower) == f"Follower({CURVE}, clock=5, unit=4, momentum=0.25)"
    several = lambda_lr(optimizer_with([0.5, 0.25]), [CURVE, OTHER])
    assert str(several) == f"CurveLR([{CURVE}, {OTHER}], clock=0, lr=[0.0, 0.25])"


# Training steps, with followers.

_BRANCHES: dict[str, Callable[[int], Curve]] = {
    "cooldown": lambda at: LONG.cooldown(at, 9),
    "cooldown to a level": lambda at: LONG.cooldown(max(at, 1), 15, to=0.05, shape="linear"),
    "from step 0": lambda at: LONG.cooldown(at, 9).then(AFTER),
    "a longer one": lambda at: LONG.then(AFTER, scale=0.5),
}


@pytest.mark.parametrize("name", ["adamw", "momentum", "plain adam"])
@pytest.mark.parametrize("branch", _BRANCHES.values(), ids=_BRANCHES)
@examples(4)
@given(at=st.integers(0, 20), more=st.integers(0, 5), skips=st.sets(st.integers(0, 29), max_size=9))
def test_training_step_resumes_under_branch(
    name: str, branch: Callable[[int], Curve], at: int, more: int, skips: set[int]
) -> None:
    updates = [nonfinite(batch) if number in skips else batch for number, batch in enumerate(batches(30))]
    saved_at = max(at - more, 0)  # updates, not all of which are applied
    curves = branch(at), LONG, branch(at)
    uninterrupted, first, second = (make_step(name, curve=curve) for curve in curves)
    results = train(uninterrupted, updates)
    train(first, updates[:saved_at])
    train(second, updates[:3])
    second.load_state_dict(through_file(first.state_dict()))
    assert equal_trees(train(second, updates[saved_at:]), results[saved_at:])
    end, expected = second.state_dict(), uninterrupted.state_dict()
    assert equal_trees(end, expected | {"random": end["random"]})


@pytest.mark.parametrize("strict", [True, False])
def test_training_step_may_jump_at_the_saved_step(strict: bool) -> None:
    """The learning rate is at once that of the new curve."""
    old, new = StagedCurve([(19,)], start=0.3), StagedCurve([(10,), (0, 0.5), (9,)], start=0.3)
    step, other, data = make_step(curve=old), make_step(curve=new), batches(11)
    train(step, data[:10])
    other.load_state_dict(step.state_dict(), strict=strict)
    assert other(data[10]).lr == np.float32(0.01) / 2


@pytest.mark.parametrize("name", [*FUSED, "rmsprop"])
def test_training_step_rejects_another_past(name: str) -> None:
    data, branch = batches(16), LONG.cooldown(6, 9)
    first, second = make_step(name, curve=LONG), make_step(name, curve=branch)
    train(first, data[:12])
    train(second, data[:3])
    state, before = first.state_dict(), second.state_dict()
    with pytest.raises(ValueError, match=r"differ from step 7 on.* strict=False"):
        second.load_state_dict(state)
    assert equal_trees(second.state_dict(), before)
    second.load_state_dict(state, strict=False)
    now = second.state_dict()
    assert equal_trees(now, state | {"curves": before["curves"], "optimizer": now["optimizer"]})
    peak = np.float32(second.optimizer.param_groups[0]["initial_lr"])
    for applied, batch in enumerate(data[12:], 12):
        result = second(batch)
        assert result.lr.tolist() == [float(peak * np.float32(branch(applied)))]
        assert result.applied == applied + 1


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("step_first", [True, False])
@examples(5)
@given(st.sets(st.integers(0, 19)))
def test_training_step_uses_followed_values(fused: bool, step_first: bool, skips: set[int]) -> None:
    """Each update uses the value that is in the group when the step is called, also after a resume."""

    def optimizer_of(model: Net) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.5, fused=fused)

    def start() -> list[Any]:
        model = Net()
        step = make_step(model=model, optimizer=optimizer_of(model), curve=LONG)
        keys: Any = ("weight_decay", ("betas", 0))
        return [step, *(follow(step.optimizer, key, CURVE) for key in keys)]

    by_hand = Net()
    reference = optimizer_of(by_hand)
    parts, applied = start(), 0
    for number, batch in enumerate(batches(20)):
        if number == 8:
            saved = through_file([part.state_dict() for part in parts])
            parts = start()
            for part, state in list(zip(parts, saved, strict=True))[:: 1 if step_first else -1]:
                part.load_state_dict(state)
        step, *followers = parts
        step(nonfinite(batch) if number in skips else batch)
        for follower in followers:
            follower.step()
        if number in skips:
            continue
        (group,) = reference.param_groups
        lr = learning_rate(0.01, LONG, applied)
        group["lr"] = torch.tensor(lr, dtype=torch.float32) if fused else lr
        group["weight_decay"] = 0.5 * CURVE(number)
        group["betas"] = (learning_rate(0.9, CURVE, number), 0.999)
        by_hand.zero_grad()
        mean_loss(by_hand, batch).backward()
        reference.step()
        applied += 1
    assert equal_trees(step.model.state_dict(), by_hand.state_dict())
