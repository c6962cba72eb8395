"""Likely mistakes in building and calling a training step: each message says what to write instead."""

from typing import Any

import pytest
import torch
from support.training import steps
from support.training.models import Net, batches, mean_loss
from support.training.steps import CURVE, make_step, train
from support.training.trees import equal_trees
from torch import Tensor, nn

from plateau_jax import CurveWarning, PlateauCurve
from torch_bridge import TrainStep


@pytest.mark.parametrize(
    "criterion", [nn.MSELoss(), nn.MSELoss, nn.functional.mse_loss, nn.L1Loss(reduction="sum")], ids=range(4)
)
def test_criterion_as_loss_fn_is_rejected(criterion: Any) -> None:
    """The replacement that the message suggests works."""
    with pytest.raises(TypeError, match=r"loss_fn\(model, batch\): wrap the criterion") as caught:
        make_step(loss_fn=criterion)
    written = str(caught.value).partition("wrap the criterion, ")[2]
    step, (batch,) = make_step(loss_fn=eval(written, {"nn": nn, "criterion": criterion})), batches(1)
    outputs = step.model(batch[0])
    expected = (criterion() if isinstance(criterion, type) else criterion)(outputs, batch[1])
    assert step(batch).loss.item() == pytest.approx(expected.item())


def test_user_module_as_loss_fn_is_accepted() -> None:
    class Own(nn.MSELoss):
        def forward(self, model: Any, batch: Any) -> Tensor:  # type: ignore[override]  (a module and a batch)
            return mean_loss(model, batch)

    data = batches(2)
    assert equal_trees(train(make_step(loss_fn=Own()), data), train(make_step(), data))


def _unpacking(model: nn.Module, batch: Any) -> Tensor:
    inputs, targets = batch
    return nn.functional.mse_loss(model(inputs), targets)


def _by_index(model: nn.Module, batch: Any) -> Tensor:
    return (model(batch[0]) - batch[1]).square().mean()


def _without_targets(model: nn.Module, batch: Any) -> Tensor:
    return model(batch).square().mean()


@pytest.mark.parametrize(
    ("loss_fn", "error", "rows"),
    [(_unpacking, ValueError, 4), (_by_index, RuntimeError, 2), (_without_targets, RuntimeError, 4)],
)
def test_error_hints_at_two_micro_batches(loss_fn: Any, error: type[Exception], rows: int) -> None:
    step, (batch,) = make_step(loss_fn=loss_fn), batches(1, rows=rows)
    with pytest.raises(error) as caught:
        step(*batch)
    assert "2 arguments are 2 micro-batches" in caught.value.__notes__[0]
    with pytest.raises((ValueError, TypeError)) as caught:  # one argument, so no hint
        step((batch[0], batch[1], None) if loss_fn is _unpacking else None)
    assert not hasattr(caught.value, "__notes__")


def test_out_of_memory_error_gets_no_hint() -> None:
    def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
        raise torch.OutOfMemoryError

    with pytest.raises(torch.OutOfMemoryError) as caught:
        make_step(loss_fn=loss_fn)(torch.ones(2), torch.ones(2))
    assert not hasattr(caught.value, "__notes__")


def test_repeated_parameter_is_rejected() -> None:
    model = Net()
    with pytest.warns(UserWarning, match="duplicate parameters"):
        optimizer = torch.optim.SGD([*model.parameters(), model.last.bias], lr=0.1)
    with pytest.raises(ValueError, match="1 parameters are in the optimizer's groups more than once"):
        TrainStep(model, optimizer, mean_loss, CURVE)
    assert "initial_lr" not in optimizer.param_groups[0]


_END, _FLOOR = PlateauCurve(20), PlateauCurve(20, min_lr_ratio=0.1)
_FROM_0 = PlateauCurve(40, warmup_steps=4)
_STANDING = r"{} updates consumed {} in all, which with unit = {} leaves the curve at step 0.*count\("


def _counting(unit: int, count: Any) -> dict[str, Any]:
    return {"curve": _FROM_0, "unit": unit, "count": count}


# (options, silent updates, updates that warn once, message)
_LATE: list[tuple[dict[str, Any], int, int, str]] = [
    ({"curve": _END}, 25, 30, "has total_steps = 20, .*so no weight changes"),
    ({"curve": PlateauCurve(100)}, 110, 110, "total_steps = 100, but"),
    ({"curve": PlateauCurve(700)}, 710, 710, "total_steps = 700, but"),
    # More than 1000 updates past the end, and at ten times the steps.
    ({"curve": _FLOOR}, 1000, 120, "total_steps = 20, .* final value since step 20"),
    (
        {"curve": _FLOOR, "unit": 1, "count": lambda batch: 3},
        1000,
        120,
        "total_steps = 20, .* final value since step 20",
    ),
    # A unit that is never full.
    (_counting(1000, lambda batch: 5), 32, 40, _STANDING.format(32, 160, 1000)),
    (_counting(1, lambda batch: 0), 32, 40, _STANDING.format(32, 0, 1)),
    (_counting(1, lambda batch: torch.tensor(0)), 32, 40, _STANDING.format(32, 0, 1)),
]


_STEPPERS = [("adamw", *late) for late in _LATE] + [("rmsprop", *late) for late in _LATE if late[1] < 100]


@pytest.mark.parametrize(("name", "options", "silent", "updates", "message"), _STEPPERS)
def test_run_that_stands_still_warns_once(
    name: str, options: dict[str, Any], silent: int, updates: int, message: str
) -> None:
    step, (batch,) = make_step(name, **options), batches(1)
    train(step, [batch] * silent)
    with pytest.warns(CurveWarning, match=message) as caught:
        train(step, [batch] * updates)
    assert len(caught) == 1
    assert caught[0].filename == steps.__file__, "the line of the call"
    step.state_dict()


def test_save_of_short_run_warns_of_unit() -> None:
    step, (batch,) = make_step(curve=_FROM_0, unit=1000, count=len), batches(1)
    train(step, [batch] * 19)
    step.state_dict()
    train(step, [batch])
    with pytest.warns(CurveWarning, match=_STANDING.format(20, 40, 1000)):
        step.state_dict()


@pytest.mark.parametrize(
    ("options", "peak"),
    [
        ({"curve": _FLOOR}, 0.01),
        ({"curve": PlateauCurve(200)}, 0.01),
        (_counting(40, len), 0.01),  # moves after 20 updates of 2
        (_counting(1000, len), 0.0),
        (_counting(1000, len) | {"curve": PlateauCurve(40, warmup_steps=4, init_lr_ratio=0.5)}, 0.01),
        (_counting(1000, len) | {"curve": PlateauCurve(40)}, 0.01),
    ],
)
def test_other_runs_do_not_warn(options: dict[str, Any], peak: float) -> None:
    step, (batch,) = make_step(**options), batches(1)
    step.set_peak(peak)
    train(step, [batch] * 120)
    step.state_dict()
