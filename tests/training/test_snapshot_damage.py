"""Damaged states: each is a ValueError that changes nothing, or one that an update can go on from."""

import copy
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples
from support.training import OPTIMIZERS, Net, batches, mean_loss, same, spoiled, step_of, train
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

Path = tuple[Any, ...]

_OTHERS: list[Any] = [
    None,
    True,
    0,
    5,
    -1,
    2**70,
    10**400,
    0.5,
    float("nan"),
    float("inf"),
    "x",
    b"x",
    (),
    [],
    {},
    {0: 1},
    object,
    torch.zeros(()),
    torch.tensor(float("nan")),
    torch.tensor(-1.0),
    torch.tensor(3),
    torch.zeros(3),
    torch.zeros(8, 3, device="meta"),
    torch.ones(2, requires_grad=True) * 2,
]
_CHANGES: list[Callable[[Any], Any]] = [
    lambda value: value.to("meta"),
    lambda value: value.double(),
    lambda value: value.long(),
    lambda value: value.flatten(),
    lambda value: value.transpose(0, 1),
    lambda value: value[:1],
    lambda value: value * float("nan"),
    lambda value: -1 - value,
    lambda value: value.to_sparse(),
    lambda value: value.to(torch.complex64),
    lambda value: [value],
    lambda value: dict(enumerate(value)),
    lambda value: list(value),
    lambda value: tuple(value),
    lambda value: value[::-1],
    lambda value: {**value, "more": 1},
    lambda value: {**value, 99: {}},
    lambda value: {**value, "more": torch.ones(2, requires_grad=True) * 2},
    lambda value: dict(list(value.items())[1:]),
    lambda value: dict(zip(value, list(value.values())[::-1], strict=True)),
    lambda value: [*value, value[0]],
]


def _paths(tree: Any, path: Path = ()) -> Iterator[Path]:
    yield path
    if isinstance(tree, dict | list | tuple):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from _paths(value, (*path, key))


def _at(tree: Any, path: Path) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def _replaced(tree: Any, path: Path, value: Any) -> Any:
    if not path:
        return value
    first, rest = path[0], path[1:]
    changed = dict(tree) if isinstance(tree, dict) else list(tree)
    changed[first] = _replaced(tree[first], rest, value)
    return tuple(changed) if isinstance(tree, tuple) else changed


def _damaged(data: st.DataObject, state: Any) -> Any:
    path = data.draw(st.sampled_from(list(_paths(state))))
    change = data.draw(st.sampled_from(_CHANGES + [lambda _, other=other: other for other in _OTHERS]))
    try:
        return _replaced(state, path, change(_at(state, path)))
    except (AttributeError, LookupError, TypeError, ValueError, RuntimeError):
        return state  # it does not apply here


@cache
def _sound(name: str, precision: str) -> Any:
    """The state of another step after three updates."""
    other = step_of(name, Net(seed=1), precision=precision)
    train(other, batches(1) * 3)
    return other.state_dict()


@pytest.mark.parametrize("key", _sound("sgd", "fp16"))
def test_each_entry_is_refused_or_usable(key: str) -> None:
    sound = _sound("sgd", "fp16")
    for change in [*_CHANGES, *(lambda _, other=other: other for other in _OTHERS)]:
        step = step_of("sgd", Net(), precision="fp16")
        try:
            state = {**sound, key: change(copy.deepcopy(sound[key]))}
        except (AttributeError, LookupError, TypeError, ValueError, RuntimeError):
            continue  # it does not apply here
        before = step.state_dict()
        try:
            step.load_state_dict(state)
        except ValueError:
            assert same(step.state_dict(), before)
        step(*batches(1))
        step.state_dict()


@pytest.mark.parametrize("name", OPTIMIZERS)
@examples(25)
@given(data=st.data())
def test_refused_or_usable(name: str, data: st.DataObject) -> None:
    precision = data.draw(st.sampled_from(("fp32", "fp16")))
    step = step_of(name, Net(), precision=precision)
    (batch,) = batches(1)
    train(step, [batch, batch])
    state = _damaged(data, copy.deepcopy(_sound(name, precision)))
    before = step.state_dict()
    try:
        step.load_state_dict(state)
    except ValueError:
        assert same(step.state_dict(), before)
    step(batch)
    train(step, [spoiled(batch), batch])
    step.state_dict()


class _Stretched(nn.Module):
    """Two parameters of one shape and one of another."""

    def __init__(self, order: tuple[str, ...]) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 2), nn.Linear(3, 2)
        self.order = order

    def forward(self, inputs: Tensor) -> Tensor:
        return self.first(inputs) + self.second(inputs)

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        named = dict(self.named_parameters())
        return iter([named[name] for name in self.order])


