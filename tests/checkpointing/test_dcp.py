"""What `Checkpoints` takes from `torch.distributed.checkpoint` (DCP) beyond its documentation."""

import json
import warnings
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from support.checkpointing.checkpoints import Part
from torch.distributed import checkpoint as dcp

from torch_bridge import Checkpoints
from torch_bridge.checkpointing import saving


def _places(path: Path) -> Any:
    with safe_open(path, "pt") as file:
        return json.loads(file.metadata()["DCP_SHARDING_INFO"])


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated:UserWarning")  # DCP's writer in torch 2.9
def test_files_are_those_of_dcp(tmp_path: Path) -> None:
    """The same keys and values. DCP's writer says in the same form where a tensor lies in the whole one."""
    state = {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor(7), "empty": torch.empty(0, 2)}
    Checkpoints(tmp_path).save(1, part=Part(state), wait=True)
    ours = tmp_path / "1" / "rank-0.safetensors"
    tensors = load_file(ours)
    writer = dcp.HuggingFaceStorageWriter(str(tmp_path / "dcp"), save_distributed=True)
    dcp.save(tensors, storage_writer=writer, no_dist=True)
    (theirs,) = (tmp_path / "dcp").glob("*.safetensors")
    assert _places(ours) == _places(theirs)
    by_dcp = load_file(theirs)
    assert tensors.keys() == by_dcp.keys()
    assert all(torch.equal(tensors[name], by_dcp[name]) for name in tensors)


def test_warnings_are_repeated_neither_by_saves_nor_by_loads(tmp_path: Path) -> None:
    """Python forgets what it has shown when a filter is added, and DCP's warning needs one."""
    checkpoints, part = Checkpoints(tmp_path), Part()
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        for step in range(3):
            checkpoints.save(step, part=part, wait=True)
            checkpoints.load(part=part)
            warnings.warn("of the program", UserWarning, stacklevel=1)
    assert [str(warning.message) for warning in shown] == ["of the program"]


@pytest.mark.filterwarnings("error")
def test_pending_save_needs_no_filter_of_the_caller(tmp_path: Path) -> None:
    checkpoints, may_start = Checkpoints(tmp_path), Event()
    saving._executor.submit(may_start.wait)
    with warnings.catch_warnings():
        checkpoints.save(1, part=Part())
    may_start.set()
    assert checkpoints.steps() == [1]
