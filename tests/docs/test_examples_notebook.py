"""The notebook runs, its assertions hold, and its committed outputs match those of a fresh run."""

import re

import nbformat
import psutil
import pytest
from nbclient import NotebookClient
from support.programs import EXAMPLES

pytestmark = pytest.mark.slow

NOTEBOOK = EXAMPLES / "choosing_a_curve.ipynb"
FIGURE = re.compile(r"[+-]?\d+\.?\d*")


def _read_notebook():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    return notebook


def _code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def _output_kinds(cell):
    """Return the name of each stream and the formats of each other output of a cell."""
    return [output.get("name") or sorted(output.get("data", [output.output_type])) for output in cell.outputs]


def _printed_words(cell):
    """Return the words of the printed text, without figures."""
    printed = "".join(output.text for output in cell.outputs if output.output_type == "stream")
    return FIGURE.sub("", printed).split()


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """The notebook after a run in a fresh kernel, in which warnings are errors."""
    folder, settings = tmp_path_factory.mktemp("notebook"), tmp_path_factory.mktemp("settings")
    notebook = _read_notebook()
    for cell in _code_cells(notebook):
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
    left = [process for process in psutil.Process().children(recursive=True) if process.pid not in before]
    return notebook, folder, left


def test_notebook_runs_and_leaves_nothing_behind(executed):
    notebook, folder, left = executed
    assert all(cell.execution_count for cell in _code_cells(notebook))
    assert list(folder.iterdir()) == []
    assert left == []


def test_committed_outputs_match_a_fresh_run(executed):
    notebook, *_ = executed
    for cell, committed in zip(_code_cells(notebook), _code_cells(_read_notebook()), strict=True):
        assert _output_kinds(cell) == _output_kinds(committed)
        assert _printed_words(cell) == _printed_words(committed)
        assert "stderr" not in _output_kinds(cell)


def test_committed_cells_ran_once_in_order_without_error():
    cells = _code_cells(_read_notebook())
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert {output.output_type for output in outputs} == {"display_data", "execute_result", "stream"}
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 4


def test_notebook_is_small_and_contains_no_local_paths():
    text = NOTEBOOK.read_text(encoding="utf-8")
    assert len(text) < 400_000
    assert not re.search(r"""["' (](/[a-z]+/|[A-Z]:\\\\|file:)""", text)
    assert _read_notebook().metadata.kernelspec.name == "python3"


def test_figures_in_text_match_printed_output():
    """Each figure with three decimals in the text appears in an output above it."""
    printed = ""
    figures = 0
    for cell in _read_notebook().cells:
        if cell.cell_type == "code":
            printed += "".join(output.get("text", "") for output in cell.outputs)
        else:
            for figure in re.findall(r"(?<![\d.])0\.\d{3}(?!\d)", cell.source):
                figures += 1
                assert figure in printed, figure
    assert figures > 5
