"""Programs whose states are saved once and read by every later version.

A program is a function that builds its objects, and returns the object to save and the update.
Update n uses the n-th batch, loss or count, so a resumed program needs only the number of its next
update. The models multiply element by element, so two machines give nearly the same results.

A program whose files are written never changes. Add another one instead.
"""

import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Literal, cast

import jax
import numpy as np
import torch
from clocks.rules.specs import SPECS
from torch import Tensor, distributed, nn
from torch.optim import SGD, AdamW, Optimizer

from plateau_jax import (
    BatchPlan,
    CurveScheduler,
    DataClock,
    HoldBelow,
    HoldUntilFlat,
    PlateauCurve,
    StagedCurve,
    check_resume,
    check_resume_file,
    resume_record,
    scale_by_curve,
)
from torch_bridge import MetricLog, TrainStep, distribute, follow, lambda_lr, make_loader
from torch_bridge.training.result import StepResult


@dataclass(frozen=True)
class ShownUpdate:
    """What a program shows after an update."""

    exact: list[Any]
    """Integers, and floats as hexadecimal numbers (learning rates): equal in every version."""
    close: list[float]
    """Results of torch's arithmetic, such as losses and weights."""


@dataclass(frozen=True)
class GoldenProgram:
    """A program that runs."""

    saved: Any
    """The object whose state is saved; for a checkpoint, the parts by name."""
    update: Callable[[int], ShownUpdate]
    """`update(n)` runs update n, counted from 0."""


File = Literal["json", "pt", "checkpoint"]


@dataclass(frozen=True)
class SavedProgram:
    """A program whose state is saved."""

    build: Callable[[], GoldenProgram]
    updates: int
    """The number of updates before the save."""
    file: File
    """How the state is saved: as JSON, by `torch.save` or by `Checkpoints`."""
    processes: int
    continued: int
    """The number of updates that are recorded after the save."""


CASES: dict[str, SavedProgram] = {}
"""Every case by the name of its function."""


def saved_after(
    updates: int, file: File, *, processes: int = 1, continued: int = 12
) -> Callable[[Callable[[], GoldenProgram]], Callable[[], GoldenProgram]]:
    """Add the function below to `CASES`."""

    def add(build: Callable[[], GoldenProgram]) -> Callable[[], GoldenProgram]:
        CASES[build.__name__] = SavedProgram(build, updates, file, processes, continued)
        return build

    return add


# Schedulers and followers.

CURVE = PlateauCurve(40, warmup_steps=4, plateaus=[(20, 15)], min_lr_ratio=0.1, init_lr_ratio=0.5)
UNTIL_FLAT = SPECS[HoldUntilFlat].saved
BELOW = SPECS[HoldBelow].saved


def _optimizer(lr: Any = 0.3, **options: Any) -> SGD:
    return SGD([nn.Parameter(torch.ones(1))], lr=lr, **options)


def _loss(number: int) -> float:
    """Return a loss that falls until update 14, and then stays."""
    return 1 - min(number, 14) / 16


def _lrs_of(optimizer: Optimizer) -> list[str]:
    return [float(group["lr"]).hex() for group in optimizer.param_groups]


Options = Callable[[int], dict[str, Any]]
"""Returns what update n passes to the clock."""


def _nothing(number: int) -> dict[str, Any]:
    return {}


def _metric(number: int) -> dict[str, Any]:
    return {"metric": _loss(number)}


def _count(number: int) -> dict[str, Any]:
    return {"count": 4 + number}


def _stepping(scheduler: lambda_lr, options: Options = _nothing) -> GoldenProgram:
    """Return the program that steps an optimizer and a scheduler."""

    def update(number: int) -> ShownUpdate:
        lrs = _lrs_of(scheduler.optimizer)
        scheduler.optimizer.step()
        scheduler.step(**options(number))
        counters = [scheduler.last_epoch, scheduler.curve_step, scheduler.consumed]
        return ShownUpdate([*lrs, *counters], [])

    return GoldenProgram(scheduler, update)


