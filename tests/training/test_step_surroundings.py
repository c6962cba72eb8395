"""The training step in unusual surroundings: copies, devices, modes, threads, `print`, reads."""

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from support.clocks.holds import CURVE as HELD_CURVE, PATIENT
from support.training.models import Net, batches, counting_loss, mean_loss, nonfinite
from support.training.optimizers import FUSED, make_optimizer
from support.training.reads import reads_of
from support.training.steps import CURVE, make_step, train
from support.trees import equal_trees
from torch import Tensor

from plateau_jax import DataClock, PlateauCurve
from torch_bridge import TrainStep, evaluate, lambda_lr

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
    assert equal_trees(outcome(step, train(step, DATA)), usual(name=name, **CARRIED))


def check_with_another_default_device(device_of_updates: str, **options: Any) -> None:
    model = Net()
    with torch.device("meta"):
        step = make_step(model=model, **options)
    with torch.device(device_of_updates):
        results = train(step, DATA[:5])
    with torch.device("meta"):
        step.load_state_dict(step.state_dict())
        results += train(step, DATA[5:])
    assert equal_trees(outcome(step, results), usual(**options))


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
    check_with_another_default_device("meta", curve=HELD_CURVE, clock=PATIENT)


def test_carry_that_the_caller_changes() -> None:
    """The step has a copy."""
    carry = torch.zeros(2)
    step = make_step(**CARRIED | {"carry": carry})
    carry.fill_(7)
    step.reset_carry()
    assert equal_trees(outcome(step, train(step, DATA)), usual(**CARRIED))


@pytest.mark.parametrize("name", NAMES)
def test_deterministic_algorithms(name: str) -> None:
    """Torch raises an error at an operation that has no deterministic one."""
    torch.use_deterministic_algorithms(True)
    try:
        step = make_step(name=name, **CARRIED)
        results = train(step, DATA)
    finally:
        torch.use_deterministic_algorithms(False)
    assert equal_trees(outcome(step, results), usual(name=name, **CARRIED))


def test_each_update_in_a_new_thread() -> None:
    step = make_step()
    results: list[Any] = []
    for batch in DATA:
        with ThreadPoolExecutor(1) as thread:
            results.append(thread.submit(step, batch).result())
    assert equal_trees(outcome(step, results), usual())


def test_another_step_in_another_thread() -> None:
    step = make_step()
    another_step = make_step(model=Net(1))
    with ThreadPoolExecutor(2) as threads:
        results = threads.submit(train, step, DATA * 5)
        other_results = threads.submit(train, another_step, DATA * 5)
    assert len(other_results.result()) == 35
    expected, _ = usual()
    assert equal_trees([tuple(result) for result in results.result()[: len(DATA)]], expected)


def test_updates_and_evaluation_in_autocast() -> None:
    """Otherwise torch would use the weights that it cast first until the loop ends."""
    step = make_step(precision="bf16")
    data = DATA[:3]
    with torch.autocast("cpu", torch.bfloat16):
        results = train(step, DATA)
        loss = evaluate(step.model, data, mean_loss, precision="bf16")
    assert loss == evaluate(step.model, data, mean_loss, precision="bf16")
    assert equal_trees(outcome(step, results), usual(precision="bf16"))


class Marked(Tensor):
    """A subclass of tensors."""


def test_batches_of_a_tensor_subclass() -> None:
    step = make_step()
    data: list[Any] = []
    for inputs, targets in DATA:
        data.append((inputs.as_subclass(Marked), targets.as_subclass(Marked)))
    assert equal_trees(outcome(step, train(step, data)), usual())


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_compiled_model() -> None:
    model = Net()
    compiled = torch.compile(model, backend="eager")
    step = make_step(model=compiled, optimizer=make_optimizer("adamw", model))
    results = train(step, DATA)
    step.load_state_dict(step.state_dict())
    assert equal_trees(outcome(step, results), usual())


class MeanOfModel(torch.nn.MSELoss):
    def forward(self, model: Any, batch: Any) -> Tensor:  # type: ignore[override]  (a module and a batch)
        return mean_loss(model, batch)


def test_subclass_of_a_criterion_that_takes_a_model() -> None:
    step = make_step(loss_fn=MeanOfModel())
    assert equal_trees(outcome(step, train(step, DATA)), usual())


def test_numpy_number_as_option() -> None:
    step = make_step(max_norm=np.float32(0.25))
    assert equal_trees(outcome(step, train(step, DATA)), usual(max_norm=0.25))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_snapshot_writes_to_no_tensor(name: str, precision: str) -> None:
    step = make_step(name=name, precision=precision)
    clock_tensors = [value for value in vars(step._clock).values() if isinstance(value, Tensor)]
    tensors = [*clock_tensors, *step.model.parameters()]
    group = step.optimizer.param_groups[0]
    results: list[Any] = []
    for batch in DATA:
        versions = [tensor._version for tensor in tensors]
        lr = group["lr"]
        step.state_dict()
        assert [tensor._version for tensor in tensors] == versions
        assert group["lr"] is lr
        results.append(step(batch))
    assert equal_trees(outcome(step, results), usual(name=name, precision=precision))


