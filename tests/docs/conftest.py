"""For the tests of the examples: one small run of each."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from support.programs import EXAMPLES, run

PLATEAUS, FEW_SEEDS = "--plateau 10 20 --plateau 70 30", "--cooldowns 10 30 60 --every 5 --seeds 2"
SMALL_GPT, SMALL_BLOOM = (
    "--batch-size 4 --context 32 --width 32 --layers 2",
    "--epochs 8 --hidden 128 --every 25",
)
ARGUMENTS = {
    "train_digits.py": f"--steps 60 {PLATEAUS} --seed 3 --output new/digits.png",
    "sweep.py": "--steps 40 --batch-size 16 --hidden 24 --rounds 1 --seed 3 --output new/sweep.png",
    "branch_cooldowns.py": f"--warmup 20 --stable 120 {FEW_SEEDS} --output new/runs.png",
    "running_averages.py": "--seeds 3 --interval 20",
    "train_gpt.py": f"--steps 200 --every 20 --precision bf16 --accumulation 2 {SMALL_GPT} --device cpu",
    "train_lstm.py": "--epochs 30 --hidden 16 --every 50 --output new/co2.png --device cpu",
    "train_bloom.py": f"--count 10000 --batch-size 256 {SMALL_BLOOM} --output new/bloom.png --device cpu",
    "train_flax.py": "--warmup 5 --batch-size 128 --width 32 --every 20 --stable 75 --cooldown 20",
    "batch_plan.py": "--tokens 51200 --plan 0:512 10240:1024 20480:2048 --output new/runs.png --device cpu",
}


@pytest.fixture(scope="session")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, list[str]]]:
    """A function that runs an example once; it returns the folder of the run, and the printed lines."""

    @cache
    def run_once(script: str) -> tuple[Path, list[str]]:
        folder = tmp_path_factory.mktemp("example")
        return folder, run(EXAMPLES / script, *ARGUMENTS[script].split(), folder=folder).splitlines()

    return run_once


@pytest.fixture(scope="session")
def arguments() -> dict[str, list[str]]:
    """The arguments of these runs, by script."""
    return {script: line.split() for script, line in ARGUMENTS.items()}
