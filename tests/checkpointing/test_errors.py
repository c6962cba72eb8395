"""Wrong calls of `Checkpoints`, and states that a checkpoint can't hold."""

import re
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from support.checkpointing.checkpoints import Part
from support.raises import raises
from torch.nn import Linear
from torch.optim import SGD

from plateau_jax import PlateauCurve
from torch_bridge import Checkpoints, lambda_lr, make_loader
from torch_bridge.training.checkpointing import parts
from torch_bridge.training.checkpointing.states import split_state
from torch_bridge.training.distributed import processes


def bare_linear():
    return Linear(3, 2, bias=False)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Return a run with checkpoints 10 and 20, and 50 of a different model with more parts."""
    directory = tmp_path_factory.mktemp("errors")
    checkpoints = Checkpoints(directory, keep=9)
    for step in (10, 20):
        checkpoints.save(step, model=bare_linear())
    model = Linear(4, 2, bias=False)
    optimizer = SGD(model.parameters())
    checkpoints.save(50, model=model, numbers=[1], options={"a": 1}, optimizer=optimizer, wait=True)
    return directory


@pytest.fixture
def directory(saved):
    """The directory of the run, in which no file may appear or go."""
    before = sorted(saved.rglob("*"))
    yield saved
    assert sorted(saved.rglob("*")) == before


@pytest.fixture
def checkpoints(directory):
    return Checkpoints(directory)


def test_wrong_directory(directory, tmp_path):
    with raises(ValueError, "keep = 0"):
        Checkpoints(directory, keep=0)
    with raises(ValueError, "/10 is itself a checkpoint", "directory of the run"):
        Checkpoints(directory / "10")
    (tmp_path / "file").touch()
    with raises(NotADirectoryError, "/file'"):
        Checkpoints(tmp_path / "file").load(numbers=[])


def test_wrong_save(checkpoints):
    with raises(ValueError, "step = -1"):
        checkpoints.save(-1, values=[1])
    with raises(ValueError, "no parts"):
        checkpoints.save(1)
    with raises(TypeError, "part = (1, 2)", "state_dict and load_state_dict"):
        checkpoints.save(1, part=(1, 2))
    with raises(ValueError, "no part can have the name 'verify'"):
        checkpoints.save(1, verify=[])


def test_wrong_load(checkpoints):
    numbers = [5]  # checkpoint 50 has another number
    with raises(ValueError, "no checkpoint 3", "[10, 20, 50]", unchanged=[numbers]):
        checkpoints.load(3, numbers=numbers)
    with raises(ValueError, "no checkpoint '50'", "[10, 20, 50]", unchanged=[numbers]):
        checkpoints.load("50", numbers=numbers)
    saved = "['model', 'numbers', 'options', 'optimizer']"
    with raises(ValueError, saved, "['more']", unchanged=[numbers]):
        checkpoints.load(numbers=numbers, more=[])
    model = Linear(3, 2, bias=False, device="meta")
    with pytest.raises(UserWarning, match="which is a no-op"):
        checkpoints.load(10, model=model)


def test_wrong_load_of_a_model(checkpoints):
    model = bare_linear()
    empty = Checkpoints(checkpoints.directory / "empty")
    with raises(ValueError, "/empty has no checkpoint to load", unchanged=[model]):
        empty.load_model(model)
    instead = "['none']: pass the name of the model as part="
    with raises(ValueError, "has the parts", instead, unchanged=[model]):
        checkpoints.load_model(model, part="none")
    with raises(TypeError, "Expected state_dict to be dict-like", unchanged=[model]):
        checkpoints.load_model(model, 50, part="numbers")
    with raises(RuntimeError, "size mismatch for weight", unchanged=[model]):
        checkpoints.load_model(model, 50, part="model")


# States that a checkpoint can't hold.


REFUSED: list[tuple[Any, str]] = [
    ([object()], "part.a.0 is of builtins.object, and a checkpoint can't hold it"),
    ({(1, 2): 1}, "the key (1, 2) of part.a is of builtins.tuple"),
    (np.array([None]), "part.a is a NumPy value of object"),
    (np.zeros(2, np.complex128), "part.a is a NumPy value of complex128"),
    (np.ma.masked_array([1], [True]), "part.a is of numpy.ma.MaskedArray"),
    (torch.eye(2).to_sparse(), "part.a is a torch.sparse_coo Tensor"),
]


@pytest.mark.parametrize(("value", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_values_that_a_checkpoint_cannot_hold(tmp_path, value, message):
    """In one line, by the call of `save` itself, which writes nothing."""
    checkpoints = Checkpoints(tmp_path / "run")
    with pytest.raises(TypeError, match=re.escape(message)) as caught:
        checkpoints.save(1, part=Part({"a": value}))
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_part_that_rejects_its_state_is_named(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, rows={"x": [0, 1, 2]}, wait=True)
    loader = make_loader(range(8), 2, num_workers=0)
    with pytest.raises(ValueError, match="is not the state of a loader") as caught:
        checkpoints.load(rows=loader)
    assert caught.value.__notes__ == ["The part 'rows' has rejected its state."]


def test_only_schedules_must_agree_between_ranks():
    """A part of the program's own may have the name of one of their entries."""
    scheduler = lambda_lr(SGD(bare_linear().parameters(), lr=0.5), PlateauCurve(100))
    states = {
        "scheduler": split_state("scheduler", scheduler.state_dict(), torch.clone),
        "hold": split_state("hold", {"updates": 3}, torch.clone),
    }
    with patch.object(processes, "world_size", return_value=2):
        entries = parts.entries_of_all_ranks(states)
    assert entries["scheduler.last_epoch"] == "0"
    assert {path.partition(".")[0] for path in entries} == {"scheduler"}
