"""Models over several ranks: wrapped, saved and loaded, checkpointed, and used wrongly."""

from pathlib import Path

import pytest
from support.distributed import blocks, distributed_models, mistakes, wrapped_models
from support.distributed.processes import run_checks

pytestmark = pytest.mark.slow


def test_wrapped_models_in_group_of_one(tmp_path: Path) -> None:
    run_checks([wrapped_models], tmp_path, processes=1)


def test_distributed_models(tmp_path: Path) -> None:
    run_checks([distributed_models, blocks], tmp_path)


def test_mistakes_on_two_ranks(tmp_path: Path) -> None:
    run_checks([mistakes], tmp_path)