@saved_after(7, "json")
def scheduler() -> GoldenProgram:
    return _stepping(lambda_lr(_optimizer(), CURVE))


@saved_after(7, "pt")
def scheduler_with_lr_tensor() -> GoldenProgram:
    """The learning rate in the state is a tensor, as in the optimizer."""
    return _stepping(lambda_lr(AdamW([nn.Parameter(torch.ones(1))], lr=torch.tensor(0.3)), CURVE))


@saved_after(7, "json")
def scheduler_with_new_peak() -> GoldenProgram:
    scheduler = lambda_lr(_optimizer(), CURVE)

    def options(number: int) -> dict[str, Any]:
        if number == 5:
            scheduler.set_peak(0.7)
        return {}

    return _stepping(scheduler, options)


def _held_by(rule: Any) -> GoldenProgram:
    return _stepping(lambda_lr(_optimizer(), CURVE, clock=rule), _metric)


for _spec in SPECS.values():
    for _name, _updates in _spec.saved_after.items():
        CASES[_name] = SavedProgram(partial(_held_by, _spec.saved), _updates, "json", 1, 12)


@saved_after(13, "json")
def scheduler_held_by_two_rules() -> GoldenProgram:
    """Saved while `HoldBelow` holds it, which `HoldUntilFlat` does next."""
    return _stepping(lambda_lr(_optimizer(), CURVE, clock=[UNTIL_FLAT, BELOW]), _metric)


@saved_after(7, "json")
def scheduler_in_samples() -> GoldenProgram:
    """Saved after 49 samples, at step 6 and one eighth."""
    return _stepping(lambda_lr(_optimizer(), CURVE, clock=DataClock(8)), _count)


@saved_after(5, "json")
def scheduler_under_batch_plan() -> GoldenProgram:
    plan = BatchPlan([(0, 12), (64, 20), (160, 36)])
    scheduler = lambda_lr(_optimizer(), plan.scale(CURVE, 8, reference=36))

    def options(number: int) -> dict[str, Any]:
        return {"count": plan(scheduler.consumed)}

    return _stepping(scheduler, options)


@saved_after(25, "pt")
def scheduler_under_nested_curves() -> GoldenProgram:
    """Two groups: one under a cooldown of a continued curve, one under a stretched decay."""
    longer = PlateauCurve(72, warmup_steps=4)
    stretched = PlateauCurve(40, warmup_steps=4).part(0, 20).then(longer.part(32))
    phases = StagedCurve([(10, 1.0), (20, 0.2, "t^-0.5")])
    cooled = phases.then(CURVE, scale=0.5).cooldown(28, 8, to=0.01, shape="(1-x)^1.5")
    weights = nn.Parameter(torch.ones(2))
    biases = nn.Parameter(torch.ones(1))
    optimizer = SGD([{"params": weights, "lr": 0.3}, {"params": biases, "lr": 0.7}])
    return _stepping(lambda_lr(optimizer, [cooled, stretched]))


@saved_after(9, "json")
def follower() -> GoldenProgram:
    optimizer = _optimizer(weight_decay=0.3)
    decay = follow(optimizer, "weight_decay", CURVE.cooldown(20, 10))

    def update(number: int) -> ShownUpdate:
        optimizer.step()
        decay.step()
        (group,) = optimizer.param_groups
        return ShownUpdate([group["weight_decay"].hex(), decay.curve_step], [])

    return GoldenProgram(decay, update)


@saved_after(9, "json")
def follower_with_a_new_base() -> GoldenProgram:
    optimizer = _optimizer(weight_decay=0.3)
    decay = follow(optimizer, "weight_decay", CURVE)

    def update(number: int) -> ShownUpdate:
        optimizer.step()
        decay.step()
        if number == 5:
            decay.set_base_value(0.2)
        (group,) = optimizer.param_groups
        return ShownUpdate([group["weight_decay"].hex(), decay.curve_step], [])

    return GoldenProgram(decay, update)