@pytest.mark.parametrize("name", ["adamw", "momentum", "plain adam", "rmsprop"])
def test_the_same_parameters_in_another_order(name: str) -> None:
    names = ("first.weight", "first.bias", "second.weight", "second.bias")
    step, other = (step_of(name, _Stretched(order)) for order in (names, names[::-1]))
    (batch,) = batches(1)
    train(step, [batch] * 2)
    train(other, [batch] * 3)
    before = step.state_dict()
    with pytest.raises(ValueError, match="does not fit parameter 0"):
        step.load_state_dict(other.state_dict())
    assert same(step.state_dict(), before)


def _moment(value: Tensor) -> Callable[[Any], None]:
    return lambda state: state["state"][1].update(exp_avg=value)


def _setting(**settings: Any) -> Callable[[Any], None]:
    return lambda state: state["param_groups"][0].update(settings)


@pytest.mark.parametrize(
    "damage",
    [
        _moment(torch.zeros(7)),
        _moment(torch.zeros(8, dtype=torch.float64)),
        _moment(torch.zeros(8, device="meta")),
        _moment(torch.zeros(8).to_sparse()),
        lambda state: state["state"].update({0: 5}),
        lambda state: state["state"].update({9: state["state"][0]}),
        lambda state: state["state"][2].pop("exp_avg_sq"),
        lambda state: state["state"][2].update(step=torch.tensor(-1.0)),
        lambda state: state["state"][2].update(step=torch.tensor(float("nan"))),
        lambda state: state["state"][2].update(other=[1]),
        lambda state: state["param_groups"][0].pop("betas"),
        lambda state: state["param_groups"][0]["params"].reverse(),
        _setting(initial_lr="x"),
        _setting(initial_lr=float("nan")),
        _setting(initial_lr=-1.0),
        _setting(betas=(2.0, 0.9)),
        _setting(betas=(0.9,)),
        _setting(weight_decay="x"),
        _setting(unknown=1),
    ],
)
@pytest.mark.parametrize("name", ["adamw", "plain adam"])
def test_damage_to_an_optimizers_state(name: str, damage: Callable[[Any], Any]) -> None:
    step, other = step_of(name), step_of(name, Net(seed=1))
    (batch,) = batches(1)
    train(step, [batch] * 2)
    train(other, [batch] * 3)
    state, before = other.state_dict(), step.state_dict()
    damage(state["optimizer"])
    with pytest.raises(ValueError, match=r"state_dict|initial_lr|Invalid beta"):
        step.load_state_dict(state)
    assert same(step.state_dict(), before)
    step(batch)


def _with_carry(model: nn.Module, batch: Any, carry: Any) -> Any:
    return mean_loss(model, batch), [carry[0] + 1]


@pytest.mark.parametrize("key", ["carry", "loss_scale"])
def test_a_dictionary_of_numbers_is_no_list(key: str) -> None:
    step = step_of(loss_fn=_with_carry, carry=[torch.zeros(3)], precision="fp16")
    before = step.state_dict()
    with pytest.raises(ValueError, match=key):
        step.load_state_dict(before | {key: dict(enumerate(before[key]))})
    assert same(step.state_dict(), before)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("inf"), float("nan")])
def test_a_loss_scale_that_no_update_could_take_place_with(scale: float) -> None:
    step = step_of(precision="fp16")
    before = step.state_dict()
    with pytest.raises(ValueError, match="loss_scale"):
        step.load_state_dict(before | {"loss_scale": [torch.tensor(scale), before["loss_scale"][1]]})
    assert same(step.state_dict(), before)


class _Extra(nn.Linear):
    def get_extra_state(self) -> Any:
        return {"kept": 1}

    def set_extra_state(self, state: Any) -> None:
        assert state["kept"] == 1


def test_an_extra_state_that_is_missing_or_unknown() -> None:
    with_it, without = step_of(model=_Extra(3, 2)), step_of(model=nn.Linear(3, 2))
    for step, other in ((with_it, without), (without, with_it)):
        before = step.state_dict()
        with pytest.raises(ValueError, match="another model"):
            step.load_state_dict(before | {"model": other.state_dict()["model"]})
        assert same(step.state_dict(), before)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_load_draws_no_random_numbers_and_calls_no_hooks(name: str) -> None:
    step, called = step_of(name), []
    step(*batches(1))
    state = step.state_dict()
    torch.manual_seed(5)
    state["random"] = {"cpu": torch.get_rng_state()}
    hooks = [
        register(lambda optimizer, *_: called.append(optimizer))
        for register in (register_optimizer_step_pre_hook, register_optimizer_step_post_hook)
    ]
    try:
        step.load_state_dict(state)
    finally:
        for hook in hooks:
            hook.remove()
    assert not called
    assert same(torch.get_rng_state(), state["random"]["cpu"])
    with pytest.raises(ValueError, match="applied"):
        step.load_state_dict(state | {"applied": -1})
    assert same(torch.get_rng_state(), state["random"]["cpu"])
