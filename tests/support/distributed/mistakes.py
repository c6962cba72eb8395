"""Mistakes in a group of ranks: errors, layers without gradients, missing averages, losses of two kinds.

Each check runs on every rank of one group.
"""

import warnings
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checkpointing.checkpoints import gather_tensors
from support.distributed import distributed_updates
from support.distributed.distributed_models import Skipping
from support.distributed.distributed_updates import Case
from support.distributed.processes import error_of
from torch import Tensor, distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from plateau_jax import CurveWarning, PlateauCurve
from torch_bridge import DataClock, TrainStep, distribute

CURVE = PlateauCurve(20)  # the first update moves something


def _loss_fn(model: nn.Module, batch: Any) -> Tensor:
    return model(*batch).square().mean()


def _rows(update: int, number: int, rank: int) -> Tensor:
    return torch.randn(4, 3, generator=torch.Generator().manual_seed(100 * update + 10 * number + rank))


def _batch(update: int, number: int, uses_all: bool) -> tuple[Tensor, bool]:
    return _rows(update, number, distributed.get_rank()), uses_all


def _step_of(model: nn.Module, loss_fn: Callable[..., Any] = _loss_fn, **options: Any) -> TrainStep:
    return TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.5), loss_fn, CURVE, **options)


def _weights(model: nn.Module) -> list[Any]:
    return [array.tolist() for array in gather_tensors(list(model.parameters())).values()]


def check_step_rejects_calls_after_an_error(_: Path) -> None:
    """Wherever the error came: other ranks may wait in a collective, and torch's wrappers are in mid-pass."""

    def fail(*_: Any) -> Any:
        raise KeyboardInterrupt

    def fail_backward(_: Any, __: Any, output: Tensor) -> None:
        output.register_hook(fail)

    for wrapper, place in product(("ddp", "fsdp"), ("forward", "backward", "optimizer")):
        model: Any = distributed_updates.wrapped(Case(wrapper), Skipping())
        step = _step_of(model)
        step(_batch(0, 0, True))
        state = step.state_dict()
        part = next(module for module in model.modules() if isinstance(module, nn.Linear))
        if place == "optimizer":
            hook = step.optimizer.register_step_pre_hook(fail)
        else:
            hook = part.register_forward_hook(fail if place == "forward" else fail_backward)
        with pytest.raises(KeyboardInterrupt):
            step(_batch(1, 0, True))
        hook.remove()
        for call in (
            partial(step, _batch(1, 0, True)),
            step.state_dict,
            partial(step.load_state_dict, state),
        ):
            assert "restart the program from its last checkpoint" in error_of(call)


def check_update_without_ddps_average_is_rejected(_: Path) -> None:
    """A layer may be skipped if DDP was told so."""
    step = _step_of(DistributedDataParallel(Skipping(), find_unused_parameters=True))
    for update in range(2):
        step(_batch(update, 0, True), _batch(update, 1, False))
    for case in ("skipped in the last micro-batch", "frozen after wrapping", "frozen while training"):
        plain = Skipping()
        model = DistributedDataParallel(plain)
        plain.around.requires_grad_(case != "frozen after wrapping")
        step = _step_of(model)
        if case == "frozen while training":
            step(_batch(0, 0, True))
            plain.around.requires_grad_(False)
        before, batches = _weights(plain), (_batch(1, 0, True), _batch(1, 1, case.startswith("frozen")))
        message = error_of(step, *batches)
        assert "has not averaged the gradients" in message, case
        assert "find_unused_parameters=True" in message, case
        assert _weights(plain) == before, case


def check_mixed_means_and_pairs_are_skipped_on_all_ranks(_: Path) -> None:
    """Even if large sums could overflow, for which ranks with pairs communicate once more."""
    ways = [("ddp", "fp32"), ("fsdp", "fp32"), ("ddp", "fp16"), ("fsdp", "fp16")]
    ways += [("ddp by fp16", "fp32"), ("fsdp by fp16", "fp32")]
    for (wrapper, precision), first in product(ways, ("", "mean", "pair")):
        _check_two_kinds_of_losses(wrapper, precision, first)


def _check_two_kinds_of_losses(wrapper: str, precision: Any, first: str) -> None:
    """Rank 0 returns means, and the others pairs; with `first`, all return that in one update before."""
    model: Any = Skipping()
    is_mixed = False

    def loss_fn(model: nn.Module, batch: Any) -> Any:
        squares = model(*batch).square()
        is_mean = distributed.get_rank() == 0 if is_mixed else first == "mean"
        return squares.mean() if is_mean else (squares.sum(), len(squares))

    step = _step_of(distributed_updates.wrapped(Case(wrapper), model), loss_fn, precision=precision)
    if first:
        step(_batch(9, 0, True))
    is_mixed, before, counts = True, _weights(model), step.state_dict()
    step(_batch(0, 0, True), _batch(0, 1, True))
    result = step(_batch(1, 0, True), _batch(1, 1, True))
    assert result.loss.isnan()
    assert (result.applied, result.skipped) == (counts["applied"], counts["skipped"] + 2)
    assert _weights(model) == before


