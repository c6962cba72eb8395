"""The training step in unusual surroundings: copies, devices, modes, threads, compilers."""

import copy
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from support.training.models import Net, batches, counting_loss, mean_loss, nonfinite
from support.training.optimizers import FUSED, make_optimizer
from support.training.steps import make_step, train
from support.trees import equal_trees
from torch import Tensor

from plateau_jax import HoldUntilFlat, StagedCurve
from torch_bridge import TrainStep, evaluate

NAMES = ["adamw", "momentum", "plain adam"]


# Each test trains in unusual surroundings, and the run must equal one in usual ones.


DATA = batches(7)
DATA[3] = nonfinite(DATA[3])


def outcome(step: TrainStep, results: list[Any]) -> Any:
    """Return all that the updates of a step have returned and changed."""
    return [tuple(result) for result in results], step.state_dict()


def usual(**options: Any) -> Any:
    """Return the outcome in usual surroundings; the options are those of `make_step`."""
    step = make_step(**options)
    return outcome(step, train(step, DATA))


def check_same_as_usual(step: TrainStep, results: list[Any], **options: Any) -> None:
    """Check that a step with these options has the usual outcome."""
    assert equal_trees(outcome(step, results), usual(**options))


CARRIED: dict[str, Any] = {
    "loss_fn": counting_loss,
    "carry": torch.zeros(2),
    "precision": "fp16",
    "max_norm": 1.0,
}


@pytest.mark.parametrize("name", NAMES)
def test_step_built_in_inference_mode(name: str) -> None:
    """Only the step is built there: a model would have no gradients."""
    model = Net()
    with torch.inference_mode():
        step = make_step(name=name, **CARRIED, model=model)
        step.reset_carry()
    results = train(step, DATA)
    check_same_as_usual(step, results, name=name, **CARRIED)


def check_with_another_default_device(device_of_updates: str, **options: Any) -> None:
    model = Net()
    with torch.device("meta"):
        step = make_step(model=model, **options)
    with torch.device(device_of_updates):
        results = train(step, DATA[:5])
    with torch.device("meta"):
        step.load_state_dict(step.state_dict())
        results += train(step, DATA[5:])
    check_same_as_usual(step, results, **options)


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_another_default_device(name: str, precision: str) -> None:
    check_with_another_default_device("meta", name=name, precision=precision, max_norm=0.5)


@pytest.mark.parametrize("name", ["plain adam", "plain momentum"])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_another_default_device_with_host_stepper(name: str, precision: str) -> None:
    """Torch's own Adam creates its counters on the default device."""
    check_with_another_default_device("cpu", name=name, precision=precision, max_norm=0.5)


def test_another_default_device_with_held_clock() -> None:
    curve = StagedCurve([(3, 1.0), (9,)])
    clock = HoldUntilFlat(3, limit=9)
    check_with_another_default_device("meta", curve=curve, clock=clock)


def test_carry_that_the_caller_changes() -> None:
    """The step has a copy."""
    carry = torch.zeros(2)
    step = make_step(**CARRIED | {"carry": carry})
    carry.fill_(7)
    step.reset_carry()
    results = train(step, DATA)
    check_same_as_usual(step, results, **CARRIED)


@pytest.mark.parametrize("name", NAMES)
def test_deterministic_algorithms(name: str) -> None:
    """Torch raises an error at an operation that has no deterministic one."""
    torch.use_deterministic_algorithms(True)
    try:
        step = make_step(name=name, **CARRIED)
        results = train(step, DATA)
    finally:
        torch.use_deterministic_algorithms(False)
    check_same_as_usual(step, results, name=name, **CARRIED)


def test_each_update_in_a_new_thread() -> None:
    step = make_step()
    results: list[Any] = []
    for batch in DATA:
        with ThreadPoolExecutor(1) as thread:
            future = thread.submit(step, batch)
        results.append(future.result())
    check_same_as_usual(step, results)


