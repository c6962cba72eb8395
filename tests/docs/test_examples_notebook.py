"""The notebook runs, its own assertions hold, and the committed outputs are those that it gives."""

import re

import nbformat
import psutil
import pytest
from nbclient import NotebookClient
from support.programs import EXAMPLES

pytestmark = pytest.mark.slow

NOTEBOOK = EXAMPLES / "choosing_a_curve.ipynb"
FIGURE = re.compile(r"[+-]?\d+\.?\d*")


def _read():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    return notebook


def _code(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def _kinds(cell):
    """The kinds of a cell's outputs: the names of streams, the formats of the rest."""
    return [output.get("name") or sorted(output.get("data", [output.output_type])) for output in cell.outputs]


def _words(cell):
    """The printed text, without figures and spaces."""
    printed = "".join(output.text for output in cell.outputs if output.output_type == "stream")
    return FIGURE.sub("", printed).split()


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """The notebook after a run in a fresh kernel, in which warnings are errors."""
    folder, settings = tmp_path_factory.mktemp("notebook"), tmp_path_factory.mktemp("settings")
    notebook = _read()
    for cell in _code(notebook):
        cell.outputs, cell.execution_count = [], None
    strict = nbformat.v4.new_code_cell("import warnings\n\nwarnings.simplefilter('error')")
    notebook.cells.insert(0, strict)
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    with pytest.MonkeyPatch.context() as environment:
        for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
            environment.setenv(name, str(settings / name))
        for name in ("DISPLAY", "WAYLAND_DISPLAY"):
            environment.delenv(name, raising=False)
        place = {"metadata": {"path": str(folder)}}
        NotebookClient(notebook, timeout=600, coalesce_streams=True, resources=place).execute()
    notebook.cells.remove(strict)
    left = [one for one in psutil.Process().children(recursive=True) if one.pid not in before]
    return notebook, folder, left


def test_it_runs_and_leaves_nothing_behind(executed):
    notebook, folder, left = executed
    assert all(cell.execution_count for cell in _code(notebook))
    assert list(folder.iterdir()) == []
    assert left == []


def test_what_is_committed_is_what_it_shows(executed):
    notebook, *_ = executed
    for cell, committed in zip(_code(notebook), _code(_read()), strict=True):
        assert _kinds(cell) == _kinds(committed)
        assert _words(cell) == _words(committed)
        assert "stderr" not in _kinds(cell)


def test_every_cell_was_run_once_in_order_and_none_failed():
    cells = _code(_read())
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert {output.output_type for output in outputs} == {"display_data", "execute_result", "stream"}
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 4


def test_it_is_small_and_knows_no_machine():
    text = NOTEBOOK.read_text(encoding="utf-8")
    assert len(text) < 400_000
    assert not re.search(r"""["' (](/[a-z]+/|[A-Z]:\\\\|file:)""", text)
    assert _read().metadata.kernelspec.name == "python3"


def test_the_text_says_what_was_printed():
    """Each figure of three decimals in the text stands in an output above it."""
    printed = ""
    found = 0
    for cell in _read().cells:
        if cell.cell_type == "code":
            printed += "".join(output.get("text", "") for output in cell.outputs)
        else:
            for figure in re.findall(r"(?<![\d.])0\.\d{3}(?!\d)", cell.source):
                found += 1
                assert figure in printed, figure
    assert found > 5
