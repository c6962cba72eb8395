"""A directory with two checkpoints."""

import shutil

import pytest
from support.checkpointing.checkpoints import constant_model, save_steps


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Checkpoints 1 and 2, each with a part, and a model whose weights are the step."""
    directory = tmp_path_factory.mktemp("saved") / "run"
    for step in (1, 2):
        save_steps(directory, [step], model=constant_model(step))
    return directory


@pytest.fixture
def copied(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "run")
