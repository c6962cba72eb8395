"""The training step under copies, default devices, inference mode, threads and hooks that raise."""

import copy
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from support.training.models import Net, batches, counting_loss, mean_loss, nonfinite
from support.training.optimizers import FUSED, make_optimizer
from support.training.steps import CURVE, make_step, state_kept_by_skips, train
from support.training.trees import equal_trees
from torch import Tensor

from torch_bridge import TrainStep, evaluate


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
@pytest.mark.parametrize("name", ["adamw", "momentum", "plain adam"])
def test_copies_of_model_and_optimizer_are_independent(copied: Callable[[Any], Any], name: str) -> None:
    data = batches(8)
    step, reference = make_step(name), make_step(name)
    train(step, data[:3])
    train(reference, data[:3])
    model, optimizer = copied((step.model, step.optimizer))
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    assert equal_trees(train(step, data[3:]), train(reference, data[3:]))
    assert equal_trees((model.state_dict(), optimizer.state_dict()), before)
    other = TrainStep(model, optimizer, mean_loss, CURVE, initial_updates=0)
    kept = step.state_dict()
    train(other, data)
    assert equal_trees(step.state_dict(), kept)


@pytest.mark.parametrize("name", [*FUSED, "plain adam", "plain momentum"])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_default_device_does_not_matter(name: str, precision: str) -> None:
    """`torch.set_default_device` affects neither building, nor calls, nor loads."""

    def run(elsewhere: bool) -> Any:
        model = Net()
        torch.set_default_device("meta" if elsewhere else None)
        try:
            step = make_step(name, model, precision=precision, max_norm=0.5)
            # (Torch's own Adam creates its counters on the default device.)
            torch.set_default_device("meta" if elsewhere and name in FUSED else None)
            results = [*train(step, data[:3]), *train(step, [nonfinite(data[0])])]
            torch.set_default_device("meta" if elsewhere else None)
            step.load_state_dict(step.state_dict())
            return results, train(step, data[3:]), step.state_dict()
        finally:
            torch.set_default_device(None)

    data = batches(6)
    outcomes = []
    for elsewhere in (False, True):
        torch.manual_seed(0)
        outcomes.append(run(elsewhere))
    assert equal_trees(outcomes[0], outcomes[1])


@pytest.mark.parametrize("name", ["adamw", "momentum", "plain adam"])
def test_step_built_in_inference_mode_trains(name: str) -> None:
    model, data = Net(), batches(5)
    options: dict[str, Any] = {"loss_fn": counting_loss, "precision": "fp16", "max_norm": 1.0}
    reference = make_step(name, carry=torch.zeros(2), **options)
    with torch.inference_mode():
        step = make_step(name, model, carry=torch.zeros(2), **options)
        step.reset_carry()
    assert equal_trees(train(step, data), train(reference, data))
    assert equal_trees(step.state_dict(), reference.state_dict())


def test_steps_run_in_several_threads() -> None:
    """Two steps at once, and one that moves from thread to thread."""
    data = batches(30)
    expected = [train(make_step(model=Net(seed)), data) for seed in (0, 1)]
    with ThreadPoolExecutor(2) as threads:
        steps = [make_step(model=Net(seed)) for seed in (0, 1)]
        actual = list(threads.map(lambda step: train(step, data), steps))
    assert equal_trees(actual, expected)
    step = make_step()
    results = []
    for batch in data:
        with ThreadPoolExecutor(1) as thread:
            results.append(thread.submit(step, batch).result())
    assert equal_trees(results, expected[0])


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_compiled_model_trains() -> None:
    model, data = Net(), batches(4)
    optimizer = make_optimizer("adamw", model)
    step = make_step(model=torch.compile(model, backend="eager"), optimizer=optimizer)
    reference = make_step()
    assert equal_trees(train(step, data), train(reference, data))
    assert equal_trees(model.state_dict(), reference.model.state_dict())
    step.load_state_dict(step.state_dict())


class _Marked(Tensor):
    """A subclass of tensors."""


