"""`docs/export.md`: its functions are those of exported files, and suffice for a port."""

import ast
import inspect
import json
from pathlib import Path

import numpy as np
import pytest
from support.docs.pages import ROOT, program_named, sections
from support.export.ports import fixed_value

from plateau_jax import Curve
from plateau_jax.export import template
from plateau_jax.export.vectors import vectors_as_json

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


def test_page_quotes_the_functions_of_exported_files():
    (section,) = (section for section in sections(PAGE) if section.heading == "Write a port")
    of_page = definitions(section.python())
    of_template = definitions(TEMPLATE)
    for name in of_page:
        assert of_page[name] == of_template[name]
    missing = of_template.keys() - of_page.keys()
    assert missing == DESCRIBED_IN_SENTENCES | {"CHECK_VALUE", "SHAPES"}


def test_page_names_function_and_keys_of_every_shape():
    (section,) = (section for section in sections(PAGE) if section.heading == "Write a port")
    named: dict[str, str] = {}
    for row in section.rows:
        if len(row) == 3:
            shape, function, keys = row
            named[shape.code[0]] = function.text
            _, _, _, _, *parameters = inspect.signature(template.SHAPES[shape.code[0]]).parameters
            assert list(keys.code) == parameters
    assert named == {name: function.__name__ for name, function in template.SHAPES.items()}


def exact_product(a: int, b: int) -> int:
    return (a * b) >> 62


@pytest.mark.slow
def test_integers_show_what_float32_hides(tmp_path, monkeypatch):
    """Of the curves on the page, with a port that multiplies exactly."""
    monkeypatch.chdir(tmp_path)
    exec(program_named("Test vectors").code, {})
    curves = [Curve.from_dict(json.loads(path.read_text())) for path in tmp_path.iterdir()]
    content = json.loads(
        vectors_as_json([curve._vector_inputs() for curve in curves], np.float32(1))
    )
    monkeypatch.setattr(template, "multiply", exact_product)
    wrong = 0
    for entry in content["curves"]:
        for vector in entry["vectors"]:
            value = fixed_value(entry["segments"], vector["step"])
            if value is not None:
                wrong += value != int(vector["fixed"], 16)
                assert template.fixed_to_float32(value) == vector["multiplier"]
    assert wrong > 200