def test_another_step_in_another_thread() -> None:
    step = make_step()
    another_step = make_step(model=Net(1))
    with ThreadPoolExecutor(2) as threads:
        results = threads.submit(train, step, DATA * 5)
        other_results = threads.submit(train, another_step, DATA * 5)
    assert len(other_results.result()) == 35
    first_results = results.result()[: len(DATA)]
    expected, _ = usual()
    assert equal_trees([tuple(result) for result in first_results], expected)


def test_updates_and_evaluation_in_autocast() -> None:
    """Otherwise torch would use the weights that it cast first until the loop ends."""
    step = make_step(precision="bf16")
    data = DATA[:3]
    with torch.autocast("cpu", torch.bfloat16):
        results = train(step, DATA)
        loss = evaluate(step.model, data, mean_loss, precision="bf16")
    expected = evaluate(step.model, data, mean_loss, precision="bf16")
    assert loss == expected
    check_same_as_usual(step, results, precision="bf16")


class Marked(Tensor):
    """A subclass of tensors."""


def test_batches_of_a_tensor_subclass() -> None:
    step = make_step()
    data = [tuple(tensor.as_subclass(Marked) for tensor in batch) for batch in DATA]
    results = train(step, data)
    check_same_as_usual(step, results)


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_compiled_model() -> None:
    model = Net()
    compiled = torch.compile(model, backend="eager")
    optimizer = make_optimizer("adamw", model)
    step = make_step(model=compiled, optimizer=optimizer)
    results = train(step, DATA)
    step.load_state_dict(step.state_dict())
    check_same_as_usual(step, results)


class MeanOfModel(torch.nn.MSELoss):
    def forward(self, model: Any, batch: Any) -> Tensor:  # type: ignore[override]  (a module and a batch)
        return mean_loss(model, batch)


def test_subclass_of_a_criterion_that_takes_a_model() -> None:
    step = make_step(loss_fn=MeanOfModel())
    results = train(step, DATA)
    check_same_as_usual(step, results)


def test_numpy_number_as_option() -> None:
    step = make_step(max_norm=np.float32(0.25))
    results = train(step, DATA)
    check_same_as_usual(step, results, max_norm=0.25)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_snapshot_writes_to_no_tensor(name: str, precision: str) -> None:
    step = make_step(name=name, precision=precision)
    values_of_clock = vars(step._clock).values()
    clock_tensors = [value for value in values_of_clock if isinstance(value, Tensor)]
    tensors = [*clock_tensors, *step.model.parameters()]
    (group,) = step.optimizer.param_groups
    results: list[Any] = []
    for batch in DATA:
        versions = [tensor._version for tensor in tensors]
        lr = group["lr"]
        step.state_dict()
        assert [tensor._version for tensor in tensors] == versions
        assert group["lr"] is lr
        results.append(step(batch))
    check_same_as_usual(step, results, name=name, precision=precision)


@pytest.mark.parametrize("name", ["adamw", "rmsprop"])
def test_copies_of_model_and_optimizer_are_independent(name: str) -> None:
    step = make_step(name)
    data = batches(6)
    train(step, data[:3])
    copies = copy.deepcopy((step.model, step.optimizer))
    states = copy.deepcopy([copied.state_dict() for copied in copies])
    train(step, data[3:])
    states_after = [copied.state_dict() for copied in copies]
    assert equal_trees(states_after, states)


def test_lazy_model_trains_after_a_dummy_batch() -> None:
    model = torch.nn.Sequential(torch.nn.LazyLinear(2))
    ((inputs, targets),) = batches(1)
    model(inputs)
    step = make_step(model=model)
    result = step((inputs, targets))
    assert result.applied == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the curve has total_steps:plateau_jax.CurveWarning")
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_loss_fn_compiles_once() -> None:
    """No update recompiles, also past the end of the curve."""
    graphs: list[Any] = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph

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