def check_wrong_count_on_one_rank_skips_the_update_on_all(_: Path) -> None:
    """No rank waits for another one, and the run continues."""
    rank, size = distributed.get_rank(), distributed.get_world_size()
    wrong: list[Any] = [None, -1, 2.5, torch.tensor(2.5), 2**62]
    for wrapper, precision in product(("ddp", "fsdp"), ("fp32", "fp16")):
        model: Any = Skipping()
        wrapped = distributed_updates.wrapped(Case(wrapper), model)
        step = _step_of(wrapped, precision=precision, clock=DataClock(5))
        step(_batch(0, 0, True), count=3)
        for number, count in enumerate(wrong, 1):
            before, state = _weights(model), step.state_dict()
            if rank == number % size:
                with pytest.raises((TypeError, ValueError), match="count"):
                    step(_batch(number, 0, True), count=count)
            else:
                assert step(_batch(number, 0, True), count=4).loss.isnan()
            after = step.state_dict()
            assert _weights(model) == before
            assert (after["applied"], after["skipped"]) == (state["applied"], state["skipped"] + 1)
            assert (after["consumed"], after["curve_step"]) == (state["consumed"], state["curve_step"])
            result = step(_batch(number, 1, True), count=3 + rank)
            assert result.consumed == state["consumed"] + sum(3 + other for other in range(size))
            assert _weights(model) != before


def check_count_of_the_clock_is_that_of_all_ranks(_: Path) -> None:
    size = distributed.get_world_size()
    for wrapper in ("ddp", "fsdp"):
        wrapped = distributed_updates.wrapped(Case(wrapper), Skipping())
        step = _step_of(wrapped, clock=DataClock(5, count=7))
        consumed = [step(_batch(update, 0, True)).consumed.item() for update in range(3)]
        assert consumed == [7, 14, 21]
        assert step(_batch(3, 0, True), count=2).consumed == 21 + 2 * size
        state = step.state_dict()
        # Rank 0 passes a count; the others take their parts of 7: 3 on rank 1 of two.
        given = {"count": 5} if distributed.get_rank() == 0 else {}
        rest = 7 - (7 // size + (7 % size > 0))
        assert step(_batch(4, 0, True), **given).consumed == state["consumed"] + 5 + rest


def check_update_that_bypasses_ddp_is_rejected(_: Path) -> None:
    # Warnings of torch.compile when it meets DistributedDataParallel.
    warnings.filterwarnings("ignore", "`torch.jit.script_method` is deprecated", DeprecationWarning)
    warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf", UserWarning)
    for wrong, is_compiled in product(("module", "closed over", "no_grad"), (False, True)):
        _check_bypassed(wrong, is_compiled)


def _check_bypassed(wrong: str, is_compiled: bool) -> None:
    plain = Skipping()
    model: Any = DistributedDataParallel(plain)
    is_right = True

    def loss_fn(model: Any, batch: Any) -> Tensor:
        called = model.forward if is_right else plain if wrong == "closed over" else model.module
        if wrong == "no_grad":
            with torch.no_grad():
                model(*batch)
        loss = called(*batch).square().mean()
        if is_right:
            with torch.no_grad():
                model(*batch)  # an additional pass without gradients is allowed
        return loss

    step = _step_of(model, torch.compile(loss_fn, backend="eager") if is_compiled else loss_fn)
    step(_batch(0, 0, True))
    before, is_right = _weights(plain), False
    message = error_of(step, _batch(1, 0, True), _batch(1, 1, True))
    assert "has not averaged the gradients: loss_fn did not call it" in message
    assert "model(inputs)" in message
    assert _weights(plain) == before


def _mean_of(model: nn.Module, batch: Tensor) -> Tensor:
    return model(batch).mean()


def check_unwrapped_model_warns_unless_intended(_: Path) -> None:
    for how in ("plain", "inner", "meant"):
        model = nn.Sequential(nn.Sequential(nn.Linear(3, 1)))
        if how == "meant":
            assert distribute(model, None, device="cpu") is model
        if how == "inner":
            assert distribute(model, device="cpu") is not model
        trained: Any = model[0] if how == "meant" else model
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            step = _step_of(trained, _mean_of)
            if how != "inner":
                step(torch.ones(2, 3))
        assert len(caught) == (how != "meant")
        for warning in caught:
            assert warning.category is CurveWarning
            assert warning.filename == __file__
            assert "distribute(model, None)" in str(warning.message)


def check_gradient_divide_factor_is_rejected(_: Path) -> None:
    """Also on a part of the model."""
    for is_part, factor in product((False, True), (1.0, 2.0)):
        model: Any = Skipping()
        for module in (model.around, model):
            fully_shard(module)
        (model.around if is_part else model).set_gradient_divide_factor(factor)
        assert "averages over the 2 ranks" in error_of(_step_of, model)
