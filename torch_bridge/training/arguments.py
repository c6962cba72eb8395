"""The arguments of a training step: checked, and what they are found to be."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import nn
from torch.optim import Optimizer

from torch_bridge.core import Curve, Rule, checks
from torch_bridge.distributed.activation_checkpointing import is_checkpointed
from torch_bridge.distributed.sharded import Sharded, check_shardable
from torch_bridge.distributed.wrappers import Unwrapped, Wrapper, wrapper_of
from torch_bridge.schedulers.hold_state import rules_for
from torch_bridge.schedulers.param_groups import all_parameters, check_peaks_are_known, peaks_of
from torch_bridge.schedulers.unit_clocks import checked_unit
from torch_bridge.training.batch_counts import BatchCounts, CountFunction
from torch_bridge.training.carry import Carry
from torch_bridge.training.drivers import check_capturable
from torch_bridge.training.loss import check_loss_fn
from torch_bridge.training.optimizers import (
    as_sequence,
    check_model,
    curves_by_group,
    device_of,
    optimizers_of,
)
from torch_bridge.training.precision import Precision, PrecisionName
from torch_bridge.training.trainers import trainer_count, with_wrappers

OnNonfinite = Literal["skip", "raise"]
Synchronize = Literal["update", "micro"]


class Arguments(NamedTuple):
    """What the arguments of a training step are found to be."""

    wrapper: Wrapper
    optimizers: tuple[Optimizer, ...]
    """Torch's own, out of their trainers' wrappers."""
    with_wrappers: list[Any]
    """The same, and the wrappers."""
    parameters: list[nn.Parameter]
    """Those that are optimized."""
    device: torch.device
    """Where these are."""
    curves: list[Curve]
    """One for each parameter group of all optimizers."""
    peaks: list[float]
    """The peak rate of each group."""
    rules: tuple[Rule, ...]
    """Those that may hold the clock."""
    precision: Precision
    carry: Carry | None
    initial_updates: int
    """Updates already made by another training loop."""
    unit: int | None
    """How many samples or tokens make one step of the curve; None where an update is one."""
    batch_counts: BatchCounts | None
    """What an update consumes, where that is counted."""
    count_in_trainer: Callable[[], None] | None
    """Counts an update in Lightning's Trainer, where one has wrapped an optimizer."""


def checked(
    model: nn.Module,
    optimizer: Any,
    loss_fn: Any,
    curve: Any,
    *,
    precision: PrecisionName,
    max_norm: float | None,
    on_nonfinite: OnNonfinite,
    cuda_graph: bool,
    carry: Any,
    hold: Rule | Sequence[Rule] | None,
    synchronize: Synchronize,
    initial_updates: int,
    unit: int | None,
    count: CountFunction | None,
) -> Arguments:
    """Refuse what `TrainStep` can't take.

    Raises:
        TypeError, ValueError: As `TrainStep` says.
    """
    check_model(model)
    checks.one_of("synchronize", synchronize, get_args(Synchronize))
    wrapper = wrapper_of(model, every_micro_batch=synchronize == "micro")
    optimizers = optimizers_of(model, optimizer)
    device = device_of(optimizers)
    curves = curves_by_group(optimizer, optimizers, curve)
    rules = rules_for(hold, curves)
    peaks = [peak for each in optimizers for peak in peaks_of(each)]
    parameters = all_parameters(optimizers)
    wrapper.check(parameters)
    own_precision = Precision(precision, device, parameters)
    if max_norm is not None and not checks.number("max_norm", max_norm) > 0:
        raise ValueError(f"max_norm = {max_norm!r} must be positive, or None for no clipping")
    checks.one_of("on_nonfinite", on_nonfinite, get_args(OnNonfinite))
    check_loss_fn(loss_fn)
    if cuda_graph:
        _check_graph(model, wrapper, optimizers, device)
    if isinstance(wrapper, Sharded):
        for each in optimizers:
            check_shardable(each)
    initial_updates = checks.at_least("initial_updates", initial_updates, 0)
    for each in optimizers if initial_updates else ():
        check_peaks_are_known(each, f"initial_updates = {initial_updates}")
    unit = _checked_unit(unit, count, rules, initial_updates)
    return Arguments(
        wrapper,
        tuple(optimizers),
        with_wrappers(as_sequence(optimizer)),
        parameters,
        device,
        curves,
        peaks,
        rules,
        own_precision,
        None if carry is None else Carry(carry, device),
        initial_updates,
        unit,
        None if count is None else BatchCounts(count, device),
        trainer_count(as_sequence(optimizer)),
    )


def _checked_unit(
    unit: int | None, count: CountFunction | None, rules: Sequence[Rule], initial_updates: int
) -> int | None:
    if unit is None and count is None:
        return None
    if unit is None:
        raise TypeError("count= needs unit=: how many of what it counts make one step of the curve")
    found = checked_unit(unit)
    if not callable(count):
        raise TypeError(f"unit = {found} needs count=, a function of a batch; it is {count!r}")
    if rules:
        raise ValueError(f"unit = {found} beside hold: a rule holds a clock of updates alone")
    if initial_updates:
        raise ValueError(
            f"unit = {found} beside initial_updates = {initial_updates}, which does not say what they "
            "consumed: resume with load_state_dict"
        )
    return found


def _check_graph(
    model: nn.Module, wrapper: Wrapper, optimizers: Sequence[Optimizer], device: torch.device
) -> None:
    if not isinstance(wrapper, Unwrapped):
        raise ValueError("cuda_graph=True needs a model that is not wrapped for several ranks")
    if is_checkpointed(model):
        raise ValueError("cuda_graph=True needs a model without checkpoint_activations")
    if device.type != "cuda":
        raise ValueError(f"cuda_graph=True needs parameters on a CUDA device; they are on {device}")
    for each in optimizers:
        check_capturable(each, each.param_groups)
