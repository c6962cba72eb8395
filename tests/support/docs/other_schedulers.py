"""The tables of the pages on other libraries' schedules: a row has an original, and the same as a curve."""

import ast
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from support.docs.pages import ROOT

from plateau_jax import Curve, PlateauCurve, StagedCurve

PAGES = (ROOT / "docs" / "other_schedulers.md", ROOT / "docs" / "trainer_schedules.md")

_ROW = re.compile(r"^\| (.+?) \| (`.+?) \| (?:(.+) )?\|$", re.MULTILINE)
_LENGTHS = ("total", "warmup", "decay", "stop", "periods")


class Names(dict[str, Any]):
    """Values by name. What has none is computed when it is needed, by the code that assigns it."""

    def __init__(self, code: dict[str, str], values: dict[str, Any]) -> None:
        super().__init__(values, PlateauCurve=PlateauCurve, StagedCurve=StagedCurve)
        self._code = code

    def __missing__(self, name: str) -> Any:
        exec(self._code[name], self)
        return self[name]


class Row(NamedTuple):
    library: str
    original: str
    """The call or the options of the original, without backticks."""
    expression: str
    differences: str
    code: dict[str, str]
    """The code that assigns a name: a block of the section, or `name = …` in its text or in the row."""

    @property
    def is_cut(self) -> bool:
        """Whether the row says how to shorten the curves of the others."""
        return self.expression.startswith(".")

    def evaluate(self, text: str, settings: dict[str, Any]) -> Any:
        return eval(text, Names(self.code, settings))

    def curves(self, settings: dict[str, Any], cut: str = "") -> list[Curve]:
        """Build the curve of each parameter group, under these values of the names."""
        curves: Curve | list[Curve] = self.evaluate(self.expression + cut, settings)
        return curves if isinstance(curves, list) else [curves]


def sections_by_library() -> dict[str, tuple[str, str]]:
    """Return the introduction of its page, and its section, by the heading of each section."""
    by_library: dict[str, tuple[str, str]] = {}
    for page in PAGES:
        introduction, *sections = page.read_text(encoding="utf-8").split("\n## ")
        by_library |= {section.partition("\n")[0]: (introduction, section) for section in sections}
    return by_library


def rows() -> Iterator[Row]:
    """Yield a row for each original: several share one if they are separated by commas."""
    for library, (_, section) in sections_by_library().items():
        blocks = re.findall(r"```py(?:thon)?\n(.+?)```", section, re.DOTALL)
        text = re.sub(r"```.+?```", "", section, flags=re.DOTALL)
        table = _ROW.findall(text)
        shared = {name: block for block in blocks for name in _assigned(block)}
        shared |= _definitions(_ROW.sub("", text))
        for first, curve, differences in table:
            expression = next(span for span in _spans(curve) if not _definitions(f"`{span}`"))
            several = re.fullmatch(r"`[^`]+`(, `[^`]+`)*", first)
            for original in _spans(first) if several else [first.replace("`", "")]:
                yield Row(library, original, expression, differences, shared | _definitions(curve))


def in_samples(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the values with lengths in samples, as Megatron-LM and OLMo-core count them."""
    batch = settings["batch"]
    return settings | {
        name: [batch * period for period in length] if name == "periods" else batch * length
        for name, length in settings.items()
        if name in _LENGTHS
    }


def _spans(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def _definitions(text: str) -> dict[str, str]:
    return {span.split(" = ")[0]: span for span in _spans(text) if re.match(r"\w+ = ", span)}


def _assigned(block: str) -> set[str]:
    names = (node for node in ast.walk(ast.parse(block)) if isinstance(node, ast.Name))
    return {node.id for node in names if isinstance(node.ctx, ast.Store)}
