"""The example programs, each run in a process of its own.

The process is forked off one that has imported torch, JAX and the rest, which takes longer than a short run.
In all else it is as fresh as a new process.
"""

import os
import re
import runpy
import signal
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from types import MappingProxyType

import matplotlib.image
import numpy as np
from support.forkserver import FORKSERVER

EXAMPLES = Path(__file__).parents[2] / "examples"


def _run(
    script: Path,
    arguments: list[str],
    folder: Path,
    environment: dict[str, str],
    output: Connection,
    errors: Connection,
) -> None:
    os.dup2(output.fileno(), 1)
    os.dup2(errors.fileno(), 2)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    os.chdir(folder)
    os.environ.update(environment)
    # As at a terminal: a process started in the background inherits an ignored SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.parent))
    runpy.run_path(str(script), run_name="__main__")


class Program:
    """A script that runs in a folder; its output can be read while it runs.

    Args:
        script: The file.
        *arguments: On its command line.
        folder: Where it runs.
        environment: Variables to add, such as those of torchrun.
    """

    def __init__(
        self,
        script: Path,
        *arguments: object,
        folder: Path,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        output, its_output = FORKSERVER.Pipe(duplex=False)
        errors, its_errors = FORKSERVER.Pipe(duplex=False)
        self._process = FORKSERVER.Process(
            target=_run,
            args=(script, [str(one) for one in arguments], folder, dict(environment), its_output, its_errors),
        )
        self._process.start()
        its_output.close()
        its_errors.close()
        self._output, self._errors = (os.fdopen(os.dup(end.fileno())) for end in (output, errors))

    def lines(self) -> Iterator[str]:
        """The lines that it prints from here on."""
        return iter(self._output)

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def interrupt(self) -> None:
        """Send a Ctrl-C."""
        os.kill(self.pid, signal.SIGINT)

    def kill(self) -> None:
        """End it at once, whatever it is doing."""
        self._process.kill()

    def finish(self) -> tuple[int | None, str, str]:
        """Its exit status, the rest of what it prints, and its errors."""
        with self._output, self._errors:
            output, errors = self._output.read(), self._errors.read()
        self._process.join()
        return self._process.exitcode, output, errors


def run(script: Path, *arguments: object, folder: Path) -> str:
    """What a script prints that ends without an error."""
    status, output, errors = Program(script, *arguments, folder=folder).finish()
    assert status == 0, errors
    return output


def finish(program: Program, status: int = 0) -> list[str]:
    """Wait for its end; the lines that it printed and that were not read yet."""
    found, output, errors = program.finish()
    assert found == status, errors
    assert "Traceback" not in errors
    return output.splitlines()


def number_after(label: str, lines: Iterable[str]) -> float:
    """The first number after the label, in the one line that begins with it."""
    (line,) = (line for line in lines if line.strip().startswith(label))
    number = re.search(r"[\d.]+(e[+-]\d+)?", line.partition(label)[2])
    assert number is not None
    return float(number[0])


def start(
    folder: Path, script: str, *arguments: object, environment: Mapping[str, str] | None = None
) -> Program:
    """An example, on the CPU."""
    return Program(
        EXAMPLES / script, *arguments, "--device", "cpu", folder=folder, environment=environment or {}
    )


def rank_environments(processes: int = 2) -> list[dict[str, str]]:
    """The variables that torchrun gives each of its processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {
        "WORLD_SIZE": processes,
        "LOCAL_WORLD_SIZE": processes,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "TORCHELASTIC_RUN_ID": "test",
    }
    return [
        {name: str(value) for name, value in (shared | {"RANK": rank, "LOCAL_RANK": rank}).items()}
        for rank in range(processes)
    ]


def torchrun(folder: Path, script: str, *arguments: object, processes: int = 2) -> list[Program]:
    """An example in several processes, as torchrun starts them."""
    environments = rank_environments(processes)
    return [start(folder, script, *arguments, environment=environment) for environment in environments]


def interrupt(program: Program, line_before: str) -> int:
    """Send a Ctrl-C after a line that begins so; the number of updates that took place."""
    for line in program.lines():
        if line.startswith(line_before):
            program.interrupt()
            break
    message = finish(program, status=130)[-1]
    stopped = re.fullmatch(r"stopped after update (\d+); train_[\w.]+ goes on with --resume", message)
    assert stopped is not None, message
    return int(stopped[1])


def assert_is_a_picture(path: Path) -> None:
    """Check that something is drawn, in colours."""
    pixels = matplotlib.image.imread(path)
    assert min(pixels.shape[:2]) > 300
    colours = (pixels[..., :3] * 255).round().astype(int) @ (1, 2**8, 2**16)
    assert len(np.unique(colours)) > 20


def later_lines(lines: Sequence[str], updates: int) -> list[str]:
    """The lines about later updates, and those about no update."""
    numbers = [re.match(r"(?:update)? *(\d+)[: ]", line) for line in lines]
    pairs = zip(lines, numbers, strict=True)
    later = [line for line, number in pairs if number is None or int(number[1]) > updates]
    assert len(later) > len(lines) / 2
    return later


def assert_refused(
    folder: Path,
    script: str,
    arguments: Sequence[object],
    status: int,
    message: str,
    device: Sequence[str] = ("--device", "cpu"),
) -> None:
    """Check that it names the wrong argument in one line, and changes no file."""
    before = sorted(folder.rglob("*"))
    found, output, errors = Program(EXAMPLES / script, *device, *arguments, folder=folder).finish()
    assert found == status, errors
    assert output == ""
    assert message in errors.splitlines()[-1]
    assert "Traceback" not in errors
    assert sorted(folder.rglob("*")) == before
