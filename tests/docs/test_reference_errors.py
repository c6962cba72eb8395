"""A call with one wrong argument raises an error that the `Raises` of its docstring names."""

import builtins
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.reference import entries, members, parameters
from torch import nn

import plateau_jax as pj
import torch_bridge as tb

WRONG = [None, object(), "no", -1, 2.5, float("nan"), 10**40, True, [], [object()], {}, {"no": 1}, nn.Linear]

CURVE = pj.PlateauCurve(100, warmup_steps=10, plateaus=[(50, 20)])
PLAN = pj.BatchPlan([(0, 8), (160, 16)])
RULE = pj.HoldUntilFlat(patience=3, limit=9)


def parts() -> dict[str, Any]:
    model = nn.Linear(2, 1)
    return {"model": model, "optimizer": torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)}


def optimizer() -> torch.optim.Optimizer:
    found = parts()["optimizer"]
    found.step()
    return found


def loss_fn(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).mean()


def step() -> tb.TrainStep:
    return tb.TrainStep(**parts(), loss_fn=loss_fn, curve=CURVE)


def build(source: Path, scale: int) -> Iterator[dict[str, np.ndarray]]:
    yield {"numbers": np.full(3, scale)}


def loading(part: Any) -> partial[Any]:
    return partial(part.load_state_dict, state_dict=part.state_dict())


def stepping() -> partial[Any]:
    found = optimizer()
    scheduler = tb.lambda_lr(found, CURVE)
    found.step()
    return partial(scheduler.step, epoch=3)


