"""Settings other than the rate that follow a curve: their values, their company, and what is refused."""

import copy
import pickle
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.descriptions import build, descriptions
from support.oracle import Description
from support.runs import modest_peaks, optimizer_with, peaks, rates_of, through_a_file
from support.training import Net, batches, mean_loss, same, spoiled, step_of

from plateau_jax import Curve, PlateauCurve
from torch_bridge import follow, lambda_lr

CURVE = PlateauCurve(40, warmup_steps=4, plateaus=[(50, 20)], min_lr_ratio=0.25)
OTHER = PlateauCurve(60, decay="linear", min_lr_ratio=0.5)
Key = str | tuple[str, int]

_KEYS: list[tuple[Any, Key]] = [
    (torch.optim.AdamW, "weight_decay"),
    (torch.optim.AdamW, ("betas", 0)),
    (torch.optim.AdamW, ("betas", 1)),
    (torch.optim.SGD, "momentum"),
    (torch.optim.RMSprop, "alpha"),
]
every_key = pytest.mark.parametrize(("kind", "key"), _KEYS, ids=str)


def _value(group: dict[str, Any], key: Key) -> Any:
    return group[key] if isinstance(key, str) else group[key[0]][key[1]]


def _put(group: dict[str, Any], key: Key, value: Any) -> None:
    if isinstance(key, str):
        group[key] = value
    else:
        items = list(group[key[0]])
        items[key[1]] = value
        group[key[0]] = tuple(items)


def _optimizer(kind: Any, key: Key, values: list[Any]) -> torch.optim.Optimizer:
    optimizer = optimizer_with([0.1] * len(values), kind)
    for group, value in zip(optimizer.param_groups, values, strict=True):
        _put(group, key, value)
    return optimizer


def _values(optimizer: torch.optim.Optimizer, key: Key) -> list[float]:
    return [_value(group, key) for group in optimizer.param_groups]


def _wanted(curves: list[Curve], bases: list[float], step: int) -> list[float]:
    return [float(np.float32(base)) * curve(step) for base, curve in zip(bases, curves, strict=True)]


@every_key
@settings(max_examples=20)
@given(st.lists(st.tuples(descriptions(range(5)), peaks), min_size=1, max_size=3), st.integers(0, 30))
def test_values_are_exact_products(kind: Any, key: Key, cases: list[Any], steps: int) -> None:
    curves, bases = [build(description) for description, _ in cases], [base for _, base in cases]
    optimizer = _optimizer(kind, key, bases)
    before = [dict(group) for group in optimizer.param_groups]
    follower = follow(optimizer, key, curves)
    for step in range(steps):
        assert follower.last_epoch == step
        for value, base, curve in zip(_values(optimizer, key), bases, curves, strict=True):
            assert type(value) is float
            assert Fraction(value) == Fraction(float(np.float32(base))) * Fraction(curve(step))
        follower.step()
    for group, old in zip(optimizer.param_groups, before, strict=True):
        _put(group, key, _value(old, key))
        assert group == old, "nothing else has changed"


def test_a_long_run_over_every_window() -> None:
    curve = PlateauCurve(6000, warmup_steps=100, plateaus=[(20, 20)])
    optimizer = optimizer_with([0.1, 0.1], weight_decay=0.7)
    follower = follow(optimizer, "weight_decay", curve)
    for step in range(6500):
        assert _values(optimizer, "weight_decay") == [float(np.float32(0.7)) * curve(step)] * 2
        follower.step()


def test_several_on_one_optimizer_leave_each_other_alone() -> None:
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
            assert _values(optimizer, key) == _wanted([curve], [base], step)
        assert type(optimizer.param_groups[0]["betas"]) is tuple
        assert rates_of(optimizer) == _wanted([OTHER], [0.1], step)
        optimizer.step()
        for each in (scheduler, *followers):
            each.step()


def test_a_list_stays_a_list() -> None:
    optimizer = optimizer_with([0.1], torch.optim.Adam)
    optimizer.param_groups[0]["betas"] = [0.5, 0.9]
    follower = follow(optimizer, ("betas", 1), CURVE)
    follower.step()
    assert optimizer.param_groups[0]["betas"] == [0.5, float(np.float32(0.9)) * CURVE(1)]


