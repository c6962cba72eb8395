"""Weights and buffers alone, from a checkpoint of a training step or of a module."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checkpointing.checkpoints import Part, same_bits
from support.training.models import Net, batches
from support.training.steps import make_step
from torch import nn

from torch_bridge import Checkpoints


def _normed(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    model = _normed(1)
    model(torch.ones(4, 3))
    step = make_step(model=Net(1))
    for batch in batches(2):
        step(batch)
    step.state_dict()
    Checkpoints(tmp_path).save(
        7, step=step, net=model, optimizer=torch.optim.SGD(model.parameters()), values=[1], wait=True
    )
    return tmp_path


def test_model_loads_from_step_and_from_module(saved: Path) -> None:
    step, model, normed = make_step(model=Net(2)), Net(3), _normed(2)
    expected = _normed(2)
    checkpoints = Checkpoints(saved)
    checkpoints.load(step=step, net=expected)
    random = torch.get_rng_state()
    assert checkpoints.load_model(model) == 7
    assert same_bits(dict(model.state_dict()), dict(step.state_dict()["model"]))
    assert checkpoints.load_model(normed, 7, part="net") == 7
    assert same_bits(dict(normed.state_dict()), dict(expected.state_dict()))
    assert torch.equal(torch.get_rng_state(), random)
    half = Net(3).to(torch.bfloat16)
    checkpoints.load_model(half)
    assert next(half.parameters()).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (
            nn.Linear(3, 3),
            {"part": "net"},
            r"net was saved with a different model: weight: missing in the check",
        ),
        (
            nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)),
            {"part": "net"},
            r"0.weight: \(2, 3\) in the checkpoint, \(2, 4\) here",
        ),
        (_normed(1), {}, "step was saved with a different model"),
        (_normed(1), {"part": "optimizer"}, "optimizer was saved with a different model"),
        (_normed(1), {"part": "none"}, r"has the parts .*, and not \['none'\]"),
        (_normed(1), {"count": 8, "part": "net"}, r"no checkpoint 8; it has \[7\]"),
        (nn.Linear(3, 2, device="meta"), {"part": "net"}, r"model is on the meta device, .*to_empty"),
    ],
)
def test_mismatch_leaves_model_unchanged(
    saved: Path, model: nn.Module, options: dict[str, Any], message: str
) -> None:
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=message):
        Checkpoints(saved).load_model(model, **options)
    if not next(model.parameters()).is_meta:
        assert same_bits(dict(model.state_dict()), dict(before))


def test_damage_and_wrong_types_are_rejected(saved: Path) -> None:
    model: Any = Net(2)
    before = copy.deepcopy(model.state_dict())
    path = saved / "7" / "rank-0.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(RuntimeError, match=r"only damaged checkpoints: 7: rank-0.safetensors is damaged"):
        Checkpoints(saved).load_model(model)
    assert same_bits(dict(model.state_dict()), dict(before))
    for wrong in (make_step(), Part(), None):
        with pytest.raises(TypeError, match=r"must be a module: a whole part is loaded by load\(step=...\)"):
            Checkpoints(saved).load_model(wrong)  # type: ignore[arg-type]  (that is what is tested)


@pytest.mark.parametrize("exists", [True, False])
def test_folder_without_checkpoint_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exists: bool
) -> None:
    """A run may start without a checkpoint, but a model would keep its random weights."""
    monkeypatch.chdir(tmp_path)
    if exists:
        (tmp_path / "run").mkdir()
    model, checkpoints = Net(2), Checkpoints("run")
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=f"{tmp_path / 'run'} has no checkpoint to load"):
        checkpoints.load_model(model)
    assert same_bits(dict(model.state_dict()), dict(before))
    assert checkpoints.load(model=model) is None
