"""The README and the pages of `docs/`: their sections, and the blocks of code in each."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[3]
README = ROOT / "README.md"
PAGES = (README, *sorted((ROOT / "docs").rglob("*.md")))


def printed_by_the_notebook() -> str:
    """The text of all outputs that are stored in it."""
    notebook = json.loads((ROOT / "examples" / "choosing_a_curve.ipynb").read_text(encoding="utf-8"))
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", [])]
    return "".join(line for output in outputs for line in output.get("text", []))


@dataclass(frozen=True)
class Block:
    language: str
    code: str


@dataclass(frozen=True)
class Section:
    page: Path
    heading: str
    """Empty for what comes before the first heading of its level."""
    blocks: tuple[Block, ...]

    def python(self) -> str:
        return "\n".join(block.code for block in self.blocks if block.language == "python")


def sections(page: Path, level: int = 2) -> Iterator[Section]:
    """A page cut at its headings of one level; deeper headings stay inside of their section."""
    heading, blocks = "", list[Block]()
    tokens = MarkdownIt().parse(page.read_text(encoding="utf-8"))
    for token, following in zip(tokens, [*tokens[1:], None], strict=True):
        if token.type == "heading_open" and token.tag == f"h{level}":
            yield Section(page, heading, tuple(blocks))
            heading, blocks = following.content if following else "", []
        elif token.type == "fence":
            blocks.append(Block(token.info.strip(), token.content))
    yield Section(page, heading, tuple(blocks))
