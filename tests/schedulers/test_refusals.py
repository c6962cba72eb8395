"""Wrong arguments: each is rejected with an error that names it, and the optimizer is left as it was."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from support.curves.scaled import OF_UNIT_8, WRONG_UNIT, WRONG_UNITS
from support.holds.held import CURVE, PATIENT
from support.schedulers.runs import optimizer_with
from torch.optim import AdamW, Optimizer
from torch.utils.data import DataLoader, IterableDataset

from plateau_jax import HoldBelow, PlateauCurve
from torch_bridge import count_updates, follow, get_cosine_plateau_schedule_with_warmup, lambda_lr

NAN = float("nan")


class _Endless(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(int, 1)


class _NoLength:
    def __len__(self) -> int:
        raise NotImplementedError


def _cosine(optimizer: Optimizer, **options: Any) -> Any:
    return get_cosine_plateau_schedule_with_warmup(optimizer, 1, 10, **options)


def _decay(optimizer: Optimizer, **options: Any) -> Any:
    return follow(optimizer, "weight_decay", CURVE, **options)


def _scheduler(optimizer: Optimizer, **options: Any) -> Any:
    return lambda_lr(optimizer, CURVE, **options)


_UNIT = r"unit = .* must lie in 1"
_FOLLOW = partial(follow, curve=CURVE)
_COSINE = partial(get_cosine_plateau_schedule_with_warmup, num_warmup_steps=1, num_training_steps=10)
_HELD = partial(lambda_lr, hold=PATIENT)
_KEY = "must be a key of the parameter groups"
_GIVE_ONE = "^hold= cannot be combined with unit= or count=$"

# What is built over two groups, with which argument; its wrong values; the error, and what its message names.
_WRONG_OPTIONS: list[tuple[Callable[..., Any], str, list[Any], type[Exception], str]] = [
    (
        lambda_lr, "curve", [None, 3, "curve", CURVE.to_dict(), [CURVE, None], iter([CURVE, CURVE])],
        TypeError, r"curve = .* must be a Curve, such as PlateauCurve\(",
    ),
    (_scheduler, "last_epoch", [1.0, True, None, "3", np.float32(2)], TypeError, "last_epoch = .* integer"),
    (_scheduler, "last_epoch", [-2, -(2**80)], ValueError, "last_epoch = -.* must be at least -1"),
    (_scheduler, "hold", [[PATIENT, "wait"]], TypeError, "must be a HoldUntilFlat, a HoldBelow"),
    (_scheduler, "hold", [3, True], TypeError, "hold = (3|True) must be"),
    (_scheduler, "hold", [[]], ValueError, "no rule"),
    (_HELD, "curve", [[CURVE, PlateauCurve(30)]], ValueError, "the same curve"),
    (_HELD, "curve", [PlateauCurve(30)], ValueError, "needs a flat part to hold at"),
    (partial(_scheduler, unit=8), "hold", [HoldBelow(0.5, 3)], ValueError, _GIVE_ONE),
    (partial(_scheduler, count=len), "hold", [HoldBelow(0.5, 3)], ValueError, _GIVE_ONE),
    (partial(_scheduler, unit=8), "last_epoch", [0, 7], ValueError, "last_epoch = . with unit = 8.*load"),
    *(
        row
        for build in (_scheduler, _decay)
        for row in (
            (build, "unit", [0, -8, 2**62 + 1], ValueError, _UNIT),
            (build, "unit", [True, 8.0, "8"], TypeError, "unit = .* must be an integer"),
            (build, "count", [3], TypeError, "count = 3 must be a function without arguments"),
            (build, "count", [lambda: 3], TypeError, "needs unit="),
            (partial(build, unit=8), "count", [3], TypeError, "count = 3 must be a function"),
        )
    ),
    *(
        (partial(build, curve=curve), "unit", WRONG_UNITS, ValueError, WRONG_UNIT)
        for build in (lambda_lr, partial(follow, key="weight_decay"))
        for curve in (*OF_UNIT_8, [CURVE, OF_UNIT_8[0]])
    ),
    (_FOLLOW, "key", ["decay"], ValueError, r"param_groups\[0\] has no decay"),
    (_FOLLOW, "key", [("betas", 2)], ValueError, r"has no betas\[2\]"),
    (_FOLLOW, "key", [("weight_decay", 0)], ValueError, r"has no weight_decay\[0\]"),
    (
        _FOLLOW, "key", [("betas", -1), ("betas", "0"), ("betas",), (0, "betas"), None, 3],
        TypeError, _KEY,
    ),
    (_FOLLOW, "key", ["lr", "initial_lr"], ValueError, "lambda_lr"),
    (
        _FOLLOW, "key", ["betas", "params", "amsgrad", "foreach"],
        TypeError, "must be a number",
    ),
    (_COSINE, "num_warmup_steps", [10], ValueError, "^num_warmup_steps = 10 .* num_training_steps - 1 = 9"),
    (_COSINE, "num_warmup_steps", [0.5], TypeError, "percentage of num_training_steps such as"),
    (_COSINE, "num_training_steps", [0], ValueError, "^num_training_steps = 0 must lie in 1"),
    (_COSINE, "plateaus", [[(40, 90)]], ValueError, "must end by num_training_steps = 10"),
    (partial(_cosine, min_lr_ratio=0.1), "min_lr", [0.0, 0.05], ValueError, "min_lr_ratio = 0.1 and min_lr"),
    (partial(_cosine, min_lr_ratio=1.0), "min_lr", [0.0, 0.05], ValueError, "min_lr_ratio = 1.0 and min_lr"),
]  # fmt: skip
_LENGTH = r"^loader = .* has no length: give the number of batches"
_COUNT = partial(count_updates, 10, 2)

# A value that the second group has, under which key; the error.
_WRONG_VALUES: list[tuple[str, list[Any], type[Exception], str]] = [
    ("lr", [None, "0.1", True, 1j, [0.1]], TypeError, r"param_groups\[1\] = .* must be a number"),
    ("lr", [torch.tensor(1)], TypeError, r"rate of param_groups\[1\] .* floating-point tensor"),
    ("weight_decay", [-0.1, NAN, float("inf"), 1e-40], ValueError, r"weight_decay of param_groups\[1\]"),
    ("weight_decay", ["0.1", None, True, torch.tensor(3)], TypeError, r"weight_decay of param_groups\[1\]"),
]


def _rows(table: list[Any]) -> list[Any]:
    """Return a row for each of the wrong values, which are the third entry from the end."""
    return [(*row[:-3], value, *row[-2:]) for row in table for value in row[-3]]


def _rejects_and_changes_nothing(
    optimizer: Optimizer, build: Callable[[Optimizer], Any], error: type[Exception], message: str
) -> None:
    before = str(optimizer.param_groups)
    with pytest.raises(error, match=message) as caught:
        build(optimizer)
    assert type(caught.value) is error
    assert str(optimizer.param_groups) == before


@pytest.mark.parametrize(("build", "name", "value", "error", "message"), _rows(_WRONG_OPTIONS))
def test_wrong_argument_changes_nothing(
    build: Callable[..., Any], name: str, value: Any, error: type[Exception], message: str
) -> None:
    optimizer = optimizer_with([0.1, 0.1], AdamW)
    _rejects_and_changes_nothing(optimizer, partial(build, **{name: value}), error, message)


@pytest.mark.parametrize(("key", "value", "error", "message"), _rows(_WRONG_VALUES))
def test_wrong_value_in_a_group_changes_nothing(
    key: str, value: Any, error: type[Exception], message: str
) -> None:
    optimizer = optimizer_with([0.1, 0.1], AdamW)
    optimizer.param_groups[1][key] = value
    build = _scheduler if key == "lr" else _decay
    _rejects_and_changes_nothing(optimizer, build, error, message)


@pytest.mark.parametrize("optimizer", [None, torch.nn.Linear(1, 1), []])
@pytest.mark.parametrize("build", [_scheduler, _decay, _cosine])
def test_wrong_optimizer_is_rejected(build: Callable[..., Any], optimizer: Any) -> None:
    with pytest.raises(TypeError, match=r"optimizer = .* must be a torch\.optim\.Optimizer"):
        build(optimizer)


@given(st.integers(1, 4), st.integers(0, 6))
def test_wrong_number_of_curves_is_rejected(groups: int, curves: int) -> None:
    optimizer = optimizer_with([0.1] * groups)
    if curves == groups:
        assert len(lambda_lr(optimizer, [CURVE] * curves).lr_lambdas) == groups
        return
    with pytest.raises(ValueError, match=f"{curves} curves.* {groups} parameter groups"):
        lambda_lr(optimizer, (CURVE,) * curves)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        *(
            (partial(count_updates, loader, 1), TypeError, _LENGTH)
            for loader in (DataLoader(_Endless()), iter([1]), _NoLength(), 3.0, True, None, "10")
        ),
        *(
            (partial(count_updates, *numbers), ValueError, rf"{name} = {value} must be at least 1")
            for value in (0, -1)
            for name, numbers in (("the number of batches", (value, 2)), ("epochs", (10, value)))
        ),
        *((partial(_COUNT, accumulation=value), ValueError, f"accumulation = {value}") for value in (0, -1)),
        *(
            (partial(count_updates, 10, value), TypeError, "epochs = .* must be an integer")
            for value in (2.0, "2", True, None)
        ),
        *(
            (partial(_COUNT, accumulation=value), TypeError, "accumulation = .* must be an integer")
            for value in (2.0, "2", True, None)
        ),
    ],
)
def test_wrong_argument_of_count_updates_is_rejected(
    call: Callable[[], int], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call()