# A valid call of each, built anew for every wrong argument.
CALLS: dict[str, Callable[[Path], partial[Any]]] = {
    "plateau_jax.BatchPlan": lambda _: partial(pj.BatchPlan, pairs=PLAN.pairs),
    "plateau_jax.BatchPlan.__call__": lambda _: partial(PLAN, consumed=3),
    "plateau_jax.BatchPlan.check": lambda _: partial(PLAN.check, micro_batch=2, processes=2),
    "plateau_jax.BatchPlan.consumed": lambda _: partial(PLAN.consumed, updates=3),
    "plateau_jax.BatchPlan.from_dict": lambda _: partial(pj.BatchPlan.from_dict, arguments=PLAN.to_dict()),
    "plateau_jax.BatchPlan.micro_batches": lambda _: partial(
        PLAN.micro_batches, consumed=3, micro_batch=2, processes=2
    ),
    "plateau_jax.BatchPlan.updates": lambda _: partial(PLAN.updates, total=3),
    "plateau_jax.Comparison": lambda _: partial(pj.Comparison, names=("a",), bounds=(1.0,), peaks=(1.0,)),
    "plateau_jax.Curve.__call__": lambda _: partial(CURVE, step=3),
    "plateau_jax.Curve.cooldown": lambda _: partial(CURVE.cooldown, at=50, steps=9, to=0.0, shape="linear"),
    "plateau_jax.Curve.first_difference": lambda _: partial(CURVE.first_difference, other=CURVE),
    "plateau_jax.Curve.from_dict": lambda _: partial(pj.Curve.from_dict, arguments=CURVE.to_dict()),
    "plateau_jax.Curve.plot": lambda _: partial(CURVE.plot, peak_value=0.1),
    "plateau_jax.Curve.same_until": lambda _: partial(CURVE.same_until, other=CURVE, step=3),
    "plateau_jax.Curve.then": lambda _: partial(CURVE.then, other=CURVE, scale=0.5),
    "plateau_jax.HoldBelow": lambda _: partial(pj.HoldBelow, value=0.5, steps=9, every=1),
    "plateau_jax.HoldUntilFlat": lambda _: partial(
        pj.HoldUntilFlat, patience=3, threshold=0.1, threshold_mode="rel", every=2, limit=9
    ),
    "plateau_jax.Outlook": lambda _: partial(pj.Outlook, bound=1.0, peak=1.0),
    "plateau_jax.PlateauCurve": lambda _: partial(pj.PlateauCurve, **CURVE.to_dict()),
    "plateau_jax.StagedCurve": lambda _: partial(pj.StagedCurve, stages=[(10, 1.0), (5,)], start=0.5),
    "plateau_jax.compare": lambda _: partial(lambda curves: pj.compare(curves), curves=CURVE),
    "plateau_jax.cosine_plateau_schedule": lambda _: partial(
        pj.cosine_plateau_schedule,
        init_value=0,
        peak_value=1,
        warmup_steps=3,
        decay_steps=9,
        end_value=0.1,
        plateaus=[(50, 20)],
    ),
    "plateau_jax.multiplier": lambda _: partial(pj.multiplier, segments=CURVE.segments, step=3),
    "plateau_jax.optax_schedule": lambda _: partial(pj.optax_schedule, curve=CURVE, peak_value=0.1),
    "plateau_jax.outlook": lambda _: partial(pj.outlook, curve=CURVE),
    "plateau_jax.plot": lambda _: partial(pj.plot, curves=[CURVE], peak_value=0.1),
    "plateau_jax.scale_by_curve": lambda _: partial(
        pj.scale_by_curve, curve=CURVE, peak_value=0.1, hold=RULE, unit=None
    ),
    "plateau_jax.stack": lambda _: partial(pj.stack, curves=[CURVE]),
    "torch_bridge.Checkpoints": lambda path: partial(tb.Checkpoints, directory=path, keep=2),
    "torch_bridge.Checkpoints.load": lambda path: partial(tb.Checkpoints(path).load, count=None, part={}),
    "torch_bridge.Checkpoints.load_model": lambda path: partial(
        tb.Checkpoints(path).load_model, model=nn.Linear(1, 1), count=None, part="step"
    ),
    "torch_bridge.Checkpoints.save": lambda path: partial(
        tb.Checkpoints(path).save, count=3, wait=True, part={}
    ),
    "torch_bridge.CurveLR": lambda _: partial(
        tb.CurveLR, optimizer=optimizer(), curve=[CURVE], last_epoch=-1, unit=8, count=lambda: 3
    ),
    "torch_bridge.CurveLR.load_state_dict": lambda _: loading(tb.lambda_lr(optimizer(), CURVE)),
    "torch_bridge.CurveLR.set_peak": lambda _: partial(tb.lambda_lr(optimizer(), CURVE).set_peak, peak=0.1),
    "torch_bridge.CurveLR.step": lambda _: stepping(),
    "torch_bridge.Follower": lambda _: partial(
        tb.Follower, optimizer=optimizer(), key="weight_decay", curve=CURVE, unit=8, count=lambda: 3
    ),
    "torch_bridge.Follower.load_state_dict": lambda _: loading(tb.follow(optimizer(), "weight_decay", CURVE)),
    "torch_bridge.Follower.step": lambda _: partial(
        tb.follow(optimizer(), "weight_decay", CURVE, unit=8).step, count=3
    ),
    "torch_bridge.MetricLog": lambda _: partial(tb.MetricLog, every=3, keep=4),
    "torch_bridge.MetricLog.load_state_dict": lambda _: loading(tb.MetricLog()),
    "torch_bridge.TrainStep": lambda _: partial(
        tb.TrainStep,
        **{**parts(), "loss_fn": loss_fn, "curve": CURVE, "hold": RULE},
        precision="fp32",
        max_norm=1.0,
        on_nonfinite="skip",
        synchronize="update",
    ),
    "torch_bridge.TrainStep.load_state_dict": lambda _: loading(step()),
    "torch_bridge.TrainStep.set_peak": lambda _: partial(step().set_peak, peak=0.1),
    "torch_bridge.cached_arrays": lambda path: partial(
        tb.cached_arrays, build=build, source=__file__, directory=path, version="1", scale=2
    ),
    "torch_bridge.checkpoint_activations": lambda _: partial(
        tb.checkpoint_activations, model=nn.Sequential(nn.Linear(2, 1)), blocks=nn.Linear
    ),
    "torch_bridge.count_updates": lambda _: partial(tb.count_updates, loader=9, epochs=3, accumulation=2),
    "torch_bridge.distribute": lambda _: partial(
        tb.distribute, model=nn.Sequential(nn.Linear(2, 1)), mode="ddp", blocks=nn.Linear, device="cpu"
    ),
    "torch_bridge.evaluate": lambda _: partial(
        tb.evaluate, model=nn.Linear(2, 1), batches=[torch.ones(2)], loss_fn=loss_fn, precision="fp32"
    ),
    "torch_bridge.find_batch_size": lambda _: partial(
        tb.find_batch_size, make_step=step, make_batch=lambda n: torch.ones(n, 2), global_batch=4, limit=2
    ),
    "torch_bridge.follow": lambda _: partial(
        tb.follow, optimizer=optimizer(), key="weight_decay", curve=CURVE, unit=8, count=lambda: 3
    ),
    "torch_bridge.multiplier": lambda _: partial(
        tb.multiplier, segments=CURVE.segments, step=torch.tensor(3)
    ),
    "torch_bridge.tensors": lambda _: partial(tb.tensors, segments=CURVE.segments),
    "torch_bridge.get_cosine_plateau_schedule_with_warmup": lambda _: partial(
        tb.get_cosine_plateau_schedule_with_warmup,
        optimizer=optimizer(),
        num_warmup_steps=3,
        num_training_steps=9,
        plateaus=[(50, 20)],
        min_lr_ratio=0.0,
        min_lr=0.01,
        last_epoch=-1,
        hold=RULE,
    ),
    "torch_bridge.lambda_lr": lambda _: partial(
        tb.lambda_lr, optimizer=optimizer(), curve=CURVE, last_epoch=-1, hold=RULE
    ),
    "torch_bridge.make_loader": lambda _: partial(
        tb.make_loader, dataset=range(9), batch_size=2, device=None, num_workers=0, seed=0
    ),
    "torch_bridge.prefetch": lambda _: partial(tb.prefetch, loader=[1], device="cpu", depth=2),
    "torch_bridge.profile": lambda path: partial(
        tb.profile, step=torch.sum, batches=[torch.ones(2)] * 13, directory=path
    ),
}

