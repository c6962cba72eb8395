"""The public surface as text: a file of sections, each with a heading and sorted lines."""

from collections.abc import Callable, Iterator
from pathlib import Path

from support.surface import calls_of_plateau_jax, calls_of_torch_bridge, ranges, states
from support.surface.command_line import command_line
from support.surface.names import names

FILE = Path(__file__).parents[2] / "surface.txt"

SECTIONS: dict[str, Callable[[], Iterator[str]]] = {
    "Names, with arguments, defaults, annotated types, and errors": names,
    "Calls of curves": calls_of_plateau_jax.calls_of_curves,
    "Calls of batch plans, clocks, schedulers and records": calls_of_plateau_jax.calls_of_runs,
    "Calls with logs": calls_of_plateau_jax.calls_of_logs,
    "Calls of forecasts": calls_of_plateau_jax.calls_of_losses,
    "Calls of schedules in JAX": calls_of_plateau_jax.calls_of_schedules,
    "Calls of scale_by_curve": calls_of_plateau_jax.calls_of_transformations,
    "Calls of schedulers in torch": calls_of_torch_bridge.calls_of_schedulers,
    "Calls of training steps": calls_of_torch_bridge.calls_of_steps,
    "Calls around training steps": calls_of_torch_bridge.calls_of_loops,
    "Calls of loaders": calls_of_torch_bridge.calls_of_loaders,
    "Calls of checkpoints": calls_of_torch_bridge.calls_of_checkpoints,
    "Ranges of curves": ranges.ranges_of_curves,
    "Ranges of batch plans, clocks and schedulers": ranges.ranges_of_runs,
    "Ranges in JAX": ranges.ranges_in_jax,
    "Ranges of schedulers in torch": ranges.ranges_of_schedulers,
    "Ranges of training steps and loaders": ranges.ranges_of_training,
    "Entries of states": states.states,
    "Entries of states in JAX": states.states_in_jax,
    "Command line": command_line,
}
"""The lines under each heading."""


def write() -> None:
    sections = [f"# {heading}\n\n{current_text(heading)}" for heading in SECTIONS]
    FILE.write_text("\n".join(sections), encoding="utf-8")


def current_text(heading: str) -> str:
    return "".join(f"{line}\n" for line in sorted(set(SECTIONS[heading]())))


def recorded_lines() -> dict[str, set[str]]:
    """Return the lines of the file under each heading."""
    sections: dict[str, set[str]] = {}
    heading = ""
    for line in FILE.read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            heading = line.removeprefix("# ")
            sections[heading] = set()
        elif line:
            sections[heading].add(line)
    return sections
