"""docs/choosing.md: its figures match the curves and the notebook."""

import re

import pytest
from support.docs.pages import ROOT, notebook_output

from plateau_jax import PlateauCurve, StagedCurve, outlook

PAGE = (ROOT / "docs" / "choosing.md").read_text(encoding="utf-8")


def test_bounds_next_to_published_losses_match_curves():
    """The published runs have 50 000 steps, with a warmup of 300."""
    rows = re.findall(r"^\| ([\d.]+) %, (linear|1-sqrt) \| ([\d.]+) \| [\d.]+ \|$", PAGE, re.MULTILINE)
    assert len(rows) == 6
    bounds = []
    for percent, shape, _ in rows:
        steps = round(500 * float(percent))
        curve = StagedCurve([(300, 1.0), (49_700 - steps,), (steps, 0.0, shape)])
        bounds.append(outlook(curve).bound)
    assert [f"{bound / bounds[0]:.3f}" for bound in bounds] == [figure for *_, figure in rows]


def test_best_peak_falls_with_twice_the_steps():
    shorter, longer = (outlook(PlateauCurve(steps, warmup_steps=300)).peak for steps in (25_000, 50_000))
    assert longer / shorter == pytest.approx(0.71, abs=0.005)


def test_figures_match_notebook_output():
    printed = notebook_output()
    quoting = " ".join(line for line in PAGE.splitlines() if "the notebook]" in line.lower())
    figures = re.findall(r"\d\.\d+", quoting)
    assert len(figures) == 5
    for figure in figures:
        assert figure in printed, figure
