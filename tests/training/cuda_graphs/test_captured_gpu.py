"""Captured updates on a GPU have the bits of eager ones and wait for nothing, with every option."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, strategies as st
from support.examples import examples
from support.schedulers.runs import learning_rate
from support.training.cuda_graphs.graphs import (
    FUSED_ON_GPU,
    gpu_step,
    graphs_of,
    no_waiting,
    on_gpu,
)
from support.training.kinds_of_run import ON_DEVICE, Kind
from support.training.models import Batch, Net, batches, mean_loss, nonfinite, pair_loss
from support.training.steps import CURVE, equal_trees, set_loss_scale, through_file
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from torch_bridge import DataClock, evaluate, prefetch
from torch_bridge.clocks import learning_rates

pytestmark = [
    pytest.mark.gpu,
    # Runs may continue past the end of a curve; the warning has separate tests.
    pytest.mark.filterwarnings("ignore:the curve has total_steps:plateau_jax.CurveWarning"),
]


# Runs that must be the same with and without CUDA graphs: by the same actions, with any options.

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
            self.step = gpu_step(
                "", kind.model(), kind.loss_fn, kind.optimizers, kind.curve, **options
            )
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
            group["initial_lr"]
            for optimizer in self.step.optimizers
            for group in optimizer.param_groups
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
        assert self.step._graphs is None or self.step._graphs.captured == graphs, (
            "captured anew for a peak"
        )

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
            assert result.lr.tolist() == [
                learning_rate(peak, curve, now) for peak, curve in peaks_and_curves
            ]
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


# The kinds of runs, besides those of `kinds_of_run`.


def _aux_by_length(model: nn.Module, batch: Batch) -> Any:
    loss = mean_loss(model, batch)
    return loss, {"few": loss} if len(batch[0]) == SHORT else [loss, loss * 2]


def _widely_weighted(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return a loss weight computed on the device, whose size varies widely."""
    total, _ = pair_loss(model, batch)
    weight = (batch[0].square().sum() * 100).nan_to_num(1.0)
    return total * weight, weight * batch[1].numel()


def _penalised(model: nn.Module, batch: Batch) -> Tensor:
    """Compute a loss with a penalty on the gradient of the batch."""
    inputs = batch[0].requires_grad_()
    (slopes,) = torch.autograd.grad(model(inputs).sum(), inputs, create_graph=True)
    return mean_loss(model, batch) + slopes.square().sum()


def _writing_to_batch(model: nn.Module, batch: Batch) -> Tensor:
    inputs, targets = batch
    return mean_loss(model, (inputs.mul_(model.get_parameter("last.bias").sum()), targets))


def _that_requires_grad(batch: Batch) -> Batch:
    return batch[0].requires_grad_(), batch[1]


_ROWS = {"clock": DataClock(3), "count": lambda batch: len(batch[0])}
_LAYOUTS: dict[str, Any] = {
    "slices": lambda wide, tall: (wide[:4, 2:5], tall[::2, 1:]),
    "expanded": lambda wide, tall: (wide[:1, :3].expand(4, 3), tall[0, 0].expand(4, 2)),
    "transposed": lambda wide, tall: (
        wide[:3].t()[:4],
        tall[:2, :].t().expand(3, 2)[:1].expand(4, 2),
    ),
    "overlapping": lambda wide, tall: (
        wide.as_strided((4, 3), (2, 1), 1),
        tall.view(-1).unfold(0, 2, 1)[:4],
    ),
    "misaligned": lambda wide, tall: (
        wide.view(-1)[1:13].view(4, 3),
        tall.view(-1)[3:11].view(4, 2),
    ),
}


_NOT_ON_GPU = () if "adagrad" in FUSED_ON_GPU else ("adagrad",)