def test_tensor_subclasses_train() -> None:
    data = batches(4)
    marked = [tuple(part.as_subclass(_Marked) for part in batch) for batch in data]
    one, other = make_step(), make_step()
    for result, expected in zip(train(one, marked), train(other, data), strict=True):
        assert [value.tolist() for value in result[:4]] == [value.tolist() for value in expected[:4]]
    assert equal_trees(one.state_dict(), other.state_dict())


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("name", ["adamw", "momentum", "plain adam"])
def test_state_dict_changes_no_tensor(name: str, precision: str) -> None:
    saving, never = (make_step(name, precision=precision) for _ in range(2))
    tensors = [value for value in vars(saving._clock).values() if isinstance(value, Tensor)]
    for batch in [*batches(5), nonfinite(batches(1)[0]), *batches(5)]:
        versions = [value._version for value in [*tensors, *saving.model.parameters()]]
        rate = saving.optimizer.param_groups[0]["lr"]
        saving.state_dict()
        assert versions == [value._version for value in [*tensors, *saving.model.parameters()]]
        assert saving.optimizer.param_groups[0]["lr"] is rate
        assert equal_trees(saving(batch), never(batch))
    assert equal_trees(saving.state_dict(), never.state_dict())


@pytest.mark.parametrize("at", ["forward", "backward", "accumulated", "optimizer", "after the optimizer"])
@pytest.mark.parametrize("name", ["adamw", "momentum", "plain adam"])
def test_raising_hooks_leave_step_usable_or_rejected(name: str, at: str) -> None:
    """Before the optimizer's step the training step stays usable; after that it needs a loaded state."""

    def fail(*_: Any) -> None:
        raise RuntimeError("on purpose")

    step, reference, data = make_step(name), make_step(name), batches(4)
    train(step, data[:2])
    train(reference, data[:2])
    hook = {
        "forward": lambda: step.model.first.register_forward_hook(fail),
        "backward": lambda: step.model.last.register_full_backward_hook(fail),
        "accumulated": lambda: step.model.first.weight.register_post_accumulate_grad_hook(fail),
        "optimizer": lambda: step.optimizer.register_step_pre_hook(fail),
        "after the optimizer": lambda: step.optimizer.register_step_post_hook(fail),
    }[at]()
    before = step.state_dict()
    with pytest.raises(RuntimeError, match="on purpose"):
        step(data[2])
    hook.remove()
    assert not hasattr(step.optimizer, "found_inf")
    assert all(parameter.grad is None for parameter in step.model.parameters())
    if "optimizer" in at:
        for call in (step.state_dict, lambda: step(data[2])):
            with pytest.raises(RuntimeError, match="an update was interrupted"):
                call()
        step.load_state_dict(before)
    assert equal_trees(state_kept_by_skips(step), state_kept_by_skips(reference))
    assert equal_trees(train(step, data[2:]), train(reference, data[2:]))


def test_outer_autocast_does_not_keep_old_weights() -> None:
    """Otherwise torch would use the weights that it cast first until the loop ends."""
    data, eager, around = batches(6), make_step(precision="bf16"), make_step(precision="bf16")
    expected = train(eager, data)
    with torch.autocast("cpu", torch.bfloat16):
        actual = train(around, data)
        assert evaluate(around.model, data, mean_loss, precision="bf16") == evaluate(
            eager.model, data, mean_loss, precision="bf16"
        )
    assert equal_trees(actual, expected)


def test_user_module_as_loss_fn_is_accepted() -> None:
    class Own(torch.nn.MSELoss):
        def forward(self, model: Any, batch: Any) -> Tensor:  # type: ignore[override]  (a module and a batch)
            return mean_loss(model, batch)

    data = batches(2)
    assert equal_trees(train(make_step(loss_fn=Own()), data), train(make_step(), data))


def test_numpy_numbers_are_accepted() -> None:
    data = batches(5)
    for norm in (np.float32(0.25), np.float64(0.25)):
        step, plain = make_step(max_norm=norm), make_step(max_norm=0.25)
        assert equal_trees(train(step, data), train(plain, data))


def test_lazy_model_trains_after_a_dummy_batch() -> None:
    lazy, (batch,) = torch.nn.Sequential(torch.nn.LazyLinear(2)), batches(1)
    lazy(batch[0])
    assert make_step(model=lazy)(batch).applied == 1
