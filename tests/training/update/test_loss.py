"""The values that a loss function may return."""

import re
from typing import Any

import numpy as np
import pytest
import torch

from torch_bridge.training.update.loss import parse_loss

_CPU = torch.device("cpu")
_x = torch.ones((), requires_grad=True)
_ON_META = torch.ones((), device="meta")

# (value, error, message)
_WRONG: list[tuple[Any, type[Exception], str]] = [
    *(
        (value, TypeError, "loss_fn returned")
        for value in (1.0, None, {"loss": _x}, (_x,), (_x, 1, 2), (_x, "1"), (_x, True), (None, 1))
    ),
    *(
        (value, ValueError, rf"loss_fn returned .*{re.escape(shown)}")
        for value, shown in (
            (torch.ones(1), "(1,)"),
            (torch.ones(2, 3), "(2, 3)"),
            (torch.ones((), dtype=torch.int64), "int64"),
            (torch.ones((), dtype=torch.complex64), "complex64"),
            ((torch.ones(1), 2), "(1,)"),
            ((_x, torch.ones(1)), "(1,)"),
            ((_x, -1), "-1"),
            ((_x, float("nan")), "nan"),
            ((_x, float("inf")), "inf"),
        )
    ),
    *(
        ((_x, weight), (TypeError, ValueError), r"a pair is \(sum, weight\).*has_aux=True")
        for weight in ({"logits": torch.ones(500, 7)}, torch.ones(500, 7), "accuracy", (_x, 2), _x)
    ),
    ((_x, _ON_META), ValueError, "a weight on meta and a sum on cpu"),
    *(
        ((_ON_META, torch.tensor(weight)), ValueError, "finite and not negative")
        for weight in (float("nan"), float("inf"), -1.0)
    ),
]


@pytest.mark.parametrize(("value", "error", "message"), _WRONG)
def test_invalid_losses_are_rejected(value: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        parse_loss(value)


_TENSORS = [torch.tensor(3), torch.tensor(2.5), torch.tensor(True)]


@pytest.mark.parametrize("weight", [3, 2.5, np.int64(3), np.float32(2.5), np.float64(2.5), *_TENSORS])
@pytest.mark.parametrize("pair", [tuple, list])
def test_valid_weights_are_accepted(weight: Any, pair: Any) -> None:
    total, read = parse_loss(pair([_x, weight]))
    assert total is _x
    assert float(read) == float(weight)


def test_host_weight_with_device_sum_is_accepted() -> None:
    """The meta device stands in for an accelerator."""
    total = torch.ones((), device="meta", requires_grad=True)
    for weight in (torch.tensor(3), torch.tensor(3.0), torch.tensor(3.0).bfloat16()):
        read = parse_loss((total, weight))[1]
        assert type(read) is float
        assert read == 3


def test_device_weight_is_as_exact_as_the_sum() -> None:
    for weight in (torch.tensor(1 / 3, dtype=torch.float64), torch.tensor(2**24 + 1)):
        total = torch.ones((), dtype=torch.float64)
        assert parse_loss((total, weight))[1] == weight.double()
