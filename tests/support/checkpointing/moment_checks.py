"""Checks of an optimizer's moments, and of what schedulers have consumed, that every rank makes in turn."""

from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from support.checkpointing.checkpoints import Part, same_bits, gathered
from support.checkpointing.wrapped_tensors import Quantizing, Wrapped
from support.distributed.distributed_updates import wrapped
from support.distributed.processes import error_of
from support.training.models import seeded
from torch import Tensor, distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import ConstantLR, SequentialLR

from plateau_jax import DataClock, PlateauCurve
from torch_bridge import Checkpoints, lambda_lr
from torch_bridge.checkpointing import parts
from torch_bridge.distributed.dtensors import local_shard
from torch_bridge.distributed.plain_names import plain_state
from torch_bridge.distributed.processes import gather, rank


class Model(nn.Module):
    """Of its head, rank 1 of two has no row."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        with seeded(seed):
            self.body = nn.Linear(6, 6)
            self.head = nn.Linear(6, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.body(inputs))


def _train(model: nn.Module, optimizer: Optimizer, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        gradient = torch.randn(parameter.shape, generator=generator)
        if isinstance(parameter, DTensor):
            gradient = distribute_tensor(gradient, parameter.device_mesh, parameter.placements)
        parameter.grad = gradient
    optimizer.step()


# Quantized moments.


def _quantizing(wrapper: str, seed: int) -> tuple[nn.Module, Quantizing]:
    model = wrapped(wrapper, Model(seed))
    return model, Quantizing(model.parameters())


def _contents(optimizer: Optimizer) -> list[Any]:
    """Return a copy of this rank's moments, each as its inner tensors or as itself."""
    contents: list[Any] = []
    for state in optimizer.state.values():
        local = local_shard(state["moment"])
        if isinstance(local, Wrapped):
            inner = {name: tensor.clone() for name, tensor in local.tensors.items()}
            contents.append([inner, local.context, local.dtype])
        else:
            contents.append(local.clone())
    return contents


def _is_quantized(optimizer: Optimizer) -> list[bool]:
    return [isinstance(local_shard(state["moment"]), Wrapped) for state in optimizer.state.values()]


def check_quantized_moments_come_back(directory: Path) -> None:
    """To the bit, although updates change them while they are written, and not every rank quantizes all."""
    for wrapper in ("ddp", "fsdp"):
        model, optimizer = _quantizing(wrapper, seed=0)
        _train(model, optimizer, seed=1)
        expected = _contents(optimizer)
        checkpoints = Checkpoints(directory / wrapper)
        checkpoints.save(1, model=model, optimizer=optimizer)
        _train(model, optimizer, seed=2)
        checkpoints.steps()
        distributed.barrier()

        resumed, loaded = _quantizing(wrapper, seed=5)
        assert checkpoints.load(model=resumed, optimizer=loaded) == 1
        assert same_bits(_contents(loaded), expected)
        _train(resumed, loaded, seed=2)
        assert same_bits(_contents(loaded), _contents(optimizer))
        assert same_bits(gathered(resumed.state_dict()), gathered(model.state_dict()))
        of_ranks = gather(_is_quantized(loaded))
        assert (of_ranks[0] == of_ranks[1]) == (wrapper == "ddp")


def check_quantized_shards_fit_only_the_same_ranks(directory: Path) -> None:
    """Nothing says how to join them, or how to cut a whole one."""
    expected = {
        ("fsdp", "ddp"): "optimizer.state.0.moment was saved in shards that only the same ranks can use",
        ("ddp", "fsdp"): "optimizer.state.0.moment is of support.checkpointing.wrapped_tensors.Wrapped, was "
        "saved whole, and is sharded here",
    }
    for (saving, loading), message in expected.items():
        model, optimizer = _quantizing(saving, seed=0)
        _train(model, optimizer, seed=1)
        checkpoints = Checkpoints(directory / saving)
        checkpoints.save(1, model=model, optimizer=optimizer, wait=True)
        loaded_model, loaded = _quantizing(loading, seed=5)
        before = gathered(loaded_model.state_dict())
        assert message in error_of(checkpoints.load, model=loaded_model, optimizer=loaded)
        assert not loaded.state
        assert same_bits(gathered(loaded_model.state_dict()), before)
        checkpoints.load(model=loaded_model)
        assert same_bits(gathered(plain_state(loaded_model)), gathered(plain_state(model)))


