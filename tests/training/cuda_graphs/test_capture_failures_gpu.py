"""Failed captures and warm-ups on a GPU: their messages, and that the step stays usable."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support.training.cuda_graphs.gpu import gpu_step, graphs_of, on_gpu
from support.training.models import Batch, Net, batches, mean_loss
from support.training.optimizers import make_optimizer
from support.training.steps import CURVE, train
from support.training.trees import equal_trees
from torch import Tensor, nn

from torch_bridge import TrainStep

pytestmark = pytest.mark.gpu

_TESTS = Path(__file__).parents[2]


def test_uncapturable_arguments_are_rejected() -> None:
    model = Net().cuda()
    for name in ("adamw", "rmsprop", "plain adam"):
        optimizer = make_optimizer(name, model)
        with pytest.raises(ValueError, match="cuda_graph=True needs"):
            TrainStep(model, optimizer, mean_loss, CURVE, cuda_graph=True)
        assert "initial_lr" not in optimizer.param_groups[0]
    step = gpu_step(cuda_graph=True)
    (batch,) = batches(1)
    with pytest.raises(ValueError, match="tensor on cpu"):
        step((batch[0].cuda(), batch[1]))


class _OfTheUser(Exception):
    pass


class _Failing:
    """A loss that raises at one call and records if that was during a capture."""

    def __init__(self, error: BaseException, at: int) -> None:
        self._error, self._at, self.calls = error, at, 0

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        self.calls += 1
        loss = mean_loss(model, batch)
        if self.calls == self._at:
            assert torch.cuda.is_current_stream_capturing() == (self._at == 4)
            raise self._error
        return loss


class _Keeping(Net):
    """Keeps its last result, and with it some memory of a capture."""

    def forward(self, inputs: Tensor) -> Tensor:
        self.last_output = super().forward(inputs)
        return self.last_output


@pytest.mark.parametrize("at", [1, 2, 4])
@pytest.mark.parametrize(
    "error",
    [
        _OfTheUser("mine"),
        NotImplementedError("no kernel for this"),
        torch.OutOfMemoryError("CUDA out of memory"),
        KeyboardInterrupt(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_step_continues_after_error(error: BaseException, at: int) -> None:
    """In a warm-up (calls 1 to 3) as in the capture (call 4)."""
    losses: list[Any] = [_Failing(error, at), _Failing(error, 0)]
    steps = [
        gpu_step(model=_Keeping(dropout=0.3), loss_fn=loss_fn, cuda_graph=flag)
        for loss_fn, flag in zip(losses, (True, False), strict=True)
    ]
    captured, eager = steps
    data, stream = on_gpu(batches(9)), torch.cuda.current_stream()
    torch.manual_seed(0)
    before = train(captured, data[: at - 1])
    with pytest.raises(type(error)) as raised:
        captured(data[0])
    assert raised.value is error
    notes = getattr(error, "__notes__", [])
    assert len(notes) == (at == 4 and isinstance(error, Exception))
    error.__notes__ = []
    assert torch.cuda.current_stream() == stream
    assert all(parameter.grad is None for parameter in captured.model.parameters())
    # What the failed update drew is another matter: the numbers are drawn anew.
    torch.cuda.synchronize()
    torch.manual_seed(1)
    after = train(captured, data[at - 1 :])
    torch.cuda.synchronize()
    torch.manual_seed(0)
    assert equal_trees(before, train(eager, data[: at - 1]))
    torch.manual_seed(1)
    assert equal_trees(after, train(eager, data[at - 1 :]))
    assert len(graphs_of(captured).captured) == 1
    assert equal_trees(captured.state_dict(), eager.state_dict())


_READS = """
def loss_fn(model, batch):
    loss = mean_loss(model, batch)
    return loss * 2 if torch.cuda.is_current_stream_capturing() and loss.item() > 0 else loss
"""
_WRAPS_THE_ERROR = """
def loss_fn(model, batch):
    loss = mean_loss(model, batch)
    try:
        loss.item()
    except RuntimeError as error:
        raise ArithmeticError("mine") from error
    return loss
"""
_KEEPS_A_LOSS = """
loss_fn = mean_loss
kept.append(mean_loss(model, data[0]))
"""
_PROGRAM = """
import torch
from support.training.cuda_graphs.gpu import gpu_step, graphs_of, on_gpu
from support.training.models import Net, batches, mean_loss
from torch.torch_version import TorchVersion

kept, model, data, stream = [], Net().cuda(), on_gpu(batches(9)), torch.cuda.current_stream()
LOSS
step = gpu_step(model=model, loss_fn=loss_fn, cuda_graph=True)
for batch in data[:3]:
    step(batch)
message = ""
try:
    step(data[3])
except Exception as error:
    message = f"{type(error).__name__}: {error}" + "".join(error.__notes__)
print(message)
assert torch.cuda.current_stream() == stream
assert all(parameter.grad is None for parameter in model.parameters())
torch_repairs_it = TorchVersion(torch.__version__) >= "2.13"
assert ("restart the process" in message) != torch_repairs_it
if torch_repairs_it:
    kept.clear()
    another = gpu_step(model=model, loss_fn=mean_loss, cuda_graph=True)
    torch.manual_seed(0)
    torch.rand(3, device="cuda")
    for batch in data:
        another(batch)
    assert len(graphs_of(another).captured) == 1
torch.cuda.synchronize()
"""


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (_READS, ["not permitted when stream is capturing", "must not read the device"]),
        (_WRAPS_THE_ERROR, ["ArithmeticError: mine", "must not read the device"]),
        (_KEEPS_A_LOSS, ["stream", "computed outside of the step"]),
    ],
    ids=["reads", "wraps the error", "keeps a loss"],
)
def test_capture_aborted_by_cuda_is_explained(loss: str, words: list[str]) -> None:
    """In a separate process, since torch before 2.13 leaves it damaged."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM.replace("LOSS", loss)], cwd=_TESTS, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert all(word in done.stdout for word in words), done.stdout
