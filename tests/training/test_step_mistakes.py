"""Likely mistakes in building and calling a training step: each message says what to write instead."""

import warnings
from pathlib import Path
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
def test_criterion_as_loss_fn_is_refused(criterion: Any) -> None:
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


@pytest.mark.filterwarnings("ignore:tensors of:plateau_jax.CurveWarning")
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


def _mean(model: nn.Module, batch: Tensor) -> Tensor:
    return model.last(torch.ones(8)).mean() * batch.float().mean()


_FLOATS = torch.ones(4, 3)
_TOKENS = torch.ones(4, 9, dtype=torch.int64)


@pytest.mark.parametrize(
    "micro_batches",
    [
        (_FLOATS, torch.ones(4, 1)),
        (_FLOATS, torch.ones(4)),
        (_FLOATS, _FLOATS.double()),
        (_TOKENS, _TOKENS[:, 0]),
    ],
    ids=range(4),
)
def test_unlike_micro_batches_warn(micro_batches: Any) -> None:
    step = make_step(loss_fn=_mean)
    with pytest.warns(CurveWarning, match=r"micro-batches of one update.*step\(\(x, y\)\)") as caught:
        step(*micro_batches)
    assert caught[0].filename == __file__
    step(*micro_batches)


@pytest.mark.parametrize(
    "micro_batches",
    [(_FLOATS, _FLOATS[:2]), (_TOKENS, _TOKENS[:, :5]), ((_FLOATS, _TOKENS), _FLOATS), (_FLOATS,)],
    ids=range(4),
)
def test_plausible_micro_batches_do_not_warn(micro_batches: Any) -> None:
    def loss_fn(model: nn.Module, batch: Any) -> Tensor:
        return _mean(model, batch[0] if isinstance(batch, tuple) else batch)

    assert make_step(loss_fn=loss_fn)(*micro_batches).applied == 1


def test_path_as_state_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "state.pt", "state.pt"):
        with pytest.raises(ValueError, match="load the file first"):
            make_step().load_state_dict(path)  # type: ignore[arg-type]  (that is what is tested)


@pytest.mark.parametrize("name", ["adamw", "rmsprop"])
def test_clock_past_the_end_warns_once(name: str) -> None:
    step, (batch,) = make_step(name, curve=PlateauCurve(20)), batches(1)
    for _ in range(25):
        step(batch)
    with pytest.warns(CurveWarning, match="has total_steps = 20, .*so no weight changes") as caught:
        train(step, [batch] * 30)
    assert len(caught) == 1
    assert caught[0].filename == steps.__file__, "the line of the call"


@pytest.mark.parametrize("total", [20, 100, 700])
def test_short_run_past_the_end_warns_soon(total: int) -> None:
    step, (batch,) = make_step(curve=PlateauCurve(total)), batches(1)
    train(step, [batch] * (total + 10))
    with pytest.warns(CurveWarning, match=f"total_steps = {total}, but") as caught:
        train(step, [batch] * (total + 10))
    assert len(caught) == 1


@pytest.mark.parametrize("unit", [None, 1])
def test_floor_far_past_the_end_warns_once(unit: int | None) -> None:
    """More than 1000 updates past the end, and at ten times the steps."""
    count = None if unit is None else (lambda batch: 3)
    step = make_step(curve=PlateauCurve(20, min_lr_ratio=0.1), unit=unit, count=count)
    (batch,) = batches(1)
    train(step, [batch] * 1000)
    with pytest.warns(CurveWarning, match="total_steps = 20, .* final value since step 20") as caught:
        train(step, [batch] * 120)
    step.state_dict()
    assert len(caught) == 1


@pytest.mark.parametrize("curve", [PlateauCurve(20, min_lr_ratio=0.1), PlateauCurve(200)])
def test_other_ends_do_not_warn(curve: PlateauCurve) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step, (batch,) = make_step(curve=curve), batches(1)
        for _ in range(120):
            step(batch)
        step.state_dict()


def test_repeated_parameter_is_refused() -> None:
    model = Net()
    with pytest.warns(UserWarning, match="duplicate parameters"):
        optimizer = torch.optim.SGD([*model.parameters(), model.last.bias], lr=0.1)
    with pytest.raises(ValueError, match="1 parameters are in the optimizer's groups more than once"):
        TrainStep(model, optimizer, mean_loss, CURVE)
    assert "initial_lr" not in optimizer.param_groups[0]


def test_weight_that_requires_grad_is_refused() -> None:
    step, (batch,) = (
        make_step(loss_fn=lambda model, batch: (mean_loss(model, batch), model(batch[0]).mean())),
        batches(1),
    )
    before = step.state_dict()
    with pytest.raises(ValueError, match=r"a pair is \(sum, weight\).*has_aux=True"):
        step(batch)
    assert equal_trees(step.state_dict(), before)


_FROM_0 = PlateauCurve(40, warmup_steps=4)
_STANDING = r"32 updates consumed {}, which with unit = {} leaves the curve at step 0.*count\("


@pytest.mark.parametrize("name", ["adamw", "rmsprop"])
@pytest.mark.parametrize(
    ("unit", "count", "consumed"),
    [(1000, lambda batch: 5, "160"), (1, lambda batch: 0, "0"), (1, lambda batch: torch.tensor(0), "0")],
    ids=["a large unit", "no count", "no count on the device"],
)
def test_unit_that_is_never_full_warns_once(name: str, unit: int, count: Any, consumed: str) -> None:
    step, (batch,) = make_step(name, curve=_FROM_0, unit=unit, count=count), batches(1)
    train(step, [batch] * 32)
    with pytest.warns(CurveWarning, match=_STANDING.format(f"{consumed} in all", unit)) as caught:
        train(step, [batch] * 40)
    assert len(caught) == 1
    assert caught[0].filename == steps.__file__, "the line of the call"
    step.state_dict()


def test_save_of_short_run_warns_of_unit() -> None:
    step, (batch,) = make_step(curve=_FROM_0, unit=1000, count=len), batches(1)
    train(step, [batch] * 19)
    step.state_dict()
    train(step, [batch] * 1)
    with pytest.warns(CurveWarning, match="20 updates consumed 40 in all"):
        step.state_dict()


@pytest.mark.parametrize(
    ("curve", "options"),
    [
        (_FROM_0, {"unit": 40}),  # moves after 20 updates of 2
        (PlateauCurve(40, warmup_steps=4, init_lr_ratio=0.5), {"unit": 1000}),
        (PlateauCurve(40), {"unit": 1000}),
    ],
    ids=["slow", "from above 0", "without warmup"],
)
def test_other_units_do_not_warn(curve: PlateauCurve, options: dict[str, int]) -> None:
    step, (batch,) = make_step(curve=curve, count=len, **options), batches(1)
    train(step, [batch] * 50)
    step.state_dict()
    idle = make_step(curve=_FROM_0, count=len, unit=1000)
    idle.set_peak(0.0)
    train(idle, [batch] * 50)
