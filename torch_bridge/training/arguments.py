"""The arguments of a training step, checked, and the objects that follow from them."""

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property, wraps
from typing import Any, Concatenate, Literal, ParamSpec, cast, get_args

import torch
from torch import nn
from torch.optim import Optimizer

from torch_bridge.curve_api import Curve, Rule, check_unit, checks
from torch_bridge.distributed.activation_checkpointing import is_checkpointed
from torch_bridge.distributed.parallelism import Parallelism
from torch_bridge.distributed.sharded import Sharded, check_shardable
from torch_bridge.distributed.wrappers import parallelism_of
from torch_bridge.schedulers.hold_state import rules_for
from torch_bridge.schedulers.param_groups import all_parameters, check_peaks_are_known, peaks_of
from torch_bridge.schedulers.unit_clocks import checked_unit
from torch_bridge.training.clock.batch_counts import CountFunction
from torch_bridge.training.clock.clock import checked_updates
from torch_bridge.training.optimizers.optimizers import (
    as_sequence,
    check_model,
    curves_by_group,
    device_of,
    unwrap_optimizers,
)
from torch_bridge.training.optimizers.wrapped_optimizers import with_wrappers
from torch_bridge.training.update.loss import LossFunction, check_loss_fn
from torch_bridge.training.update.precision import PrecisionName

OnNonfinite = Literal["skip", "raise"]
Synchronize = Literal["update", "micro"]
CurvesOfGroups = Curve | Sequence[Curve]

P = ParamSpec("P")


@dataclass(frozen=True, eq=False)
class TrainStepArguments:
    """The arguments of `TrainStep` as passed, and the optimizers, curves and tensors that follow from them.

    Raises:
        TypeError, ValueError: As `TrainStep`.
    """

    model: nn.Module
    optimizer: Optimizer | Sequence[Optimizer]
    loss_fn: LossFunction[Any]
    curve: CurvesOfGroups | Sequence[CurvesOfGroups]
    _: KW_ONLY
    precision: PrecisionName = "fp32"
    max_norm: float | None = None
    on_nonfinite: OnNonfinite = "skip"
    compile: bool = False
    cuda_graph: bool = False
    carry: Any = None
    hold: Rule | Sequence[Rule] | None = None
    synchronize: Synchronize = "update"
    strict: bool = True
    initial_updates: int | None = None
    has_aux: bool = False
    unit: int | None = None
    count: CountFunction | None = None
    parallelism: Parallelism = field(init=False)

    def __post_init__(self) -> None:
        check_model(self.model)
        checks.one_of("synchronize", self.synchronize, get_args(Synchronize))
        parallelism = parallelism_of(self.model, every_micro_batch=self.synchronize == "micro")
        # Not a cached property: its warning would name a line of functools as the caller's. The dataclass is
        # frozen, hence object.__setattr__.
        object.__setattr__(self, "parallelism", parallelism)
        parallelism.check_parameters(self.parameters)
        checks.one_of("on_nonfinite", self.on_nonfinite, get_args(OnNonfinite))
        if self.max_norm is not None and not checks.number("max_norm", self.max_norm) > 0:
            raise ValueError(f"max_norm = {self.max_norm!r} must be positive, or None for no clipping")
        check_loss_fn(self.loss_fn)
        if self.cuda_graph:
            self._check_graph()
        if isinstance(self.parallelism, Sharded):
            for optimizer in self.optimizers:
                check_shardable(optimizer)
        if self.initial_updates is not None and checked_updates("initial_updates", self.initial_updates):
            for optimizer in self.optimizers:
                check_peaks_are_known(optimizer, f"initial_updates = {self.initial_updates}")
        self._check_unit(self.rules)

    @cached_property
    def optimizers(self) -> tuple[Optimizer, ...]:
        """The torch optimizers, unwrapped."""
        return tuple(unwrap_optimizers(self.model, self.optimizer))

    @property
    def with_wrappers(self) -> list[Any]:
        """The torch optimizers and their wrappers."""
        return with_wrappers(as_sequence(self.optimizer))

    @cached_property
    def parameters(self) -> list[nn.Parameter]:
        """The optimized parameters."""
        return all_parameters(self.optimizers)

    @cached_property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return device_of(self.optimizers)

    @cached_property
    def curves(self) -> list[Curve]:
        """The curve of each parameter group of all optimizers."""
        return curves_by_group(self.optimizer, self.optimizers, self.curve)

    @cached_property
    def peaks(self) -> list[float]:
        """The peak learning rate of each parameter group."""
        return [peak for optimizer in self.optimizers for peak in peaks_of(optimizer)]

    @cached_property
    def rules(self) -> tuple[Rule, ...]:
        """The rules that may hold the clock."""
        return rules_for(self.hold, self.curves)

    def _check_unit(self, rules: Sequence[Rule]) -> None:
        check_unit(self.curves, self.unit)
        if self.unit is None and self.count is None:
            return
        if self.unit is None:
            raise TypeError("count= needs unit=: the samples or tokens that make one step of the curve")
        unit = checked_unit(self.unit)
        if not callable(self.count):
            raise TypeError(
                f"unit = {unit} needs count=, a function of a batch; it is {checks.short_repr(self.count)}"
            )
        if rules:
            raise ValueError(f"unit = {unit} with hold: a rule can hold only a clock of updates")
        if self.initial_updates:
            raise ValueError(
                f"unit = {unit} with initial_updates = {self.initial_updates}, which does not say what these "
                "updates consumed: resume with load_state_dict"
            )

    def _check_graph(self) -> None:
        if self.parallelism.is_distributed:
            raise ValueError("cuda_graph=True needs a model that is not wrapped for several ranks")
        if is_checkpointed(self.model):
            raise ValueError("cuda_graph=True needs a model without checkpoint_activations")
        if self.device.type != "cuda":
            raise ValueError(f"cuda_graph=True needs parameters on a CUDA device; they are on {self.device}")


def pack_arguments_into(
    arguments: Callable[P, TrainStepArguments],
) -> Callable[[Callable[[Any, TrainStepArguments], None]], Callable[Concatenate[Any, P], None]]:
    """Decorate an `__init__` that takes one checked dataclass, so that callers pass its fields as arguments.

    The fields are thus declared once: `help`, `inspect.signature` and type checkers show the dataclass's.
    """

    def decorate(init: Callable[[Any, TrainStepArguments], None]) -> Callable[Concatenate[Any, P], None]:
        cast("Any", arguments).__init__.__qualname__ = init.__qualname__  # the name in Python's errors

        @wraps(arguments.__init__)  # inspect.signature follows __wrapped__
        def packed_init(self: Any, *args: P.args, **kwargs: P.kwargs) -> None:
            init(self, arguments(*args, **kwargs))

        return packed_init

    return decorate
