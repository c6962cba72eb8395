"""The sections of the README and of the pages in `docs/`, with their code blocks and programs."""

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import cast

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[3]
README = ROOT / "README.md"
REFERENCE = ROOT / "docs" / "reference"
PAGES = (
    README,
    *sorted((ROOT / "docs").glob("*.md")),
    REFERENCE / "index.md",
    ROOT / "examples" / "README.md",
)
"""Those that are written by hand."""


@dataclass(frozen=True)
class Block:
    language: str
    code: str

    @property
    def file(self) -> str:
        """The file that the comment in the first line names, or ""."""
        comment = re.match(r"# (\S+\.(?:py|yaml))\n", self.code)
        if comment is None:
            return ""
        return comment[1]

    @property
    def is_complete(self) -> bool:
        """Whether it begins as a page says that complete code does."""
        return bool(self.file) or self.code.startswith(("import ", "from "))


@dataclass(frozen=True)
class Cell:
    """A cell of a table."""

    text: str
    """What a reader sees, without the marks of code and links."""
    code: tuple[str, ...]
    """The pieces of code in the text."""


@dataclass(eq=False)
class Section:
    page: Path
    heading: str
    """Empty for the part before the first heading of the level."""
    blocks: list[Block] = field(default_factory=list[Block])
    rows: list[list[Cell]] = field(default_factory=list[list[Cell]])
    """Those of its tables, without the heads of the tables."""
    sentences: str = ""
    """What a reader sees outside of blocks and tables."""

    def code_in(self, language: str) -> list[str]:
        """Return the code of the blocks in a language that are not files."""
        return [
            block.code for block in self.blocks if block.language == language and not block.file
        ]

    def python(self) -> str:
        return "\n".join(self.code_in("python"))


@cache
def sections(page: Path, level: int = 2) -> list[Section]:
    """Split a page at its headings of one level; deeper headings stay inside their section."""
    tokens = MarkdownIt().enable("table").parse(page.read_text(encoding="utf-8"))
    begins = [0]
    for index, token in enumerate(tokens):
        if token.type == "heading_open" and token.tag == f"h{level}":
            begins.append(index)
    split: list[Section] = []
    for begin, end in pairwise([*begins, len(tokens)]):
        heading = ""
        if begin:
            heading = tokens[begin + 1].content
        section = Section(page, heading)
        _read_contents(section, tokens[begin:end])
        split.append(section)
    return split


def all_sections() -> Iterator[Section]:
    """Iterate over the sections of all pages."""
    for page in PAGES:
        yield from sections(page)


def section_named(heading: str) -> Section:
    """Return the only section of any page under this heading."""
    found = [section for section in all_sections() if section.heading == heading]
    assert len(found) == 1, _wrong_number(len(found), heading)
    return found[0]


def all_blocks() -> Iterator[Block]:
    """Iterate over the code blocks of all pages."""
    for section in all_sections():
        yield from section.blocks


def _read_contents(section: Section, tokens: Sequence[Token]) -> None:
    before = ""
    for token in tokens:
        if token.type == "fence":
            section.blocks.append(Block(token.info.strip(), token.content))
        elif token.type == "tr_open":
            section.rows.append([])
        elif token.type == "thead_close":
            section.rows.pop()
        elif token.type == "inline" and before in ("th_open", "td_open"):
            section.rows[-1].append(_read_cell(token))
        elif token.type == "inline":
            section.sentences += _read_cell(token).text + "\n"
        before = token.type


def _read_cell(inline: Token) -> Cell:
    text = ""
    code: list[str] = []
    for token in inline.children or []:
        text += token.content
        if token.type == "code_inline":
            code.append(token.content)
    return Cell(text, tuple(code))


CONTINUES = "# continues the first program\n"
"""The first line of code that needs the program above the first heading of the page."""


@dataclass(frozen=True)
class PageProgram:
    """The Python blocks of a section, after those that it continues."""

    page: Path
    heading: str
    introduction: list[str]
    """The blocks above the first heading of the page, if the section continues them."""
    blocks: list[str]
    commands: list[str]
    """The blocks of shell commands in the section."""
    shown: str
    """What the section shows as its output; "" if nothing."""

    @property
    def name(self) -> str:
        return f"{self.page.stem}-{self.heading or 'introduction'}"

    @property
    def code(self) -> str:
        return "\n".join([*self.introduction, *self.blocks])

    @property
    def resumes(self) -> bool:
        """Whether it trains, and resumes from what an earlier run has saved."""
        return bool(re.search(r'(Path|Checkpoints)\("saved_', self.code))


def programs() -> Iterator[PageProgram]:
    """Yield one program for each section with Python code or with commands and their output.

    The README is one program; its output is that of the first run. `test_commands` runs sections
    with files.
    """
    of_readme = [block for section in sections(README) for block in section.blocks]
    python = [block for block in of_readme if block.language == "python"]
    yield _program(Section(README, "", python), [])
    for page in PAGES[1:]:
        introduction, *_ = sections(page)
        for section in sections(page):
            continued: list[str] = []
            if section.python().startswith(CONTINUES):
                continued = introduction.code_in("python")
            if _is_program(section):
                yield _program(section, continued)


def _is_program(section: Section) -> bool:
    if section.python():
        return True
    for block in section.blocks:
        if block.file:
            return False
    return bool(section.code_in("sh") and section.code_in("text"))


def _program(section: Section, introduction: list[str]) -> PageProgram:
    return PageProgram(
        section.page,
        section.heading,
        introduction,
        blocks=section.code_in("python"),
        commands=section.code_in("sh"),
        shown="".join(section.code_in("text")),
    )


def program_named(heading: str) -> PageProgram:
    """Return the only program under this heading."""
    found = [program for program in programs() if program.heading == heading]
    assert len(found) == 1, _wrong_number(len(found), heading)
    return found[0]


def _wrong_number(number: int, heading: str) -> str:
    return f"{number} sections are headed {heading!r}; tests name it: grep for it in tests/"


def shown_lines(code: str) -> dict[int, str]:
    """Return the comments after the `print` calls of a program, by line number, in order.

    Each shows the line that its call prints; at its end, … stands for the rest of the line.
    """
    lines = code.splitlines()
    comments: dict[int, str] = {}
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "print":
            end = cast(int, node.end_lineno)
            after = lines[end - 1].encode()[node.end_col_offset :].decode()
            comment = re.fullmatch(r"  # (.+)", after)
            if comment is not None:
                comments[end] = comment[1]
    return dict(sorted(comments.items()))


def assert_printed(code: str, output: str) -> str:
    """Check that a program has printed what comments after its `print` calls show, in this order.

    Returns the output without these lines.
    """
    lines = output.splitlines(keepends=True)
    begin = 0
    for comment in shown_lines(code).values():
        matching = [line for line in lines[begin:] if _shows(comment, line)]
        assert matching, comment
        begin = lines.index(matching[0], begin)
        del lines[begin]
    return "".join(lines)


def without_losses(text: str) -> str:
    """Return an output without its losses and norms of gradients, which depend on the machine."""
    return re.sub(r"\b(loss|grad_norm)(\W+)[\d.]+", r"\1\2", text)


def _shows(comment: str, line: str) -> bool:
    if comment.endswith("…"):
        return line.startswith(comment.removesuffix("…"))
    return line == f"{comment}\n"
