"""The examples and the notebook: their pictures, what a resumed run prints, and wrong arguments."""

import re
import subprocess
import sys
from dataclasses import dataclass

import matplotlib.image
import nbformat
import numpy as np
import psutil
import pytest
from nbclient import NotebookClient
from support.docs.pages import ROOT
from support.programs import EXAMPLES, SMALL_RUNS, Program, assert_rejected, finish, run

pytestmark = pytest.mark.slow

PICTURES = ROOT / "docs" / "pictures"

WITH_PICTURE = [
    "first_run",
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


def draw_again(script, tmp_path):
    """Run a script that draws pictures of the pages, in an empty folder."""
    copy = tmp_path / script
    copy.write_bytes((PICTURES / script).read_bytes())
    run(copy, folder=tmp_path)


def pixels_of(drawn, committed):
    """Return the pixels of two pictures of the same size."""
    pixels = matplotlib.image.imread(drawn)
    expected = matplotlib.image.imread(committed)
    assert pixels.shape == expected.shape
    return pixels, expected


@pytest.mark.skipif(
    matplotlib.__version_info__ < (3, 11), reason="older versions place text differently"
)
@pytest.mark.parametrize("script", ["draw_curves.py", "draw_branch.py"])
def test_committed_pictures_are_drawn_again(script, tmp_path):
    """Text may shift by a pixel between versions of matplotlib; a different curve changes 3 %."""
    draw_again(script, tmp_path)
    drawn = list(tmp_path.glob("*.png"))
    assert drawn
    for picture in drawn:
        pixels, expected = pixels_of(picture, PICTURES / picture.name)
        differs = np.abs(pixels - expected).max(-1) > 0.25
        assert differs.mean() < 0.025, picture.name


@dataclass(frozen=True)
class WrongArguments:
    """A script ends with this message and this exit status."""

    script: str
    arguments: str
    message: str
    status: int = 2

    def check(self, folder):
        assert_rejected(folder, self.script, self.arguments.split(), self.status, self.message)


@dataclass(frozen=True)
class Resumed:
    """A small run that a Ctrl-C interrupts, and that is resumed."""

    script: str
    line_before: str = ""
    """How the line begins after which the Ctrl-C comes; by default, any line."""
    extra: str = ""
    """Additional arguments of the interrupted run."""
    later: str | None = None
    """The arguments of the resumed run; None for those of the small run."""
    wrong: tuple[WrongArguments, ...] = ()
    """With these arguments, the interrupted run does not resume."""


CPU = "--device cpu"
HINT = "--resume continues as planned"
OLD_CURVE = "the values differ from step 1 on; to train longer, give the phases"
FIXED_OPTIONS = "--resume: --batch-size, --width, --peak and --seed must not change"
FEWER_STEPS = WrongArguments(
    "train_gpt.py", f"{CPU} --resume --steps 5", f"; without --steps, {HINT}", status=1
)
LONGER_WARMUP = WrongArguments("train_flax.py", "--resume --warmup 6", OLD_CURVE)
HIGHER_PEAK = WrongArguments("train_flax.py", "--resume --peak 1", FIXED_OPTIONS)
RESUMED = [
    Resumed("train_gpt.py", extra="--every 30"),  # lines that lie between those compared
    Resumed("train_gpt.py", "update 30:", extra="--every 30", wrong=(FEWER_STEPS,)),
    Resumed("train_gpt.py", "update 40:", later=CPU),
    Resumed("train_lstm.py", "    30 ", extra="--every 30"),
    Resumed("train_lstm.py", "    50 ", later=CPU),
    Resumed("train_bloom.py", "    50 ", later=CPU),
    Resumed(
        "train_flax.py",
        "    20 ",
        extra="--stable 1000",
        later="--stable 75 --cooldown 20",
        wrong=(LONGER_WARMUP, HIGHER_PEAK),
    ),
]


def interrupt(program, line_before):
    """Send a Ctrl-C after the line that begins with `line_before`; return the updates made."""
    for line in program.lines():
        if line.startswith(line_before):
            program.interrupt()
            break
    message = finish(program, status=130)[-1]
    stopped = re.fullmatch(r"stopped after update (\d+); [\w.]+ resumes with --resume", message)
    assert stopped is not None, message
    return int(stopped[1])


def later_lines(lines, updates):
    """Return the lines that are not about the first `updates` updates."""
    later = []
    for line in lines:
        number = re.match(r"(?:update)? *(\d+)[: ]", line)
        if number is None or int(number[1]) > updates:
            later.append(line)
    assert later
    return later


def untimed_lines(lines):
    return [line for line in lines if not re.search(r"\d m?s[,:]", line)]


def inodes_of_caches(folder):
    return {path: path.stat().st_ino for path in folder.rglob("*.pkl")}


@pytest.mark.parametrize("case", RESUMED, ids=lambda case: f"{case.script} {case.line_before}")
def test_resumed_run_prints_the_remaining_lines(case, ran, tmp_path, jax_cache):
    """It also uses what the interrupted run has cached."""
    _, uninterrupted = ran(case.script)
    small_run = SMALL_RUNS[case.script].split()
    script = EXAMPLES / case.script
    arguments = [*small_run, *case.extra.split()]
    program = Program(script, *arguments, folder=tmp_path, environment=jax_cache)
    updates = interrupt(program, case.line_before)
    assert not list(tmp_path.rglob("*.partial"))
    caches = inodes_of_caches(tmp_path)
    for wrong in case.wrong:
        wrong.check(tmp_path)
    later = small_run if case.later is None else case.later.split()
    printed = run(script, *later, "--resume", folder=tmp_path, environment=jax_cache)
    first, *resumed = printed.splitlines()
    assert re.match(rf"resumed from [\w.]+ after update {updates}\b", first)
    assert untimed_lines(resumed) == later_lines(untimed_lines(uninterrupted), updates)
    assert inodes_of_caches(tmp_path) == caches


NO_CHECKPOINT = "--resume: there is no checkpoint"
WRONG = [
    WrongArguments("sweep.py", "--peak nan", "--peak nan"),
    WrongArguments("sweep.py", "--output sweep.xyz", "--output sweep.xyz"),
    WrongArguments("train_flax.py", "--resume", f"{NO_CHECKPOINT} in train_flax"),
    WrongArguments("train_flax.py", "--mesh 2 2 --width 7", "--width of 2, for --mesh 2 2"),
    WrongArguments(
        "batch_plan.py", f"{CPU} --plan 0:many", "argument --plan: invalid stage value: '0:many'"
    ),
    WrongArguments(
        "train_bloom.py",
        f"{CPU} --count 100",
        "80 samples give no batch of batch_size = 512",
        status=1,
    ),
    WrongArguments("train_gpt.py", "--device nowhere", "--device nowhere: "),
]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: f"{wrong.script} {wrong.arguments}")
def test_wrong_argument_is_named_in_one_line(wrong, tmp_path):
    wrong.check(tmp_path)


