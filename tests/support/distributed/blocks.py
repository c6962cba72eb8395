"""A model of nested blocks with dropout and a recurrent state, and its gradients."""

import torch
from support.training.models import seeded
from torch import Tensor, nn

from torch_bridge.distributed.dtensors import local_shard

State = tuple[Tensor, Tensor]


class Mixer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(0.3)

    def forward(self, inputs: Tensor, *, debug: float = 1.0) -> Tensor:
        return self.narrow(self.dropout(torch.nn.functional.gelu(self.wide(inputs)))) * debug


class Block(nn.Module):
    """Torch's checkpoint has a keyword `debug` too."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.mixer, self.cells = nn.LayerNorm(width), Mixer(width), nn.LSTMCell(width, width)

    def forward(self, inputs: Tensor, state: State, *, debug: Tensor | None = None) -> tuple[Tensor, State]:
        hidden, cell = self.cells(self.norm(inputs), state)
        mixed = self.mixer(hidden, debug=0.5)
        return inputs + (mixed if debug is None else mixed * debug), (hidden, cell)


class Stack(nn.Module):
    """Two blocks, used in an order; by default the first is used twice."""

    def __init__(self, width: int = 4, seed: int = 0, order: tuple[int, ...] = (0, 1, 0)) -> None:
        super().__init__()
        self.order = order
        with seeded(seed):
            self.first = nn.Linear(3, width)
            self.blocks = nn.ModuleList([Block(width), Block(width)])
            self.last = nn.Linear(width, 2)

    def forward(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        values, scale = self.first(inputs), torch.tensor(2.0)
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
    state, losses, gradients = (torch.zeros(5, 4), torch.zeros(5, 4)), list[Tensor](), list[Tensor]()
    with seeded(1):
        for _ in range(updates):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
                outputs, state = model(torch.randn(5, 3), state)
            loss = outputs.float().square().mean()
            loss.backward()
            state = state[0].detach().float(), state[1].detach().float()
            losses.append(loss.detach())
            with torch.no_grad():
                for parameter in model.parameters():
                    if (gradient := parameter.grad) is not None:
                        gradient = local_shard(gradient)
                        gradients.append(gradient.clone())
                        local_shard(parameter).sub_(gradient, alpha=0.1)
                    parameter.grad = None
        return losses, gradients, torch.get_rng_state()
