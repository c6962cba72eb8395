"""The examples and the notebook: their pictures, what a resumed run prints, and wrong arguments."""

import re
import subprocess
import sys

import matplotlib.image
import nbformat
import numpy as np
import psutil
import pytest
from nbclient import NotebookClient
from support.design.page import chromium
from support.docs.pages import ROOT
from support.programs import (
    EXAMPLES,
    SMALL_RUNS,
    Program,
    assert_rejected,
    interrupt,
    later_lines,
    run,
)

pytestmark = pytest.mark.slow

WITH_PICTURE = [
    "train_digits",
    "sweep",
    "branch_cooldowns",
    "train_lstm",
    "train_bloom",
    "batch_plan",
]


@pytest.mark.parametrize("script", WITH_PICTURE)
def test_picture_is_written_into_a_new_folder(script, ran):
    folder, _ = ran(f"{script}.py")
    (picture,) = (folder / "new").iterdir()
    assert matplotlib.image.imread(picture)[..., :3].min() == 0  # the axes are black


@pytest.mark.parametrize(
    ("script", "folder"),
    [("plot_docs", "docs/pictures"), ("plot_readme", "examples"), ("plot_design", "docs/pictures")],
)
def test_committed_pictures_are_drawn_again(script, folder, tmp_path):
    if script == "plot_design":
        with chromium():
            pass  # skips the test if Chromium is not installed
    copy = tmp_path / "examples" / f"{script}.py"
    copy.parent.mkdir()
    copy.write_bytes((EXAMPLES / copy.name).read_bytes())
    (tmp_path / "docs" / "pictures").mkdir(parents=True)
    for page in (ROOT / "docs").glob("*.md"):  # one has a log that plot_design.py opens
        (tmp_path / "docs" / page.name).write_bytes(page.read_bytes())
    run(copy, folder=tmp_path)
    drawn = list((tmp_path / folder).glob("*.png"))
    assert drawn
    for path in drawn:
        pixels, committed = (
            matplotlib.image.imread(file) for file in (path, ROOT / folder / path.name)
        )
        assert pixels.shape == committed.shape
        # Text may shift by a pixel between versions of matplotlib; a different curve changes 3 % or
        # more.
        if script != "plot_design":  # a browser's fonts differ more
            assert (np.abs(pixels - committed).max(-1) > 0.25).mean() < 0.025, path.name


CPU, HINT = "--device cpu", "--resume continues as planned"
# A script; additional arguments of the interrupted run; the line after which a Ctrl-C stops it;
# arguments of the resumed run, or None for those of the small run; and arguments with which it must
# not resume.
RESUMED = [
    ("train_gpt.py", "--every 30", "", None, []),  # lines that lie between those compared
    (
        "train_gpt.py",
        "--every 30",
        "update 30:",
        None,
        [("--steps 5", 1, f"; without --steps, {HINT}")],
    ),
    ("train_gpt.py", "", "update 40:", CPU, []),
    ("train_lstm.py", "--every 30", "    30 ", None, []),
    (
        "train_lstm.py",
        "",
        "    50 ",
        CPU,
        [("--epochs 7", 1, f"; without --epochs and --window, {HINT}")],
    ),
    (
        "train_bloom.py",
        "",
        "    50 ",
        CPU,
        [("--epochs 9", 1, f"--batch-size and --count, {HINT}")],
    ),
    (
        *("train_flax.py", "--stable 1000", "    20 ", "--stable 75 --cooldown 20"),
        [
            (
                "--warmup 6",
                2,
                "the learning rates differ from step 1 on; resume with the old curve",
            ),
            ("--peak 1", 2, "--resume: --batch-size, --width, --peak and --seed must not change"),
        ],
    ),
]


def untimed_lines(lines):
    return [line for line in lines if not re.search(r"\d m?s[,:]", line)]


@pytest.mark.parametrize(("script", "extra", "line_before", "later", "wrong"), RESUMED)
def test_resumed_run_prints_the_remaining_lines(
    script, extra, line_before, later, wrong, ran, tmp_path
):
    _, uninterrupted = ran(script)
    program = Program(
        EXAMPLES / script, *SMALL_RUNS[script].split(), *extra.split(), folder=tmp_path
    )
    updates = interrupt(program, line_before)
    assert not list(tmp_path.rglob("*.partial"))
    cached = {path: path.stat().st_ino for path in tmp_path.rglob("*.pkl")}
    device = CPU if CPU in SMALL_RUNS[script] else ""
    for changes, status, message in wrong:
        assert_rejected(tmp_path, script, f"{device} --resume {changes}".split(), status, message)
    later = (SMALL_RUNS[script] if later is None else later).split()
    first, *resumed = run(EXAMPLES / script, *later, "--resume", folder=tmp_path).splitlines()
    assert re.match(rf"resumed from [\w.]+ after update {updates}\b", first)
    assert untimed_lines(resumed) == later_lines(untimed_lines(uninterrupted), updates)
    assert {path: path.stat().st_ino for path in tmp_path.rglob("*.pkl")} == cached


