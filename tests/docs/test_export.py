"""`docs/export.md` quotes the evaluator of the C file, and rounds as exported files do."""

import numpy as np
from support.docs.pages import ROOT, sections

from plateau_jax import PlateauCurve

PAGE = ROOT / "docs" / "export.md"


def section_on_ports():
    (section,) = [section for section in sections(PAGE) if section.heading == "Write a port"]
    return section


def test_page_quotes_the_function_of_the_c_file():
    c_file = (ROOT / "examples" / "schedule.c").read_text(encoding="utf-8")
    begin = c_file.index("float multiplier")
    function = c_file[begin : c_file.index("\n}", begin) + 2]
    assert f"```c\n{function}\n```" in PAGE.read_text(encoding="utf-8")


def test_page_has_the_bits_of_hard_integers():
    functions = {}
    exec(PlateauCurve(100).to_source(), functions)
    checked = 0
    for row in section_on_ports().rows:
        if len(row) == 3 and row[0].code:
            value, bits = int(row[0].code[0], 16), int(row[2].code[0], 16)
            number = functions["round_to_float32"](value, int(row[1].text))
            assert np.float32(number).view(np.uint32) == bits
            checked += 1
    assert checked == 7
