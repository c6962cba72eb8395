"""Sections with files and commands: run twice in a folder, they print what the page shows.

Programs and their configurations are files, named in their first line. A section is skipped without
the packages that it imports; `.ci/run` installs all of them.
"""

import ast
import os
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import matplotlib as mpl
import pytest
from support.docs.pages import ROOT, all_sections, section_named
from support.programs import run, without_lines_of_gloo

from plateau_jax import Curve, PlateauCurve, StagedCurve

pytestmark = pytest.mark.slow


SITE_CUSTOMIZE = """
import warnings
from plateau_jax import CurveWarning
warnings.simplefilter("error", CurveWarning)
"""
"""Python runs this when it starts: our warnings are errors."""


def imported_packages(section):
    """Return the packages that the files of a section import, without these files."""
    packages = set()
    for block in section.blocks:
        if block.file.endswith(".py"):
            for node in ast.walk(ast.parse(block.code)):
                packages |= packages_of(node)
    return packages - {Path(block.file).stem for block in section.blocks}


def packages_of(statement):
    """Return the packages from which a statement imports."""
    if isinstance(statement, ast.Import):
        return {alias.name.partition(".")[0] for alias in statement.names}
    if isinstance(statement, ast.ImportFrom) and statement.module:
        return {statement.module.partition(".")[0]}
    return set()


def write_files(section, folder):
    for block in section.blocks:
        if block.file:
            file = folder / block.file
            file.parent.mkdir(exist_ok=True)
            file.write_text(block.code, encoding="utf-8")
    site = folder / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(SITE_CUSTOMIZE, encoding="utf-8")


def run_section(section, folder):
    """Run the section's commands, and return what they print to standard output."""
    environment = {
        "PYTHONPATH": os.pathsep.join([str(folder / "site"), str(ROOT)]),
        "PYTHONUTF8": "1",
        "HOME": str(folder / "home"),  # the tools' caches and settings
        "MPLCONFIGDIR": mpl.get_configdir(),  # it takes seconds to list the fonts again
        "DO_NOT_TRACK": "true",
    }
    printed = ""
    for command in commands_of(section):
        _, first, *arguments = shlex.split(command)
        if first == "-m":  # torchrun, which starts further processes
            ended = subprocess.run(
                [sys.executable, first, *arguments],
                cwd=folder,
                env=os.environ | environment,
                capture_output=True,
                encoding="utf-8",
                check=False,
            )
            assert ended.returncode == 0, f"{command}\n{ended.stdout}{ended.stderr}"
            printed += without_lines_of_gloo(ended.stdout)
        else:
            output = run(folder / first, *arguments, folder=folder, environment=environment)
            printed += without_lines_of_gloo(output)
    return printed


def files_of_commands(folder):
    """Return the files in a folder without Python's caches and the settings of tools."""
    files = set()
    for path in folder.rglob("*"):
        folders = path.relative_to(folder).parts
        if path.is_file() and "__pycache__" not in folders and "home" not in folders:
            files.add(path)
    return files


def assert_checkpoint_has_the_curve(folder):
    """Check what `save_hyperparameters` has written."""
    import torch

    (checkpoint,) = folder.rglob("*.ckpt")
    saved = torch.load(checkpoint)["hyper_parameters"]["curve"]
    assert saved.pop("class_path") == "plateau_jax.PlateauCurve"
    assert PlateauCurve(**saved["init_args"]) == PlateauCurve(
        200, warmup_steps=4, plateaus=[(0, 60)]
    )


def commands_of(section):
    """Return the commands that run one of the section's files."""
    files = {block.file for block in section.blocks if block.file}
    shell = "".join(section.code_in("sh")).replace("\\\n", " ")
    return [
        line
        for line in shell.splitlines()
        if line.startswith("python ") and files.intersection(shlex.split(line))
    ]


COMPILED = {"Write a port"}
"""Headings of sections with a program in another language, which the tests of exports run."""


def sections_with_commands():
    return [
        section
        for section in all_sections()
        if commands_of(section) and section.heading not in COMPILED
    ]


@pytest.mark.parametrize("section", sections_with_commands(), ids=lambda section: section.heading)
def test_commands_print_the_output_on_the_page(section, tmp_path):
    """Run again, they find the files of their first run, and print the same."""
    missing = [package for package in imported_packages(section) if find_spec(package) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}: pip install -e '.[test-all,config]'")
    write_files(section, tmp_path)
    before = files_of_commands(tmp_path)
    printed = run_section(section, tmp_path)
    if section.heading == "LightningCLI":
        assert_checkpoint_has_the_curve(tmp_path)
    else:
        assert printed == "".join(section.code_in("text"))
    if files_of_commands(tmp_path) != before:
        assert run_section(section, tmp_path) == printed


def test_scheduler_built_from_text_is_wsd():
    """The trainers split the argument at its first equals sign, and read a Python literal."""
    (command,) = section_named("A trainer that builds the scheduler from text").code_in("text")
    _, argument = shlex.split(command)[-1].split("=", 1)
    curve = Curve.from_dict(ast.literal_eval(argument))
    assert curve == StagedCurve.wsd(1600, warmup_steps=80, decay_steps="20%")
