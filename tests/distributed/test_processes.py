"""Models over several ranks: wrapped, saved and loaded."""

from pathlib import Path

import pytest
from support.distributed import distributed_models
from support.distributed.processes import run_checks

pytestmark = pytest.mark.slow


def test_distributed_models(tmp_path: Path) -> None:
    run_checks([distributed_models], tmp_path)
