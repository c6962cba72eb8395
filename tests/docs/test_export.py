"""`docs/export.md` quotes the functions of exported files."""

import ast
import inspect
from pathlib import Path

from support.docs.pages import ROOT, Section, sections

from plateau_jax.export import template

PAGE = ROOT / "docs" / "export.md"
TEMPLATE = Path(template.__file__).read_text(encoding="utf-8")

DESCRIBED_IN_SENTENCES = {"multiplier", "learning_rate", "shifted", "SEGMENTS", "SHIFTS"}
"""What a port writes in its own way."""


def definitions(code: str) -> dict[str, str]:
    """Return the text of each function and constant by its name."""
    found: dict[str, str] = {}
    for node in ast.parse(code).body:
        match node:
            case ast.FunctionDef(name=name) | ast.Assign(targets=[ast.Name(id=name)]):
                found[name] = ast.get_source_segment(code, node) or ""
            case _:
                pass
    return found


def section_on_ports() -> Section:
    (section,) = [section for section in sections(PAGE) if section.heading == "Write a port"]
    return section


def test_page_quotes_the_functions_of_exported_files() -> None:
    of_page = definitions(section_on_ports().python())
    of_template = definitions(TEMPLATE)
    for name in of_page:
        assert of_page[name] == of_template[name]
    missing = of_template.keys() - of_page.keys()
    assert missing == DESCRIBED_IN_SENTENCES | {"CHECK_VALUE", "SHAPES"}


def test_page_names_function_and_keys_of_every_shape() -> None:
    functions = template.SHAPES
    named: dict[str, str] = {}
    for row in section_on_ports().rows:
        if len(row) != 3:
            continue
        shape, function, keys = row
        name = shape.code[0]
        named[name] = function.text
        _, _, _, _, *parameters = inspect.signature(functions[name]).parameters
        assert list(keys.code) == parameters
    assert named == {name: function.__name__ for name, function in functions.items()}
