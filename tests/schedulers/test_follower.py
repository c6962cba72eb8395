"""Followers: values of options under a curve, states, rejections."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from support.curves.descriptions import build, descriptions
from support.examples import examples
from support.schedulers.runs import learning_rate, lrs_of, modest_peaks, optimizer_with, peaks
from support.training.models import Net, batches, mean_loss, nonfinite
from support.training.steps import make_step
from support.training.trees import equal_trees, through_file

from plateau_jax import Curve, PlateauCurve
from torch_bridge import follow, lambda_lr

Key = str | tuple[str, int]
CURVE = PlateauCurve(40, warmup_steps=4, plateaus=[(50, 20)], min_lr_ratio=0.25)
OTHER = PlateauCurve(60, decay_shape="linear", min_lr_ratio=0.5)
_KEYS: list[tuple[Any, Key]] = [
    (torch.optim.AdamW, "weight_decay"),
    (torch.optim.AdamW, ("betas", 0)),
    (torch.optim.AdamW, ("betas", 1)),
    (torch.optim.SGD, "momentum"),
    (torch.optim.RMSprop, "alpha"),
]
every_key = pytest.mark.parametrize(("kind", "key"), _KEYS, ids=str)


def value(group: dict[str, Any], key: Key) -> Any:
    return group[key] if isinstance(key, str) else group[key[0]][key[1]]


def put(group: dict[str, Any], key: Key, value: Any) -> None:
    if isinstance(key, str):
        group[key] = value
    else:
        items = list(group[key[0]])
        items[key[1]] = value
        group[key[0]] = tuple(items)


def optimizer_of(kind: Any, key: Key, values: Sequence[Any]) -> torch.optim.Optimizer:
    optimizer = optimizer_with([0.1] * len(values), kind)
    for group, value in zip(optimizer.param_groups, values, strict=True):
        put(group, key, value)
    return optimizer


def values_of(optimizer: torch.optim.Optimizer, key: Key) -> list[float]:
    return [value(group, key) for group in optimizer.param_groups]


def expected_values(curves: Sequence[Curve], bases: Sequence[float], step: int) -> list[float]:
    return [learning_rate(base, curve, step) for base, curve in zip(bases, curves, strict=True)]


@every_key
@examples(20)
@given(st.lists(st.tuples(descriptions(range(5)), peaks), min_size=1, max_size=3), st.integers(0, 30))
def test_values_are_rounded_products(kind: Any, key: Key, cases: list[Any], steps: int) -> None:
    curves, bases = [build(description) for description, _ in cases], [base for _, base in cases]
    optimizer = optimizer_of(kind, key, bases)
    before = [dict(group) for group in optimizer.param_groups]
    follower = follow(optimizer, key, curves)
    for step in range(steps):
        assert follower.last_epoch == step
        for number, base, curve in zip(values_of(optimizer, key), bases, curves, strict=True):
            assert type(number) is float
            assert number == learning_rate(base, curve, step)
        follower.step()
    for group, old in zip(optimizer.param_groups, before, strict=True):
        put(group, key, value(old, key))
        assert group == old, "nothing else changed"


def test_followers_of_one_optimizer_are_independent() -> None:
    optimizer = optimizer_with([0.1], torch.optim.AdamW, weight_decay=0.5, betas=(0.9, 0.99))
    scheduler = lambda_lr(optimizer, OTHER)
    keys: dict[Key, tuple[float, PlateauCurve]] = {
        "weight_decay": (0.5, CURVE),
        ("betas", 0): (0.9, OTHER),
        ("betas", 1): (0.99, CURVE),
    }
    followers = [follow(optimizer, key, curve) for key, (_, curve) in keys.items()]
    for step in range(30):
        for key, (base, curve) in keys.items():
            assert values_of(optimizer, key) == expected_values([curve], [base], step)
        assert type(optimizer.param_groups[0]["betas"]) is tuple
        assert lrs_of(optimizer) == expected_values([OTHER], [0.1], step)
        optimizer.step()
        for part in (scheduler, *followers):
            part.step()


def test_list_option_stays_a_list() -> None:
    optimizer = optimizer_with([0.1], torch.optim.Adam)
    optimizer.param_groups[0]["betas"] = [0.5, 0.9]
    follower = follow(optimizer, ("betas", 1), CURVE)
    follower.step()
    assert optimizer.param_groups[0]["betas"] == [0.5, learning_rate(0.9, CURVE, 1)]


@pytest.mark.parametrize("key", ["weight_decay", ("betas", 0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(modest_peaks, st.lists(st.sampled_from((CURVE, OTHER)), min_size=1, max_size=4))
def test_tensor_is_filled_and_shared_by_curve(
    key: Key, dtype: torch.dtype, base: float, curves: list[PlateauCurve]
) -> None:
    shared = torch.tensor(base, dtype=dtype)
    base = float(np.float32(shared.item()))
    optimizer = optimizer_of(torch.optim.AdamW, key, [shared] * len(curves))
    follower = follow(optimizer, key, curves)
    held = values_of(optimizer, key)
    for one, curve in zip(held, curves, strict=True):
        assert (one is shared) == (curve == curves[0])
    for step in range(10):
        exact = torch.tensor(expected_values(curves, [base] * len(curves), step), dtype=dtype)
        assert equal_trees(torch.stack(values_of(optimizer, key)), exact)
        follower.step()
    assert all(map(lambda one, other: one is other, values_of(optimizer, key), held))


@pytest.mark.parametrize("fused", [True, False])
@examples(5)
@given(st.sets(st.integers(0, 39)))
def test_training_step_uses_followed_values(fused: bool, skips: set[int]) -> None:
    """Each update uses the value that is in the group when the step is called."""

    def optimizer_of(model: Net) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.5, fused=fused)

    model, by_hand = Net(), Net()
    optimizer, reference = optimizer_of(model), optimizer_of(by_hand)
    step = make_step(model=model, optimizer=optimizer, curve=OTHER)
    followers = [follow(optimizer, "weight_decay", CURVE), follow(optimizer, ("betas", 0), OTHER)]
    applied = 0
    for number, batch in enumerate(batches(40)):
        skipped = number in skips
        step(nonfinite(batch) if skipped else batch)
        for follower in followers:
            follower.step()
        if skipped:
            continue
        (group,) = reference.param_groups
        lr = learning_rate(0.01, OTHER, applied)
        group["lr"] = torch.tensor(lr, dtype=torch.float32) if fused else lr
        group["weight_decay"] = 0.5 * CURVE(number)
        group["betas"] = (learning_rate(0.9, OTHER, number), 0.999)
        by_hand.zero_grad()
        mean_loss(by_hand, batch).backward()
        reference.step()
        applied += 1
    assert equal_trees(model.state_dict(), by_hand.state_dict())


@pytest.mark.parametrize("order", ["step first", "follower first"])
def test_resume_with_training_step_matches(order: str) -> None:
    def build() -> tuple[Any, Any]:
        step = make_step("adamw")
        return step, follow(step.optimizer, "weight_decay", CURVE)

    data = batches(20)
    step, follower = build()
    results = []
    for number, batch in enumerate(data):
        if number == 8:
            saved = through_file([step.state_dict(), follower.state_dict()])
        results.append(step(batch))
        follower.step()
    again = build()
    pairs = list(zip(again, saved, strict=True))
    for part, state in pairs if order == "step first" else pairs[::-1]:
        part.load_state_dict(state)
    for batch, expected in zip(data[8:], results[8:], strict=True):
        assert equal_trees(again[0](batch), expected)
        again[1].step()
    assert equal_trees(again[0].state_dict(), step.state_dict())
