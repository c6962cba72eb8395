"""The values that a loss function may return."""

import re
from typing import Any

import numpy as np
import pytest
import torch

from torch_bridge.training.update.loss import parse_loss

_CPU = torch.device("cpu")
_x = torch.ones((), requires_grad=True)


@pytest.mark.parametrize(
    "value", [1.0, None, {"loss": _x}, (_x,), (_x, 1, 2), (_x, "1"), (_x, True), (None, 1)], ids=repr
)
def test_value_that_is_not_a_loss_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="loss_fn returned"):
        parse_loss(value)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (torch.ones(1), "(1,)"),
        (torch.ones(2, 3), "(2, 3)"),
        (torch.ones((), dtype=torch.int64), "int64"),
        (torch.ones((), dtype=torch.complex64), "complex64"),
        ((torch.ones(1), 2), "(1,)"),
        ((_x, torch.ones(1)), "(1,)"),
        ((_x, -1), "-1"),
        ((_x, float("nan")), "nan"),
        ((_x, float("inf")), "inf"),
    ],
    ids=repr,
)
def test_invalid_loss_values_are_refused(value: Any, shown: str) -> None:
    with pytest.raises(ValueError, match=rf"loss_fn returned .*{re.escape(shown)}"):
        parse_loss(value)


@pytest.mark.parametrize(
    "weight", [{"logits": torch.ones(500, 7)}, torch.ones(500, 7), "accuracy", (_x, 2), _x], ids=range(5)
)
def test_invalid_weight_error_explains_pairs(weight: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"a pair is \(sum, weight\).*has_aux=True") as caught:
        parse_loss((_x, weight))
    assert len(str(caught.value)) < 500


_TENSORS = [torch.tensor(3), torch.tensor(2.5), torch.tensor(True)]


@pytest.mark.parametrize("weight", [3, 2.5, np.int64(3), np.float32(2.5), np.float64(2.5), *_TENSORS])
@pytest.mark.parametrize("pair", [tuple, list])
def test_valid_weights_are_accepted(weight: Any, pair: Any) -> None:
    loss = parse_loss(pair([_x, weight]))
    assert loss.total is _x
    assert float(loss.weight) == float(weight)


def test_host_weight_with_device_sum_is_accepted() -> None:
    """The meta device stands in for an accelerator."""
    total = torch.ones((), device="meta", requires_grad=True)
    for weight in (torch.tensor(3), torch.tensor(3.0), torch.tensor(3.0).bfloat16()):
        read = parse_loss((total, weight)).weight
        assert type(read) is float
        assert read == 3


def test_weight_on_another_device_is_refused() -> None:
    weight = torch.ones((), device="meta")
    with pytest.raises(ValueError, match="a weight on meta and a sum on cpu"):
        parse_loss((_x, weight))


def test_invalid_host_weight_with_device_sum_is_refused() -> None:
    for value in (float("nan"), float("inf"), -1.0):
        with pytest.raises(ValueError, match="finite and not negative"):
            parse_loss((torch.ones((), device="meta"), torch.tensor(value)))


def test_device_weight_is_as_exact_as_the_sum() -> None:
    for weight in (torch.tensor(1 / 3, dtype=torch.float64), torch.tensor(2**24 + 1)):
        total = torch.ones((), dtype=torch.float64)
        assert parse_loss((total, weight)).weight == weight.double()
