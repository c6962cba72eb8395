"""Checks of optimizers' moments, and of what schedulers have consumed, that every rank makes."""

from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from support.checkpointing.checkpoints import Part, gathered, same_bits
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
            mesh = parameter.device_mesh
            gradient = distribute_tensor(gradient, mesh, parameter.placements)
        parameter.grad = gradient
    optimizer.step()


# Quantized moments.


def _quantizing(wrapper: str, seed: int) -> tuple[nn.Module, Quantizing]:
    model = wrapped(wrapper, Model(seed))
    return model, Quantizing(model.parameters())


def _local_moments(optimizer: Optimizer) -> list[Tensor]:
    return [local_shard(state["moment"]) for state in optimizer.state.values()]


def _contents(optimizer: Optimizer) -> list[Any]:
    """Return a copy of this rank's moments, each as its inner tensors or as itself."""
    contents: list[Any] = []
    for moment in _local_moments(optimizer):
        if isinstance(moment, Wrapped):
            inner = {name: tensor.clone() for name, tensor in moment.tensors.items()}
            contents.append([inner, moment.context, moment.dtype])
        else:
            contents.append(moment.clone())
    return contents


def _is_quantized(optimizer: Optimizer) -> list[bool]:
    return [isinstance(moment, Wrapped) for moment in _local_moments(optimizer)]


def check_quantized_moments_come_back(directory: Path) -> None:
    """To the bit, although updates change them in mid-write, and not every rank quantizes all."""
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
        on_rank_0, on_rank_1 = gather(_is_quantized(loaded))
        assert (on_rank_0 == on_rank_1) == (wrapper == "ddp")


def check_quantized_shards_are_not_loaded_whole(directory: Path) -> None:
    """Nothing says how to join them."""
    message = "optimizer.state.0.moment was saved in shards that only the same ranks can use"
    _check_moments_are_not_loaded(directory, "fsdp", "ddp", message)


def check_whole_quantized_moments_are_not_loaded_in_shards(directory: Path) -> None:
    """Nothing says how to cut them."""
    message = (
        "optimizer.state.0.moment is of support.checkpointing.wrapped_tensors.Wrapped, was saved "
        "whole, and is sharded here"
    )
    _check_moments_are_not_loaded(directory, "ddp", "fsdp", message)


def _check_moments_are_not_loaded(directory: Path, saving: str, loading: str, message: str) -> None:
    """Check that a load of the moments is an error; the weights alone can be loaded."""
    model, optimizer = _quantizing(saving, seed=0)
    _train(model, optimizer, seed=1)
    checkpoints = Checkpoints(directory)
    checkpoints.save(1, model=model, optimizer=optimizer, wait=True)
    loaded_model, loaded = _quantizing(loading, seed=5)
    before = gathered(loaded_model.state_dict())
    assert message in error_of(checkpoints.load, model=loaded_model, optimizer=loaded)
    assert not loaded.state
    assert same_bits(gathered(loaded_model.state_dict()), before)
    checkpoints.load(model=loaded_model)
    weights = gathered(plain_state(model))
    assert same_bits(gathered(plain_state(loaded_model)), weights)


# Moments of parameters that are sharded on one side only.

_FORMS = ("whole", "body", "plain")
"""A model is sharded as a whole, only its body, or not at all."""


def _sharded(form: str, seed: int) -> tuple[nn.Module, Optimizer]:
    model = Model(seed)
    if form != "plain":
        fully_shard(model.body)
    if form == "whole":
        fully_shard(model)
    return model, AdamW(model.parameters(), lr=0.1, foreach=False)


def check_moments_take_the_form_of_their_parameter(directory: Path) -> None:
    """Whether the optimizer that loads them has stepped or not."""
    for saved_form in _FORMS:
        model, optimizer = _sharded(saved_form, seed=0)
        _train(model, optimizer, seed=1)
        checkpoints = Checkpoints(directory / saved_form)
        checkpoints.save(1, model=model, optimizer=optimizer, wait=True)
        _train(model, optimizer, seed=2)
        for form in _FORMS:
            fresh_model, fresh = _sharded(form, seed=5)
            _check_resumed(checkpoints, fresh_model, fresh, model, optimizer)
            used_model, used = _sharded(form, seed=5)
            _train(used_model, used, seed=6)
            _check_resumed(checkpoints, used_model, used, model, optimizer)


