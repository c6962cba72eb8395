"""The state of a follower: resumed in every way there is, and what is refused."""

import copy
import pickle
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from support.descriptions import build, descriptions
from support.examples import examples
from support.followed import Key, optimizer_of, values_of, wanted
from support.oracle import Description
from support.runs import modest_peaks, optimizer_with, through_a_file
from support.strategies import SMALLEST_NORMAL
from support.training import batches, same, step_of

from plateau_jax import Curve, PlateauCurve
from torch_bridge import follow, lambda_lr

CURVE = PlateauCurve(40, warmup_steps=4, plateaus=[(50, 20)], min_lr_ratio=0.25)


OTHER = PlateauCurve(60, decay_shape="linear", min_lr_ratio=0.5)


class _Run:
    """An optimizer and the follower of one of its settings, saved and loaded in every way there is."""

    def __init__(self, key: Key, curves: list[Curve], bases: list[float], form: Any) -> None:
        self.fresh = lambda: optimizer_of(torch.optim.AdamW, key, [form(base) for base in bases])
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
@examples(30)
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
            # A new follower refuses a smaller value as its base.
            assume(all(value == 0 or value >= SMALLEST_NORMAL for value in wanted(curves, bases, step)))
            getattr(run, move)()
        assert run.follower.last_epoch == step
        assert values_of(run.optimizer, key) == wanted(curves, bases, step)


@examples(60)
@given(descriptions(range(3)), descriptions(range(3)), st.integers(0, 8), st.booleans())
def test_the_state_of_another_curve(
    description: Description, other: Description, steps: int, strict: bool
) -> None:
    old, new = build(description), build(other)
    saved = optimizer_of(torch.optim.SGD, "momentum", [0.5])
    first = follow(saved, "momentum", old)
    for _ in range(steps):
        first.step()
    optimizer = optimizer_of(torch.optim.SGD, "momentum", [0.75])
    follower = follow(optimizer, "momentum", new, strict=strict)
    follower.step()
    state = through_a_file(first.state_dict())
    if strict and not new.same_until(old, steps):
        before = values_of(optimizer, "momentum"), follower.state_dict()
        with pytest.raises(ValueError, match=r"saved under .*, but .* pass strict=False"):
            follower.load_state_dict(state)
        assert (values_of(optimizer, "momentum"), follower.state_dict()) == before
        follower.load_state_dict(state, strict=False)
    else:
        follower.load_state_dict(state)
    assert follower.last_epoch == steps
    assert values_of(optimizer, "momentum") == [0.5 * new(steps)]


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


@pytest.mark.parametrize("state", [None, {}, [], 5, lambda_lr(optimizer_with([0.1]), CURVE).state_dict()])
def test_what_is_no_state_at_all(state: Any) -> None:
    with pytest.raises(ValueError, match="not the state of a follower"):
        follow(optimizer_with([0.1]), "momentum", CURVE).load_state_dict(state)


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