# Arguments that go to an object of the user's, which raises errors of its own.
HANDED_ON = {
    "plateau_jax.CurveWarning",
    "torch_bridge.CarriedLoss.__call__",
    "torch_bridge.MeanLoss.__call__",
    "torch_bridge.PairLoss.__call__",
    "torch_bridge.MetricLog.__call__",
    "torch_bridge.TrainStep.__call__",
    "torch_bridge.prefetch.load_state_dict",
}


def with_arguments() -> dict[str, str]:
    """Each callable that takes arguments, and its docstring."""
    return {member.name: member.docstring or member.its_class for member in members() if parameters(member)}


def test_no_call_is_missing() -> None:
    assert with_arguments().keys() - HANDED_ON == CALLS.keys()


@pytest.mark.filterwarnings("ignore:The epoch parameter|This DataLoader will create:UserWarning")  # torch's
@pytest.mark.parametrize("name", CALLS)
def test_what_is_raised_is_documented(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # "no" is a directory too
    errors = entries(with_arguments()[name], "Raises")
    documented = tuple(getattr(builtins, error) for error in errors)
    CALLS[name](tmp_path / "right")()
    others = set[str]()
    for argument in CALLS[name](tmp_path / "names").keywords:
        for wrong in WRONG:
            right = CALLS[name](tmp_path / "wrong")
            try:
                right(**{argument: wrong})
            except documented:
                pass
            except Exception as error:
                others.add(f"{argument} = {wrong!r}: {error!r}")
    assert not others, "\n".join(sorted(others))
