"""Models over several ranks: wrapped, saved and loaded, checkpointed, and used wrongly."""

from pathlib import Path

import pytest
from support.distributed import distributed_models, mistakes, wrapped_models
from support.distributed.blocks import wrapped_models_have_same_bits
from support.distributed.processes import run_each

pytestmark = pytest.mark.slow


def test_wrapped_models_in_group_of_one(tmp_path: Path) -> None:
    run_each(wrapped_models.CHECKS, tmp_path, processes=1)


def test_distributed_models(tmp_path: Path) -> None:
    run_each([*distributed_models.CHECKS, wrapped_models_have_same_bits], tmp_path)


def test_mistakes_on_two_ranks(tmp_path: Path) -> None:
    run_each(mistakes.CHECKS, tmp_path)
