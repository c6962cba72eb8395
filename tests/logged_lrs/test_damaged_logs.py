"""Logs that are still being written, or damaged: what is read are rows of the log, or nothing."""

import json
import math
import warnings
from dataclasses import dataclass
from typing import Any

from hypothesis import given, strategies as st
from support.examples import examples

from plateau_jax.tools.logged_lrs.log_table import read_lrs

INTERVAL = 10


def rows_of_run(count, peak):
    """Return (step, learning rate) of each row of a run; no two runs have a learning rate alike."""
    return [((index + 1) * INTERVAL, round(peak - 1e-6 * index, 8)) for index in range(count)]


RUN = rows_of_run(40, 1.2345e-3)
SECOND_RUN = rows_of_run(60, 5.4321e-4)
"""Another run, whose rows may stand in the same file."""


def csv_line(row):
    step, lr = row
    return f'{step},"a, b",{lr}'


def json_line(row):
    step, lr = row
    return json.dumps({"step": step, "loss": 3.0, "lr": lr})


def console_line(row):
    step, lr = row
    return f"step {step}/400 | loss 3.0 | lr {lr:.8f} | 3.2 it/s"


@dataclass(frozen=True)
class Format:
    """How a log is written: a header, and a line per row."""

    header: str
    line: Any

    def lines(self, rows):
        return [self.header + "\n", *(self.line(row) + "\n" for row in rows)]


FORMATS = [
    Format("step,note,lr", csv_line),
    Format('{"seed": 0}', json_line),
    Format("start", console_line),
]


def rows_to_keep(rows):
    """Return the rows after which no row has the same step or a lower one."""
    kept = []
    for index, (step, lr) in enumerate(rows):
        later = [later_step for later_step, _ in rows[index + 1 :]]
        if step < min(later, default=math.inf):
            kept.append((step, lr))
    return kept


def read(path, content):
    """Return the rows of a log; None after an error."""
    path.write_bytes(content)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            cells = read_lrs(path, None, None)
        except ValueError:
            return None
    for warning in caught:
        assert str(warning.message).startswith(str(path))
    return [(cell.step, cell.value) for cell in cells]


@st.composite
def logs_of_several_writers(draw):
    """Return the rows of a log in their order, as writers that resume or run twice leave them."""
    rows = RUN[: draw(st.integers(8, 40))]
    first = draw(st.integers(0, len(rows) - 1))
    resumed = draw(st.sampled_from([RUN, SECOND_RUN]))[first : draw(st.integers(1, 60))]
    late = list(rows)
    late.insert(draw(st.integers(0, len(rows) - 1)), late.pop(draw(st.integers(0, len(rows) - 1))))
    return draw(st.sampled_from([rows, rows + resumed, late]))


@examples(200)
@given(st.sampled_from(FORMATS), logs_of_several_writers(), st.booleans(), st.data())
def test_rows_that_no_later_row_replaces_count(tmp_path_factory, log_format, rows, repeats, data):
    """The header may stand in the middle, too, and the file may be cut at any byte."""
    lines = log_format.lines(rows)
    if repeats:
        lines.insert(data.draw(st.integers(1, len(lines))), lines[0])
    content = "".join(lines).encode()
    content = content[: data.draw(st.integers(0, len(content)))]
    # A JSON object has an end; any other line needs the line feed.
    num_lines = content.count(b"\n") + content.endswith(b"}")
    complete = [line for line in lines[:num_lines] if line != lines[0]]
    rows_in_file = rows[: len(complete)]
    kept = rows_to_keep(rows_in_file)
    read_rows = read(tmp_path_factory.getbasetemp() / "log", content)
    num_replaced = sum(dict(kept).get(step) != lr for step, lr in rows_in_file)
    if not rows_in_file or 2 * num_replaced >= len(rows_in_file):
        assert read_rows is None
    else:
        assert read_rows == kept


@examples(100)
@given(st.sampled_from(FORMATS), st.integers(1, 39), st.integers(1, 39), st.integers(0, 80))
def test_a_torn_line_adds_no_learning_rate(tmp_path_factory, log_format, torn, resumed_at, kept):
    """A writer was stopped within a line; the resumed run continues on this line."""
    lines = log_format.lines(RUN)
    torn_line = lines[torn][: min(kept, len(lines[torn]) - 1)]
    content = "".join([*lines[:torn], torn_line, *lines[min(torn, resumed_at) :]]).encode()
    read_rows = read(tmp_path_factory.getbasetemp() / "log", content)
    assert {lr for _, lr in read_rows} <= {lr for _, lr in RUN}
    assert len(read_rows) > 30
