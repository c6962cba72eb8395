"""A nonfinite update changes only the skip counter, whether it raises or not."""

import re
from typing import Any

import pytest
import torch
from support.holds.held import CURVE as HELD_CURVE, PATIENT
from support.training.models import batches, device_pair_loss, nonfinite, pair_loss
from support.training.optimizers import FUSED, OPTIMIZERS
from support.training.steps import make_step, state_kept_by_skips, train
from support.training.trees import equal_trees
from torch import Tensor, nn

from plateau_jax import HoldBelow

_INF = float("inf")


@pytest.mark.parametrize(
    ("name", "hold"),
    [*((name, PATIENT) for name in OPTIMIZERS), ("adamw", None), ("rmsprop", HoldBelow(0.9, 3, every=2))],
)
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_skip_changes_only_its_counter(name: str, precision: str, hold: Any) -> None:
    data = batches(6)
    step = make_step(name, curve=HELD_CURVE, precision=precision, max_norm=0.5, hold=hold)
    for batch in data:
        last, before = step(batch), state_kept_by_skips(step)
        for value in (float("nan"), _INF, -_INF):
            result = step(nonfinite(data[0], value), data[1])
            before["skipped"] += 1
            assert not result.loss.isfinite()
            assert (result.applied, result.skipped) == (last.applied, before["skipped"])
            assert equal_trees(state_kept_by_skips(step), before)


@pytest.mark.parametrize("name", ["momentum", "nesterov"])
def test_first_skip_leaves_momentum_zero(name: str) -> None:
    step, (batch,) = make_step(name), batches(1)
    train(step, [nonfinite(batch)] * 2)
    assert all(not state["momentum_buffer"].any() for state in step.optimizer.state.values())


def test_nonfinite_gradient_under_finite_loss_is_skipped() -> None:
    class Root(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))

        def forward(self, inputs: Tensor) -> Tensor:
            return (self.weight * inputs).sqrt()  # its derivative at zero is infinite

    def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
        return model(batch).sum()

    for name in ("adamw", "sgd", "momentum", "rmsprop"):
        for precision in ("fp32", "bf16"):
            step = make_step(name, Root(), loss_fn, precision=precision)
            step(torch.ones(2))
            before = state_kept_by_skips(step)
            result = step(torch.zeros(2))
            after = state_kept_by_skips(step)
            assert result.loss == 0
            assert not result.grad_norm.isfinite()
            assert after.pop("skipped") == before.pop("skipped") + 1
            assert equal_trees(after, before)
        step = make_step(name, Root(), loss_fn, on_nonfinite="raise")
        with pytest.raises(FloatingPointError, match=r"update 1 .*gradient norm (nan|inf)"):
            step(torch.zeros(2))
        assert int(step(torch.ones(2)).applied) == 1
        step = make_step(name, Root(), loss_fn, on_nonfinite="raise", precision="fp16")
        assert int(step(torch.zeros(2)).skipped) == 1


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("name", ["adamw", "momentum", "rmsprop"])
def test_raise_changes_nothing_else(name: str, precision: str) -> None:
    data = batches(6)
    step = make_step(name, precision=precision, on_nonfinite="raise")
    reference = make_step(name, precision=precision)
    for number, batch in enumerate(data):
        expected = reference(batch)
        result = step(batch)
        assert equal_trees((*result[:3], result.applied), (*expected[:3], expected.applied))
        before = state_kept_by_skips(step)
        for value, shown in ((float("nan"), "nan"), (_INF, "inf|nan")):
            with pytest.raises(FloatingPointError) as caught:
                step(nonfinite(batch, value))
            update = int(expected.applied) + before["skipped"] + 1
            assert re.search(rf"\bupdate {update}\b", str(caught.value))
            assert re.search(rf"loss is ({shown})", str(caught.value))
            before["skipped"] += 1
            assert equal_trees(state_kept_by_skips(step), before), number


def test_zero_total_weight_on_device_is_skipped() -> None:
    (batch,) = batches(1)
    empty = batch[0][:0], batch[1][:0]
    for pieces in ((empty,), (empty, empty), (empty,) * 3):
        step = make_step(loss_fn=device_pair_loss)
        step(batch)
        before = state_kept_by_skips(step)
        result = step(*pieces)
        after = state_kept_by_skips(step)
        assert after.pop("skipped") == before.pop("skipped") + 1
        assert equal_trees(after, before)
        assert not result.loss.isfinite()


def test_empty_micro_batch_without_gradient_is_accepted() -> None:
    def loss_fn(model: nn.Module, batch: Any) -> Any:
        return pair_loss(model, batch) if len(batch[0]) else (torch.zeros(()), 0)

    first, second = batches(2)
    empty = first[0][:0], first[1][:0]
    expected = make_step(loss_fn=pair_loss)(first, second)
    for pieces in ((empty, first, second), (first, empty, second), (first, second, empty)):
        result = make_step(loss_fn=loss_fn)(*pieces)
        torch.testing.assert_close(result, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", FUSED)
def test_no_attribute_is_left_on_the_optimizer(name: str) -> None:
    (batch,) = batches(1)
    step = make_step(name)
    before = set(vars(step.optimizer))
    train(step, [batch, nonfinite(batch), batch])
    assert set(vars(step.optimizer)) == before
