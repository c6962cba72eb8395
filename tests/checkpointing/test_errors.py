"""Wrong calls of `Checkpoints`, and states that a checkpoint can't hold."""

import copy
import re
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from support.checkpointing.checkpoints import Part, assert_same_bits
from support.checkpointing.wrapped_tensors import Unlisted, Wrapped
from support.raises import raises
from torch.nn import Linear, Sequential
from torch.optim import SGD

from plateau_jax import PlateauCurve
from torch_bridge import Checkpoints, lambda_lr, make_loader
from torch_bridge.training.checkpointing import parts
from torch_bridge.training.checkpointing.states import split_state
from torch_bridge.training.distributed import processes


def bare_linear():
    return Linear(3, 2, bias=False)


def wrapped(inner=None, context=None, kind=Wrapped):
    if inner is None:
        inner = torch.ones(2)
    return kind({"codes": inner}, context, (2,), torch.float32)


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
    for name in ("../up", "verify", "__metadata__"):
        with raises(ValueError, f"{name!r} must be a valid variable name", "not one of"):
            checkpoints.save(1, **{name: []})


def test_wrong_load(checkpoints):
    numbers = [5]  # checkpoint 50 has another number
    with raises(ValueError, "no checkpoint 3", "[10, 20, 50]", unchanged=[numbers]):
        checkpoints.load(3, numbers=numbers)
    saved = "['model', 'numbers', 'options', 'optimizer']"
    with raises(ValueError, saved, "['more']", unchanged=[numbers]):
        checkpoints.load(numbers=numbers, more=[])
    with raises(ValueError, "options was saved as a dict", "a list", unchanged=[numbers]):
        checkpoints.load(numbers=numbers, options=[])
    model = Linear(3, 2, bias=False, device="meta")
    with raises(ValueError, "model is on the meta device", "model.to_empty(device=...)"):
        checkpoints.load(10, model=model)
    with raises(ValueError, "model is on the meta device", "model.to_empty(device=...)"):
        checkpoints.load_model(model, 10, part="model")
    with raises(ValueError, "model is on the meta device", "model.to_empty(device=...)"):
        checkpoints.save(60, model=model)
    for step in (True, 10.0, "10"):
        with raises(TypeError, "step = "):
            checkpoints.load(step, model=bare_linear())


def test_wrong_load_of_a_model(checkpoints):
    model = bare_linear()
    empty = Checkpoints(checkpoints.directory / "empty")
    with raises(ValueError, "/empty has no checkpoint to load", unchanged=[model]):
        empty.load_model(model)
    instead = "['none']: pass the name of the model as part="
    with raises(ValueError, "has the parts", instead, unchanged=[model]):
        checkpoints.load_model(model, part="none")
    with raises(ValueError, "numbers is neither a TrainStep nor a module", unchanged=[model]):
        checkpoints.load_model(model, 50, part="numbers")
    shapes = "weight: (2, 4) in the checkpoint, (2, 3) here"
    with raises(ValueError, "model of checkpoint 50 was saved with a", shapes, unchanged=[model]):
        checkpoints.load_model(model, 50, part="model")


def test_model_of_other_shapes_is_unchanged(tmp_path):
    """Torch's error would come after it has loaded the layers that fit."""
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, model=Sequential(Linear(3, 2), Linear(2, 2)))
    for other in (Sequential(Linear(3, 2), Linear(2, 1)), Sequential(Linear(3, 2))):
        before = copy.deepcopy(other.state_dict())
        with raises(ValueError, "saved with a different model: 1.weight: (2, 2)"):
            checkpoints.load_model(other, part="model")
        assert_same_bits(other.state_dict(), before)


# States that a checkpoint can't hold.


REFUSED: list[tuple[Any, str]] = [
    (2**2032, "part.a is an integer of more than 2032 bits"),
    ([object()], "part.a.0 is of builtins.object, and a checkpoint can't hold it"),
    ({(1, 2): 1}, "the key (1, 2) of part.a is of builtins.tuple"),
    (np.array([None]), "part.a is a NumPy value of object"),
    (np.zeros(2, np.complex128), "part.a is a NumPy value of complex128"),
    (np.ma.masked_array([1], [True]), "part.a is of numpy.ma.MaskedArray"),
    (torch.eye(2).to_sparse(), "part.a is a torch.sparse_coo Tensor"),
    (torch.empty(2, device="meta"), "part.a is a torch.strided Tensor of torch.float32 on meta"),
    (
        wrapped(kind=Unlisted),
        (
            "part.a is of support.checkpointing.wrapped_tensors.Unlisted, which "
            "torch.load(weights_only=True) does not read, and"
        ),
    ),
    (wrapped(wrapped(kind=Unlisted)), "Wrapped, which torch.load(weights_only=True) does not read"),
]


@pytest.mark.parametrize(("value", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_values_that_a_checkpoint_cannot_hold(tmp_path, value, message):
    """In one line, by the call of `save` itself, which writes nothing."""
    checkpoints = Checkpoints(tmp_path / "run")
    with pytest.raises(TypeError, match=re.escape(message)) as caught:
        checkpoints.save(1, part=Part({"a": value}))
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_part_named_wait(tmp_path):
    checkpoints = Checkpoints(tmp_path / "run")
    with pytest.raises(TypeError, match=r"^wait = .* must be a bool; no part"):
        checkpoints.save(1, model=bare_linear(), wait=Part({}))
    assert not list(tmp_path.iterdir())


def test_part_that_rejects_its_state_is_named(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, rows={"x": [0, 1, 2]}, wait=True)
    loader = make_loader(range(8), 2, num_workers=0)
    with pytest.raises(ValueError, match="is not the state of a loader") as caught:
        checkpoints.load(rows=loader)
    assert caught.value.__notes__ == ["The part 'rows' has rejected its state."]


def test_random_state_of_a_different_generator(tmp_path):
    """NumPy's own message is "state must be for a PCG64 RNG"."""
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, part={"x": 1}, wait=True)
    usual = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(0))
    try:
        with pytest.raises(ValueError, match="PCG64") as caught:
            checkpoints.load(part={"x": 1})
        assert "random states of this process, pass partial=True" in caught.value.__notes__[0]
        assert checkpoints.load(partial=True, part={"x": 1}) == 1
    finally:
        np.random.set_bit_generator(usual)


def test_only_schedules_must_agree_between_ranks():
    """A part of the program's own may have the name of one of their entries."""
    scheduler = lambda_lr(SGD(bare_linear().parameters(), lr=0.5), PlateauCurve(100))
    states = {
        "scheduler": split_state("scheduler", scheduler.state_dict(), torch.clone),
        "hold": split_state("hold", {"updates": 3}, torch.clone),
    }
    with patch.object(processes, "world_size", return_value=2):
        entries = parts.shared_entries(states)
    assert entries["scheduler.last_epoch"] == "0"
    assert {path.partition(".")[0] for path in entries} == {"scheduler"}


def test_entry_that_one_rank_lacks():
    with raises(ValueError, "part.hold = missing on rank 0, and 1 on rank 1"):
        parts.check_same_entries([{"step": "1"}, {"step": "1", "part.hold": "1"}])