NO_CHECKPOINT = "--resume: there is no checkpoint"
WRONG = [
    ("train_digits.py", "--batch-size 0", 2, "--batch-size 0"),
    ("sweep.py", "--peak nan", 2, "--peak nan"),
    ("sweep.py", "--output sweep.xyz", 2, "--output sweep.xyz"),
    (
        "branch_cooldowns.py",
        "--output /dev/null/a.png",
        2,
        "a.png can't be written: Not a directory",
    ),
    ("running_averages.py", "--seeds 1", 2, "--seeds 1 must be at least 2"),
    ("train_flax.py", "--resume", 2, f"{NO_CHECKPOINT} in train_flax"),
    ("train_flax.py", "--mesh 2 2 --width 7", 2, "--width of 2, for --mesh 2 2"),
    ("batch_plan.py", f"{CPU} --resume", 2, f"{NO_CHECKPOINT} in batch_plan_checkpoints"),
    ("batch_plan.py", f"{CPU} --plan 0:many", 2, "argument --plan: invalid stage value: '0:many'"),
    (
        "batch_plan.py",
        f"{CPU} --plan 0:512 1024:700",
        2,
        "micro_batch · processes = 512 · 1 = 512 does not",
    ),
    ("batch_plan.py", f"{CPU} --micro-batch 32", 2, "--micro-batch 32 must be a multiple of 64"),
    ("batch_plan.py", f"{CPU} --checkpoints /dev/null/a", 2, "--checkpoints /dev/null/a can't be"),
    ("train_bloom.py", f"{CPU} --count 100", 1, "80 samples give no batch of batch_size = 512"),
    ("train_gpt.py", f"{CPU} --resume", 2, f"{NO_CHECKPOINT} in train_gpt_checkpoints"),
    ("train_gpt.py", f"{CPU} --batch-size 0", 2, "--steps, --batch-size, --accumulation,"),
    ("train_gpt.py", "--device nowhere", 2, "--device nowhere: "),
    ("train_lstm.py", f"{CPU} --resume", 2, f"{NO_CHECKPOINT} train_lstm.pt"),
]


@pytest.mark.parametrize(("script", "arguments", "status", "message"), WRONG)
def test_wrong_argument_is_named_in_one_line(tmp_path, script, arguments, status, message):
    assert_rejected(tmp_path, script, arguments.split(), status, message)


SCRIPTS = sorted(
    file.name for file in EXAMPLES.glob("*.py") if "\nimport program" in file.read_text("utf-8")
)
CTRL_C = "import os, signal; os.kill(os.getpid(), signal.SIGINT)"
MISSING = "raise ModuleNotFoundError(\"No module named 'numpy'\", name='numpy')"


@pytest.mark.parametrize(
    ("first_import", "status", "output", "message"),
    [
        (CTRL_C, 130, "\nstopped\n", ""),
        (MISSING, 1, "", "{script}: needs numpy; pip install -e '.[examples]'\n"),
    ],
    ids=["Ctrl-C while importing", "a missing package"],
)
@pytest.mark.parametrize("script", SCRIPTS)
def test_program_ends_with_one_line(script, first_import, status, output, message, tmp_path):
    """The program imports this in place of its first library, after printing its expected cost."""
    for name in ("numpy", "torch", "jax", "matplotlib"):
        (tmp_path / f"{name}.py").write_text(first_import, encoding="utf-8")
    ended = subprocess.run(
        [sys.executable, EXAMPLES / script],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (status, output)
    cost = rf"{script}: [\d.]+ min and [\d.]+ GB of memory on one CPU core, with its defaults\n"
    assert re.fullmatch(cost + re.escape(message.format(script=script)), ended.stderr)


NOTEBOOK = EXAMPLES / "choosing_a_curve.ipynb"


def read_notebook():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    return notebook


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def outputs_without_figures(cell):
    """Return the name of each stream, the formats of other outputs, and the printed words."""
    kinds = [
        output.get("name") or sorted(output.get("data", [output.output_type]))
        for output in cell.outputs
    ]
    printed = "".join(output.text for output in cell.outputs if output.output_type == "stream")
    return kinds, re.sub(r"[+-]?\d+\.?\d*", "", printed).split()


def test_committed_outputs_match_a_fresh_run(tmp_path, monkeypatch):
    """In a fresh kernel, in which warnings are errors, and which leaves nothing behind."""
    notebook, folder = read_notebook(), tmp_path / "empty"
    folder.mkdir()
    for cell in code_cells(notebook):
        cell.outputs, cell.execution_count = [], None
    strict = nbformat.v4.new_code_cell("import warnings\n\nwarnings.simplefilter('error')")
    notebook.cells.insert(0, strict)
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    place = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, timeout=600, coalesce_streams=True, resources=place).execute()
    notebook.cells.remove(strict)
    assert {process.pid for process in psutil.Process().children(recursive=True)} <= before
    assert list(folder.iterdir()) == []
    for cell, committed in zip(code_cells(notebook), code_cells(read_notebook()), strict=True):
        assert cell.execution_count
        assert outputs_without_figures(cell) == outputs_without_figures(committed)
        assert "stderr" not in outputs_without_figures(cell)[0]


def test_committed_notebook_ran_once_in_order():
    """It is small, and has no path of the machine on which it ran."""
    cells, text = code_cells(read_notebook()), NOTEBOOK.read_text(encoding="utf-8")
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert "error" not in {output.output_type for cell in cells for output in cell.outputs}
    assert len(text) < 400_000
    assert not re.search(r"""["' (](/[a-z]+/|[A-Z]:\\\\|file:)""", text)


def test_figures_in_text_match_printed_output():
    """Each figure with three decimals in the text appears in an output above it."""
    printed = ""
    for cell in read_notebook().cells:
        if cell.cell_type == "code":
            printed += "".join(output.get("text", "") for output in cell.outputs)
        else:
            figures = re.findall(r"(?<![\d.])0\.\d{3}(?!\d)", cell.source)
            assert [figure for figure in figures if figure not in printed] == []
