"""The state of a training step: its entries, how each is read and restored, and its checks.

The checks are those that torch's own `load_state_dict` does not make.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypedDict, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from plateau_jax.arguments import checks
from plateau_jax.clocks.clock import MAX_CONSUMED
from plateau_jax.clocks.position import dump_position
from plateau_jax.runs.comparison import StateOwner
from plateau_jax.runs.record import dump_records, records_of
from plateau_jax.runs.resume import ResumedRun, resume
from plateau_jax.saved_states.formats import Format, reading_state_of
from torch_bridge.groups.optimizers import groups_of
from torch_bridge.groups.options import check_length
from torch_bridge.training.device_clocks.device_clock import DeviceClock
from torch_bridge.training.distributed.dtensors import host_copier, mesh_coordinates
from torch_bridge.training.distributed.plain_names import (
    names_of_parameters,
    plain_state,
)
from torch_bridge.training.random_states import get_states_of_device, set_states_of_device
from torch_bridge.training.train_step.loss_call import Carry
from torch_bridge.training.train_step.optimizer_states import (
    check_optimizer_state,
    check_same_parameters,
    copy_optimizer_state,
    load_optimizer,
)
from torch_bridge.training.train_step.precision import Precision


class TrainStepState(TypedDict):
    """The state that `TrainStep.state_dict` returns: tensors in host memory and plain values.

    >>> import torch
    >>> from plateau_jax import PlateauCurve
    >>> from torch_bridge import TrainStep
    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    >>> def loss_fn(model, batch):
    ...     return model(batch).mean()
    >>> train_step = TrainStep(model, optimizer, loss_fn, PlateauCurve(100))
    >>> state: TrainStepState = train_step.state_dict()
    >>> state["applied"], state["precision"], list(state["model"])
    (0, 'fp32', ['weight', 'bias'])
    """

    kind: str
    """`"train_step"`."""
    format: int
    """The number of the format, 1."""
    model: dict[str, Any]
    """The state of the model, under the names of the unwrapped model."""
    optimizer: Any
    """The state of the optimizer, or a list of the states of several."""
    optimizer_type: str | list[str]
    """The name of the optimizer's class, or a list of names."""
    parameters: list[list[str]]
    """The names of each parameter group's parameters, without the parts that wrappers add."""
    precision: str
    """`"fp32"`, `"bf16"` or `"fp16"`."""
    records: list[dict[str, Any]]
    """The record of each parameter group, as `plateau_jax.resume_record` returns it."""
    applied: int
    """Number of updates applied."""
    skipped: int
    """Number of updates skipped."""
    offset: int | None
    """The step of the curve minus `applied`; None with a `DataClock`."""
    consumed: int | None
    """With a `DataClock`, the samples or tokens of all updates; else None."""
    peak_was_set: bool
    """True if `set_peak` has set the peaks, so that they may differ from those of the program."""
    hold: list[dict[str, int | float]]
    """The states of the rules that may hold the curve."""
    loss_scale: Sequence[Tensor] | None
    """With `precision="fp16"` the loss scale, a float32 scalar, and its growth counter; else
    None."""
    carry: list[Tensor] | None
    """The leaves of the recurrent state, with its shapes and dtypes; None if there is none."""
    random: dict[str, Tensor]
    """The states of torch's generators, uint8 of shape (bytes,): `"cpu"` and, on a GPU,
    `"cuda"`."""


TRAIN_STEP_FORMAT = Format(
    "train_step",
    TrainStepState,
    advice={
        "scheduler": (
            "it is the state of a scheduler. Load model and optimizer, then build TrainStep(..., "
            "initial_updates=state['last_epoch']); with clock=, see docs/training_step.md, From a "
            "TrainStep to a scheduler, and back"
        )
    },
)

OWNER = StateOwner(
    override="pass strict=False to load_state_dict, or to TrainStep if Checkpoints loads",
    base_setter="train_step.set_peak",
)

PER_RANK_ENTRIES = ("random", "carry")
"""The entries that are of no use to another rank."""


class CheckedState(NamedTuple):
    """A saved state that fits the step, and what was read from it."""

    saved: TrainStepState
    optimizers: list[Any]
    """A copy of each optimizer's state."""
    run: ResumedRun


