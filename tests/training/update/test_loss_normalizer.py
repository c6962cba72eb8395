"""Pairs from micro-batches combine to the quotient of their sums, means to their average."""

from collections.abc import Iterable
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from support.training.models import batches, mean_loss, pair_loss
from support.training.steps import make_step
from torch import Tensor, nn

from torch_bridge.distributed.parallelism import Parallelism
from torch_bridge.training.update.gradients import gradients_of
from torch_bridge.training.update.loss import Loss, parse_loss
from torch_bridge.training.update.loss_normalizer import LossNormalizer
from torch_bridge.training.update.precision import LossScale

_CPU = torch.device("cpu")
_small = st.integers(-(2**10), 2**10).map(lambda number: number / 2**5)
_weights = st.integers(0, 5000)


def _accumulate(
    losses: Iterable[Loss], count: int, x: Any, scale: LossScale | None = None
) -> tuple[Tensor, Tensor]:
    normalizer = LossNormalizer([x], scale, Parallelism(nn.Identity()))
    total, weight = torch.zeros(()), None
    for loss in losses:
        total = total + normalizer.backward(loss, count)
        weight = loss[1] if weight is None else weight + loss[1]
    return normalizer.normalize((total, weight), count, gradients_of([x]), None)


@given(st.lists(st.tuples(_small, _small, _weights, st.booleans()), min_size=1, max_size=6), st.booleans())
def test_pairs_give_quotient_of_sums(pieces: list[tuple[float, float, int, bool]], scaled: bool) -> None:
    """Each piece is a sum `a·x + b` with a weight on the host or the device; the weight may be zero."""
    x = torch.ones((), requires_grad=True)
    losses = [(a * x + b, torch.tensor(float(w)) if is_tensor else w) for a, b, w, is_tensor in pieces]
    scale = LossScale(_CPU) if scaled else None
    weight = sum(w for *_, w, _ in pieces)
    if weight == 0:
        if any(is_tensor for *_, is_tensor in pieces):
            assert not _accumulate(losses, len(losses), x, scale)[0].isfinite()
        else:
            with pytest.raises(ValueError, match=r"weight .* is zero"):
                _accumulate(losses, len(losses), x, scale)
        return
    loss, norm = _accumulate(losses, len(losses), x, scale)
    gradient = x.grad.double()
    assert norm == gradient.abs()
    magnitude = float(sum(abs(Fraction(a)) + abs(Fraction(b)) for a, b, *_ in pieces) / weight)
    for value, summands in ((gradient, [a for a, *_ in pieces]), (loss, [a + b for a, b, *_ in pieces])):
        assert abs(float(value) - float(sum(map(Fraction, summands)) / weight)) <= 1e-6 * magnitude


@given(st.lists(st.tuples(_small, _small), min_size=1, max_size=6))
def test_means_are_averaged(pieces: list[tuple[float, float]]) -> None:
    x, y = (torch.ones((), requires_grad=True) for _ in range(2))
    loss, _ = _accumulate([(a * x + b, None) for a, b in pieces], len(pieces), x)
    total = torch.zeros(())
    for a, b in pieces:
        part = (a * y + b) / len(pieces)
        part.backward()
        total = total + part.detach()
    assert torch.equal(x.grad, y.grad)
    assert torch.equal(loss, total)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_loss_is_at_least_float32(dtype: torch.dtype) -> None:
    for weight in (None, 2, torch.tensor(2)):
        for count in (1, 2):
            x = torch.ones((), dtype=dtype, requires_grad=True)
            losses = [parse_loss(x * 3 if weight is None else (x * 3, weight)) for _ in range(count)]
            loss, _ = _accumulate(losses, count, x)
            assert loss.dtype.itemsize >= 4
            assert not loss.requires_grad
            assert loss == (3 if weight is None else 1.5)


@pytest.mark.parametrize("kinds", ["mp", "pm", "ppm"])
def test_mean_among_pairs_is_rejected(kinds: str) -> None:
    data, kind_of = batches(len(kinds)), iter(kinds)
    step = make_step(
        loss_fn=lambda model, batch: (mean_loss if next(kind_of) == "m" else pair_loss)(model, batch)
    )
    with pytest.raises(TypeError, match=r"a mean .* and a pair"):
        step(*data)


def test_backward_runs_before_the_next_forward() -> None:
    """So only one micro-batch's activations are in memory at a time."""
    x = torch.ones((), requires_grad=True)
    seen: list[Tensor | None] = []

    def losses() -> Any:
        for _ in range(3):
            seen.append(None if x.grad is None else x.grad.clone())
            yield x * 6, None

    _accumulate(losses(), 3, x)
    assert seen == [None, 2, 4]


def test_loss_on_another_device_is_rejected() -> None:
    x = torch.ones((), requires_grad=True)
    with pytest.raises(ValueError, match="a loss on meta; the parameters are on cpu"):
        _accumulate([(x * torch.ones((), device="meta"), None)], 1, x)