@pytest.mark.parametrize("key", ["weight_decay", ("betas", 0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(modest_peaks, st.lists(st.sampled_from((CURVE, OTHER)), min_size=1, max_size=4))
def test_a_tensor_is_filled_and_shared_only_under_one_curve(
    key: Key, dtype: torch.dtype, base: float, curves: list[PlateauCurve]
) -> None:
    shared = torch.tensor(base, dtype=dtype)
    base = float(np.float32(shared.item()))
    optimizer = _optimizer(torch.optim.AdamW, key, [shared] * len(curves))
    follower = follow(optimizer, key, curves)
    held = _values(optimizer, key)
    for value, curve in zip(held, curves, strict=True):
        assert (value is shared) == (curve == curves[0])
    for step in range(10):
        wanted = torch.tensor(_wanted(curves, [base] * len(curves), step), dtype=dtype)
        assert same(torch.stack(_values(optimizer, key)), wanted)
        follower.step()
    assert all(map(lambda one, other: one is other, _values(optimizer, key), held))


def test_a_tensor_shared_in_the_checkpoint_parts_under_new_curves() -> None:
    saved, fresh = (_optimizer(torch.optim.AdamW, "weight_decay", [torch.tensor(0.5)] * 2) for _ in range(2))
    first = follow(saved, "weight_decay", CURVE)
    states = through_a_file([saved.state_dict(), first.state_dict()])
    follower = follow(fresh, "weight_decay", [CURVE, OTHER])
    fresh.load_state_dict(states[0])
    follower.load_state_dict(states[1])
    for step in range(5):
        assert _values(fresh, "weight_decay") == _wanted([CURVE, OTHER], [0.5, 0.5], step)
        follower.step()


class _Run:
    """An optimizer and the follower of one of its settings, saved and loaded in every way there is."""

    def __init__(self, key: Key, curves: list[Curve], bases: list[float], form: Any) -> None:
        self.fresh = lambda: _optimizer(torch.optim.AdamW, key, [form(base) for base in bases])
        self.key, self.curves = key, curves
        self.optimizer = self.fresh()
        self.follower = follow(self.optimizer, key, curves)

    def advance(self, steps: int) -> None:
        for _ in range(steps):
            self.follower.step()

    def _load(self, *order: str) -> None:
        saved = through_a_file([self.optimizer.state_dict(), self.follower.state_dict()])
        self.optimizer = self.fresh()
        for part in order:
            if part == "build":
                self.follower = follow(self.optimizer, self.key, self.curves)
            elif part == "optimizer":
                self.optimizer.load_state_dict(saved[0])
            else:
                self.follower.load_state_dict(saved[1])

    def by_optimizer_before_building(self) -> None:
        self._load("optimizer", "build", "follower")

    def by_optimizer_first(self) -> None:
        self._load("build", "optimizer", "follower")

    def by_optimizer_last(self) -> None:
        self._load("build", "follower", "optimizer")

    def by_itself_alone(self) -> None:
        self._load("build", "follower")

    def into_itself_later(self) -> None:
        saved = through_a_file([self.optimizer.state_dict(), self.follower.state_dict()])
        self.advance(5)
        self.optimizer.load_state_dict(saved[0])
        self.follower.load_state_dict(saved[1])

    def by_pickle(self) -> None:
        self.optimizer, self.follower = pickle.loads(pickle.dumps((self.optimizer, self.follower)))

    def by_deepcopy(self) -> None:
        self.optimizer, self.follower = copy.deepcopy((self.optimizer, self.follower))


_ROUTES = [name for name in vars(_Run) if name.startswith(("by_", "into_"))]


@pytest.mark.parametrize("key", ["weight_decay", ("betas", 1)])
@settings(max_examples=30)
@given(
    st.lists(st.tuples(descriptions(range(4)), modest_peaks), min_size=1, max_size=3),
    st.sampled_from((float, lambda base: torch.tensor(base, dtype=torch.float64))),
    st.lists(st.one_of(st.integers(1, 40), st.sampled_from((*_ROUTES, 3100))), max_size=6),
)
def test_any_walk_of_steps_and_resumptions(key: Key, cases: list[Any], form: Any, walk: list[Any]) -> None:
    curves, bases = [build(description) for description, _ in cases], [base for _, base in cases]
    run = _Run(key, curves, bases, form)
    step = 0
    for move in walk:
        if isinstance(move, int):
            run.advance(move)
            step += move
        else:
            getattr(run, move)()
        assert run.follower.last_epoch == step
        assert _values(run.optimizer, key) == _wanted(curves, bases, step)


@settings(max_examples=60)
@given(descriptions(range(3)), descriptions(range(3)), st.integers(0, 8), st.booleans())
def test_the_state_of_another_curve(
    description: Description, other: Description, steps: int, strict: bool
) -> None:
    old, new = build(description), build(other)
    saved = _optimizer(torch.optim.SGD, "momentum", [0.5])
    first = follow(saved, "momentum", old)
    for _ in range(steps):
        first.step()
    optimizer = _optimizer(torch.optim.SGD, "momentum", [0.75])
    follower = follow(optimizer, "momentum", new, strict=strict)
    follower.step()
    state = through_a_file(first.state_dict())
    if strict and not new.same_until(old, steps):
        before = _values(optimizer, "momentum"), follower.state_dict()
        with pytest.raises(ValueError, match=r"saved under .*, and here .* pass strict=False"):
            follower.load_state_dict(state)
        assert (_values(optimizer, "momentum"), follower.state_dict()) == before
        follower.load_state_dict(state, strict=False)
    else:
        follower.load_state_dict(state)
    assert follower.last_epoch == steps
    assert _values(optimizer, "momentum") == [0.5 * new(steps)]


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(
    "change",
    [
        {"last_epoch": -1},
        {"last_epoch": 1.5},
        {"last_epoch": None},
        {"key": "momentum"},
        {"key": ["weight_decay", 0]},
        {"key": None},
        {"base_values": None},
        {"base_values": [0.5]},
        {"base_values": [0.5, None]},
        {"base_values": [0.5, -0.5]},
    ],
    ids=str,
)
def test_what_is_no_state_is_refused(change: dict[str, Any], strict: bool) -> None:
    optimizer = optimizer_with([0.1, 0.1], weight_decay=0.5)
    follower = follow(optimizer, "weight_decay", CURVE)
    state = follower.state_dict() | change
    follower.step()
    before = str(optimizer.param_groups), follower.state_dict()
    with pytest.raises(ValueError, match=r"state_dict|base_values|last_epoch"):
        follower.load_state_dict(state, strict)
    assert (str(optimizer.param_groups), follower.state_dict()) == before


@pytest.mark.parametrize(
    "state", [None, {}, [], "state", lambda_lr(optimizer_with([0.1]), CURVE).state_dict()]
)
def test_what_is_no_state_at_all(state: Any) -> None:
    with pytest.raises(ValueError, match="not the state of a follower"):
        follow(optimizer_with([0.1]), "momentum", CURVE).load_state_dict(state)


@pytest.mark.parametrize("curves", [None, 5, [], [{}], [CURVE.to_dict()] * 2], ids=str)
def test_curves_in_a_state_that_are_none(curves: Any) -> None:
    follower = follow(optimizer_with([0.1]), "momentum", CURVE)
    state = follower.state_dict() | {"curves": curves}
    with pytest.raises(ValueError):  # noqa: PT011 - each names something else
        follower.load_state_dict(state)
    follower.load_state_dict(state, strict=False)


@pytest.mark.parametrize(
    ("key", "error", "message"),
    [
        ("decay", ValueError, r"param_groups\[0\] has no decay"),
        (("betas", 2), ValueError, r"has no betas\[2\]"),
        (("weight_decay", 0), ValueError, r"has no weight_decay\[0\]"),
        (("betas", -1), TypeError, "must be a key"),
        (("betas", "0"), TypeError, "must be a key"),
        (("betas",), TypeError, "must be a key"),
        ((0, "betas"), TypeError, "must be a key"),
        (None, TypeError, "must be a key"),
        (3, TypeError, "must be a key"),
        ("lr", ValueError, "lambda_lr"),
        ("initial_lr", ValueError, "lambda_lr"),
        ("betas", TypeError, "must be a number"),
        ("params", TypeError, "must be a number"),
        ("amsgrad", TypeError, "must be a number"),
        ("foreach", TypeError, "must be a number"),
    ],
    ids=str,
)
def test_a_key_that_is_refused(key: Any, error: type[Exception], message: str) -> None:
    optimizer = optimizer_with([0.1], torch.optim.AdamW)
    before = str(optimizer.param_groups)
    with pytest.raises(error, match=message):
        follow(optimizer, key, CURVE)
    assert str(optimizer.param_groups) == before


@pytest.mark.parametrize(
    "value", [-0.1, float("nan"), float("inf"), 1e-40, "0.1", None, True, torch.tensor(3)]
)
def test_a_value_that_is_refused(value: Any) -> None:
    optimizer = optimizer_with([0.1, 0.1])
    optimizer.param_groups[1]["momentum"] = value
    before = str(optimizer.param_groups)
    with pytest.raises((TypeError, ValueError), match=r"momentum of param_groups\[1\]"):
        follow(optimizer, "momentum", CURVE)
    assert str(optimizer.param_groups) == before


@pytest.mark.parametrize("curve", [None, 0.5, [CURVE], [CURVE, None]])
def test_a_curve_that_is_refused(curve: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="curve"):
        follow(optimizer_with([0.1, 0.1]), "momentum", curve)
    with pytest.raises(TypeError, match=r"must be a torch\.optim\.Optimizer"):
        follow(torch.nn.Linear(1, 1), "momentum", curve)  # type: ignore[arg-type]  # what is refused


def test_a_group_that_came_later_is_refused() -> None:
    optimizer = optimizer_with([0.1], momentum=0.5)
    follower = follow(optimizer, "momentum", CURVE)
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})
    before = str(optimizer.param_groups), follower.state_dict()
    state: Any = follower.state_dict() | {"base_values": [0.25]}
    for call in (follower.step, lambda: follower.load_state_dict(state)):
        with pytest.raises(ValueError, match="2 parameter groups; it had 1 when momentum got its curve"):
            call()
    assert (str(optimizer.param_groups), follower.state_dict()) == before


@pytest.mark.parametrize("fused", [True, False])
@settings(max_examples=5)
@given(st.sets(st.integers(0, 39)))
def test_beside_a_training_step(fused: bool, skips: set[int]) -> None:
    """Each update uses the value that is in the group when it is called."""

    def optimizer_of(model: Net) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.5, fused=fused)

    model, by_hand = Net(), Net()
    optimizer, reference = optimizer_of(model), optimizer_of(by_hand)
    step = step_of(model=model, optimizer=optimizer, curve=OTHER)
    followers = [follow(optimizer, "weight_decay", CURVE), follow(optimizer, ("betas", 0), OTHER)]
    applied = 0
    for number, batch in enumerate(batches(40)):
        skipped = number in skips
        step(spoiled(batch) if skipped else batch)
        for follower in followers:
            follower.step()
        if skipped:
            continue
        (group,) = reference.param_groups
        rate = float(np.float32(0.01)) * OTHER(applied)
        group["lr"] = torch.tensor(rate, dtype=torch.float32) if fused else rate
        group["weight_decay"] = 0.5 * CURVE(number)
        group["betas"] = (float(np.float32(0.9)) * OTHER(number), 0.999)
        by_hand.zero_grad()
        mean_loss(by_hand, batch).backward()
        reference.step()
        applied += 1
    assert same(model.state_dict(), by_hand.state_dict())


@pytest.mark.parametrize("order", ["step first", "follower first"])
def test_resumed_beside_a_training_step(order: str) -> None:
    def build() -> tuple[Any, Any]:
        step = step_of("adamw")
        return step, follow(step.optimizer, "weight_decay", CURVE)

    data = batches(20)
    step, follower = build()
    results = []
    for number, batch in enumerate(data):
        if number == 8:
            saved = through_a_file([step.state_dict(), follower.state_dict()])
        results.append(step(batch))
        follower.step()
    again = build()
    pairs = list(zip(again, saved, strict=True))
    for part, state in pairs if order == "step first" else pairs[::-1]:
        part.load_state_dict(state)
    for batch, expected in zip(data[8:], results[8:], strict=True):
        assert same(again[0](batch), expected)
        again[1].step()
    assert same(again[0].state_dict(), step.state_dict())
