"""docs/choosing.md: its figures are those of the curves, and of the notebook."""

import re

import pytest
from support.docs.pages import ROOT, printed_by_the_notebook

from plateau_jax import PlateauCurve, StagedCurve, outlook

PAGE = (ROOT / "docs" / "choosing.md").read_text(encoding="utf-8")


def test_bounds_beside_published_losses_are_those_of_the_curves():
    """Of 50 000 steps, with a warmup of 300."""
    rows = re.findall(r"^\| ([\d.]+) %, (linear|1-sqrt) \| ([\d.]+) \| [\d.]+ \|$", PAGE, re.MULTILINE)
    assert len(rows) == 6
    found = []
    for share, shape, _ in rows:
        steps = round(500 * float(share))
        curve = StagedCurve([(300, 1.0), (49_700 - steps,), (steps, 0.0, shape)])
        found.append(outlook(curve).bound)
    assert [f"{bound / found[0]:.3f}" for bound in found] == [bound for *_, bound in rows]


def test_theory_of_twice_the_steps():
    shorter, longer = (outlook(PlateauCurve(steps, warmup_steps=300)).peak for steps in (25_000, 50_000))
    assert longer / shorter == pytest.approx(0.71, abs=0.005)


def test_figures_of_the_notebook_are_what_it_printed():
    printed = printed_by_the_notebook()
    told = " ".join(line for line in PAGE.splitlines() if "the notebook]" in line.lower())
    figures = re.findall(r"\d\.\d+", told)
    assert len(figures) == 5
    for figure in figures:
        assert figure in printed, figure
