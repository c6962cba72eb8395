"""The benchmark of forecasts runs on its data, and the page on forecasts shows what it printed."""

import json
import re

import pytest
from support.docs.pages import ROOT
from support.programs import EXAMPLES, run

FOLDER = EXAMPLES / "benchmarks" / "loss_curves"
CASE = re.compile(
    r"^([12] runs?, (?:same length|longer)) +(\d+)((?: +0\.\d{4}){4}) +(\d\.\d\d)$", re.MULTILINE
)


@pytest.mark.slow
def test_benchmark_forecasts_better_than_other_laws(tmp_path):
    text = run(EXAMPLES / "benchmarks" / "forecast.py", "--pairs", 3, "--models", 4, folder=tmp_path)
    rows = CASE.findall(text)
    assert len(rows) == 4
    for _, forecasts, errors, covered in rows:
        best, *others = map(float, errors.split())
        assert int(forecasts) > 0
        assert best < min(others)
        assert best < 0.01
        assert float(covered) >= 0.9


def test_data_is_small_and_carries_its_license():
    assert (FOLDER / "runs.json").stat().st_size < 300_000
    runs = json.loads((FOLDER / "runs.json").read_text(encoding="utf-8"))
    assert len(runs) == 101
    assert all(len(row["steps"]) == len(row["losses"]) for row in runs.values())
    assert "Copyright (c) 2025 Fabian Schaipp, Alexander Hägele" in (FOLDER / "LICENSE").read_text("utf-8")


def test_page_shows_the_table_of_the_benchmark():
    page = (ROOT / "docs" / "forecast.md").read_text(encoding="utf-8")
    assert [row[0] for row in CASE.findall(page)] == [
        "1 run, same length",
        "1 run, longer",
        "2 runs, same length",
        "2 runs, longer",
    ]
