"""Sections with files and commands: run twice in a folder, they print what the page shows.

Programs and their configurations are files, named in their first line. A section is skipped without
the packages that it imports; `.ci/run` installs all of them.
"""

import ast
import os
import re
import shlex
import sqlite3
import subprocess
import sys
from collections.abc import Iterable
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from support.docs.pages import PAGES, ROOT, Section, sections
from support.schedulers.runs import learning_rate

from plateau_jax import Curve, PlateauCurve, StagedCurve

pytestmark = pytest.mark.slow

PEAK, CURVE = 0.01, PlateauCurve(200, warmup_steps=20, plateaus=[(0, 60)])
"""Those of the sections about logging."""

SITE_CUSTOMIZE = """
import warnings
from plateau_jax import CurveWarning
warnings.simplefilter("error", CurveWarning)
"""
"""Python runs this when it starts: our warnings are errors."""


def imported_packages(section: Section) -> set[str]:
    trees = [ast.parse(block.code) for block in section.blocks if block.file.endswith(".py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    return {name.partition(".")[0] for name in names}


def write_files(section: Section, folder: Path) -> None:
    for block in section.blocks:
        if block.file:
            (folder / block.file).parent.mkdir(exist_ok=True)
            (folder / block.file).write_text(block.code, encoding="utf-8")
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(SITE_CUSTOMIZE, encoding="utf-8")


def run_section(section: Section, folder: Path) -> str:
    """Run the section's commands, and return what they print to standard output."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(folder / "site"), str(ROOT)]),
        "PYTHONUTF8": "1",
        "HOME": str(folder / "home"),  # the tools' caches and settings
        "MPLCONFIGDIR": mpl.get_configdir(),  # it takes seconds to list the fonts again
        "DO_NOT_TRACK": "true",
        "WANDB_ERROR_REPORTING": "false",
    }
    printed = ""
    for command in commands_of(section):
        ended = subprocess.run(
            [sys.executable, *shlex.split(command)[1:]],
            cwd=folder,
            env=environment,
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
        assert ended.returncode == 0, f"{command}\n{ended.stdout}{ended.stderr}"
        printed += ended.stdout
    return printed


def written_by_commands(folder: Path, before: set[Path]) -> set[Path]:
    """Return the new files, without Python's caches and the settings of tools."""
    files = {path for path in set(folder.rglob("*")) - before if path.is_file()}
    return {
        path for path in files if not {"__pycache__", "home"} & set(path.relative_to(folder).parts)
    }


def assert_in_tensorboard(folder: Path, name: str, values: list[tuple[int, float]]) -> None:
    """Check a scalar of the only run; TensorBoard keeps float32."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (run,) = {file.parent for file in folder.rglob("events.out.tfevents.*")}
    events = EventAccumulator(str(run))
    events.Reload()
    logged = [(event.step, event.value) for event in events.Scalars(name)]
    assert logged == [(step, np.float32(value)) for step, value in values]


def learning_rates(curve: Curve, steps: Iterable[int]) -> list[tuple[int, float]]:
    return [(step, learning_rate(PEAK, curve, step)) for step in steps]


def check_hydra(folder: Path, _: str) -> None:
    from omegaconf import OmegaConf

    saved = [OmegaConf.load(file).curve for file in folder.glob("outputs/*/*/.hydra/config.yaml")]
    assert {config.pop("_target_") for config in saved} == {
        "plateau_jax.PlateauCurve",
        "plateau_jax.StagedCurve",
    }
    assert {Curve.from_dict(config) for config in saved} == {
        PlateauCurve(200, warmup_steps=4, plateaus=[(0, 40)]),
        StagedCurve([(20, 1.0), (120,), (60, 0.0, "1-sqrt")]),
    }


def check_lightning(folder: Path, _: str) -> None:
    import torch

    curve = PlateauCurve(200, warmup_steps=4, plateaus=[(0, 60)])
    (checkpoint,) = folder.rglob("*.ckpt")
    saved = torch.load(checkpoint)["hyper_parameters"]["curve"]
    assert saved.pop("class_path") == "plateau_jax.PlateauCurve"
    assert PlateauCurve(**saved["init_args"]) == curve
    assert_in_tensorboard(folder, "lr-Adam", learning_rates(curve, range(9, 200, 10)))


def check_tensorboard(folder: Path, _: str) -> None:
    assert_in_tensorboard(folder, "lr", learning_rates(CURVE, range(200)))


def check_mlflow(folder: Path, _: str) -> None:
    with closing(sqlite3.connect(folder / "mlflow.db")) as database:
        logged = database.execute("SELECT step, value FROM metrics WHERE key = 'lr' ORDER BY step")
        assert list(logged) == learning_rates(CURVE, range(0, 200, 10))


def check_sweep(_: Path, printed: str) -> None:
    losses = [float(loss) for loss in re.findall(r"^loss (\S+):", printed, re.MULTILINE)]
    assert len(losses) == 5
    assert sorted(losses) == losses
    assert losses[0] < 0.13  # of the recipe


CHECKS = {
    "Hydra, OmegaConf": check_hydra,
    "LightningCLI": check_lightning,
    "TensorBoard": check_tensorboard,
    "MLflow": check_mlflow,
    "Sweeps with Optuna": check_sweep,
}
"""What the commands leave in their folder, by heading."""


def commands_of(section: Section) -> list[str]:
    """Return the commands that run one of the section's files."""
    files = {block.file for block in section.blocks if block.file}
    shell = "".join(block.code for block in section.blocks if block.language == "sh")
    lines = shell.replace("\\\n", " ").splitlines()
    return [line for line in lines if line.startswith("python ") and files & set(shlex.split(line))]


SECTIONS = [
    pytest.param(section, id=section.heading)
    for page in PAGES
    for section in sections(page)
    if commands_of(section)
]


@pytest.mark.parametrize("section", SECTIONS)
def test_commands_print_the_output_on_the_page(section: Section, tmp_path: Path) -> None:
    missing = [package for package in imported_packages(section) if find_spec(package) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}: pip install -e '.[test-all,config]'")
    write_files(section, tmp_path)
    before = set(tmp_path.rglob("*"))
    printed = run_section(section, tmp_path)
    shown = "".join(block.code for block in section.blocks if block.language == "text")
    if shown or section.heading not in CHECKS:
        assert printed == shown
    check = CHECKS.get(section.heading)
    if check is not None:
        check(tmp_path, printed)
    if written_by_commands(tmp_path, before):
        # They find the files of their first run.
        assert run_section(section, tmp_path) == printed
