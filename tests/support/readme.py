"""The README, whose tables are tests."""

from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def rows(heading: str) -> list[list[str]]:
    """The cells of each row of the table under a heading, without the head."""
    section = README.read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    _, _, *found = [line for line in section.splitlines() if line.startswith("|")]
    return [line.removeprefix("| ").removesuffix(" |").split(" | ") for line in found]