class StepState:
    """The state of a training step: reads, checks and restores it."""

    def __init__(
        self,
        module: nn.Module,
        optimizers: Sequence[Optimizer],
        *,
        clock: DeviceClock,
        precision: Precision,
        carry: Carry | None,
        device: torch.device,
    ) -> None:
        self._module = module
        self._optimizers = optimizers
        self._clock = clock
        self._precision = precision
        self._carry = carry
        self._device = device
        self.peak_was_set = False
        """True if `set_peak` has set the peaks, in this run or before."""

    def read(self) -> TrainStepState:
        """Return the current state, which shares memory with the step. Synchronizes."""
        clock = self._clock
        counters = clock.read_counters()
        states = _optimizer_states(self._optimizers, clock, counters.curve_step)
        types = [type(optimizer).__name__ for optimizer in self._optimizers]
        groups = [group["params"] for group in groups_of(self._optimizers)]
        carry = None if self._carry is None else self._carry.buffers
        scale = self._precision.scale
        state = TRAIN_STEP_FORMAT.build(
            model=plain_state(self._module),
            optimizer=_one_or_list(states),
            optimizer_type=_one_or_list(types),
            parameters=names_of_parameters(self._module, groups),
            precision=self._precision.name,
            records=dump_records(records_of(clock.curves, clock.peaks, clock.settings)),
            applied=counters.applied,
            **dump_position(clock.settings, clock.position_of(counters)),
            skipped=counters.skipped,
            peak_was_set=self.peak_was_set,
            loss_scale=None if scale is None else scale.tensors(),
            carry=carry,
            random=get_states_of_device(self._device),
        )
        return cast("TrainStepState", state)

    def check(self, state_dict: Any, *, strict: bool) -> CheckedState:
        """Check that a run can continue from a saved state.

        Raises:
            ValueError: See `TrainStep.load_state_dict`.
        """
        with reading_state_of("a TrainStep", state_dict):
            saved = TRAIN_STEP_FORMAT.read("state_dict", state_dict)
            _check_saved_state(self.read(), saved)
            run = self._read_run(cast("Any", saved), strict=strict)
            optimizer_states = _as_list(saved["optimizer"], self._optimizers)
            num_optimizers = len(self._optimizers)
            check_length("state_dict['optimizer']", optimizer_states, num_optimizers, "optimizers")
            for optimizer, state in zip(self._optimizers, optimizer_states, strict=True):
                check_optimizer_state(optimizer, state)
        # Copied before anything is written: not every value can be copied.
        copies: list[Any] = []
        for optimizer, state in zip(self._optimizers, optimizer_states, strict=True):
            copies.append(copy_optimizer_state(optimizer, state))
        return CheckedState(saved, copies, run)

    def _read_run(self, state: Mapping[str, Any], *, strict: bool) -> ResumedRun:
        """Return how a saved run continues.

        Raises:
            ValueError: See `TrainStep.load_state_dict`.
        """
        clock = self._clock
        applied = checks.in_range("applied", state["applied"], 0, MAX_CONSUMED)
        checks.in_range("skipped", state["skipped"], 0, MAX_CONSUMED)
        checks.boolean("peak_was_set", state["peak_was_set"])
        now = records_of(clock.curves, clock.peaks, clock.settings)
        # A rollback to before `set_peak`.
        is_rollback = self.peak_was_set and clock.read_counters().applied > 0
        if state["peak_was_set"] or is_rollback:
            now = [record._replace(peak_value=None) for record in now]
        return resume(state, applied, now, clock.peaks, clock.settings, OWNER, strict=strict)

    def restore(self, checked: CheckedState) -> None:
        """Restore everything but the model."""
        saved = checked.saved
        for optimizer, copied in zip(self._optimizers, checked.optimizers, strict=True):
            load_optimizer(optimizer, copied)
        self._clock.write_state(checked.run.position, checked.run.bases, saved["skipped"])
        self.peak_was_set = bool(saved["peak_was_set"])
        if self._precision.scale is not None:
            self._precision.scale.write_state(saved["loss_scale"] or ())
        if self._carry is not None:
            self._carry.write(saved["carry"] or ())
        set_states_of_device(saved["random"], self._device)


def _one_or_list(items: list[Any]) -> Any:
    """Return a single item itself, and several as a list, as a state contains optimizers."""
    if len(items) == 1:
        return items[0]
    return items


