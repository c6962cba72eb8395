"""The notebook runs, its assertions hold, and its committed outputs match those of a fresh run."""

import re

import nbformat
import psutil
import pytest
from nbclient import NotebookClient
from support.programs import EXAMPLES

pytestmark = pytest.mark.slow

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
        output.get("name") or sorted(output.get("data", [output.output_type])) for output in cell.outputs
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
