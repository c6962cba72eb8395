"""docs/curves.md: its figures match the notebook, and an example draws its pictures."""

import re
import shutil

import matplotlib.image
import numpy as np
import pytest
from support.docs.pages import ROOT, notebook_output
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
