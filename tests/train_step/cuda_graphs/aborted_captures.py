"""Programs whose capture CUDA aborts: `python -m train_step.cuda_graphs.aborted_captures X`.

Each runs in a separate process, since torch before 2.13 leaves it damaged.
"""

import sys
import traceback
from typing import Any

import torch
from support.training.cuda_graphs.graphs import graphs_of
from support.training.kind import Kind
from support.training.models import Batch, Net, batches, mean_loss
from torch import Tensor, nn
from torch.torch_version import TorchVersion

TORCH_REPAIRS_IT = TorchVersion(torch.__version__) >= "2.13"


def loss_that_reads(model: nn.Module, batch: Batch) -> Tensor:
    loss = mean_loss(model, batch)
    if torch.cuda.is_current_stream_capturing() and loss.item() > 0:
        return loss * 2
    return loss


def message_of_aborted_capture(model: nn.Module, loss_fn: Any) -> str:
    """Train until the capture fails; return its errors, with the notes."""
    stream = torch.cuda.current_stream()
    step = Kind(loss_fn=loss_fn, model=lambda: model).build(device="cuda", cuda_graph=True)
    data = batches(4, device="cuda")
    for batch in data[:3]:
        step(batch)
    message = ""
    try:
        step(data[3])
    except Exception as error:
        message = "".join(traceback.format_exception(error))
    assert torch.cuda.current_stream() == stream
    assert all(parameter.grad is None for parameter in model.parameters())
    return message


def check_process_is_sound(model: nn.Module) -> None:
    step = Kind(model=lambda: model).build(device="cuda", cuda_graph=True)
    torch.manual_seed(0)
    torch.rand(3, device="cuda")
    for batch in batches(9, device="cuda"):
        step(batch)
    assert len(graphs_of(step).captured) == 1


def read_during_capture() -> None:
    model = Net().cuda()
    print(message_of_aborted_capture(model, loss_that_reads))
    if TORCH_REPAIRS_IT:
        check_process_is_sound(model)


def keep_a_loss() -> None:
    """A loss that was computed outside of the step, and with it its graph, are still alive."""
    model = Net().cuda()
    (batch,) = batches(1, device="cuda")
    loss = mean_loss(model, batch)
    print(message_of_aborted_capture(model, mean_loss))
    del loss
    if TORCH_REPAIRS_IT:
        check_process_is_sound(model)


if __name__ == "__main__":
    if sys.argv[1] == "read_during_capture":
        read_during_capture()
    else:
        keep_a_loss()
    torch.cuda.synchronize()