def _check_resumed(
    checkpoints: Checkpoints,
    model: nn.Module,
    optimizer: Optimizer,
    expected_model: nn.Module,
    expected_optimizer: Optimizer,
) -> None:
    checkpoints.load(model=model, optimizer=optimizer)
    for parameter, state in optimizer.state.items():
        is_sharded = isinstance(parameter, DTensor)
        assert isinstance(state["exp_avg"], DTensor) == is_sharded
        assert isinstance(state["exp_avg_sq"], DTensor) == is_sharded
    _train(model, optimizer, seed=2)
    expected_moments = gathered(expected_optimizer.state_dict()["state"])
    assert same_bits(gathered(optimizer.state_dict()["state"]), expected_moments)
    expected_weights = gathered(expected_model.state_dict())
    assert same_bits(gathered(model.state_dict()), expected_weights)


# What schedulers have consumed.


def _scheduler() -> Any:
    """Return a scheduler by data."""
    optimizer = AdamW(nn.Linear(2, 2).parameters(), lr=0.1)
    return lambda_lr(optimizer, PlateauCurve(100), clock=DataClock(8))


def _sequential(scheduler: Any) -> Any:
    """Return a scheduler that has it as its first one."""
    optimizer = scheduler.optimizer
    return SequentialLR(optimizer, [scheduler, ConstantLR(optimizer)], [50])


def check_schedulers_consumed_the_same(directory: Path) -> None:
    scheduler = _scheduler()
    loaded = _scheduler()
    _check_different_counts(directory, "scheduler.consumed", scheduler, scheduler, loaded, loaded)


def check_schedulers_in_another_consumed_the_same(directory: Path) -> None:
    scheduler = _scheduler()
    loaded = _scheduler()
    path = "scheduler._schedulers.0.consumed"
    sequential = _sequential(scheduler)
    _check_different_counts(directory, path, scheduler, sequential, loaded, _sequential(loaded))


def _check_different_counts(
    directory: Path, path: str, scheduler: Any, saved: Any, loaded: Any, part_to_load: Any
) -> None:
    """Let each rank count alone; nothing is written, nor loaded if it was saved unchecked.

    Args:
        directory: The directory of the run.
        path: What a message calls the number.
        scheduler: A new scheduler by data.
        saved: The scheduler that the program steps and saves: itself, or one that has it.
        loaded: Another new scheduler by data.
        part_to_load: The scheduler that the program loads.
    """
    scheduler.optimizer.step()
    scheduler.count = 16 + rank()
    saved.step()
    part = Part({"rank": rank()})  # may differ
    checkpoints = Checkpoints(directory)
    error = error_of(checkpoints.save, 1, part=part, scheduler=saved, wait=True)
    assert f"{path} = 16 on rank 0, and 17 on rank 1" in error
    assert "step(count=n) with the sum" in error
    assert not directory.exists()
    distributed.barrier()

    with patch.object(parts, "check_same_schedules"):
        checkpoints.save(1, part=part, scheduler=saved, wait=True)
    loaded_part = Part("as before")
    error = error_of(checkpoints.load, part=loaded_part, scheduler=part_to_load)
    assert f"{path} = 16 on rank 0, and 17 on rank 1" in error
    assert loaded_part.state == "as before"
    assert loaded.consumed == 0
    assert checkpoints.load(part=loaded_part) == 1
    assert loaded_part.state == {"rank": rank()}


def check_equal_schedulers_are_saved(directory: Path) -> None:
    scheduler = _scheduler()
    loaded = _scheduler()
    _check_equal_counts(directory, scheduler, scheduler, loaded, loaded)


def check_equal_schedulers_in_another_are_saved(directory: Path) -> None:
    scheduler = _scheduler()
    loaded = _scheduler()
    sequential = _sequential(scheduler)
    _check_equal_counts(directory, scheduler, sequential, loaded, _sequential(loaded))


def _check_equal_counts(
    directory: Path, scheduler: Any, saved: Any, loaded: Any, part_to_load: Any
) -> None:
    scheduler.optimizer.step()
    scheduler.count = 33
    saved.step()
    checkpoints = Checkpoints(directory)
    checkpoints.save(1, scheduler=saved, wait=True)
    assert checkpoints.load(scheduler=part_to_load) == 1
    assert loaded.consumed == 33
    assert loaded.curve_step == 4