@pytest.mark.parametrize("name", ["adamw", "rmsprop"])
def test_copies_of_model_and_optimizer_are_independent(name: str) -> None:
    step, data = make_step(name), batches(6)
    train(step, data[:3])
    copies = copy.deepcopy((step.model, step.optimizer))
    before = copy.deepcopy([copied.state_dict() for copied in copies])
    train(step, data[3:])
    assert equal_trees([copied.state_dict() for copied in copies], before)


def test_lazy_model_trains_after_a_dummy_batch() -> None:
    model = torch.nn.Sequential(torch.nn.LazyLinear(2))
    ((inputs, targets),) = batches(1)
    model(inputs)
    assert make_step(model=model)((inputs, targets)).applied == 1


def test_print_shows_curve_step_and_lr() -> None:
    def five(batch: Any) -> int:
        return 5

    step = make_step(clock=DataClock(2), count=five)
    data = batches(4)
    data[3] = nonfinite(data[3])
    assert reads_of(lambda: repr(step)) == 0
    assert repr(step) == f"TrainStep({CURVE})"
    train(step, data)
    lr = float(f"{CURVE(7) * 0.01:.6g}")
    counts = "applied=3, skipped=1, consumed=15, unit=2"
    assert str(step) == f"TrainStep({CURVE}, curve_step=7, lr={lr}, {counts})"
    shown = f"TrainStep({CURVE}, curve_step=0, lr=0.005, applied=0, skipped=0)"
    assert str(make_step()) == shown


def test_print_of_several_curves_is_one_line() -> None:
    model = Net()
    other = PlateauCurve(500)
    optimizers = [
        torch.optim.SGD(model.first.parameters(), lr=0.5),
        torch.optim.SGD(model.last.parameters(), lr=0.5),
    ]
    same = TrainStep(model, optimizers, mean_loss, other)
    assert str(same).startswith(f"TrainStep({other}, curve_step=0, lr=0.5, ")
    assert "lr=[0.25, 0.5], " in str(TrainStep(model, optimizers, mean_loss, [CURVE, other]))
    plateaus = [(number, 0.1) for number in range(90)]
    step = make_step(curve=PlateauCurve(10**6, plateaus=plateaus))
    for shown in (repr(step), str(step)):
        assert len(shown) < 400
        assert "\n" not in shown


# The counter of device reads: it notices every way of reading, and nothing else.

SCALAR = torch.ones((), dtype=torch.int64)
LINE = torch.ones(1, dtype=torch.int64)


@pytest.mark.parametrize(
    "read",
    [
        lambda: SCALAR.item(),
        lambda: SCALAR.tolist(),
        lambda: np.asarray(SCALAR),
        lambda: np.from_dlpack(SCALAR),
        lambda: SCALAR.to("cpu"),
        lambda: SCALAR.to(device="cpu", copy=True),
        lambda: LINE.nonzero(),
        lambda: LINE[LINE > 0],
        lambda: torch.repeat_interleave(LINE),
        lambda: SCALAR.untyped_storage()[0],
    ],
    ids=range(10),
)
def test_every_way_of_reading_is_counted(read: Callable[[], Any]) -> None:
    assert reads_of(read) >= 1


def test_use_of_host_memory_is_not_counted() -> None:
    device = torch.ones(3)
    host = torch.zeros(3)
    assert reads_of(lambda: host.tolist(), [host]) == 0
    assert reads_of(lambda: host[0].item(), [host]) == 0
    assert reads_of(lambda: host.copy_(device, non_blocking=True), [host]) == 0
    assert reads_of(lambda: host.copy_(device), [host]) == 1
    assert reads_of(lambda: host[:1].copy_(device[:1]), [host]) == 1


@pytest.mark.parametrize("fused", [False, True])
def test_hook_of_the_optimizer_clips_by_value(fused: bool) -> None:
    """As docs/training_step.md says: the hook sees the sum of the micro-batches, unscaled."""
    limit = 0.01

    def clip_by_value(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for group in optimizer.param_groups:
            torch.nn.utils.clip_grad_value_(group["params"], limit)

    data = batches(6)
    by_step, by_hand = Net(), Net()
    by_hand.load_state_dict(by_step.state_dict())
    optimizer = torch.optim.AdamW(by_step.parameters(), lr=0.01, fused=fused)
    optimizer.register_step_pre_hook(clip_by_value)
    step = TrainStep(by_step, optimizer, mean_loss, CURVE)
    for first, second in zip(data[::2], data[1::2], strict=True):
        step(first, second)

    lr: Any = 0.01
    if fused:  # its kernels round a float differently
        lr = torch.tensor(lr)
    optimizer = torch.optim.AdamW(by_hand.parameters(), lr=lr, fused=fused)
    scheduler = lambda_lr(optimizer, CURVE)
    for first, second in zip(data[::2], data[1::2], strict=True):
        for batch in (first, second):
            (mean_loss(by_hand, batch) / 2).backward()
        torch.nn.utils.clip_grad_value_(by_hand.parameters(), limit)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    assert equal_trees(by_step.state_dict(), by_hand.state_dict())
