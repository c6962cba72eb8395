"""Loops without a `TrainStep` resume bit for bit: a checkpoint has the random states.

Also which loads restore them, and which parts a load may leave out.
"""

import random
from unittest.mock import patch

import numpy as np
import pytest
import torch
from support.checkpointing.checkpoints import Part, constant_model, saving_is_busy
from support.distributed.processes import run
from support.training.models import Net
from support.training.steps import make_step
from torch import Tensor, nn
from torch.utils.data import Dataset

from plateau_jax import CurveWarning
from torch_bridge import Checkpoints, PlateauCurve, distribute, lambda_lr, make_loader
from torch_bridge.training import random_states
from torch_bridge.training.distributed.processes import rank, world_size

UPDATES = 12


def draw():
    """Draw from each generator; some numbers are drawn in pairs, of which one is kept for later."""
    return [
        random.random(),
        random.gauss(0, 1),
        np.random.normal(),  # noqa: NPY002 (the global generator, as programs use it)
        torch.randn(()).item(),
    ]


def seed(number):
    random.seed(number)
    np.random.seed(number)  # noqa: NPY002 (the global generator)
    torch.manual_seed(number)


class Augmented(Dataset[tuple[Tensor, Tensor]]):
    """Samples that differ each time they are read."""

    def __len__(self):
        return 20

    def __getitem__(self, index):
        shift, *noise = draw()
        return torch.tensor(noise) / 9 + index / 20, torch.full((2,), shift)


class PlainLoop:
    """The parts of a run; each rank has different random numbers."""

    def __init__(self):
        seed(rank())
        self.model = Net(dropout=0.5)
        if world_size() > 1:
            self.model = distribute(self.model, "ddp", device="cpu")
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.scheduler = lambda_lr(self.optimizer, PlateauCurve(UPDATES, warmup_steps=3))
        self.losses = []
        """Of all updates, to the bit."""

    @property
    def parts(self):
        return vars(self)

    def update(self, inputs, targets):
        loss = nn.functional.mse_loss(self.model(inputs), targets)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        self.losses.append(float(loss.detach()).hex())


def train(directory, updates):
    """Save after every other update, also in the middle of an epoch; return all losses."""
    run = PlainLoop()
    loader = make_loader(Augmented(), 4 // world_size(), num_workers=0)
    checkpoints = Checkpoints(directory)
    checkpoints.load(**run.parts, loader=loader)
    while len(run.losses) < updates:
        for inputs, targets in loader:
            run.update(inputs, targets)
            done = len(run.losses)
            if done % 2 == 0 or done == updates:
                checkpoints.save(done, **run.parts, loader=loader, wait=done == updates)
            if done == updates:
                break
    return run.losses


@pytest.fixture(autouse=True)
def preserved_random_states():
    states = random_states.get_states_of_process()
    yield
    random_states.set_states_of_process(states)


# Loops that are interrupted.


# Between two regular saves, at one, at the end of an epoch of five updates, and in the next epoch.
@pytest.mark.parametrize("stop", [1, 4, 5, 7])
def test_loop_resumes_after_an_update(tmp_path, stop):
    expected = train(tmp_path / "uninterrupted", UPDATES)
    train(tmp_path / "stopped", stop)
    assert train(tmp_path / "stopped", UPDATES) == expected


@pytest.mark.slow
def test_loop_on_two_ranks_resumes(tmp_path):
    """Under DDP, each rank with its own random numbers; in new processes."""
    expected = run(train, tmp_path / "uninterrupted", UPDATES)
    run(train, tmp_path / "stopped", 7)
    assert run(train, tmp_path / "stopped", UPDATES) == expected
    assert expected[0] != expected[1]


# Which states are restored, and when.


def test_states_are_those_of_the_call(tmp_path):
    """The program draws further numbers before the checkpoint is written."""
    checkpoints = Checkpoints(tmp_path)
    seed(1)
    draw()
    with saving_is_busy():
        checkpoints.save(1, part=Part(1))
        expected = draw()
    checkpoints.load(part=Part())
    assert draw() == expected


class Drawing(Part):
    """A part that draws random numbers when it is saved and when it is loaded."""

    def state_dict(self):
        draw()
        return self.state

    def load_state_dict(self, state_dict):
        draw()
        self.state = state_dict


def test_parts_may_draw_random_numbers(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    step = make_step()
    checkpoints.save(1, step=step, part=Drawing(1))
    expected = draw()
    checkpoints.load(step=step, part=Drawing())
    assert draw() == expected


def test_reads_of_weights_leave_random_states(tmp_path):
    """Whoever evaluates or branches off does not want those of the run."""
    model = constant_model(1)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, model=model, progress={})
    seed(2)
    expected = draw()
    seed(2)
    checkpoints.load_model(model, part="model")
    checkpoints.load(model=model, partial=True)
    assert draw() == expected


# CUDA.


def test_state_of_cuda_is_restored_where_there_is_cuda(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    restored = []
    with patch.multiple(
        torch.cuda,
        is_initialized=lambda: True,
        is_available=lambda: True,
        get_rng_state=lambda: torch.tensor([5], dtype=torch.uint8),
        set_rng_state=restored.append,
    ):
        checkpoints.save(1, part=Part(1))
        checkpoints.load(part=Part())
    assert [state.tolist() for state in restored] == [[5]]
    checkpoints.load(part=Part())  # on a machine without CUDA


@pytest.mark.gpu
def test_random_numbers_of_cuda_resume(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    torch.rand(3, device="cuda")
    checkpoints.save(1, part=Part(1))
    expected = torch.rand(9, device="cuda")
    checkpoints.load(part=Part())
    assert torch.equal(torch.rand(9, device="cuda"), expected)


# Numbers of ranks.


def save_and_draw(directory):
    seed(rank())
    Checkpoints(directory).save(1, values=[1], wait=True)
    return draw()


def load_and_draw(directory):
    Checkpoints(directory).load(values=[])
    return draw()


def load_on_more_ranks(directory):
    seed(rank())
    with pytest.warns(UserWarning, match="of 2, which is now 3: .*; new processes keep"):
        return load_and_draw(directory)


@pytest.mark.slow
def test_world_size_may_change(tmp_path):
    """Each rank gets its states, if there are any; a new rank keeps its own."""
    saved = run(save_and_draw, tmp_path)
    message = "with a world size of 2, which is now 1: values .* are dropped"
    with pytest.warns(UserWarning, match=message):
        assert load_and_draw(tmp_path) == saved[0]
    seed(2)
    assert run(load_on_more_ranks, tmp_path, processes=3) == [*saved, draw()]


# Parts that a load leaves out.


def test_left_out_parts_are_named(tmp_path):
    """Before anything is loaded. The run still resumes: the random states are restored."""
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, model=constant_model(1), optimizer=Part(1), progress={"epoch": 1})
    expected = draw()
    progress = {"epoch": 0}
    message = (
        r"1 also contains the parts \['model', 'optimizer'\], .*To resume the run, pass them "
        "too; to load only some parts, write partial=True"
    )
    with pytest.raises(CurveWarning, match=message):  # the filter of all tests
        checkpoints.load(progress=progress)
    assert progress == {"epoch": 0}
    with pytest.warns(CurveWarning, match=message) as warned:
        assert checkpoints.load(progress=progress) == 1
    assert [warning.filename for warning in warned] == [__file__]
    assert progress == {"epoch": 1}
    assert draw() == expected
