"""Where the saved states lie, and how a program writes and reads them."""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from support.golden.programs import CASES, GoldenProgram, SavedProgram

from torch_bridge import Checkpoints

ROOT = Path(__file__).parents[3]
FILES = ROOT / "tests" / "golden"
"""Has a folder for each version, with files `curves/NAME.json`, `tables/NAME.json` and folders
`states/NAME/`."""

DIGESTS = "SHA256SUMS"
"""The file with the digests of all others in a version's folder."""


def save(case: SavedProgram, program: GoldenProgram, folder: Path) -> None:
    """Save the state of a program, as users do."""
    if case.file == "checkpoint":
        Checkpoints(folder / "checkpoints").save(case.updates, wait=True, **program.saved)
    elif case.file == "pt":
        torch.save(program.saved.state_dict(), folder / "state.pt")
    else:
        write_json(folder / "state.json", program.saved.state_dict())


def load(case: SavedProgram, program: GoldenProgram, folder: Path) -> None:
    """Load a saved state into a program, as users do."""
    if case.file == "checkpoint":
        Checkpoints(folder / "checkpoints").load(**program.saved)
        return
    if case.file == "pt":
        state = torch.load(folder / "state.pt", weights_only=True)
    else:
        state = read_json(folder / "state.json")
    program.saved.load_state_dict(state)


def run_program(name: str) -> GoldenProgram:
    """Run a program until its state is saved."""
    program = CASES[name].build()
    for number in range(CASES[name].updates):
        program.update(number)
    return program


def save_state(name: str, folder: Path) -> GoldenProgram:
    """Run a program, and save it. Called on each of its processes."""
    program = run_program(name)
    save(CASES[name], program, folder)
    return program


def write_state(name: str, folder: Path) -> list[dict[str, Any]]:
    """Run a program, save it, continue, and return what it then shows.

    Called on each of its processes.
    """
    return continue_program(CASES[name], save_state(name, folder))


def continue_program(case: SavedProgram, program: GoldenProgram) -> list[dict[str, Any]]:
    """Return what a saved or loaded program shows in its next updates."""
    first = case.updates
    return [asdict(program.update(first + index)) for index in range(case.continued)]


def write_json(path: Path, value: dict[str, Any] | list[Any]) -> None:
    """Write a file that does not exist yet, with one entry or item per line."""
    lines: list[str] = []
    if isinstance(value, dict):
        start, end = "{}"
        for key, entry in value.items():
            lines.append(f"{json.dumps(key)}: {json.dumps(entry)}")
    else:
        start, end = "[]"
        lines.extend(json.dumps(item) for item in value)
    text = f"{start}\n" + ",\n".join(lines) + f"\n{end}\n"
    with path.open("x", encoding="utf-8", newline="\n") as file:
        file.write(text)


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def digests_of(directory: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of a version, by its path."""
    digests: dict[str, str] = {}
    for path in sorted(directory.rglob("*")):
        if path.is_file() and path.name != DIGESTS:
            name = path.relative_to(directory).as_posix()
            digests[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return digests


def read_digests(directory: Path) -> dict[str, str]:
    """Return the recorded digests of a version, which `sha256sum -c` reads too."""
    path = directory / DIGESTS
    digests: dict[str, str] = {}
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            digest, name = line.split("  ")
            digests[name] = digest
    return digests


def add_digests(directory: Path) -> None:
    """Record the digests of new files. Those of other files stay, even if a file has changed."""
    digests = digests_of(directory) | read_digests(directory)
    lines = [f"{digest}  {name}\n" for name, digest in sorted(digests.items())]
    (directory / DIGESTS).write_text("".join(lines), encoding="utf-8", newline="\n")
