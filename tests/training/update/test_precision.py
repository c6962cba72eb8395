"""Mixed precision: parity with GradScaler, overflow, and small problems that are still learned."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from support.training.models import Net, batches, device_pair_loss, mean_loss, nonfinite, pair_loss
from support.training.optimizers import make_optimizer
from support.training.steps import CURVE, lrs_of, make_step, set_loss_scale, train
from support.training.trees import equal_trees
from torch import nn

from plateau_jax import PlateauCurve
from torch_bridge import TrainStep, lambda_lr

_CPU = torch.device("cpu")


@pytest.mark.parametrize("name", ["adamw", "plain momentum", "sgd", "rmsprop"])
@pytest.mark.parametrize(("scale", "good_updates"), [(2.0**16, 0), (2.0**22, 0), (2.0**10, 1985)])
@pytest.mark.parametrize("max_norm", [None, 0.1])
def test_fp16_matches_loop_with_grad_scaler(
    name: str, scale: float, good_updates: int, max_norm: float | None
) -> None:
    """The same bits, through overflows at the start and growth of the scale."""
    model, stepped_model = Net(), Net()
    optimizer = make_optimizer(name, model)
    for group in optimizer.param_groups:
        group["lr"] = torch.tensor(group["lr"]) if group.get("fused") else group["lr"]
    scheduler = lambda_lr(optimizer, CURVE)
    scaler = torch.amp.GradScaler("cpu")
    scaler.load_state_dict(scaler.state_dict() | {"scale": scale, "_growth_tracker": good_updates})
    step = TrainStep(
        stepped_model,
        make_optimizer(name, stepped_model),
        mean_loss,
        CURVE,
        precision="fp16",
        max_norm=max_norm,
    )
    set_loss_scale(step, scale, good_updates)
    scales = []
    for batch in batches(30):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = mean_loss(model, batch)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm or float("inf"))
        scaler.step(optimizer)
        before = scaler.get_scale()
        scaler.update()
        applied = scaler.get_scale() >= before
        if applied:
            scheduler.step()
        result = step(batch)
        assert equal_trees(result.loss, loss)
        if applied:
            assert equal_trees(result.grad_norm, norm)
        state = step.state_dict()
        assert [value.item() for value in state["loss_scale"]] == [
            scaler.get_scale(),
            scaler.state_dict()["_growth_tracker"],
        ]
        scales.append(scaler.get_scale())
    assert equal_trees(stepped_model.state_dict(), model.state_dict())
    if scale == 2.0**22:
        assert state["skipped"] > 0, "no overflow was seen"
    if good_updates:
        assert max(scales) == 2 * scale, "no growth was seen"


def test_nonfinite_data_does_not_change_the_scale() -> None:
    (batch,) = batches(1)
    step = make_step("sgd", precision="fp16")
    step(batch)
    set_loss_scale(step, 2.0**10, 1999)  # one good update before it grows
    train(step, [nonfinite(batch)] * 3 + [nonfinite(batch, float("inf"))] * 3)
    assert step.state_dict()["loss_scale"] == [2.0**10, 1999]
    step(batch)
    assert step.state_dict()["loss_scale"] == [2.0**11, 0]


def test_large_sums_do_not_overflow() -> None:
    """65 536 times a gradient of sums over 4 000 rows would be far beyond fp16, whose largest is 65 504."""
    (batch,) = batches(1, rows=4000)
    expected = make_step("sgd", loss_fn=pair_loss)(batch)
    for rows in ([4000], [1000, 3000], [3000, 600, 400], [100, 3900], [0, 4000], [0, 0, 400, 3600, 0]):
        for loss_fn in (pair_loss, device_pair_loss):
            pieces = list(zip(*(part.split(rows) for part in batch), strict=True))
            step = make_step("sgd", loss_fn=loss_fn, precision="fp16")
            # If the first weight is small, the scale must shrink first.
            results = [step(*pieces) for _ in range(1 if rows[0] >= 1000 else 14)]
            result = next(result for result in results if result.applied)
            torch.testing.assert_close(result[:3], expected[:3], rtol=0.01, atol=0)


@pytest.mark.parametrize("on_nonfinite", ["skip", "raise"])
def test_gradient_overflow_does_not_raise(on_nonfinite: str) -> None:
    (batch,) = batches(1)
    step = make_step("sgd", precision="fp16", on_nonfinite=on_nonfinite)
    set_loss_scale(step, 2.0**40, 0)
    applied, skipped = 0, 0
    while not applied:
        result = step(batch)
        applied, skipped = int(result.applied), int(result.skipped)
        assert result.loss.isfinite()
        assert skipped < 40
    assert skipped > 10
    assert step.state_dict()["loss_scale"][0] == 2.0 ** (40 - skipped)


@pytest.mark.parametrize("name", ["adamw", "momentum", "rmsprop"])
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_small_problem_is_learned_as_in_fp32(name: str, precision: str) -> None:
    inputs = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
    batch = inputs, torch.stack([inputs.sum(1).sin(), inputs[:, 0]], 1)
    curve = PlateauCurve(150, warmup_steps=10)
    losses = {}
    for chosen in ("fp32", precision):
        results = train(make_step(name, curve=curve, precision=chosen, max_norm=1.0), [batch] * 150)
        losses[chosen] = results[-1].loss.item()
        assert losses[chosen] < 0.5 * results[0].loss.item()
    assert losses[precision] == pytest.approx(losses["fp32"], rel=0.05)


def test_forward_pass_has_the_precisions_dtype() -> None:
    seen = []

    def loss_fn(model: nn.Module, batch: Any) -> torch.Tensor:
        outputs = model(batch[0])
        seen.append(outputs.dtype)
        return outputs.float().mean()

    for precision in ("fp32", "bf16", "fp16"):
        make_step(loss_fn=loss_fn, precision=precision)(*batches(1))
    assert seen == [torch.float32, torch.bfloat16, torch.float16]
    assert not torch.is_autocast_enabled("cpu")


@pytest.fixture
def doubles() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.mark.usefixtures("doubles")
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("name", ["adamw", "momentum", "rmsprop"])
def test_default_dtype_does_not_change_lrs(name: str, precision: str) -> None:
    """It concerns only model and data: learning rates and loss scale stay float32."""
    step = make_step(name, precision=precision, max_norm=0.5)
    assert step.model.first.weight.dtype == torch.float64
    for applied, batch in enumerate(batches(5)):
        result = step(batch)
        assert equal_trees(result.lr, torch.from_numpy(lrs_of(step, applied)))
        assert result.applied == applied + 1
