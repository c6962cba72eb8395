"""States of modules have plain names under any wrapper; older ones with wrapped names still load."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checkpointing.checkpoints import same_bits
from support.training.models import batches
from support.training.steps import make_step
from torch import nn

from torch_bridge import Checkpoints
from torch_bridge.distributed.plain_names import load_plain_state, plain_state

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")


class _Odd(nn.Module):
    """A module with a part named like a wrapper's."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        self.last = nn.Linear(2, 1)


def _inner_compiled(seed: int) -> nn.Module:
    odd: Any = _Odd(seed)
    odd.module[0] = torch.compile(odd.module[0])
    return odd


_BUILDS: dict[str, Callable[[int], Any]] = {
    "plain": _Odd,
    "compiled": lambda seed: torch.compile(_Odd(seed)),
    "a part compiled": _inner_compiled,
    "parallel": lambda seed: nn.DataParallel(_Odd(seed)),
    "both": lambda seed: torch.compile(nn.DataParallel(_Odd(seed))),
    "the other way": lambda seed: nn.DataParallel(torch.compile(_Odd(seed))),  # type: ignore[arg-type]  (it is a module)
}


@pytest.mark.slow
@pytest.mark.parametrize("before", _BUILDS)
def test_state_loads_under_every_wrapper(tmp_path: Path, before: str) -> None:
    """As a separate part, alone, and as saved by an earlier version under the wrapper's names."""
    expected = _Odd(1).state_dict()
    saved = _BUILDS[before](1)
    plain: Any = plain_state(saved)
    assert same_bits(dict(plain), dict(expected))
    assert plain._metadata["module.1"] == {"version": 2}  # of the batch normalization
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, model=saved)
    for build in _BUILDS.values():
        model = build(2)
        assert checkpoints.load(model=model) == 1
        assert same_bits(dict(plain_state(model)), dict(expected))
        model = build(2)
        assert checkpoints.load_model(model, part="model") == 1
        assert same_bits(dict(plain_state(model)), dict(expected))
        model = build(2)
        load_plain_state(model, saved.state_dict())  # as an earlier version had saved it
        assert same_bits(dict(plain_state(model)), dict(expected))


def test_plain_module_keeps_its_state() -> None:
    """The names, their order and the versions of the submodules."""
    model = _Odd(1)
    assert same_bits(plain_state(model), model.state_dict())


@pytest.mark.slow
def test_step_state_of_compiled_model_has_plain_names() -> None:
    plain, compiled = nn.Linear(3, 2), torch.compile(nn.Linear(3, 2), backend="eager")
    plain_step, compiled_step = make_step(model=plain), make_step(model=compiled)
    for batch in batches(2):
        plain_step(batch)
    state = plain_step.state_dict()
    compiled_step.load_state_dict(state)
    assert list(compiled_step.state_dict()["model"]) == ["weight", "bias"]
    assert same_bits(dict(compiled_step.state_dict()["model"]), dict(state["model"]))
    before: Any = {**state, "model": {f"_orig_mod.{name}": value for name, value in state["model"].items()}}
    for loading in (make_step(model=nn.Linear(3, 2)), compiled_step):
        loading.load_state_dict(before)
        assert same_bits(dict(loading.state_dict()["model"]), dict(state["model"]))
