"""A model of nested blocks with dropout and a recurrent state, and its gradients."""

import torch
from support.training.models import seeded
from torch import Tensor, nn

from torch_bridge.training.distributed.dtensors import local_shard

State = tuple[Tensor, Tensor]


class Mixer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.wide = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(0.3)

    def forward(self, inputs: Tensor, *, debug: float = 1.0) -> Tensor:
        hidden = torch.nn.functional.gelu(self.wide(inputs))
        return self.narrow(self.dropout(hidden)) * debug


class DebugBlock(nn.Module):
    """Torch's checkpoint has a keyword `debug` too."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mixer = Mixer(width)
        self.cells = nn.LSTMCell(width, width)

    def forward(
        self, inputs: Tensor, state: State, *, debug: Tensor | None = None
    ) -> tuple[Tensor, State]:
        hidden, cell = self.cells(self.norm(inputs), state)
        mixed = self.mixer(hidden, debug=0.5)
        if debug is not None:
            mixed = mixed * debug
        return inputs + mixed, (hidden, cell)


class Stack(nn.Module):
    """Two blocks of width 4, used in an order; by default the first is used twice."""

    def __init__(self, order: tuple[int, ...] = (0, 1, 0)) -> None:
        super().__init__()
        self.order = order
        with seeded(0):
            self.first = nn.Linear(3, 4)
            self.blocks = nn.ModuleList([DebugBlock(4), DebugBlock(4)])
            self.last = nn.Linear(4, 2)

    def forward(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        values = self.first(inputs)
        scale = torch.tensor(2.0)
        for index in self.order:
            values, state = self.blocks[index](values, state, debug=scale)
        return self.last(values), state


def gradients_of(
    model: nn.Module, precision: str = "fp32", updates: int = 2
) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """Make `updates` steps of gradient descent, which pass on the recurrent state.

    Returns:
        The losses, the gradients, and the random state afterwards.
    """
    state = torch.zeros(5, 4), torch.zeros(5, 4)
    losses: list[Tensor] = []
    gradients: list[Tensor] = []
    with seeded(1):
        for _ in range(updates):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
                outputs, (hidden, cell) = model(torch.randn(5, 3), state)
            loss = outputs.float().square().mean()
            loss.backward()
            losses.append(loss.detach())
            gradients += _descend(model)
            state = hidden.detach().float(), cell.detach().float()
        return losses, gradients, torch.get_rng_state()


@torch.no_grad()
def _descend(model: nn.Module) -> list[Tensor]:
    """Update the parameters of this rank, clear their gradients, and return them."""
    gradients: list[Tensor] = []
    for parameter in model.parameters():
        if parameter.grad is not None:
            gradient = local_shard(parameter.grad).clone()
            local_shard(parameter).sub_(gradient, alpha=0.1)
            parameter.grad = None
            gradients.append(gradient)
    return gradients
