"""The files that the commands of these tests name, in the current directory."""

import json
from pathlib import Path

import pytest

from plateau_jax import BatchPlan, PlateauCurve, StagedCurve

RUN = PlateauCurve(1000, warmup_steps=50)
PLATEAUS = PlateauCurve(1000, warmup_steps=100, plateaus=[(50, 30), (85, 10)], min_lr_ratio=0.1)
STAIRS = StagedCurve([(10, 1.0), (20,), (0, 0.5), (20, 0.25, "exponential")], start=0.5)
PLAN = BatchPlan([(0, 8), (4000, 16)])
CURVES = {
    "run": RUN,
    "cosine": PlateauCurve(1000),
    "longer": PlateauCurve(2000, plateaus=[(55, 40)]),
    "stairs": STAIRS,
    "then": PLATEAUS.then(STAIRS, scale=0.5).cooldown(1030, 5),
    "scaled": PLAN.scale(PLATEAUS, 8, reference=16),
}


@pytest.fixture(scope="module")
def folder_of_all_tests(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, curve in CURVES.items():
            text = json.dumps(curve.to_dict())
            Path(f"{name}.json").write_text(text)
        rows = [f"{step},{5e-4 * RUN(step)},3.2" for step in range(20, 1001, 20)]
        Path("low.csv").write_text("\n".join(["step,lr,loss", *rows, ""]))
        Path("losses.csv").write_text("step,loss\n10,3\n")
        yield folder


@pytest.fixture
def folder(folder_of_all_tests, monkeypatch):
    """Change to the directory of the files; what a test writes there is removed again."""
    monkeypatch.chdir(folder_of_all_tests)
    before = set(folder_of_all_tests.iterdir())
    yield folder_of_all_tests
    for path in set(folder_of_all_tests.iterdir()) - before:
        path.unlink()
