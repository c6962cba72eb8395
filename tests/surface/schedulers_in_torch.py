"""`lambda_lr` and `follow`."""

import torch
from support.surface.limits import varied
from torch import nn

from torch_bridge import BatchPlan, DataClock, PlateauCurve, StagedCurve, follow, lambda_lr

curve = StagedCurve([(10, 1.0), (50,), (40, 0.0)])
scaled_curve = BatchPlan([(0, 8), (80, 16)]).scale(curve, 8, reference=16)


def sgd() -> torch.optim.SGD:
    """Return a new optimizer."""
    return torch.optim.SGD([nn.Parameter(torch.zeros(2))], lr=0.5, momentum=0.9)


lambda_lr(sgd(), curve)  # lambda_lr
lambda_lr(sgd(), [curve, curve])  # raises ValueError
lambda_lr(sgd(), 0.1)  # raises TypeError
lambda_lr(sgd(), curve, clock="tokens")  # raises TypeError
lambda_lr(nn.Linear(1, 1), curve)  # raises TypeError
lambda_lr(sgd(), curve).unit  # None
lambda_lr(sgd(), scaled_curve).unit  # 8

# Of a run that began without it.
stepped = sgd()
stepped.param_groups[0]["params"][0].grad = torch.ones(2)
stepped.step()  # None
resumed = sgd()
resumed.param_groups[0]["initial_lr"] = 0.5

lambda_lr(sgd(), curve, last_epoch=0)  # lambda_lr
lambda_lr(sgd(), curve, last_epoch=0.5)  # raises TypeError
lambda_lr(stepped, curve, last_epoch=0)  # raises ValueError
lambda_lr(resumed, curve, last_epoch=varied(10))  # -1 …, else ValueError

# The steps of a scheduler.
scheduler = lambda_lr(sgd(), curve)
scheduler.optimizer.step()  # None

scheduler.step()  # None
scheduler.step(10)  # None, warns UserWarning
scheduler.step(0.5)  # raises TypeError
scheduler.step(count=8)  # raises TypeError
scheduler.step(metric=0.5)  # raises TypeError
lambda_lr(sgd(), curve).step()  # None, warns UserWarning


def step_with_count(count: int) -> None:
    """Step once by `count` samples."""
    counting = lambda_lr(sgd(), curve, clock=DataClock(8))
    counting.optimizer.step()
    counting.step(count=count)


step_with_count(varied(8))  # 0 … 4611686018427387904, else ValueError
scheduler.get_lr()  # list[float]
scheduler.get_last_lr()  # list[float]
scheduler.set_peak(0.25)  # None
scheduler.set_peak("0.25")  # raises TypeError
scheduler.set_peak([0.25, 0.25])  # raises ValueError
scheduler.set_peak(varied(0.1))  # 1.1754943508222875e-38 … 3.4028235677973362e+38, else ValueError

# A state of a different curve.
saved = lambda_lr(sgd(), curve)
for _ in range(10):
    saved.optimizer.step()
    saved.step()
state = saved.state_dict()
different_curve = PlateauCurve(100)
strict = lambda_lr(sgd(), different_curve)
tolerant = lambda_lr(sgd(), different_curve, strict=False)

strict.load_state_dict({})  # raises ValueError
strict.load_state_dict(state)  # raises ValueError
strict.load_state_dict(state, strict=False)  # None, warns CurveWarning
tolerant.load_state_dict(state)  # None, warns CurveWarning
tolerant.load_state_dict(state, strict=True)  # raises ValueError

# Followers.
follower = follow(sgd(), "momentum", curve)

follow(sgd(), "momentum", curve)  # follow
follow(sgd(), "lr", curve)  # raises ValueError
follow(sgd(), "weight", curve)  # raises ValueError
follow(sgd(), 1, curve)  # raises TypeError
follower.step()  # None
follower.curve_step  # 1
follower.step(0.5)  # raises TypeError
follower.step(varied(8))  # 0 …, else ValueError
follow(sgd(), "momentum", scaled_curve).step()  # raises TypeError
follower.set_base_value(0.5)  # None
follower.set_base_value("0.5")  # raises TypeError
follower.set_base_value(varied(0.1))  # 1.1754943508222875e-38 … 3.4028235677973362e+38, else ValueError
follower.load_state_dict(follower.state_dict())  # None
follower.load_state_dict({})  # raises ValueError
