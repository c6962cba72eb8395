"""Run the example programs, each in a separate process.

The processes are forked from one that has already imported torch, JAX and the rest, since these
imports take longer than a short run. Otherwise they are as fresh as new processes.
"""

import multiprocessing
import os
import re
import runpy
import signal
import socket
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path

from plateau_jax import CurveWarning

EXAMPLES = Path(__file__).parents[2] / "examples"

SMALL_RUNS = {
    "first_run.py": "--steps 120 --seed 3 --output new/digits.png",
    "sweep.py": "--steps 40 --batch-size 16 --hidden 24 --rounds 1 --seed 3 --output new/sweep.png",
    "branch_cooldowns.py": (
        "--warmup 20 --stable 120 --cooldowns 10 30 60 --every 5 --seeds 2 --output new/runs.png"
    ),
    "train_gpt.py": (
        "--steps 200 --every 20 --precision bf16 --accumulation 2 --batch-size 4 --context 32"
        " --width 32 --layers 2 --device cpu"
    ),
    "train_lstm.py": "--epochs 30 --hidden 16 --every 50 --output new/co2.png --device cpu",
    "train_bloom.py": (
        "--count 10000 --batch-size 256 --epochs 8 --hidden 128 --every 25"
        " --output new/bloom.png --device cpu"
    ),
    "train_flax.py": "--warmup 5 --batch-size 128 --width 32 --every 20 --stable 75 --cooldown 20",
    "batch_plan.py": (
        "--tokens 51200 --plan 0:512 10240:1024 20480:2048 --output new/runs.png --device cpu"
    ),
}
"""The arguments of a small run, by script."""


def _run(
    script: Path,
    arguments: list[str],
    folder: Path,
    environment: Mapping[str, str],
    output: Connection,
    errors: Connection,
    strict: bool,
) -> None:
    os.dup2(output.fileno(), 1)
    os.dup2(errors.fileno(), 2)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    os.chdir(folder)
    os.environ.update(environment)
    if "JAX_COMPILATION_CACHE_DIR" in environment:
        # JAX read the variable before the fork.
        jax = import_module("jax")
        jax.config.update("jax_compilation_cache_dir", environment["JAX_COMPILATION_CACHE_DIR"])
    # As at a terminal: a process started in the background inherits an ignored SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if strict:
        warnings.simplefilter("error", CurveWarning)
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.parent))
    runpy.run_path(str(script), run_name="__main__")


class Program:
    """A running script, whose output can be read while it runs.

    Args:
        script: The file.
        *arguments: On its command line.
        folder: Its working directory.
        environment: Environment variables to add, such as those of torchrun.
        strict: If True, a `CurveWarning` is an error.
    """

    def __init__(
        self,
        script: Path,
        *arguments: object,
        folder: Path,
        environment: Mapping[str, str] | None = None,
        strict: bool = False,
    ) -> None:
        output, child_output = FORKSERVER.Pipe(duplex=False)
        errors, child_errors = FORKSERVER.Pipe(duplex=False)
        words = [str(argument) for argument in arguments]
        self.process = FORKSERVER.Process(
            target=_run,
            args=(script, words, folder, environment or {}, child_output, child_errors, strict),
        )
        self.process.start()
        child_output.close()
        child_errors.close()
        self.output = os.fdopen(os.dup(output.fileno()))
        self.errors = os.fdopen(os.dup(errors.fileno()))

    def lines(self) -> Iterator[str]:
        """Iterate over the lines that it prints from now on."""
        return iter(self.output)

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def interrupt(self) -> None:
        """Send a Ctrl-C."""
        os.kill(self.pid, signal.SIGINT)

    def finish(self) -> tuple[int | None, str, str]:
        """Wait; return the exit status, the rest of the output, and what went to standard error."""
        with self.output, self.errors:
            output = self.output.read()
            errors = self.errors.read()
        self.process.join()
        return self.process.exitcode, output, errors


def run(
    script: Path,
    *arguments: object,
    folder: Path,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Run a script that must succeed, without a `CurveWarning`; return its output."""
    program = Program(script, *arguments, folder=folder, environment=environment, strict=True)
    status, output, errors = program.finish()
    assert status == 0, errors
    return output


def finish(program: Program, status: int = 0) -> list[str]:
    """Wait for a program; return the lines of its output that were not read yet."""
    exit_status, output, errors = program.finish()
    assert exit_status == status, errors
    assert "Traceback" not in errors, errors
    return without_lines_of_gloo(output).splitlines()


def without_lines_of_gloo(output: str) -> str:
    """Leave out what the Gloo of torch 2.9 prints to standard output: the number of ranks."""
    lines = output.splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("[Gloo]"))


def number_after(label: str, lines: Iterable[str]) -> float:
    """Return the first number after the label in the only line that begins with it."""
    (line,) = [line for line in lines if line.strip().startswith(label)]
    number = re.search(r"[\d.]+(e[+-]\d+)?", line.partition(label)[2])
    assert number is not None
    return float(number[0])


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def rank_environments(processes: int = 2) -> list[dict[str, str]]:
    """Return the environment variables that torchrun sets for each process."""
    port = free_port()
    environments: list[dict[str, str]] = []
    for rank in range(processes):
        environment = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(processes),
            "LOCAL_WORLD_SIZE": str(processes),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "TORCHELASTIC_RUN_ID": "test",
        }
        environments.append(environment)
    return environments


def assert_rejected(
    folder: Path, script: str, arguments: Sequence[object], status: int, message: str
) -> None:
    """Check that the program prints one line of error and changes no file but those of its data."""
    before = files_without_data(folder)
    program = Program(EXAMPLES / script, *arguments, folder=folder)
    exit_status, output, errors = program.finish()
    assert exit_status == status, errors
    assert output == "", output
    assert message in errors.splitlines()[-1], errors
    assert "Traceback" not in errors, errors
    assert files_without_data(folder) == before, "the program has changed files"


def files_without_data(folder: Path) -> set[Path]:
    """Return the files in a folder without the data of `train_bloom.py`."""
    return {path for path in folder.rglob("*") if "train_bloom_data" not in path.parts}


FORKSERVER = multiprocessing.get_context("forkserver")
FORKSERVER.set_forkserver_preload(
    [
        "pytest",
        "matplotlib.pyplot",
        "statsmodels.datasets",
        "sklearn.datasets",
        "flax.nnx",
        "orbax.checkpoint",
        "torch_bridge",
        "torch.distributed.fsdp",
        "torch.distributed.checkpoint",
        "torch._dynamo",  # torch imports it with the first optimizer
    ]
)
