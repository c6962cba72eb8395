"""An update rejects wrong results of loss_fn and changed parameters."""

import pytest
import torch
from support.raises import raises
from support.training.models import batches, counting_loss, mean_loss
from support.training.steps import make_step, state_kept_by_skips
from support.trees import assert_equal_trees
from torch import nn

# The results of a loss function with aux or a carry; `test_loss` has the losses.


@raises(TypeError, "loss_fn returned")
def test_number_in_aux():
    def loss_fn(model, batch):
        return mean_loss(model, batch), {"n": 3}

    make_step(loss_fn=loss_fn, has_aux=True)(*batches(1))


@raises(TypeError, "with has_aux=True it must return (loss, aux)")
def test_loss_without_aux():
    make_step(has_aux=True)(*batches(1))


@raises(ValueError, "loss_fn returned a carry of (1, 'cpu')", "like the initial one, (2, 'cpu')")
def test_carry_of_a_different_shape():
    def loss_fn(model, batch, carry):
        loss, new_carry = counting_loss(model, batch, carry)
        return loss, new_carry[:1]

    make_step(loss_fn=loss_fn, carry=torch.zeros(2))(*batches(1))


# Updates without gradients.


def loss_of_the_input(model, batch):
    inputs, _ = batch
    return inputs.clone().requires_grad_(torch.is_grad_enabled()).sum()


def test_update_without_gradients_changes_nothing():
    step = make_step(loss_fn=loss_of_the_input)
    before = step.state_dict()
    (batch,) = batches(1)
    with raises(ValueError, "no gradient", "any parameter of the optimizer"):
        step(batch)
    with torch.no_grad(), raises(RuntimeError, "does not require grad"):
        step(batch)
    assert_equal_trees(step.state_dict(), before)


# Parameters that change after the step was built.


def replace_parameters(optimizer):
    optimizer.param_groups[0]["params"] = [nn.Parameter(torch.ones(1))]


def add_group(optimizer):
    optimizer.add_param_group({"params": nn.Parameter(torch.ones(1))})


@pytest.mark.parametrize(
    ("change", "message"),
    [(replace_parameters, "different parameters"), (add_group, "different groups")],
)
def test_changed_parameters_are_rejected(change, message):
    step = make_step()
    (batch,) = batches(1)
    step(batch)
    group = step.optimizer.param_groups[0]
    before = state_kept_by_skips(step)
    params = list(group["params"])
    change(step.optimizer)
    for _ in range(2):
        with pytest.raises(ValueError, match=f"{message}.* the step was built for"):
            step(batch)
    del step.optimizer.param_groups[1:]
    group["params"] = params
    assert_equal_trees(state_kept_by_skips(step), before)
    assert step(batch).applied == 2


# Inputs and targets in two arguments are taken for two micro-batches.


def indexing_loss(model, batch):
    return (model(batch[0]) - batch[1]).square().mean()


def test_error_hints_at_two_micro_batches():
    step = make_step(loss_fn=indexing_loss)
    ((inputs, targets),) = batches(1, rows=1)
    with pytest.raises(IndexError) as caught:
        step(inputs, targets)
    assert "2 arguments are 2 micro-batches" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    "micro_batches", [batches(1, rows=1)[0][:1], (None, None)], ids=["one tensor", "no tensors"]
)
def test_error_of_other_arguments_has_no_hint(micro_batches):
    step = make_step(loss_fn=indexing_loss)
    with pytest.raises((TypeError, IndexError)) as caught:
        step(*micro_batches)
    assert not hasattr(caught.value, "__notes__")
