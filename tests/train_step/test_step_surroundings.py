"""The training step in unusual surroundings: devices, modes, compilers; copies of its results."""

import copy
import pickle
from functools import partial
from unittest.mock import patch

import pytest
import torch
from support.training.models import Net, batches, counting_loss, mean_loss, nonfinite
from support.training.optimizers import make_optimizer
from support.training.steps import make_step, train
from support.trees import assert_equal_trees
from torch.utils import _pytree as pytree

from plateau_jax import DataClock
from torch_bridge import evaluate

# Each test trains in unusual surroundings, and the run must equal one in usual ones.


DATA = batches(7)
DATA[3] = nonfinite(DATA[3])


def check_same_as_usual(step, results, **options):
    """Compare all that the updates have returned and changed with those in usual surroundings."""
    state = step.state_dict()
    usual = make_step(**options)
    assert_equal_trees(results, train(usual, DATA))
    assert_equal_trees(state, usual.state_dict())


CARRIED = {
    "loss_fn": counting_loss,
    "carry": torch.zeros(2),
    "precision": "fp16",
    "max_norm": 1.0,
}


@pytest.mark.parametrize("name", ["adamw", "momentum", "plain adam"])
def test_step_built_in_inference_mode(name):
    """Only the step is built there: a model would have no gradients."""
    model = Net()
    with torch.inference_mode():
        step = make_step(name=name, **CARRIED, model=model)
        step.reset_carry()
    results = train(step, DATA)
    check_same_as_usual(step, results, name=name, **CARRIED)


@pytest.mark.parametrize(
    ("name", "device_of_updates"), [("adamw", "meta"), ("momentum", "meta"), ("plain adam", "cpu")]
)
def test_another_default_device(name, device_of_updates):
    """In updates only with fused optimizers: torch's own Adam creates its counters there."""
    options = {"name": name, "precision": "fp16", "max_norm": 0.5}
    model = Net()
    with torch.device("meta"):
        step = make_step(model=model, **options)
    with torch.device(device_of_updates):
        results = train(step, DATA[:5])
    with torch.device("meta"):
        step.load_state_dict(step.state_dict())
        results += train(step, DATA[5:])
    check_same_as_usual(step, results, **options)


def test_carry_that_the_caller_changes():
    """The step has a copy."""
    carry = torch.zeros(2)
    step = make_step(**CARRIED | {"carry": carry})
    carry.fill_(7)
    step.reset_carry()
    results = train(step, DATA)
    check_same_as_usual(step, results, **CARRIED)


def test_updates_and_evaluation_in_autocast():
    """Otherwise torch would use the weights that it cast first until the loop ends."""
    step = make_step(precision="bf16")
    data = DATA[:3]
    with torch.autocast("cpu", torch.bfloat16):
        results = train(step, DATA)
        loss = evaluate(step.model, data, mean_loss, precision="bf16")
    expected = evaluate(step.model, data, mean_loss, precision="bf16")
    assert loss == expected
    check_same_as_usual(step, results, precision="bf16")


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_compiled_model():
    model = Net()
    compiled = torch.compile(model, backend="eager")
    optimizer = make_optimizer("adamw", model)
    step = make_step(model=compiled, optimizer=optimizer)
    results = train(step, DATA)
    step.load_state_dict(step.state_dict())
    check_same_as_usual(step, results)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the curve has total_steps:plateau_jax.CurveWarning")
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_loss_fn_compiles_once():
    """With Inductor. No update recompiles, not even past the end of the curve."""
    from torch._inductor.compile_fx import compile_fx  # takes seconds

    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return compile_fx(graph, inputs)

    eager = make_step("adamw", max_norm=1.0)
    with patch.object(torch, "compile", partial(torch.compile, backend=backend)):
        compiled = make_step("adamw", max_norm=1.0, compile=True)
        first, *rest = batches(45)
        compiled(first)
        eager(first)
        num_graphs = len(graphs)
        assert num_graphs > 0
        for batch in rest:
            result = compiled(batch)
            expected = eager(batch)
            torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-7)
            compiled(nonfinite(batch))
            eager(nonfinite(batch))
    assert len(graphs) == num_graphs
    assert compiled.state_dict()["applied"] == 45
    parameters = dict(compiled.model.named_parameters())
    expected = dict(eager.model.named_parameters())
    torch.testing.assert_close(parameters, expected, rtol=1e-5, atol=1e-6)


# Copies of results.


def with_doubled_loss(result):
    return result._replace(loss=result.loss * 2)


def pickled(result):
    return pickle.loads(pickle.dumps(result))


def mapped(result):
    return pytree.tree_map(lambda item: item + 0, result)


@pytest.mark.parametrize("rebuild", [with_doubled_loss, copy.copy, copy.deepcopy, pickled, mapped])
def test_rebuilt_result_keeps_its_attributes(rebuild):
    def loss_fn(model, batch):
        outputs = model(batch[0])
        return outputs.square().mean(), outputs.mean()

    step = make_step(loss_fn=loss_fn, has_aux=True, clock=DataClock(4))
    result = step(*batches(3), count=12)
    rebuilt = rebuild(result)
    assert type(rebuilt) is type(result)
    assert rebuilt.consumed == 12
    assert result.consumed == 12
    assert_equal_trees(list(rebuilt.aux), list(result.aux))
