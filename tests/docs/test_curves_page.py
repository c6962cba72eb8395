"""docs/curves.md: its figures match the notebook, and an example draws its pictures.

docs/cooldowns.md: a decay that is stretched ends where it is meant to.
"""

import re
import shutil
from fractions import Fraction

import matplotlib.image
import numpy as np
import pytest
from hypothesis import given, strategies as st
from support.docs.pages import ROOT, notebook_output, sections
from support.examples import corners, examples
from support.programs import EXAMPLES, run

pytestmark = pytest.mark.slow

PAGE = ROOT / "docs" / "curves.md"
PICTURES = ROOT / "docs" / "pictures"


def test_table_matches_notebook_output():
    lines = notebook_output().splitlines()
    table = re.findall(r"^\| (\w+ plateau) \|(.+)\|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(table) == 3
    for name, cells in table:
        at_one_peak, apart, best, best_apart = cells.replace("−", "-").split("|")
        loss, peak = best.strip().split(", at ")
        for start, figures in (
            (f"{name} ", f"{at_one_peak} {apart}"),
            (f"{name}, {peak} ", f"{loss} {best_apart}"),
        ):
            (line,) = [line for line in lines if line.startswith(start)]
            printed = line.removeprefix(start).split("lower")[0]
            assert printed.split() == figures.split()


def test_example_draws_all_pictures_of_the_page(tmp_path):
    script = tmp_path / "examples" / "plot_docs.py"
    script.parent.mkdir()
    shutil.copy(EXAMPLES / "plot_docs.py", script)
    run(script, folder=tmp_path)
    drawn = {path.name: path for path in (tmp_path / "docs" / "pictures").iterdir()}
    assert drawn.keys() == set(re.findall(r"\(pictures/(.+?)\)", PAGE.read_text(encoding="utf-8")))
    for name, path in drawn.items():
        assert path.stat().st_size < 50_000
        pixels = matplotlib.image.imread(path)
        colours = (pixels[..., :3] * 255).round().astype(int) @ (1, 2**8, 2**16)
        assert len(np.unique(colours)) > 20
        assert pixels.shape == matplotlib.image.imread(PICTURES / name).shape


@examples(50)
@given(st.data())
def test_stretched_decay_begins_at_its_level_and_ends_in_time(data):
    warmup = data.draw(st.just(0) | st.integers(1, 300))
    planned = warmup + data.draw(corners(2, 900))
    at = data.draw(corners(warmup + 1, planned - 1))
    total = planned + data.draw(corners(1, 2000))
    cooldowns = PAGE.with_name("cooldowns.md")
    (section,) = (part for part in sections(cooldowns) if part.heading == "Stretch a decay that is running")
    build, search, *_ = section.python_blocks()
    for name, value in {"warmup, planned": (warmup, planned), "at, total": (at, total)}.items():
        build, count = re.subn(f"^{name} = [^#\n]+", f"{name} = {value}  ", build, flags=re.MULTILINE)
        assert count == 1
    names = {}
    exec(build + search, names)
    assert names["stretched"].total_steps == total
    assert names["stretched"].same_until(names["cosine"], at)
    # The fraction of its decay that each curve has made.
    made = Fraction(at - warmup, planned - warmup)
    assert Fraction(names["first"] - 1 - warmup, names["decay"]) < made
    assert made <= Fraction(names["first"] - warmup, names["decay"])
    longer, level = names["longer"], names["cosine"](at)
    found = np.flatnonzero(names["above"])[-1] + 1
    assert longer(found - 1) > level >= longer(found) >= longer(names["first"])