@saved_after(9, "json")
def follower_of_a_pair() -> GoldenProgram:
    optimizer = AdamW([nn.Parameter(torch.ones(1))], betas=(0.9, 0.95))
    beta = follow(optimizer, ("betas", 0), CURVE)

    def update(number: int) -> ShownUpdate:
        optimizer.step()
        beta.step()
        (group,) = optimizer.param_groups
        first, second = group["betas"]
        return ShownUpdate([first.hex(), second.hex(), beta.curve_step], [])

    return GoldenProgram(beta, update)


# Loaders and logs.


def _endless(loader: Any) -> Iterator[Any]:
    """Return the batches of one epoch after the other, from the loader's position."""
    while True:
        yield from loader


def _load(loader: Any) -> GoldenProgram:
    """Return the program that loads a batch in each update."""
    batches = _endless(loader)

    def update(number: int) -> ShownUpdate:
        return ShownUpdate(next(batches).tolist(), [])

    return GoldenProgram(loader, update)


@saved_after(7, "json")
def loader() -> GoldenProgram:
    """Saved in the second epoch."""
    return _load(make_loader(range(23), 4, num_workers=0, seed=5))


@saved_after(1100, "json")
def loader_after_many_epochs() -> GoldenProgram:
    """Saved in an epoch whose order is drawn from the second seed."""
    return _load(make_loader(range(8), 8, num_workers=0))


@saved_after(4, "json")
def loader_in_order() -> GoldenProgram:
    """Saved in the first epoch; the last batch of an epoch has three samples."""
    return _load(make_loader(range(23), 4, training=False, num_workers=0))


@saved_after(8, "json")
def metric_log() -> GoldenProgram:
    """Saved with 5 of 8 rows, one update before the next row is returned."""
    log = MetricLog(every=3, keep=5)

    def update(number: int) -> ShownUpdate:
        loss = torch.tensor(1 / (number + 1))
        lr = torch.tensor([0.5**number])
        counters = torch.tensor([number + 1, 0, number, number + 1])
        row = log(StepResult(loss, loss / 2, lr, counters))
        if row is None:
            return ShownUpdate([None], [])
        lrs = [row["lr"].hex() for row in log.rows]
        exact = [row["applied"], row["curve_step"], *lrs]
        return ShownUpdate(exact, [row["loss"], row["grad_norm"]])

    return GoldenProgram(log, update)


@saved_after(0, "pt", continued=1)
def values() -> GoldenProgram:
    """Curves, clocks, rules and batch plans as pickles for `torch.load(weights_only=True)`."""
    plan = BatchPlan([(0, 12), (64, 20)])
    stages = StagedCurve([(10, 1.0), (20, 0.2, "t^-0.5")])
    curves = [CURVE, stages, CURVE.cooldown(9, 9), CURVE.then(stages), CURVE.part(3, 9)]
    scaled = plan.scale(CURVE, 4, reference=20)
    expected = [*curves, scaled, plan, DataClock(8, count=64), UNTIL_FLAT, BELOW]
    saved = _Values(list(expected))

    def update(number: int) -> ShownUpdate:
        return ShownUpdate([saved.items == expected], [])

    return GoldenProgram(saved, update)


class _Values:
    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def state_dict(self) -> dict[str, Any]:
        return {"items": self.items}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self.items = state_dict["items"]


# Training steps.

Batch = tuple[Tensor, Tensor]


class Scale(nn.Module):
    """Multiplies each of three inputs by a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, -0.5, 0.25]))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * self.weight


class Shifted(Scale):
    """A `Scale` that then adds a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(3))

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs) + self.bias


def _batch(number: int) -> Batch:
    inputs = torch.tensor([[1.0, 2.0, -1.0], [-2.0, 1.0, 1.0]])
    inputs = inputs / 2 ** (number % 3)
    targets = torch.tensor([[1.0, -1.0, 0.5], [number % 4, 2.0, -1.0]])
    return inputs, targets


