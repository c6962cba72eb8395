"""Captured updates on a GPU with batches of every layout, and batches that require gradients."""

from typing import Any

import pytest
import torch
from support.training.cuda_graphs.gpu import assert_same_state, captured_and_eager, graphs_of, on_gpu
from support.training.models import Batch, batches, mean_loss
from support.training.trees import equal_trees
from torch import Tensor, nn

pytestmark = pytest.mark.gpu

_LAYOUTS: dict[str, Any] = {
    "slices": lambda wide, tall: (wide[:4, 2:5], tall[::2, 1:]),
    "expanded": lambda wide, tall: (wide[:1, :3].expand(4, 3), tall[0, 0].expand(4, 2)),
    "transposed": lambda wide, tall: (wide[:3].t()[:4], tall[:2, :].t().expand(3, 2)[:1].expand(4, 2)),
    "overlapping": lambda wide, tall: (wide.as_strided((4, 3), (2, 1), 1), tall.view(-1).unfold(0, 2, 1)[:4]),
    "misaligned": lambda wide, tall: (wide.view(-1)[1:13].view(4, 3), tall.view(-1)[3:11].view(4, 2)),
}


def _other_leaves(wide: Tensor) -> dict[str, Any]:
    """Return more entries of a batch: other dtypes, lazy conjugates, no elements, plain Python values."""
    complex_ones = torch.complex(wide, wide)
    return {
        "scalar": wide[1, 1],
        "empty": wide[:0, 1:],
        "mask": (wide > 0)[:, ::2],
        "bytes": (wide * 10).abs().to(torch.uint8)[::2],
        "numbers": (wide * 10).long().t(),
        "conjugate": complex_ones.conj()[:, 1:],
        "negative": complex_ones.conj().imag,
        "half": wide.half()[:, 1:3],
        "times": 2,
        "name": "a batch",
    }


def _loss_of_all(model: nn.Module, batch: Any) -> Tensor:
    pair, more = batch
    tensors = [leaf for leaf in more.values() if isinstance(leaf, Tensor)]
    sums = [(leaf.real if leaf.is_complex() else leaf).float().sum() for leaf in tensors]
    return mean_loss(model, pair) * more["times"] + 0.001 * sum(sums)


def _batch(layout: Any, seed: int) -> Any:
    generator = torch.Generator().manual_seed(seed)
    wide, tall = (torch.randn(6, 6, generator=generator), torch.randn(8, 3, generator=generator))
    inputs, targets = layout(wide.cuda(), tall.cuda())
    return (inputs, targets), _other_leaves(wide.cuda())


@pytest.mark.parametrize("layout", _LAYOUTS.values(), ids=_LAYOUTS)
def test_every_layout_matches_eager(layout: Any) -> None:
    captured, eager = captured_and_eager(loss_fn=_loss_of_all, max_norm=0.5)
    for number in range(8):
        batch = _batch(layout, number)
        assert equal_trees(captured(batch, batch), eager(batch, batch))
    assert len(graphs_of(captured).captured) == 1
    assert_same_state(captured, eager)


@pytest.mark.parametrize("layout", _LAYOUTS.values(), ids=_LAYOUTS)
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")
def test_every_layout_matches_eager_compiled(layout: Any) -> None:
    torch._dynamo.reset()
    captured, eager = captured_and_eager()
    captured._update._loss_fn = torch.compile(mean_loss)
    for number in range(6):
        batch, _ = _batch(layout, number)
        torch.testing.assert_close(captured(batch), eager(batch), rtol=1e-5, atol=1e-6)
    assert len(graphs_of(captured).captured) == 1


def _penalised(model: nn.Module, batch: Batch) -> Tensor:
    """Compute a loss with a penalty on the gradient of the batch."""
    inputs = batch[0].requires_grad_()
    (slopes,) = torch.autograd.grad(model(inputs).sum(), inputs, create_graph=True)
    return mean_loss(model, batch) + slopes.square().sum()


@pytest.mark.parametrize("needs_gradient", [True, False])
@pytest.mark.parametrize("loss_fn", [mean_loss, _penalised])
def test_batch_may_require_gradient(loss_fn: Any, needs_gradient: bool) -> None:
    captured, eager = captured_and_eager(loss_fn=loss_fn, max_norm=0.5)
    for inputs, targets in on_gpu(batches(10)):
        # Each step gets its own leaf, because `_penalised` sets requires_grad on it.
        results = [
            step((inputs.clone().requires_grad_(needs_gradient), targets)) for step in (captured, eager)
        ]
        assert equal_trees(*results)
    assert len(graphs_of(captured).captured) == 1
    assert_same_state(captured, eager)


def test_loss_may_set_requires_grad_on_batch() -> None:
    """The next call with this batch then needs another graph."""
    captured, eager = captured_and_eager(loss_fn=_penalised)
    (batch,) = on_gpu(batches(1))
    for _ in range(8):
        assert equal_trees(captured(batch), eager(batch))
    assert_same_state(captured, eager)


def test_loss_may_write_to_batch() -> None:
    def loss_fn(model: nn.Module, batch: Batch) -> Tensor:
        inputs, targets = batch
        return mean_loss(model, (inputs.mul_(model.get_parameter("last.bias").sum()), targets))

    captured, eager = captured_and_eager(loss_fn=loss_fn)
    for inputs, targets in on_gpu(batches(8)):
        assert equal_trees(captured((inputs.clone(), targets)), eager((inputs.clone(), targets)))
    assert len(graphs_of(captured).captured) == 1
    assert_same_state(captured, eager)


def test_tensor_used_twice_matches_eager() -> None:
    captured, eager = captured_and_eager(
        loss_fn=lambda model, batch: mean_loss(model, (batch[0], batch[1][:, :2]))
    )
    for inputs, _ in on_gpu(batches(8)):
        assert equal_trees(captured((inputs, inputs)), eager((inputs, inputs)))
        assert equal_trees(captured((inputs, inputs * 2)), eager((inputs, inputs * 2)))
    assert len(graphs_of(captured).captured) == 2
    assert_same_state(captured, eager)
