"""An optimizer with its own DTensors, and training runs with it that are saved and resumed."""

import pickle
import warnings
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from support.checkpointing.checkpoints import gather_tensors
from support.training.models import seeded
from support.training.steps import CURVE
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.utils import _pytree as pytree

from torch_bridge import Checkpoints, TrainStep
from torch_bridge.distributed import processes

_RANKS = 4  # micro-batches of an update, over all ranks


def _placed(tensor: Tensor, like: Tensor, dim: int | None) -> Tensor:
    """Under `fully_shard`, return a DTensor sharded along this dimension, or replicated if it is None."""
    if not isinstance(like, DTensor):
        return tensor
    where: Placement = Replicate() if dim is None else Shard(dim)
    placements = [where if placement.is_shard() else Replicate() for placement in like.placements]
    return cast("DTensor", tensor).redistribute(placements=placements)


class ShardedStateOptimizer(torch.optim.Optimizer):
    """Keeps tensors for each parameter of shape (rows, columns): alone, in lists and in dictionaries.

    Some have its shape, dtype and placements, others do not, and one is plain. All take part in the update.
    """

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.25})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                state, gradient = self.state[parameter], parameter.grad.double()
                if not state:
                    zero = torch.zeros_like(parameter, dtype=torch.float64)
                    rows = torch.zeros_like(parameter[:, 0])
                    state["sums"] = [zero, [rows.to(torch.bfloat16)]]
                    state["more"] = {
                        "whole": _placed(zero.clone(), parameter, None),
                        "across": (_placed(zero.clone(), parameter, 1),),
                        "columns": _placed(torch.zeros_like(parameter[0], dtype=torch.float64), parameter, 0),
                    }
                    state["rows"] = rows
                    state["turned"] = _placed(zero.float(), parameter, 1)
                    state["plain"] = [torch.zeros(2, dtype=torch.int64)]
                more = state["more"]
                state["sums"][0] += gradient / 3
                state["sums"][1][0].add_(state["sums"][0].sum(1).to(torch.bfloat16))
                state["rows"] += gradient.square().sum(1).float()
                more["whole"] += _placed(gradient, parameter, None)
                across = _placed(gradient, parameter, 1)
                more["across"][0].mul_(0.5).add_(across)
                state["turned"] += across.float()
                more["columns"] += _placed(across.sum(0), parameter, 0)
                state["plain"][0] += 1
                change = state["sums"][0] / (1 + state["rows"].double().unsqueeze(1))
                change = change + state["sums"][1][0].double().unsqueeze(1) / 64
                for value in (more["whole"], more["across"][0], state["turned"].double()):
                    change = change + _placed(value, parameter, 0) / (2 + state["plain"][0][0])
                change = change + _placed(more["columns"], parameter, None) / 16
                parameter.sub_((group["lr"] * change).float())


def _loss(model: nn.Module, batch: Tensor) -> Tensor:
    return model(batch).sum()


def _step(wrapper: str) -> TrainStep:
    with seeded(0):
        model = nn.Sequential(nn.Linear(3, 5, bias=False), nn.Linear(5, 3, bias=False))
    if wrapper != "plain":
        size = distributed.get_world_size()
        shape = (2, size // 2) if wrapper == "hybrid" else (size,)
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("copy", "shard")[-len(shape) :])
        for module in (*model, model):
            fully_shard(module, mesh=mesh)
    return TrainStep(model, ShardedStateOptimizer(model.parameters()), _loss, CURVE)


def _update(step: TrainStep, number: int) -> float:
    rank, ranks = processes.rank(), processes.world_size()
    with seeded(number):
        batches = torch.randint(-4, 5, (_RANKS, 2, 3)).float()
    return step(*batches[rank::ranks]).loss.item()


class Kept(NamedTuple):
    """All gathered tensors of a state, and the dtype, shape and placement of the optimizer's."""

    tensors: dict[str, np.ndarray[Any, Any]]
    forms: dict[str, tuple[str, tuple[int, ...], str]]


