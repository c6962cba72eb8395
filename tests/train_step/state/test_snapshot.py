"""States of training steps, besides the relations of `test_every_run.py`: what they load into."""

import copy

import pytest
import torch
from support.training.models import Net, batches, square_loss
from support.training.optimizers import Foreign, make_optimizer
from support.training.steps import make_step, through_file, train
from support.trees import assert_equal_trees
from torch import nn
from train_step.kinds_of_run import KINDS


@pytest.mark.parametrize("name", ["adamw", "momentum", "plain adam", "rmsprop"])
def test_empty_optimizer_state_is_ignored(name):
    """`optimizer.state[parameter]` creates an empty one for a parameter without a gradient."""
    model = Net()
    (batch,) = batches(1)
    model.last.bias.requires_grad_(False)
    step = make_step(name, model)
    step(batch)
    assert step.optimizer.state[model.last.bias] == {}
    step.load_state_dict(step.state_dict())
    model.last.bias.requires_grad_(True)
    assert step(batch).applied == 2


@pytest.mark.parametrize("name", ["adamw", "momentum", "adagrad", "plain adam"])
def test_state_loads_into_other_memory_format(name):
    plain = nn.Conv2d(3, 4, 3)
    channels_last = copy.deepcopy(plain).to(memory_format=torch.channels_last)
    data = torch.randn(8, 2, 3, 5, 5)
    step = make_step(name, channels_last, square_loss)
    train(step, data[:4])
    resumed = make_step(name, plain, square_loss)
    resumed.load_state_dict(step.state_dict())
    assert_equal_trees(resumed.state_dict(), step.state_dict())
    train(step, data[4:])
    train(resumed, data[4:])
    expected = channels_last.weight.contiguous()
    torch.testing.assert_close(plain.weight, expected, rtol=1e-5, atol=1e-6)


class CountingAdam(torch.optim.Adam):
    """Keeps a state that belongs to no parameter."""

    def step(self):
        self.state["calls"] = {"number": self.state["calls"].get("number", 0) + 1}
        super().step()


def test_state_of_a_subclass_that_belongs_to_no_parameter():
    steps = []
    for _ in range(2):
        model = Net()
        optimizer = CountingAdam(model.parameters())
        steps.append(make_step(model=model, optimizer=optimizer))
    step, resumed = steps
    train(step, batches(3))
    resumed.load_state_dict(step.state_dict())
    assert resumed.optimizer.state["calls"] == {"number": 3}


def foreign_step(model):
    optimizer = Foreign(model.parameters())
    return make_step(model=model, optimizer=optimizer, loss_fn=square_loss)


def test_optimizer_of_other_library_keeps_memory_layout():
    """A tensor may have the parameter's shape by chance."""
    model = nn.Linear(3, 3)
    resumed_model = nn.Linear(3, 3)
    step = foreign_step(model)
    resumed = foreign_step(resumed_model)
    step(torch.ones(2, 3))
    state = step.optimizer.state[model.weight]
    state["moment"] = state["moment"].T
    resumed.load_state_dict(step.state_dict())
    moment = resumed.optimizer.state[resumed_model.weight]["moment"]
    assert moment.stride() == (1, 3)
    assert_equal_trees(resumed.state_dict(), step.state_dict())


# Options of the groups.


def test_groups_of_foreign_optimizer_may_have_other_options():
    """The state has exactly the saved ones, and those of a later version their values here."""
    step = KINDS["foreign"].build()
    resumed = KINDS["foreign"].build()
    uninterrupted = KINDS["foreign"].build()
    first = step.state_dict()
    data = batches(6)
    results = train(uninterrupted, data)
    train(step, data[:3])
    state = through_file(step.state_dict())
    (saved_group,) = state["optimizer"]["param_groups"]
    del saved_group["decay"]
    resumed.load_state_dict(state)
    results_after = train(resumed, data[3:])
    assert_equal_trees(results_after, results[3:])
    assert_equal_trees(resumed.state_dict(), uninterrupted.state_dict())
    resumed.load_state_dict(first)
    (group,) = resumed.optimizer.param_groups
    assert "updates" not in group
    assert_equal_trees(resumed.state_dict(), first)


@pytest.mark.parametrize(
    ("name", "implementation"),
    [("adamw", {"fused": None, "foreach": True}), ("momentum", {"fused": None})],
)
@pytest.mark.parametrize("from_fused", [True, False])
def test_implementation_options_stay_the_optimizers(name, implementation, from_fused):
    """A state of a fused optimizer loads into a step with another implementation, and back."""
    fused = make_step(name)
    model = Net()
    optimizer = make_optimizer(name, model, **implementation)
    not_fused = make_step(model=model, optimizer=optimizer)
    saving = not_fused
    loading = fused
    if from_fused:
        saving = fused
        loading = not_fused
    (group,) = loading.optimizer.param_groups
    group_before = dict(group)
    data = batches(4)
    train(saving, data[:2])
    state = through_file(saving.state_dict())
    (saved_group,) = state["optimizer"]["param_groups"]
    saved_group["capturable"] = True  # torch runs it only on a GPU
    loading.load_state_dict(state)
    (group,) = loading.optimizer.param_groups
    for option in {"fused", "foreach", "capturable"} & group_before.keys():
        assert group[option] == group_before[option]
    results = train(loading, data[2:])
    expected = train(saving, data[2:])
    torch.testing.assert_close(results, expected, rtol=1e-5, atol=1e-5)
