"""The public surface as text: a file of sections, each with a heading and sorted lines."""

from collections.abc import Callable, Iterator
from pathlib import Path

from support.surface.command_line import command_line
from support.surface.names import other_names
from support.surface.states import states, states_in_jax

FILE = Path(__file__).parents[2] / "surface.txt"

SECTIONS: dict[str, Callable[[], Iterator[str]]] = {
    "Names that the reference does not show": other_names,
    "Entries of states": states,
    "Entries of states in JAX": states_in_jax,
    "Command line": command_line,
}
"""The lines under each heading."""


def write() -> None:
    sections = [f"# {heading}\n\n" + "\n".join(current_lines(heading)) for heading in SECTIONS]
    FILE.write_text("\n\n".join(sections) + "\n", encoding="utf-8")


def current_lines(heading: str) -> list[str]:
    return sorted(set(SECTIONS[heading]()))


def recorded_lines(heading: str) -> list[str]:
    """Return the lines of the file under a heading."""
    _, _, rest = FILE.read_text(encoding="utf-8").partition(f"# {heading}\n\n")
    section, _, _ = rest.partition("\n\n")
    return section.splitlines()
