"""The recurrent state is passed on, detached, kept in the same memory, and never half changed."""

from typing import Any

import pytest
import torch
from support.training.models import Recurrent, batches, carried_loss, mean_loss, nonfinite
from support.training.steps import CURVE, make_step, train
from support.training.trees import equal_trees
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from torch_bridge import TrainStep, lambda_lr
from torch_bridge.training.update.carry import Carry

_CPU = torch.device("cpu")


def _step(kind: str, **options: Any) -> TrainStep:
    model = Recurrent(kind)
    return make_step("adamw", model, carried_loss, carry=model.initial(), **options)


def _carry(step: TrainStep) -> list[Tensor]:
    return step.state_dict()["carry"]


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("pieces", [1, 3])
def test_carry_matches_hand_written_loop(kind: str, pieces: int) -> None:
    """Truncated backpropagation through time: consecutive pieces, with the state detached between them."""
    step, model = _step(kind), Recurrent(kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.01), fused=True)
    scheduler = lambda_lr(optimizer, CURVE)
    carry = model.initial()
    data = batches(10 * pieces, time=5)
    for start in range(0, len(data), pieces):
        optimizer.zero_grad()
        total = torch.zeros(())
        for batch in data[start : start + pieces]:
            loss, carry = carried_loss(model, batch, carry)
            carry = pytree.tree_map(torch.detach, carry)
            (loss / pieces).backward()
            total = total + loss.detach() / pieces
        optimizer.step()
        scheduler.step()
        assert equal_trees(step(*data[start : start + pieces]).loss, total)
        assert equal_trees(_carry(step), pytree.tree_leaves(carry))
    assert equal_trees(step.model.state_dict(), model.state_dict())


def test_skip_restores_carry_changed_in_place() -> None:
    def loss_fn(model: nn.Module, batch: Any, carry: Tensor) -> Any:
        carry[:, :2] = 0  # two of the four sequences start again
        return carried_loss(model, batch, carry)

    model = Recurrent("GRU")
    step = make_step("sgd", model, loss_fn, carry=torch.ones(2, 4, 5)[:1])
    (batch,) = batches(1, time=3)
    step(nonfinite(batch))
    assert equal_trees(_carry(step), [torch.ones(1, 4, 5)])

    def failing(model: nn.Module, batch: Any, carry: Tensor) -> Any:
        carry.zero_()
        raise KeyError("on purpose")

    step = make_step("sgd", model, failing, carry=torch.ones(1, 4, 5))
    with pytest.raises(KeyError, match="on purpose"):
        step(batch)
    assert equal_trees(_carry(step), [torch.ones(1, 4, 5)])


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_carry_buffers_are_reused_and_reset(kind: str) -> None:
    given_carry = Recurrent(kind).initial()
    leaves = pytree.tree_leaves(given_carry)
    for leaf in leaves:
        leaf.fill_(0.25)
    step = make_step("adamw", Recurrent(kind), carried_loss, carry=given_carry)
    assert step._carry is not None
    places = [buffer.data_ptr() for buffer in step._carry.buffers]
    assert not {leaf.data_ptr() for leaf in leaves} & set(places)
    initial = _carry(step)
    train(step, batches(5, time=3))
    assert not equal_trees(_carry(step), initial)
    for leaf in leaves:
        leaf.fill_(7)  # the step must have copied the caller's tensors
    step.reset_carry()
    assert equal_trees(_carry(step), initial)
    step.load_state_dict(step.state_dict())
    train(step, batches(2, time=3))
    assert [buffer.data_ptr() for buffer in step._carry.buffers] == places
    assert not any(buffer.requires_grad for buffer in step._carry.buffers)


def test_carry_works_under_bf16_and_fp16() -> None:
    data = batches(12, time=4)
    for precision in ("bf16", "fp16"):  # not an LSTM: on CPUs without AVX-512, torch runs none in bf16
        step, reference = _step("GRU", precision=precision), _step("GRU")
        results, expected = train(step, data), train(reference, data)
        assert all(leaf.dtype == torch.float32 for leaf in _carry(step))
        assert int(results[-1].applied) == 12
        torch.testing.assert_close(results[-1].loss, expected[-1].loss, rtol=0.02, atol=0)
        torch.testing.assert_close(_carry(step), _carry(reference), rtol=0, atol=0.05)


def test_carry_is_any_pytree_of_tensors() -> None:
    initial = {
        "steps": torch.zeros((), dtype=torch.int64),
        "phase": [torch.ones(2, dtype=torch.complex64), (torch.ones(3, dtype=torch.float64),)],
        "seen": torch.zeros(1).expand(5),
        "flag": torch.tensor(False),
    }

    def loss_fn(model: nn.Module, batch: Any, carry: Any) -> Any:
        return mean_loss(model, batch), {
            "steps": carry["steps"] + 1,
            "phase": [carry["phase"][0] * 1j, (carry["phase"][1][0] / 2,)],
            "seen": carry["seen"] + batch[0].mean(),
            "flag": ~carry["flag"],
        }

    step = make_step(loss_fn=loss_fn, carry=initial)
    for batch in batches(3):
        step(batch, batch)
        step(nonfinite(batch), batch)
    steps, phase, halves, _, flag = _carry(step)
    assert (steps, phase[0], halves[0], flag) == (6, -1, 2.0**-6, False)


def test_detached_leaves_have_the_buffers_dtype() -> None:
    carry = Carry((torch.zeros(2), torch.zeros(3)), _CPU)
    weight = torch.ones((), requires_grad=True)
    leaves = carry.detached((weight * torch.ones(2), (weight * torch.ones(3)).bfloat16()))
    assert [leaf.requires_grad for leaf in leaves] == [False, False]
    assert [leaf.dtype for leaf in leaves] == [torch.float32, torch.float32]
    assert equal_trees(carry.select_if_skipped(leaves, torch.tensor(True)), [torch.zeros(2), torch.zeros(3)])
    assert equal_trees(carry.select_if_skipped(leaves, torch.tensor(False)), [torch.ones(2), torch.ones(3)])


def test_carry_of_a_parameter_keeps_its_old_value() -> None:
    def loss_fn(model: Any, batch: Any, carry: torch.Tensor) -> Any:
        return mean_loss(model, batch), model.last.bias.detach()

    step = make_step("sgd", loss_fn=loss_fn, carry=torch.zeros(2))
    for batch in batches(3):
        bias = step.model.last.bias.detach().clone()
        step(batch)
        (kept,) = _carry(step)
        assert equal_trees(kept, bias)
