"""The sections of the README and of the pages in `docs/`, with their code blocks."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[3]
README = ROOT / "README.md"
PAGES = (README, *sorted((ROOT / "docs").rglob("*.md")))


def notebook_output() -> str:
    """Return the text of all outputs that are stored in the notebook."""
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
    """Empty for the part before the first heading of the level."""
    blocks: tuple[Block, ...]

    def python(self) -> str:
        return "\n".join(block.code for block in self.blocks if block.language == "python")


def sections(page: Path, level: int = 2) -> Iterator[Section]:
    """Split a page at its headings of one level; deeper headings stay inside their section."""
    heading, blocks = "", list[Block]()
    tokens = MarkdownIt().parse(page.read_text(encoding="utf-8"))
    for token, following in zip(tokens, [*tokens[1:], None], strict=True):
        if token.type == "heading_open" and token.tag == f"h{level}":
            yield Section(page, heading, tuple(blocks))
            heading, blocks = following.content if following else "", []
        elif token.type == "fence":
            blocks.append(Block(token.info.strip(), token.content))
    yield Section(page, heading, tuple(blocks))
