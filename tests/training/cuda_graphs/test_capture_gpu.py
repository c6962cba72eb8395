"""Errors of captured updates on a GPU: their messages, and that the step stays usable."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.training.cuda_graphs.gpu import gpu_step, graphs_of, on_gpu
from support.training.models import Batch, Net, batches, mean_loss
from support.training.steps import train
from support.training.trees import equal_trees
from torch import Tensor, nn

pytestmark = pytest.mark.gpu

TESTS = Path(__file__).parents[2]


class Failing:
    """A loss that raises at one call, and checks whether that is during a capture."""

    def __init__(self, error: BaseException, at: int) -> None:
        self._error, self._at, self.calls = error, at, 0

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        self.calls += 1
        loss = mean_loss(model, batch)
        if self.calls == self._at:
            assert torch.cuda.is_current_stream_capturing() == (self._at == 4)
            raise self._error
        return loss


class Keeping(Net):
    """Keeps its last result, and with it some memory of a capture."""

    def forward(self, inputs: Tensor) -> Tensor:
        self.last_output = super().forward(inputs)
        return self.last_output


@pytest.mark.parametrize("at", [1, 2, 4])
@pytest.mark.parametrize("error", [NotImplementedError("no kernel"), KeyboardInterrupt()], ids=repr)
def test_step_continues_after_error(error: BaseException, at: int) -> None:
    """In a warm-up (calls 1 to 3) as in the capture (call 4)."""
    captured, eager = (
        gpu_step(model=Keeping(dropout=0.3), loss_fn=Failing(error, fails_at), cuda_graph=flag)
        for fails_at, flag in ((at, True), (0, False))
    )
    data, stream = on_gpu(batches(9)), torch.cuda.current_stream()
    torch.manual_seed(0)
    before = train(captured, data[: at - 1])
    with pytest.raises(type(error)) as raised:
        captured(data[0])
    assert raised.value is error
    assert len(getattr(error, "__notes__", [])) == (at == 4 and isinstance(error, Exception))
    error.__notes__ = []
    assert torch.cuda.current_stream() == stream
    assert all(parameter.grad is None for parameter in captured.model.parameters())
    # The failed update may have drawn random numbers, so both runs continue from a new seed.
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
        [sys.executable, "-c", _PROGRAM.replace("LOSS", loss)], cwd=TESTS, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert all(word in done.stdout for word in words), done.stdout
