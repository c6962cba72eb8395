"""Captured updates on a GPU have the bits of eager ones and wait for nothing, with every option."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from support.examples import examples
from support.training.cuda_graphs.captured_runs import (
    ACTIONS,
    LONG,
    PROGRAM,
    SHORT,
    Case,
    Deep,
    Run,
    case_of,
    compare_with_eager,
    pair_of_batches,
)
from support.training.cuda_graphs.gpu import FUSED_ON_GPU, gpu_step, graphs_of, on_gpu
from support.training.kinds_of_run import ON_DEVICE
from support.training.models import (
    Batch,
    Net,
    batches,
    device_pair_loss,
    mean_loss,
    pair_loss,
)
from torch import Tensor, nn

from torch_bridge import prefetch

pytestmark = [
    pytest.mark.gpu,
    # Runs may continue past the end of a curve; the warning has separate tests.
    pytest.mark.filterwarnings("ignore:the curve has total_steps:plateau_jax.CurveWarning"),
]


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


def _that_require_grad(number: int, rows: int, bad: bool) -> Sequence[Any]:
    return [(inputs.requires_grad_(), targets) for inputs, targets in pair_of_batches(number, rows, bad)]


def _with_weight(number: int, rows: int, bad: bool) -> Sequence[Any]:
    one, other = pair_of_batches(number, rows, bad)
    return (*one, torch.tensor(number, device="cuda")), (*other, torch.tensor(0, device="cuda"))


def _tensor_twice(number: int, rows: int, bad: bool) -> Sequence[Any]:
    inputs = pair_of_batches(number, SHORT, bad)[1][0]
    return [(inputs, inputs if rows == SHORT else inputs * 2)]


def _with_split(model: nn.Module, batch: Batch) -> Tensor:
    """Use a layer for long batches alone: it gets its optimizer state when there is already a graph."""
    loss = mean_loss(model, batch)
    return loss + model.get_parameter("more.0.weight").square().sum() if len(batch[0]) == LONG else loss


class _Average(Net):
    """Each forward pass replaces a buffer, which a graph can't follow."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, inputs: Tensor) -> Tensor:
        self.mean = (0.9 * self.mean + 0.1 * inputs.nan_to_num(0.0).mean(0)).detach()
        return super().forward(inputs - self.mean)


_ROWS = {"unit": 3, "count": lambda batch: len(batch[0])}
_POSITIVE = {"unit": 3, "count": lambda batch: (batch[1] > 0).sum()}
_LAYOUTS: dict[str, Any] = {
    "slices": lambda wide, tall: (wide[:4, 2:5], tall[::2, 1:]),
    "expanded": lambda wide, tall: (wide[:1, :3].expand(4, 3), tall[0, 0].expand(4, 2)),
    "transposed": lambda wide, tall: (wide[:3].t()[:4], tall[:2, :].t().expand(3, 2)[:1].expand(4, 2)),
    "overlapping": lambda wide, tall: (wide.as_strided((4, 3), (2, 1), 1), tall.view(-1).unfold(0, 2, 1)[:4]),
    "misaligned": lambda wide, tall: (wide.view(-1)[1:13].view(4, 3), tall.view(-1)[3:11].view(4, 2)),
}


def _in_layout(layout: Any) -> Any:
    """Make batches with more entries: other dtypes, lazy conjugates, no elements, plain Python values."""

    def micro_batches(number: int, rows: int, bad: bool) -> Sequence[Any]:
        generator = torch.Generator().manual_seed(number)
        wide, tall = (torch.randn(size, generator=generator).cuda() for size in ((6, 6), (8, 3)))
        complex_ones = torch.complex(wide, wide)
        leaves = {
            "scalar": wide[1, 1],
            "empty": wide[:0, 1:],
            "mask": (wide > 0)[:, ::2],
            "bytes": (wide * 10).abs().to(torch.uint8)[::2],
            "numbers": (wide * 10).long().t(),
            "conjugate": complex_ones.conj()[:, 1:],
            "negative": complex_ones.conj().imag,
            "half": wide.half()[:, 1:3],
            "times": float("nan") if bad else rows,
            "name": "a batch",
        }
        batch = layout(wide, tall), leaves
        return [batch, batch]

    return micro_batches


def _loss_of_all(model: nn.Module, batch: Any) -> Tensor:
    pair, more = batch
    tensors = [leaf for leaf in more.values() if isinstance(leaf, Tensor)]
    sums = [(leaf.real if leaf.is_complex() else leaf).float().sum() for leaf in tensors]
    return mean_loss(model, pair) * more["times"] + 0.001 * sum(sums)


