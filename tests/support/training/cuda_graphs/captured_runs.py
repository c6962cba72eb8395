"""Runs that must be the same with and without CUDA graphs: by the same actions, with any options."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from types import MappingProxyType
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from support.schedulers.runs import learning_rate
from support.training.cuda_graphs.gpu import gpu_step, graphs_of, no_waiting, on_gpu
from support.training.kinds_of_run import Kind
from support.training.models import Batch, Net, batches, mean_loss, nonfinite
from support.training.steps import CURVE, set_loss_scale
from support.training.trees import equal_trees, through_file
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from torch_bridge import TrainStep, evaluate
from torch_bridge.training.clock import clock

SHORT, LONG = 4, 6


def pair_of_batches(number: int, rows: int, bad: bool, **options: Any) -> list[Batch]:
    first, second = batches(2, rows, seed=number, **options)
    return on_gpu([first, nonfinite(second) if bad else second])


class Case(NamedTuple):
    """A training run: its loss and options."""

    loss_fn: Any = mean_loss
    options: Mapping[str, Any] = MappingProxyType({})
    model: Callable[[], nn.Module] = Net
    micro_batches: Callable[[int, int, bool], Sequence[Any]] = pair_of_batches
    """Takes the number of the update, the number of rows, and if the loss must not be finite."""
    optimizers: Callable[[nn.Module], Any] | None = None
    curve: Any = CURVE
    graphs: int | None = 2
    """How many graphs there are in the end, for short and for long batches; None if they never last."""
    table_values: int = clock.MAX_TABLE_VALUES
    prepare: Callable[[TrainStep], Any] = lambda step: None


def case_of(kind: Kind) -> Case:
    """Return a kind of run for the GPU; its sequences are short and long instead of its batches."""

    def micro_batches(number: int, rows: int, bad: bool) -> Sequence[Any]:
        if kind.time is None:
            data = batches(kind.pieces, rows, seed=number)
        else:
            data = batches(kind.pieces, 4, seed=number, time=rows)
        return on_gpu([*data[:-1], nonfinite(data[-1]) if bad else data[-1]])

    def prepare(step: TrainStep) -> None:
        if kind.options.get("precision") == "fp16":
            set_loss_scale(step, kind.loss_scale, kind.good_updates)

    options = {"precision": "fp32"} | kind.options
    return Case(
        kind.loss_fn, options, kind.model, micro_batches, kind.optimizers, kind.curve, prepare=prepare
    )


class Run:
    def __init__(self, case: Case, name: str, precision: str, captured: bool) -> None:
        torch.cuda.synchronize()
        torch.manual_seed(0)
        model, self.case, self.number = case.model(), case, 0
        options: dict[str, Any] = {"precision": precision, "max_norm": 0.5, "cuda_graph": captured}
        options |= case.options
        with patch.object(clock, "MAX_TABLE_VALUES", case.table_values):
            self.step = gpu_step(name, model, case.loss_fn, case.optimizers, case.curve, **options)
        case.prepare(self.step)
        self.save()
        self.evaluations: list[Any] = []
        self.results: list[tuple[Any, list[float]]] = []
        """Each with the peaks at that time. They are kept to the end: no later replay may write there."""

    def make(self, rows: int = SHORT, bad: bool = False) -> Sequence[Any]:
        self.number += 1
        return self.case.micro_batches(self.number, rows, bad)

    def update(self, micro_batches: Iterable[Any]) -> None:
        peaks = [
            group["initial_lr"] for optimizer in self.step.optimizers for group in optimizer.param_groups
        ]
        self.results.append((self.step(*micro_batches), peaks))

    def updates(self, rows: int = SHORT) -> None:
        for _ in range(4):
            self.update(self.make(rows))

    def save(self) -> None:
        self.state = through_file(self.step.state_dict())

    def set_peak(self) -> None:
        graphs = dict(self.step._graphs.captured) if self.step._graphs else {}
        self.step.set_peak(0.05 / (self.number + 1))
        assert self.step._graphs is None or self.step._graphs.captured == graphs, "captured anew for a peak"

    def evaluate(self) -> None:
        if isinstance(self.step.model, Net) and self.step.model.first.weight.dtype == torch.float32:
            self.evaluations.append(evaluate(self.step.model, on_gpu(batches(3)), mean_loss))

    def reset_carry(self) -> None:
        if self.step._carry is not None:
            self.step.reset_carry()

    def change_setting(self) -> None:
        self.step.optimizers[0].param_groups[0]["weight_decay"] = 0.01 * (self.number % 3)

    def without_waiting(self) -> None:
        """Go past a copy of the counters."""
        if self.step._graphs and self.case.graphs:
            assert len(self.step._graphs.captured) == self.case.graphs, "the next update would be captured"
        made = [self.make(bad=number % 3 == 1) for number in range(17)]
        with nullcontext() if self.case.graphs is None else no_waiting():  # a capture waits
            for micro_batches in made:
                self.update(micro_batches)

    def outcome(self) -> list[Any]:
        """Return all that the run has computed, after a check of the learning rates."""
        for result, peaks in self.results:
            peaks_and_curves = zip(peaks, self.step._clock.curves, strict=True)
            now = int(result.clock)
            assert result.lr.tolist() == [learning_rate(peak, curve, now) for peak, curve in peaks_and_curves]
        leaves = [pytree.tree_leaves(list(result.aux)) for result, _ in self.results]
        attributes = [
            (result.consumed, list(result.aux), [leaf.requires_grad for leaf in aux])
            for (result, _), aux in zip(self.results, leaves, strict=True)
        ]
        results = [tuple(result) for result, _ in self.results]
        return [results, attributes, self.evaluations, self.step.state_dict()]


ACTIONS: dict[str, Callable[[Run], Any]] = {
    "update": lambda run: run.update(run.make()),
    "updates": Run.updates,
    "longer": lambda run: run.updates(LONG),
    "one micro-batch": lambda run: [run.update(run.make()[:1]) for _ in range(2)],
    "skipped": lambda run: run.update(run.make(bad=True)),
    "longer, skipped": lambda run: run.update(run.make(LONG, bad=True)),
    "save": Run.save,
    "load": lambda run: run.step.load_state_dict(run.state),
    "evaluate": Run.evaluate,
    "reset carry": Run.reset_carry,
    "new peak": Run.set_peak,
    "setting": Run.change_setting,
}
_NAMES = [
    *("skipped", "updates", "new peak", "updates", "save", "longer", "load", "updates", "longer"),
    *("skipped", "longer, skipped", "new peak", "evaluate", "reset carry"),
]
PROGRAM = [*map(ACTIONS.__getitem__, _NAMES), Run.without_waiting]
"""Actions that no option forbids; in the end both lengths have been steady since the last load."""


def compare_with_eager(
    case: Case,
    actions: Sequence[Callable[[Run], Any]],
    name: str = "adamw",
    precision: str = "fp32",
    graphs: int | None = None,
) -> None:
    runs = [Run(case, name, precision, captured) for captured in (True, False)]
    for run in runs:
        torch.cuda.synchronize()
        torch.manual_seed(0)
        for action in actions:
            action(run)
    assert equal_trees(*(run.outcome() for run in runs))
    if graphs is not None:
        assert len(graphs_of(runs[0].step).captured) == graphs


class Deep(Net):
    """A net with a buffer, modules in different modes, and modules in a list."""

    shift: Tensor

    def __init__(self) -> None:
        super().__init__()
        layer = nn.Linear(2, 2, bias=False)
        nn.init.eye_(layer.weight)
        self.more = nn.ModuleList([layer])
        self.register_buffer("shift", torch.zeros(3))

    def forward(self, inputs: Tensor) -> Tensor:
        inputs = inputs * 0.5 if self.training else inputs
        return nn.Sequential(*self.more)(super().forward(inputs + self.shift))