_CASES: dict[str, Case] = {
    **{name: Case(kind) for name, kind in ON_DEVICE.items() if not name.startswith(_NOT_ON_GPU)},
    "pair on the device": Case(Kind(loss_fn=_widely_weighted, pieces=2)),
    "aux by length": Case(Kind(loss_fn=_aux_by_length, pieces=2, has_aux=True)),
    "rows without a table": Case(Kind(loss_fn=pair_loss, **_ROWS), table_values=0),
    "count on the host": Case(Kind(clock=DataClock(3), count=lambda batch: torch.tensor(4))),
    "penalised, batches that require gradients": Case(
        Kind(loss_fn=_penalised), _that_requires_grad
    ),
    "a batch that is written to": Case(Kind(loss_fn=_writing_to_batch, pieces=2)),
}


@pytest.mark.parametrize("case", _CASES.values(), ids=_CASES)
def test_every_kind_of_run_matches_eager(case: Case) -> None:
    compare_with_eager(case, PROGRAM)


@examples(20)
@given(
    st.sampled_from(list(_CASES.values())),
    st.lists(st.sampled_from(list(ACTIONS)), min_size=8, max_size=16),
)
def test_actions_between_updates_match_eager(case: Case, actions: list[str]) -> None:
    compare_with_eager(case, [ACTIONS[action] for action in actions])


def test_captured_runs_on_any_stream() -> None:
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        compare_with_eager(Case(Kind(pieces=2)), PROGRAM)
    torch.cuda.synchronize()


@pytest.mark.parametrize("loss_fn", [mean_loss, _widely_weighted])
def test_prefetched_batches_match_eager(loss_fn: Any) -> None:
    data = [*batches(8), *batches(4, rows=7), *batches(8, seed=1)]

    def train(run: Run) -> None:
        ahead = prefetch(data, "cuda") if run.step._graphs else on_gpu(data)
        for batch in ahead:
            run.update([batch])
        assert not run.step._graphs or run.step._graphs.captured

    compare_with_eager(Case(Kind(loss_fn=loss_fn, precision="fp16")), [train])


@pytest.mark.parametrize("layout", _LAYOUTS.values(), ids=_LAYOUTS)
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")
def test_compiled_and_captured_matches_eager(layout: Any) -> None:
    torch._dynamo.reset()
    both, eager = gpu_step(compile=True, cuda_graph=True), gpu_step()
    for number in range(8):
        ((_, targets),) = on_gpu(batches(1, seed=number))
        values = targets.flatten()
        batch = layout(torch.outer(values[:6], values[:6]), torch.outer(values[:8], values[:3]))
        torch.testing.assert_close(both(batch), eager(batch), rtol=1e-5, atol=1e-6)
    assert len(graphs_of(both).captured) == 1


@pytest.mark.parametrize("cuda_graph", [False, True])
def test_lrs_match_on_lagging_device(cuda_graph: bool) -> None:
    """The host copies the counters and sets another peak while the device is several updates behind."""
    step = gpu_step(cuda_graph=cuda_graph)
    (good,) = on_gpu(batches(1))
    bad, peak, applied = nonfinite(good), step.optimizer.param_groups[0]["initial_lr"], 0
    results, expected = [], []
    for number in range(60):
        if number % 7 == 3:
            torch.cuda._sleep(2_000_000)
        if number in (33, 34):
            peak = 1 / number
            step.set_peak(peak)
        expected.append(learning_rate(peak, CURVE, applied))
        results.append(step(good if number % 3 else bad))
        applied += number % 3 != 0
    assert [result.lr.item() for result in results] == expected


@pytest.mark.parametrize("captured", [True, False])
@pytest.mark.parametrize("place", ["cpu", "cuda"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_lr_tensor_of_a_fused_optimizer_moves_to_the_gpu(
    captured: bool, place: str, dtype: torch.dtype
) -> None:
    """It stays the group's own, and no update waits for it."""
    lr = torch.full((1,), 0.1, dtype=dtype, device=place)

    def build(model: nn.Module) -> Any:
        return torch.optim.AdamW(model.parameters(), lr=lr, fused=True)

    step = gpu_step(optimizers=build, cuda_graph=captured)
    data = on_gpu(batches(8))
    for batch in data[:6]:
        result = step(batch)
        assert lr.item() == result.lr.item()
    with no_waiting():
        results = [step(batch) for batch in data[6:]]
    assert step.optimizer.param_groups[0]["lr"] is lr
    assert lr.item() == results[-1].lr.item()