_NOT_ON_GPU = () if "adagrad" in FUSED_ON_GPU else ("adagrad",)

_CASES: dict[str, Case] = {
    "pair on the device": Case(_widely_weighted),
    "weight on the device": Case(
        lambda model, batch: (device_pair_loss(model, batch[:2])[0], batch[2]), micro_batches=_with_weight
    ),
    "aux by length": Case(_aux_by_length, {"has_aux": True}),
    "rows without a table": Case(pair_loss, _ROWS, table_values=0),
    "positive targets without a table": Case(pair_loss, _POSITIVE, table_values=0),
    "count on the host": Case(options={"unit": 3, "count": lambda batch: torch.tensor(4)}),
    "a buffer that changes": Case(model=_Average, graphs=None),
    "a layer for long batches": Case(_with_split, model=Deep),
    "batches that require gradients": Case(micro_batches=_that_require_grad),
    "penalised": Case(_penalised),
    "penalised, batches that require gradients": Case(_penalised, micro_batches=_that_require_grad),
    "a batch that is written to": Case(_writing_to_batch),
    "a tensor used twice": Case(
        lambda model, batch: mean_loss(model, (batch[0], batch[1][:, :2])), micro_batches=_tensor_twice
    ),
    **{name: Case(_loss_of_all, micro_batches=_in_layout(layout)) for name, layout in _LAYOUTS.items()},
}
_KINDS = {name: case_of(kind) for name, kind in ON_DEVICE.items() if not name.startswith(_NOT_ON_GPU)}


@pytest.mark.parametrize("case", _KINDS.values(), ids=_KINDS)
def test_every_kind_of_run_matches_eager(case: Case) -> None:
    compare_with_eager(case, PROGRAM, graphs=case.graphs)


@pytest.mark.parametrize("case", _CASES.values(), ids=_CASES)
def test_every_loss_and_batch_matches_eager(case: Case) -> None:
    compare_with_eager(case, PROGRAM, graphs=case.graphs)


@examples(20)
@given(
    st.sampled_from(FUSED_ON_GPU),
    st.sampled_from(["fp32", "bf16", "fp16"]),
    st.sampled_from([*_KINDS.values(), *_CASES.values()]),
    st.lists(st.sampled_from(list(ACTIONS)), min_size=8, max_size=16),
)
def test_actions_between_updates_match_eager(
    name: str, precision: str, case: Case, actions: list[str]
) -> None:
    compare_with_eager(case, [ACTIONS[action] for action in actions], name, precision)


def test_captured_runs_on_any_stream() -> None:
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        compare_with_eager(Case(), PROGRAM, graphs=2)
    torch.cuda.synchronize()


def test_each_shape_has_graph_up_to_limit() -> None:
    case = Case(micro_batches=lambda number, rows, bad: on_gpu(batches(1, 1 + number % 11, seed=number)))
    compare_with_eager(case, [Run.updates] * 14, graphs=8)


def test_loss_may_set_requires_grad_on_batch() -> None:
    """The next call with this batch then needs another graph."""
    made: list[Any] = []

    def the_same(number: int, rows: int, bad: bool) -> Sequence[Any]:
        made.extend(on_gpu(batches(1)) if number == 1 else ())
        return made[-1:]

    compare_with_eager(Case(_penalised, micro_batches=the_same), [Run.updates] * 2)


@pytest.mark.parametrize("loss_fn", [mean_loss, _widely_weighted])
def test_prefetched_batches_match_eager(loss_fn: Any) -> None:
    data = [*batches(8), *batches(4, rows=7), *batches(8, seed=1)]

    def train(run: Run) -> None:
        ahead = prefetch(data, "cuda") if run.step._graphs else on_gpu(data)
        for batch in ahead:
            run.update([batch])

    compare_with_eager(Case(loss_fn), [train], precision="fp16", graphs=2)


@pytest.mark.parametrize("layout", _LAYOUTS.values(), ids=_LAYOUTS)
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")
def test_compiled_and_captured_matches_eager(layout: Any) -> None:
    torch._dynamo.reset()
    both, eager = gpu_step(compile=True, cuda_graph=True), gpu_step()
    for number in range(8):
        batch, _ = _in_layout(layout)(number, SHORT, False)[0]
        torch.testing.assert_close(both(batch), eager(batch), rtol=1e-5, atol=1e-6)
    assert len(graphs_of(both).captured) == 1
