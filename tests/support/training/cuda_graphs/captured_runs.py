"""Runs that must be the same with and without CUDA graphs: by the same actions, with any options."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from support.schedulers.runs import learning_rate
from support.training.cuda_graphs.gpu import gpu_step, no_waiting, on_gpu
from support.training.kinds_of_run import Kind
from support.training.models import Batch, Net, batches, mean_loss, nonfinite
from support.training.steps import set_loss_scale
from support.training.trees import equal_trees, through_file
from torch.utils import _pytree as pytree

from torch_bridge import evaluate
from torch_bridge.clocks import learning_rates

SHORT, LONG = 4, 6


class Case(NamedTuple):
    kind: Kind
    change: Callable[[Batch], Any] = lambda batch: batch
    """Returns a batch in another form."""
    table_values: int = learning_rates.MAX_TABLE_VALUES


class Run:
    def __init__(self, case: Case, captured: bool) -> None:
        torch.cuda.synchronize()
        torch.manual_seed(0)
        self.case, self.number, kind = case, 0, case.kind
        options: dict[str, Any] = {"max_norm": 0.5, "cuda_graph": captured} | kind.options
        with patch.object(learning_rates, "MAX_TABLE_VALUES", case.table_values):
            self.step = gpu_step("", kind.model(), kind.loss_fn, kind.optimizers, kind.curve, **options)
        if options.get("precision") == "fp16":
            set_loss_scale(self.step, kind.loss_scale, kind.good_updates)
        self.save()
        self.evaluations: list[Any] = []
        self.results: list[tuple[Any, list[float]]] = []
        """Each with the peaks at that time. They are kept to the end: no later replay may write there."""

    def make(self, rows: int = SHORT, bad: bool = False) -> Sequence[Any]:
        """Return the micro-batches of the next update; sequences are short and long instead of batches."""
        self.number += 1
        kind = self.case.kind
        if kind.time is None:
            data = batches(kind.pieces, rows, seed=self.number)
        else:
            data = batches(kind.pieces, 4, seed=self.number, time=rows)
        data = on_gpu([*data[:-1], nonfinite(data[-1]) if bad else data[-1]])
        return [self.case.change(batch) for batch in data]

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
        if self.step._graphs:  # for short and for long batches: a capture would wait
            assert len(self.step._graphs.captured) == 2
        made = [self.make(bad=number % 3 == 1) for number in range(17)]
        with no_waiting():
            for micro_batches in made:
                self.update(micro_batches)

    def outcome(self) -> list[Any]:
        """Return all that the run has computed, after a check of the learning rates."""
        for result, peaks in self.results:
            peaks_and_curves = zip(peaks, self.step._clock.curves, strict=True)
            now = int(result.curve_step)
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


def compare_with_eager(case: Case, actions: Sequence[Callable[[Run], Any]]) -> None:
    runs = [Run(case, captured) for captured in (True, False)]
    for run in runs:
        torch.cuda.synchronize()
        torch.manual_seed(0)
        for action in actions:
            action(run)
    assert equal_trees(*(run.outcome() for run in runs))