COSTS = dict(
    re.findall(
        r"`python examples/(\w+\.py)`\*\* \(([\d.]+) min\)",
        (EXAMPLES / "README.md").read_text(encoding="utf-8"),
    )
)
"""The minutes of each training program, as the gallery shows them."""


def test_gallery_shows_every_training_program():
    programs = {
        file.name
        for file in EXAMPLES.glob("*.py")
        if "import program" in file.read_text(encoding="utf-8")
    }
    assert programs == COSTS.keys()


@pytest.mark.parametrize("script", COSTS)
def test_missing_package_is_named_after_the_cost(script, tmp_path):
    missing = "raise ModuleNotFoundError(\"No module named 'numpy'\", name='numpy')"
    for name in ("numpy", "torch", "jax", "matplotlib"):
        (tmp_path / f"{name}.py").write_text(missing, encoding="utf-8")
    ended = subprocess.run(
        [sys.executable, EXAMPLES / script],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    assert ended.stdout == ""
    cost, message = ended.stderr.splitlines()
    assert re.search(rf"{COSTS[script]} min and [\d.]+ GB of memory on one CPU core", cost)
    assert message == f"{script}: needs numpy; pip install -e '.[examples]'"


NOTEBOOK = EXAMPLES / "choosing_a_curve.ipynb"


def read_notebook():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    return notebook


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def kinds_of_outputs(cell):
    """Return the name of each stream, and the formats of other outputs."""
    kinds = []
    for output in cell.outputs:
        if output.output_type == "stream":
            kinds.append(output.name)
        else:
            kinds.append(sorted(output.get("data", [output.output_type])))
    return kinds


def printed_by(cell):
    return "".join(output.get("text", "") for output in cell.outputs)


def printed_words(cell):
    """Return what a cell prints, without its figures."""
    return re.sub(r"[+-]?\d+\.?\d*", "", printed_by(cell)).split()


def run_strictly(notebook, folder):
    """Run a notebook in a fresh kernel, in which warnings are errors."""
    for cell in code_cells(notebook):
        cell.outputs = []
        cell.execution_count = None
    strict = nbformat.v4.new_code_cell("import warnings\n\nwarnings.simplefilter('error')")
    notebook.cells.insert(0, strict)
    place = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, timeout=600, coalesce_streams=True, resources=place).execute()
    notebook.cells.remove(strict)


def process_ids():
    return {process.pid for process in psutil.Process().children(recursive=True)}


@pytest.fixture
def fresh_jupyter(tmp_path, monkeypatch):
    """No settings of the user, and no screen."""
    for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("fresh_jupyter")
def test_committed_outputs_match_a_fresh_run(tmp_path):
    """It leaves no file and no process behind."""
    folder = tmp_path / "empty"
    folder.mkdir()
    before = process_ids()
    notebook = read_notebook()
    run_strictly(notebook, folder)
    assert process_ids() <= before
    assert list(folder.iterdir()) == []
    for cell, committed in zip(code_cells(notebook), code_cells(read_notebook()), strict=True):
        assert cell.execution_count
        assert kinds_of_outputs(cell) == kinds_of_outputs(committed)
        assert "stderr" not in kinds_of_outputs(cell)
        assert printed_words(cell) == printed_words(committed)


def test_committed_notebook_ran_once_in_order():
    """It is small, and has no path of the machine on which it ran."""
    text = NOTEBOOK.read_text(encoding="utf-8")
    for number, cell in enumerate(code_cells(read_notebook()), 1):
        assert cell.execution_count == number
        for output in cell.outputs:
            assert output.output_type != "error"
    assert len(text) < 400_000
    assert not re.search(r"""["' (](/[a-z]+/|[A-Z]:\\\\|file:)""", text)


def test_figures_in_text_match_printed_output():
    """Each figure with three decimals in the text appears in an output above it."""
    printed = ""
    for cell in read_notebook().cells:
        if cell.cell_type == "code":
            printed += printed_by(cell)
        else:
            figures = re.findall(r"(?<![\d.])0\.\d{3}(?!\d)", cell.source)
            for figure in figures:
                assert figure in printed
