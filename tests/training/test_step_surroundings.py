"""The training step in unusual surroundings: copies, devices, modes, threads, `print`; the read counter."""

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from support.clocks.holds import CURVE as HELD_CURVE, PATIENT
from support.training.models import Net, batches, counting_loss, mean_loss, nonfinite
from support.training.optimizers import FUSED, make_optimizer
from support.training.reads import reads_of
from support.training.steps import CURVE, equal_trees, make_step, train
from torch import Tensor

from plateau_jax import DataClock, PlateauCurve
from torch_bridge import TrainStep, evaluate, lambda_lr

Build = Callable[..., TrainStep]


def in_inference_mode(build: Build, data: list[Any]) -> Any:
    """Only the step is built there: a model would have no gradients."""
    model = Net()
    with torch.inference_mode():
        step = build(model=model)
        step.reset_carry()
    return train(step, data), step


def with_another_default_device(build: Build, data: list[Any]) -> Any:
    model = Net()
    with torch.device("meta"):
        step = build(model=model)
    # Torch's own Adam creates its counters on the default device.
    with torch.device("meta" if step.optimizer.param_groups[0].get("fused") else "cpu"):
        results = train(step, data[:5])
    with torch.device("meta"):
        step.load_state_dict(step.state_dict())
        return results + train(step, data[5:]), step


def with_reused_carry(build: Build, data: list[Any]) -> Any:
    """The caller's tensor may change: the step has a copy."""
    carry = torch.zeros(2)
    step = build(carry=carry)
    carry.fill_(7)
    step.reset_carry()
    return train(step, data), step


def in_new_threads(build: Build, data: list[Any]) -> Any:
    step, results = build(), []
    for batch in data:
        with ThreadPoolExecutor(1) as thread:
            results.append(thread.submit(step, batch).result())
    return results, step


def next_to_another_step(build: Build, data: list[Any]) -> Any:
    steps = [build(), make_step(model=Net(1))]
    with ThreadPoolExecutor(2) as threads:
        results, _ = threads.map(lambda step: train(step, data * 5)[: len(data)], steps)
    return results, None


def in_autocast(build: Build, data: list[Any]) -> Any:
    """Otherwise torch would use the weights that it cast first until the loop ends."""
    step = build()
    with torch.autocast("cpu", torch.bfloat16):
        results = train(step, data)
        loss = evaluate(step.model, data[:3], mean_loss, precision="bf16")
    assert loss == evaluate(step.model, data[:3], mean_loss, precision="bf16")
    return results, step


class Marked(Tensor):
    """A subclass of tensors."""


def with_tensor_subclasses(build: Build, data: list[Any]) -> Any:
    step = build()
    return train(step, [tuple(part.as_subclass(Marked) for part in batch) for batch in data]), step


def with_compiled_model(build: Build, data: list[Any]) -> Any:
    model = Net()
    step = build(model=torch.compile(model, backend="eager"), optimizer=make_optimizer("adamw", model))
    results = train(step, data)
    step.load_state_dict(step.state_dict())
    return results, step


class OwnLoss(torch.nn.MSELoss):
    def forward(self, model: Any, batch: Any) -> Tensor:  # type: ignore[override]  (a module and a batch)
        return mean_loss(model, batch)


def with_options(build: Build, data: list[Any], **options: Any) -> Any:
    step = build(**options)
    return train(step, data), step


def with_saves(build: Build, data: list[Any]) -> Any:
    """A snapshot writes to no tensor."""
    step, results = build(), []
    clock = [value for value in vars(step._clock).values() if isinstance(value, Tensor)]
    for batch in data:
        versions = [value._version for value in [*clock, *step.model.parameters()]]
        lr = step.optimizer.param_groups[0]["lr"]
        step.state_dict()
        assert versions == [value._version for value in [*clock, *step.model.parameters()]]
        assert step.optimizer.param_groups[0]["lr"] is lr
        results.append(step(batch))
    return results, step