def _kept(step: TrainStep) -> Kept:
    state: Any = step.state_dict()
    # NumPy has no bfloat16.
    in_float64 = pytree.tree_map_only(Tensor, Tensor.double, [dict(state["model"]), state["optimizer"]])
    return Kept(gather_tensors(in_float64), _forms(state["optimizer"]))


def _forms(state: Any) -> dict[str, tuple[str, tuple[int, ...], str]]:
    return {
        pytree.keystr(path): (str(leaf.dtype), tuple(leaf.shape), _where(leaf))
        for path, leaf in pytree.tree_leaves_with_path(state["state"])
        if isinstance(leaf, Tensor)
    }


def _where(tensor: Tensor) -> str:
    if not isinstance(tensor, DTensor):
        return "plain"
    dims: list[int] = [placement.dim for placement in tensor.placements if isinstance(placement, Shard)]
    return f"sharded along {dims[0]}" if dims else "replicated"


def _continue(step: TrainStep) -> tuple[Kept, list[float], Kept]:
    """Return the state now, the losses of some updates, and the state then."""
    before = _kept(step)
    return before, [_update(step, 3 + number) for number in range(3)], _kept(step)


def _check(step: TrainStep, expected: tuple[Kept, list[float], Kept], ranks: int) -> None:
    """Check that a resumed run equals the uninterrupted one of this number of ranks.

    On another number its gradients, and everything computed from them, are not exact.
    """
    now = processes.world_size()
    tolerance = 0.0 if now == ranks else 1e-4
    before, losses, after = _continue(step)
    for kept, original, limit in ((before, expected[0], 0.0), (after, expected[2], tolerance)):
        assert kept.forms == {
            name: (dtype, shape, "plain" if now == 1 else where)
            for name, (dtype, shape, where) in original.forms.items()
        }
        assert kept.tensors.keys() == original.tensors.keys()
        for name, value in original.tensors.items():
            np.testing.assert_allclose(kept.tensors[name], value, rtol=limit, atol=limit)
    np.testing.assert_allclose(losses, expected[1], rtol=tolerance)


def save(directory: Path) -> None:
    """Train, save a checkpoint and a file of this rank's state, and continue; load the state directly too."""
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    step, folder = _step("hybrid" if ranks == 4 else "fsdp"), directory / str(ranks)
    for number in range(3):
        _update(step, number)
    Checkpoints(folder).save(3, step=step, optimizer=step.optimizer, wait=True)
    state = step.state_dict()
    torch.save(state, folder / f"{rank}.pt")
    expected = _continue(step)
    (folder / f"{rank}.pkl").write_bytes(pickle.dumps(expected))
    places = {where for *_, where in expected[0].forms.values()}
    assert places == {"plain", "replicated", "sharded along 0", "sharded along 1"}
    if ranks == 2:
        other = _step("fsdp")
        other.load_state_dict(state)
        _check(other, expected, ranks)


def load(directory: Path, ranks: int, wrapper: str) -> None:
    """Load what this number of ranks has saved, and continue; on as many, also from the file."""
    rank, now = processes.rank(), processes.world_size()
    expected = pickle.loads((directory / str(ranks) / f"{rank}.pkl").read_bytes())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".* was saved by ", UserWarning)
        step, optimizer = _step(wrapper), _step(wrapper).optimizer
        Checkpoints(directory / str(ranks)).load(step=step)
        Checkpoints(directory / str(ranks)).load(optimizer=optimizer)
    if now > 1:
        assert _forms(optimizer.state_dict()) == expected[0].forms
    _check(step, expected, ranks)
    if now == ranks == 2:
        from_file = _step(wrapper)
        from_file.load_state_dict(torch.load(directory / "2" / f"{rank}.pt", weights_only=True))
        _check(from_file, expected, ranks)
