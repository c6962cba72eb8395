"""The sections of the README and of the pages in `docs/`, with their code blocks and programs."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[3]
README = ROOT / "README.md"
PAGES = (README, *sorted((ROOT / "docs").rglob("*.md")))


@dataclass(frozen=True)
class Block:
    language: str
    code: str

    @property
    def file(self) -> str:
        """The file that the comment in the first line names, or ""."""
        named = re.match(r"# (\S+\.(?:py|yaml))\n", self.code)
        return named[1] if named else ""


@dataclass(frozen=True)
class Section:
    page: Path
    heading: str
    """Empty for the part before the first heading of the level."""
    blocks: tuple[Block, ...]

    def python_blocks(self) -> tuple[str, ...]:
        return tuple(
            block.code for block in self.blocks if block.language == "python" and not block.file
        )

    def python(self) -> str:
        return "\n".join(self.python_blocks())


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


@dataclass(frozen=True)
class Program:
    """The Python blocks of a section, and before them those above the first heading of its page."""

    page: Path
    heading: str
    introduction: tuple[str, ...]
    blocks: tuple[str, ...]
    commands: tuple[str, ...]
    """The blocks of shell commands in the section."""
    shown: str
    """What the section shows as its output; "" if nothing."""

    @property
    def name(self) -> str:
        return f"{self.page.stem}-{self.heading or 'whole'}"

    @property
    def code(self) -> str:
        return "\n".join([*self.introduction, *self.blocks])

    @property
    def resumes(self) -> bool:
        """Whether it trains, and resumes from what an earlier run has saved."""
        return bool(re.search(r'(Path|Checkpoints)\("saved_', self.code))


def programs() -> Iterator[Program]:
    """Yield one program for each section with Python code or with commands and their output.

    A page without sections is one program. `test_commands` runs sections with files.
    """
    for page in PAGES:
        introduction, *rest = sections(page)
        for section in rest or [introduction]:
            before = introduction.python_blocks() if rest else ()
            commands, texts = (
                tuple(block.code for block in section.blocks if block.language == language)
                for language in ("sh", "text")
            )
            has_files = any(block.file for block in section.blocks)
            if section.python() or (commands and texts and not has_files):
                blocks = section.python_blocks()
                yield Program(page, section.heading, before, blocks, commands, "".join(texts))


def program_named(heading: str) -> Program:
    """Return the only program under this heading."""
    (program,) = (program for program in programs() if program.heading == heading)
    return program


def assert_printed(code: str, output: str) -> str:
    """Check that a program has printed what comments after its `print` calls show, in this order.

    Returns the output without these lines.
    """
    lines, begin = output.splitlines(keepends=True), 0
    for line in re.findall(r"^print\(.*\)  # (.+)$", code, re.MULTILINE):
        assert f"{line}\n" in lines[begin:], line
        begin = lines.index(f"{line}\n", begin)
        del lines[begin]
    return "".join(lines)
