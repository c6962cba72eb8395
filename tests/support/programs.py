"""The example programs, each run in a process of its own whose imports are done already.

Importing torch, JAX and the rest takes longer than a short run. A server imports them once and forks; a
forked process is as fresh as a new one in all else.
"""

import multiprocessing
import os
import re
import runpy
import signal
import sys
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(
    [
        *("pytest", "matplotlib.pyplot", "statsmodels.datasets", "sklearn.datasets"),
        *("flax.nnx", "orbax.checkpoint", "torch_bridge"),
        "torch._dynamo",  # which torch imports with the first optimizer
    ]
)


def _run(script: Path, arguments: list[str], folder: Path, output: Connection, errors: Connection) -> None:
    os.dup2(output.fileno(), 1)
    os.dup2(errors.fileno(), 2)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    os.chdir(folder)
    # As at a terminal: a process started in the background inherits an ignored SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = [script.name, *arguments]
    sys.path.insert(0, str(script.parent))
    runpy.run_path(str(script), run_name="__main__")


class Program:
    """A script that runs in a folder; what it prints can be read while it does."""

    def __init__(self, script: Path, *arguments: object, folder: Path) -> None:
        output, its_output = _processes.Pipe(duplex=False)
        errors, its_errors = _processes.Pipe(duplex=False)
        self._process = _processes.Process(
            target=_run, args=(script, [str(one) for one in arguments], folder, its_output, its_errors)
        )
        self._process.start()
        its_output.close()
        its_errors.close()
        self._output, self._errors = (os.fdopen(os.dup(end.fileno())) for end in (output, errors))

    def lines(self) -> Iterator[str]:
        """What it prints from here on, line by line."""
        return iter(self._output)

    def interrupt(self) -> None:
        """A Ctrl-C."""
        assert self._process.pid is not None
        os.kill(self._process.pid, signal.SIGINT)

    def finish(self) -> tuple[int | None, str, str]:
        """Its exit status, the rest of what it prints, and its errors."""
        with self._output, self._errors:
            output, errors = self._output.read(), self._errors.read()
        self._process.join()
        return self._process.exitcode, output, errors


def run(script: Path, *arguments: object, folder: Path) -> str:
    """What a script prints that ends well."""
    status, output, errors = Program(script, *arguments, folder=folder).finish()
    assert status == 0, errors
    return output


def finish(program: Program, status: int = 0) -> list[str]:
    """The lines that it printed, of those that were not read before."""
    found, output, errors = program.finish()
    assert found == status, errors
    assert "Traceback" not in errors
    return output.splitlines()


def number_after(label: str, lines: Iterable[str]) -> float:
    """The first number after what just one line begins with."""
    (line,) = (line for line in lines if line.strip().startswith(label))
    number = re.search(r"[\d.]+(e[+-]\d+)?", line.partition(label)[2])
    assert number is not None
    return float(number[0])
