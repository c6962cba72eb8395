"""`TrainStep`, and what is called around it."""

from typing import Any

import torch
from support.surface.limits import varied
from torch import nn

from torch_bridge import (
    BatchPlan,
    DataClock,
    MetricLog,
    StagedCurve,
    TrainStep,
    checkpoint_activations,
    count_updates,
    distribute,
    evaluate,
    find_batch_size,
    is_main,
    multiplier,
    profile,
    tensors,
)

curve = StagedCurve([(10, 1.0), (50,), (40, 0.0)])
scaled_curve = BatchPlan([(0, 8), (80, 16)]).scale(curve, 8, reference=16)
model = nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
optimizer.param_groups[0]["initial_lr"] = 0.5  # without it, no initial_updates
batch = torch.ones(3, 2)


def mean_loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """Return the loss as a tensor."""
    return model(batch).mean()


def named_losses(model: nn.Module, batch: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the loss under a name, as `evaluate` accepts it."""
    return {"loss": mean_loss(model, batch)}


def train_step(**options: Any) -> TrainStep:
    """Return a step with a new model."""
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    return TrainStep(model, optimizer, mean_loss, **{"curve": curve, **options})


TrainStep(model, optimizer, mean_loss, curve)  # TrainStep
TrainStep(model, optimizer, 0, curve)  # raises TypeError
TrainStep(model, optimizer, mean_loss, curve, precision="fp8")  # raises ValueError
TrainStep(model, optimizer, mean_loss, curve, clock="tokens")  # raises TypeError
TrainStep(model, optimizer, mean_loss, curve, max_norm=varied(1.0))  # 5e-324 …, else ValueError
TrainStep(model, optimizer, mean_loss, curve, initial_updates=varied(1))  # 0 … 4611686018427387904, else ValueError

step = train_step()
step(batch)  # StepResult
step(batch, batch)  # StepResult
step(batch, count=8)  # raises TypeError
train_step(clock=DataClock(8))(batch)  # raises TypeError
train_step(clock=DataClock(8))(batch, count=8)  # StepResult
train_step(on_nonfinite="raise")(batch / 0)  # raises FloatingPointError
step.set_peak(0.25)  # None
step.set_peak("0.25")  # raises TypeError
step.set_peak(varied(0.1))  # 1.1754943508222875e-38 … 3.4028235677973362e+38, else ValueError
step.load_state_dict(step.state_dict())  # None
step.load_state_dict({})  # raises ValueError
train_step().state_dict()["applied"]  # 0
train_step(curve=scaled_curve).state_dict()["records"][0]["clock"]  # {'kind': 'data', 'unit': 8, 'count': None}

result = step(batch)
result.loss  # float32 tensor of shape ()
result.grad_norm  # float32 tensor of shape ()
result.lr  # float32 tensor of shape (1,)
result.counters  # int64 tensor of shape (4,)
result.aux  # ()
result.applied  # int64 tensor of shape ()
result.skipped  # int64 tensor of shape ()
result.curve_step  # int64 tensor of shape ()
result.consumed  # int64 tensor of shape ()

# Logs.
log = MetricLog(every=2)
log.flush()  # None
log(result)  # None
log(result)  # dict
log(0.5)  # raises TypeError
log.load_state_dict({})  # raises ValueError
MetricLog(varied(10))  # 1 …, else ValueError
MetricLog(keep=varied(10))  # 1 …, else ValueError

# Evaluation.
evaluate(model, [batch], mean_loss)  # float
evaluate(model, [batch], named_losses)  # dict
evaluate(model, [], mean_loss)  # raises ValueError
evaluate(model, [batch], mean_loss, precision="fp8")  # raises ValueError

# Numbers of updates and samples.
count_updates(10, 3, accumulation=4)  # int
count_updates([0, 1], 3)  # int
count_updates(0.5, 3)  # raises TypeError
count_updates(varied(10), 3)  # 1 …, else ValueError
count_updates(10, varied(3))  # 1 …, else ValueError
count_updates(10, 3, accumulation=varied(4))  # 1 …, else ValueError
find_batch_size(train_step, torch.ones, 0.5)  # raises TypeError
profile(mean_loss, [], "traces")  # raises ValueError

# Models and ranks.
is_main()  # bool
distribute(nn.Linear(2, 1), device="cpu")  # Linear
distribute(nn.Linear(2, 1), "zero")  # raises ValueError
distribute(nn.Linear(2, 1), blocks=[0])  # raises TypeError
checkpoint_activations(nn.Linear(2, 1), nn.Linear)  # Linear
checkpoint_activations(nn.Linear(2, 1), nn.Conv2d)  # raises ValueError
checkpoint_activations(nn.Linear(2, 1), 0)  # raises TypeError

# Tables on a device.
tensors(curve.table)  # NamedTuple
tensors(curve.table).begin.device  # device(type='cpu')
tensors(None)  # raises TypeError
multiplier(tensors(curve.table), torch.arange(3))  # float32 tensor of shape (3,)
multiplier(tensors(curve.table), 0)  # raises TypeError
