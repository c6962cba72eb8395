"""The files that the commands of these tests name, in the current directory."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from plateau_jax import BatchPlan, PlateauCurve, StagedCurve
from plateau_jax.validation.curve_warning import suppress_warnings

RUN = PlateauCurve(1000, warmup_steps=50)
PLATEAUS = PlateauCurve(1000, warmup_steps=100, plateaus=[(50, 30), (85, 10)], min_lr_ratio=0.1)
STAIRS = StagedCurve([(10, 1.0), (20,), (0, 0.5), (20, 0.25, "exponential")], start=0.5)
CURVES = {
    "run": RUN,
    "cosine": PlateauCurve(1000),
    "linear": PlateauCurve(1000, plateaus=[(0, 60)], decay_shape="linear"),
    "longer": PlateauCurve(2000, plateaus=[(55, 40)]),
    "plateaus": PLATEAUS,
    "stairs": STAIRS,
    "cooldown": STAIRS.cooldown(25, 10, to=0.1),
    "then": PLATEAUS.then(STAIRS, scale=0.5).cooldown(1030, 5),
    "scaled": BatchPlan([(0, 8), (4000, 16)]).scale(PLATEAUS, 8, reference=16),
}
with suppress_warnings():
    CURVES["zero"] = StagedCurve([(5,)])

STEPS = np.arange(20, 1001, 20)
LOSSES = 2.5 + (STEPS / 300) ** -0.5 + 0.05 * RUN(STEPS)


def _write_log(name: str, *columns: Iterator) -> None:
    lines = [",".join(map(str, row)) for row in zip(STEPS, *columns, strict=True)]
    header = ["step", "loss", "lr"][: 1 + len(columns)]
    Path(name).write_text("\n".join([",".join(header), *lines]))


@pytest.fixture(scope="module")
def _written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("files")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, curve in CURVES.items():
            Path(f"{name}.json").write_text(json.dumps(curve.to_dict()))
        _write_log("log.csv", LOSSES)
        for name, peak in (("low", 5e-4), ("middle", 1e-3)):
            _write_log(f"{name}.csv", LOSSES, (peak * RUN(STEPS)).tolist())
        Path("several.csv").write_text("step,loss,train_loss\n10,3,3\n")
        yield folder


@pytest.fixture
def folder(_written: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Change to the directory of the files; what a test writes there is removed again."""
    monkeypatch.chdir(_written)
    before = set(_written.iterdir())
    yield _written
    for path in set(_written.iterdir()) - before:
        path.unlink()