def _mean_loss(model: nn.Module, batch: Batch) -> Tensor:
    inputs, targets = batch
    return (model(inputs) - targets).square().mean()


def _exact(result: StepResult) -> list[Any]:
    """Return the learning rates and the counters of an update."""
    lrs = [lr.hex() for lr in cast("list[float]", result.lr.tolist())]
    return [*lrs, *cast("list[int]", result.counters.tolist())]


def _shown(result: StepResult, model: nn.Module) -> ShownUpdate:
    weights: list[float] = []
    for parameter in model.parameters():
        weights += parameter.tolist()
    return ShownUpdate(_exact(result), [result.loss.item(), result.grad_norm.item(), *weights])


def _train(step: TrainStep, **options: Any) -> GoldenProgram:
    """Return the program that trains on one batch in each update."""

    def update(number: int) -> ShownUpdate:
        return _shown(step(_batch(number), **options), step.model)

    return GoldenProgram(step, update)


@saved_after(6, "pt")
def step_with_lr_tensor() -> GoldenProgram:
    model = Scale()
    optimizer = AdamW(model.parameters(), lr=torch.tensor(0.125))
    return _train(TrainStep(model, optimizer, _mean_loss, CURVE, max_norm=1.0))


@saved_after(6, "pt")
def step_with_fused_adamw() -> GoldenProgram:
    """The state has torch's random numbers, which decide what is dropped."""
    torch.manual_seed(7)
    model = nn.Sequential(Scale(), nn.Dropout(0.5))
    optimizer = AdamW(model.parameters(), lr=0.125, fused=True)
    return _train(TrainStep(model, optimizer, _mean_loss, CURVE))


@saved_after(9, "pt")
def step_in_fp16() -> GoldenProgram:
    """Saved after two skipped updates, each of which has halved the loss scale."""
    model = Scale()
    optimizer = SGD(model.parameters(), 0.125, momentum=0.5)
    step = TrainStep(model, optimizer, _mean_loss, CURVE, precision="fp16")

    def update(number: int) -> ShownUpdate:
        inputs, targets = _batch(number)
        if number in (3, 5):
            # The loss is finite in float32, but times the loss scale it is not.
            inputs = inputs * 2.0**60
        shown = _shown(step((inputs, targets)), model)
        loss_scale, good_updates = cast("list[Tensor]", step.state_dict()["loss_scale"])
        return ShownUpdate([*shown.exact, loss_scale.item(), good_updates.item()], shown.close)

    return GoldenProgram(step, update)


@saved_after(16, "pt")
def step_held() -> GoldenProgram:
    """Saved in the hold at step 11; the loss is that of `_loss`."""
    model = Scale()

    def loss_fn(model: nn.Module, loss: Tensor) -> Tensor:
        return loss + 0 * model(torch.ones(3)).sum()

    optimizer = SGD(model.parameters(), 0.125)
    step = TrainStep(model, optimizer, loss_fn, CURVE, clock=[UNTIL_FLAT, BELOW])

    def update(number: int) -> ShownUpdate:
        return _shown(step(torch.tensor(_loss(number))), model)

    return GoldenProgram(step, update)


@saved_after(6, "pt")
def step_with_carry() -> GoldenProgram:
    """A tree of tensors is carried: the number of updates, and a mean of the inputs."""
    model = Scale()

    def loss_fn(model: nn.Module, batch: Batch, carry: Any) -> Any:
        inputs, targets = batch
        (last_mean,) = carry["mean"]
        mean = last_mean / 2 + inputs.mean(0) / 2
        loss = _mean_loss(model, (inputs + mean, targets))
        return loss, {"count": carry["count"] + 1, "mean": [mean]}

    carry = {"count": torch.zeros((), dtype=torch.int64), "mean": [torch.zeros(3)]}
    optimizer = SGD(model.parameters(), 0.125)
    return _train(TrainStep(model, optimizer, loss_fn, CURVE, carry=carry))