# Moments of parameters that are sharded on one side only.


def _sharded(form: str, seed: int) -> tuple[nn.Module, Optimizer]:
    model = Model(seed)
    if form != "plain":
        fully_shard(model.body)
    if form == "whole":
        fully_shard(model)
    return model, AdamW(model.parameters(), lr=0.1, foreach=False)


def check_moments_take_the_form_of_their_parameter(directory: Path) -> None:
    """A model is sharded as a whole, only its body, or not at all; the optimizer has stepped or not."""
    forms = ("whole", "body", "plain")
    for saved_form in forms:
        model, optimizer = _sharded(saved_form, seed=0)
        _train(model, optimizer, seed=1)
        checkpoints = Checkpoints(directory / saved_form)
        checkpoints.save(1, model=model, optimizer=optimizer, wait=True)
        _train(model, optimizer, seed=2)
        for form in forms:
            for has_stepped in (False, True):
                loaded_model, loaded = _sharded(form, seed=5)
                if has_stepped:
                    _train(loaded_model, loaded, seed=6)
                checkpoints.load(model=loaded_model, optimizer=loaded)
                for parameter, state in loaded.state.items():
                    for name in ("exp_avg", "exp_avg_sq"):
                        assert isinstance(state[name], DTensor) == isinstance(parameter, DTensor)
                _train(loaded_model, loaded, seed=2)
                assert same_bits(gathered(loaded.state_dict()["state"]), gathered(optimizer.state_dict()["state"]))
                assert same_bits(gathered(loaded_model.state_dict()), gathered(model.state_dict()))


# What schedulers have consumed.


def _scheduler(kind: str) -> tuple[Any, Any]:
    """Return a scheduler by data, and the object that a program saves."""
    optimizer = AdamW(nn.Linear(2, 2).parameters(), lr=0.1)
    scheduler: Any = lambda_lr(optimizer, PlateauCurve(100), clock=DataClock(8))
    if kind == "alone":
        return scheduler, scheduler
    return scheduler, SequentialLR(optimizer, [scheduler, ConstantLR(optimizer)], [50])


def _drifted(kind: str) -> tuple[Any, Any]:
    """Return them after an update that each rank has counted alone."""
    scheduler, saved = _scheduler(kind)
    scheduler.optimizer.step()
    scheduler.count = 16 + rank()
    saved.step()
    return scheduler, saved


def check_schedulers_consumed_the_same(directory: Path) -> None:
    """Before anything is written, or loaded from a checkpoint that was saved without the check."""
    paths = {"alone": "scheduler.consumed", "in another": "scheduler._schedulers.0.consumed"}
    for kind, path in paths.items():
        _, saved = _drifted(kind)
        part = Part({"rank": rank()})  # may differ
        checkpoints = Checkpoints(directory / kind)
        error = error_of(checkpoints.save, 1, part=part, scheduler=saved, wait=True)
        assert f"{path} = 16 on rank 0, and 17 on rank 1" in error
        assert "step(count=n) with the sum" in error
        assert not (directory / kind).exists()
        distributed.barrier()

        with patch.object(parts, "check_same_consumed"):
            checkpoints.save(1, part=part, scheduler=saved, wait=True)
        scheduler, fresh = _scheduler(kind)
        loaded = Part("as before")
        error = error_of(checkpoints.load, part=loaded, scheduler=fresh)
        assert f"{path} = 16 on rank 0, and 17 on rank 1" in error
        assert (loaded.state, scheduler.consumed) == ("as before", 0)
        assert checkpoints.load(part=loaded) == 1
        assert loaded.state == {"rank": rank()}


def check_equal_schedulers_are_saved(directory: Path) -> None:
    for kind in ("alone", "in another"):
        scheduler, saved = _scheduler(kind)
        scheduler.optimizer.step()
        scheduler.count = 33
        saved.step()
        Checkpoints(directory / kind).save(1, scheduler=saved, wait=True)
        resumed, fresh = _scheduler(kind)
        assert Checkpoints(directory / kind).load(scheduler=fresh) == 1
        assert (resumed.consumed, resumed.curve_step) == (33, 4)