def _as_list(saved: Any, optimizers: Sequence[Optimizer]) -> Any:
    """Undo `_one_or_list` for the states of these optimizers."""
    if len(optimizers) == 1:
        return [saved]
    return saved


def _optimizer_states(
    optimizers: Sequence[Optimizer], clock: DeviceClock, step: int
) -> list[dict[str, Any]]:
    """Return the optimizers' states, with the clock's peaks and its learning rates at `step`."""
    states = [optimizer.state_dict() for optimizer in optimizers]
    groups = [group for state in states for group in state["param_groups"]]
    lrs = clock.lrs_at(step)
    # Not strict: a group added after the step was built has no learning rate; the next update
    # rejects it.
    for group, peak, lr in zip(groups, clock.peaks, lrs, strict=False):
        tensor = group["lr"]
        if isinstance(tensor, Tensor):
            group["lr"] = torch.full(tensor.shape, lr, dtype=tensor.dtype, device="cpu")
        else:
            group["lr"] = lr
        group["initial_lr"] = peak
    return states


def copy_to_host(state: TrainStepState) -> TrainStepState:
    """Return the state with each tensor copied to host memory; tied tensors stay tied."""
    copied = pytree.tree_map_only(Tensor, host_copier(), state)
    # tree_map drops this attribute, in which torch keeps the versions of the modules.
    if hasattr(state["model"], "_metadata"):
        copied["model"]._metadata = cast("Any", state["model"])._metadata
    return copied


def _check_saved_state(current: TrainStepState, saved: Any) -> None:
    """Reject a state that torch would load, but from which a run can't continue.

    Torch itself rejects different names in a model, and different sizes of parameter groups. It
    casts a model's dtypes, broadcasts a carry, and takes whatever moments an optimizer's state has.

    Args:
        current: The current state of the step.
        saved: The state to be loaded, with all entries.

    Raises:
        ValueError: The message names the entry.
    """
    for name in ("precision", "optimizer_type"):
        if current[name] != saved[name]:
            raise ValueError(
                f"state_dict was saved with {name} = {saved[name]}, and this TrainStep has "
                f"{current[name]}"
            )
    check_same_parameters(current["parameters"], saved["parameters"], "parameters")
    _check_shards(current, saved)
    _check_model(current["model"], saved["model"])
    _check_equal(
        "a different carry", _describe_carry(current["carry"]), _describe_carry(saved["carry"])
    )


def _check_shards(current: TrainStepState, saved: Mapping[str, Any]) -> None:
    """Reject shards of a different rank or number of ranks. Whole tensors fit everywhere."""
    # Only the mesh matters: torch itself converts between placements over one mesh.
    places = {None, *map(mesh_coordinates, current["model"].values())}
    for value in pytree.tree_leaves([dict(saved["model"]), saved["optimizer"]]):
        place = mesh_coordinates(value)
        if place not in places:
            raise ValueError(
                f"state_dict has shards of tensors, placed as {value.placements} over {place}, but "
                "the model's are placed differently: each rank must load its own state; save and "
                "load through Checkpoints to resume with a different number of ranks"
            )


def _check_model(current: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    """Reject different dtypes or shapes: torch casts the former, and loads (1,) into ().

    Different names are left to torch, since a module may rename or drop entries of old states.
    """
    descriptions: dict[str, str] = {}
    saved_descriptions: dict[str, str] = {}
    for name, tensor in current.items():
        if "_extra_state" in name or name not in saved:  # an extra state may change its type
            continue
        if isinstance(tensor, Tensor):
            descriptions[name] = _describe(tensor)
            saved_descriptions[name] = _describe(saved[name])
    _check_equal("a different model", descriptions, saved_descriptions)


def _describe_carry(leaves: Sequence[Tensor] | None) -> dict[int, str]:
    return dict(enumerate(map(_describe, leaves or ())))


def _describe(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{value.dtype} of {tuple(value.shape)}"
    return type(value).__name__


def _check_equal(source: str, current: dict[Any, str], saved: dict[Any, str]) -> None:
    differences: list[str] = []
    for name in current | saved:
        here = current.get(name, "missing")
        in_state = saved.get(name, "missing")
        if here != in_state:
            differences.append(f"{name}: {in_state} in the state, {here} here")
    if differences:
        raise ValueError(f"state_dict was saved with {source}: " + "; ".join(differences[:5]))