NAMES = "adamw", "momentum", "plain adam"
CARRIED: dict[str, Any] = {
    "loss_fn": counting_loss, "carry": torch.zeros(2), "precision": "fp16", "max_norm": 1.0
}  # fmt: skip
SITUATIONS: list[Any] = [
    *((in_inference_mode, {"name": name, **CARRIED}) for name in NAMES),
    *((with_another_default_device, {"name": name, "precision": precision, "max_norm": 0.5})
      for name in (*FUSED, "plain adam", "plain momentum") for precision in ("fp32", "fp16")),
    (with_another_default_device, {"curve": HELD_CURVE, "clock": PATIENT}),
    (with_reused_carry, CARRIED),
    (in_new_threads, {}),
    (next_to_another_step, {}),
    (in_autocast, {"precision": "bf16"}),
    (with_tensor_subclasses, {}),
    (with_compiled_model, {}),
    (partial(with_options, loss_fn=OwnLoss()), {}),
    (partial(with_options, max_norm=np.float32(0.25)), {"max_norm": 0.25}),
    *((with_saves, {"name": name, "precision": precision})
      for name in NAMES for precision in ("fp32", "fp16")),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.parametrize(("situation", "options"), SITUATIONS)
def test_surroundings_make_no_difference(situation: Any, options: dict[str, Any]) -> None:
    data, build = batches(7), partial(make_step, **options)
    data[3] = nonfinite(data[3])
    reference = build()
    expected = train(reference, data)
    results, step = situation(build, data)
    assert equal_trees([tuple(result) for result in results], [tuple(result) for result in expected])
    if step is not None:
        assert equal_trees(step.state_dict(), reference.state_dict())


@pytest.mark.parametrize("name", ["adamw", "rmsprop"])
def test_copies_of_model_and_optimizer_are_independent(name: str) -> None:
    step, data = make_step(name), batches(6)
    train(step, data[:3])
    copies = copy.deepcopy((step.model, step.optimizer))
    before = copy.deepcopy([copied.state_dict() for copied in copies])
    train(step, data[3:])
    assert equal_trees([copied.state_dict() for copied in copies], before)


def test_lazy_model_trains_after_a_dummy_batch() -> None:
    lazy, (batch,) = torch.nn.Sequential(torch.nn.LazyLinear(2)), batches(1)
    lazy(batch[0])
    assert make_step(model=lazy)(batch).applied == 1


def test_print_shows_curve_step_and_lr() -> None:
    step, data = make_step(clock=DataClock(2), count=lambda batch: 5), batches(4)
    assert reads_of(lambda: repr(step)) == 0
    assert repr(step) == f"TrainStep({CURVE})"
    train(step, [*data[:3], nonfinite(data[3])])
    lr = float(f"{CURVE(7) * 0.01:.6g}")
    counts = "applied=3, skipped=1, consumed=15, unit=2"
    assert str(step) == f"TrainStep({CURVE}, curve_step=7, lr={lr}, {counts})"
    assert str(make_step()) == f"TrainStep({CURVE}, curve_step=0, lr=0.005, applied=0, skipped=0)"


def test_print_of_several_curves_is_one_line() -> None:
    model, other = Net(), PlateauCurve(500)
    optimizers = [torch.optim.SGD(module.parameters(), lr=0.5) for module in (model.first, model.last)]
    same = TrainStep(model, optimizers, mean_loss, other)
    assert str(same).startswith(f"TrainStep({other}, curve_step=0, lr=0.5, ")
    assert "lr=[0.25, 0.5], " in str(TrainStep(model, optimizers, mean_loss, [CURVE, other]))
    step = make_step(curve=PlateauCurve(10**6, plateaus=[(number, 0.1) for number in range(90)]))
    for shown in (repr(step), str(step)):
        assert len(shown) < 400
        assert "\n" not in shown


# The counter of device reads: it notices every way of reading, and nothing else.

SCALAR, LINE = torch.ones((), dtype=torch.int64), torch.ones(1, dtype=torch.int64)

READS: list[Callable[[], Any]] = [
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
]


@pytest.mark.parametrize("way", READS, ids=range(len(READS)))
def test_every_way_of_reading_is_counted(way: Callable[[], Any]) -> None:
    assert reads_of(way) >= 1


def test_use_of_host_memory_is_not_counted() -> None:
    device, host = torch.ones(3), torch.zeros(3)
    ways: dict[Callable[[], Any], int] = {
        lambda: host.tolist(): 0,
        lambda: host[0].item(): 0,
        lambda: host.copy_(device, non_blocking=True): 0,
        lambda: host.copy_(device): 1,
        lambda: host[:1].copy_(device[:1]): 1,
    }
    assert [reads_of(way, [host]) for way in ways] == list(ways.values())


@pytest.mark.parametrize("fused", [False, True])
def test_hook_of_the_optimizer_clips_by_value(fused: bool) -> None:
    """As the page on the training step says: the hook sees the sum of the micro-batches, unscaled."""
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