@saved_after(6, "pt")
def step_with_two_optimizers() -> GoldenProgram:
    model = Shifted()
    momentum = SGD([model.weight], 0.125, momentum=0.5)
    adamw = AdamW([model.bias], 0.0625)
    linear = PlateauCurve(25, decay_shape="linear")
    return _train(TrainStep(model, [momentum, adamw], _mean_loss, (CURVE, linear)))


@saved_after(6, "pt")
def step_in_samples() -> GoldenProgram:
    """Saved in the middle of a unit, with a new peak."""
    model = Scale()
    optimizer = SGD(model.parameters(), 0.125)
    step = TrainStep(model, optimizer, _mean_loss, CURVE, clock=DataClock(8))

    def update(number: int) -> ShownUpdate:
        if number == 5:
            step.set_peak(0.1)
        return _shown(step(_batch(number), count=5 + number), model)

    return GoldenProgram(step, update)


# Checkpoints.


def _run_with_loader() -> GoldenProgram:
    """Return a training run over all processes, with the parts that a resume needs."""
    processes = 1
    if distributed.is_initialized():
        processes = distributed.get_world_size()
        torch.manual_seed(distributed.get_rank())  # each process has its own random numbers
    model = distribute(Scale(), "fsdp", device="cpu")
    optimizer = SGD(model.parameters(), 0.125, momentum=0.5)
    step = TrainStep(model, optimizer, _mean_loss, CURVE)
    samples = [(torch.tensor([1.0, index, -1.0]) / 8, torch.ones(3)) for index in range(12)]
    loader = make_loader(samples, 4 // processes, num_workers=0)
    batches = _endless(loader)
    log = MetricLog(every=3)
    progress: dict[str, Any] = {"updates": 0, "best": [1.0]}

    def update(number: int) -> ShownUpdate:
        result = step(next(batches))
        row = log(result)
        progress["updates"] += 1
        exact = [*_exact(result), progress["updates"], row is not None, len(log.rows)]
        return ShownUpdate(exact, [result.loss.item(), result.grad_norm.item()])

    return GoldenProgram({"step": step, "loader": loader, "log": log, "progress": progress}, update)


@saved_after(7, "checkpoint")
def checkpoint() -> GoldenProgram:
    return _run_with_loader()


@saved_after(7, "checkpoint", processes=2)
def checkpoint_of_two_processes() -> GoldenProgram:
    """Each process has a shard of the weights, and half of each batch."""
    return _run_with_loader()


@saved_after(7, "checkpoint")
def checkpoint_of_a_plain_loop() -> GoldenProgram:
    """The checkpoint has the random numbers of Python, NumPy and torch."""
    random.seed(7)
    np.random.seed(7)  # noqa: NPY002 (the global generator, as programs use it)
    torch.manual_seed(7)
    model = nn.Sequential(Scale(), nn.Dropout(0.5))
    optimizer = SGD(model.parameters(), 0.125, momentum=0.5)
    scheduler = lambda_lr(optimizer, CURVE)

    def update(number: int) -> ShownUpdate:
        shift = random.random()
        factor = np.random.random()  # noqa: NPY002 (the global generator)
        inputs, targets = _batch(number)
        loss = _mean_loss(model, (inputs * factor + shift, targets))
        optimizer.zero_grad()
        loss.backward()
        lrs = _lrs_of(optimizer)
        optimizer.step()
        scheduler.step()
        return ShownUpdate([*lrs, shift.hex(), factor.hex()], [loss.item()])

    return GoldenProgram({"model": model, "optimizer": optimizer, "scheduler": scheduler}, update)


# Optax states, next to their record.


class _OptaxRun:
    """The state of `scale_by_curve` by the names of its arrays, and the record that protects it."""

    def __init__(self, clock: Any, options: Options = _nothing) -> None:
        self.transformation: Any = scale_by_curve(CURVE, 0.3, clock)
        self.state: Any = self.transformation.init({})
        self.record = resume_record(CURVE, 0.3, clock)
        self.options = options

    def update(self, number: int) -> ShownUpdate:
        options = self.options(number)
        _, self.state = self.transformation.update({}, self.state, {}, **options)
        return ShownUpdate([float(self.state.learning_rate).hex(), int(self.state.curve_step)], [])

    def state_dict(self) -> dict[str, Any]:
        arrays = {name: array.item() for name, array in self.arrays().items()}
        return {"record": self.record, "state": arrays}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        arrays = self.arrays()
        saved = state_dict["state"]
        assert saved.keys() == arrays.keys()
        leaves: list[jax.Array] = []
        for name, array in arrays.items():
            leaves.append(jax.numpy.asarray(saved[name], array.dtype))
        self.state = jax.tree.unflatten(cast("Any", jax.tree.structure(self.state)), leaves)
        check_resume(state_dict["record"], self.record, int(self.state.curve_step))

    def arrays(self) -> dict[str, Any]:
        tree_util: Any = jax.tree_util
        arrays: dict[str, Any] = {}
        for path, array in tree_util.tree_leaves_with_path(self.state):
            arrays[tree_util.keystr(path)] = array
        return arrays


def _value(number: int) -> dict[str, Any]:
    return {"value": _loss(number)}


@saved_after(7, "json")
def optax_state() -> GoldenProgram:
    run = _OptaxRun(None)
    return GoldenProgram(run, run.update)


@saved_after(16, "json")
def optax_state_held() -> GoldenProgram:
    run = _OptaxRun([UNTIL_FLAT, BELOW], _value)
    return GoldenProgram(run, run.update)


@saved_after(7, "json")
def optax_state_in_samples() -> GoldenProgram:
    run = _OptaxRun(DataClock(8, count=16), _count)
    return GoldenProgram(run, run.update)


# Runs without JAX or torch.


def _scheduled(scheduler: CurveScheduler, options: Options = _nothing) -> GoldenProgram:
    """Return the program that steps a scheduler."""

    def update(number: int) -> ShownUpdate:
        lr = scheduler.lr.hex()
        scheduler.step(**options(number))
        return ShownUpdate([lr, scheduler.updates, scheduler.curve_step, scheduler.consumed], [])

    return GoldenProgram(scheduler, update)


@saved_after(7, "json")
def curve_scheduler() -> GoldenProgram:
    return _scheduled(CurveScheduler(CURVE.then(CURVE), 0.3))


@saved_after(16, "json")
def curve_scheduler_held() -> GoldenProgram:
    return _scheduled(CurveScheduler(CURVE, 0.3, clock=[UNTIL_FLAT, BELOW]), _metric)


@saved_after(7, "json")
def curve_scheduler_in_samples() -> GoldenProgram:
    return _scheduled(CurveScheduler(CURVE, 0.3, clock=DataClock(8, count=16)), _count)


class _History:
    """The file of `check_resume_file`."""

    def __init__(self) -> None:
        self.path = Path(mkdtemp()) / "curve.json"

    def state_dict(self) -> dict[str, Any]:
        return json.loads(self.path.read_text())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.path.write_text(json.dumps(state))


@saved_after(2, "json", continued=3)
def resume_history() -> GoldenProgram:
    history = _History()
    branch = CURVE.cooldown(20, 10)
    starts = [(0, CURVE), (20, branch), (25, branch), (20, CURVE), (30, CURVE)]

    def update(number: int) -> ShownUpdate:
        step, curve = starts[number]
        records = [resume_record(curve, 0.3), resume_record(CURVE, 0.1, DataClock(8))]
        check_resume_file(history.path, records, step)
        steps = [entry["step"] for entry in history.state_dict()["entries"]]
        return ShownUpdate(steps, [])

    return GoldenProgram(history, update)
