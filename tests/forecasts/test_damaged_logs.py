"""Logs that are still written, or damaged: a run has rows of the log, or a message says why not."""

import json
import math
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import given, strategies as st
from support.examples import examples

from plateau_jax import CurveWarning, LossRun

# Rows that later rows replace.


def rows_to_keep(rows, steps):
    """Return the rows after which no row has the same step or a lower one."""
    kept = []
    for index, row in enumerate(rows):
        if steps[index] < min(steps[index + 1 :], default=math.inf):
            kept.append(row)
    return kept


# How a log is written.

Row = tuple[int, float, float]
"""A step, its loss and its learning rate."""

INTERVAL = 10


def rows_of_run(count, level=3.0):
    """Return the rows of a run."""
    rows = []
    for index in range(count):
        loss = level + 1.2345 / (index + 2)
        lr = 1.2345e-3 * (1 - index / (2 * count))
        rows.append(((index + 1) * INTERVAL, round(loss, 6), round(lr, 8)))
    return rows


SECOND_RUN = rows_of_run(60, 2.5)
"""The rows of another run that may stand in the same file."""


def csv_line(row):
    return ",".join(map(str, row))


def quoted_line(row):
    return ",".join(f'"{cell}"' for cell in row)


def json_line(row):
    step, loss, lr = row
    return json.dumps({"step": step, "loss": loss, "lr": lr})


@dataclass(frozen=True)
class Format:
    """How a log is written: a header, a line per row, and what becomes of the text."""

    header: str
    line: Callable[[Row], str]
    end: str = "\n"
    encoding: str = "utf-8"

    def lines(self, rows):
        """Return the lines of a whole log, with their ends."""
        lines = []
        if self.header:
            lines.append(self.header + self.end)
        lines.extend(self.line(row) + self.end for row in rows)
        return lines

    def content(self, lines):
        return "".join(lines).encode(self.encoding)

    def text(self, content):
        """Return the text of a content, which may be cut off."""
        return content.decode(self.encoding, "ignore")

    def rows(self, text):
        """Return the rows of a text that may be damaged; None for a line that is not a row.

        A last line without its end is left out, except an object of JSON, which has its brace.
        """
        lines = text.splitlines(keepends=True)
        if self.header:
            del lines[:1]
        return [
            self.row(line.strip())
            for line in lines
            if line.strip() and line.endswith(("\r", "\n", "}"))
        ]

    def row(self, line):
        numbers = re.findall(r"\d[\d.e-]*", line)
        if len(numbers) != 3:
            return None
        step, loss, lr = map(float, numbers)
        row = int(step), loss, lr
        if self.line(row) != line:
            return None
        return row


FORMATS = {
    "CSV": Format("step,loss,lr", csv_line),
    "CSV from Windows": Format("step,loss,lr", csv_line, "\r\n", "utf-8-sig"),
    "quoted CSV": Format('"step","loss","lr"', quoted_line),
    "UTF-16": Format("step,loss,lr", csv_line, encoding="utf-16"),
    "JSON lines": Format("", json_line),
    "JSON lines in UTF-16": Format("", json_line, encoding="utf-16"),
}


# Reading.


def read_content(file, content):
    """Return the run of a log, None after an error, and the messages of errors and warnings."""
    file.write_bytes(content)
    run = None
    messages = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            run = LossRun.read(file)
        except ValueError as exception:
            messages.append(str(exception))
    assert {warning.category for warning in caught} <= {CurveWarning}
    messages += [str(warning.message) for warning in caught]
    for message in messages:
        assert message.startswith(str(file))
    return run, messages


def rows_in(run):
    """Return the steps, losses and learning rates of a run, rounded as in the log."""
    rows = []
    for step, loss in zip(run.steps.tolist(), run.losses.tolist(), strict=True):
        lr = run.peak_value * float(run.curve(step))
        rows.append((step, loss, round(lr, 8)))
    return rows


# Damage, as writers that stop, resume or run twice leave it.


def no_damage(draw, log_format, rows):
    """A writer that is not done."""
    return log_format.lines(rows)


def lines_twice(draw, log_format, rows):
    """A writer that flushes twice."""
    lines = log_format.lines(rows)
    first = draw(st.integers(1, len(lines) - 1))
    last = draw(st.integers(first, len(lines) - 1))
    return lines[: last + 1] + lines[first:]


def second_run(draw, log_format, rows):
    """A run that was started again, or resumed, with the same file; perhaps with a header."""
    first = draw(st.integers(0, len(rows)))
    last = draw(st.integers(first, len(SECOND_RUN) - 1))
    later_lines = log_format.lines(SECOND_RUN[first : last + 1])
    if log_format.header and draw(st.booleans()):
        del later_lines[0]
    return log_format.lines(rows) + later_lines


def mixed_runs(draw, log_format, rows):
    """Two processes that write one file."""
    mixed = []
    for row, other in zip(rows, SECOND_RUN, strict=False):
        mixed += draw(st.permutations([row, other]))
    return log_format.lines(mixed)


def torn_line(draw, log_format, rows):
    """A writer that was stopped within a line; the resumed run continues on this line."""
    lines = log_format.lines(rows)
    index = draw(st.integers(1, len(lines) - 1))
    kept = draw(st.integers(0, len(lines[index]) - 1))
    lines[index] = lines[index][:kept]
    resumed_at = draw(st.integers(1, index))
    return lines[: index + 1] + lines[resumed_at:]


def jump_of_the_counter(draw, log_format, rows):
    """A counter that starts again, or elsewhere, when the run resumes."""
    index = draw(st.integers(2, len(rows) - 2))
    jump = INTERVAL * draw(st.integers(-index, -1) | st.integers(20, 100_000))
    jumped = [(step + jump, loss, lr) for step, loss, lr in rows[index:]]
    return log_format.lines(rows[:index] + jumped)


def late_row(draw, log_format, rows):
    """A row that is written too late, or too early."""
    lines = log_format.lines(rows)
    line = lines.pop(draw(st.integers(1, len(lines) - 1)))
    lines.insert(draw(st.integers(1, len(lines))), line)
    return lines


KINDS = [no_damage, lines_twice, second_run, mixed_runs, torn_line, jump_of_the_counter, late_row]


@st.composite
def damaged_logs(draw):
    """Return the format of a damaged file, and its content, perhaps cut at a byte."""
    rows = rows_of_run(draw(st.integers(8, 40)))
    log_format = draw(st.sampled_from(list(FORMATS.values())))
    lines = draw(st.sampled_from(KINDS))(draw, log_format, rows)
    content = log_format.content(lines)
    if draw(st.booleans()):
        content = content[: draw(st.integers(0, len(content)))]
    return log_format, content


@examples(200)
@given(damaged_logs())
def test_damage_gives_rows_of_the_log_or_a_message(tmp_path_factory, log):
    """A run has the rows that no later row replaces, and warns unless these are all rows."""
    log_format, content = log
    run, messages = read_content(tmp_path_factory.getbasetemp() / "log", content)
    rows = log_format.rows(log_format.text(content))
    if None in rows:
        assert run is None
        return
    kept = rows_to_keep(rows, [step for step, _, _ in rows])
    # A row that is written twice counts once.
    steps_of_all = [INTERVAL * (index + 1) for index in range(len(set(rows)))]
    if len(kept) > 1 and [step for step, _, _ in kept] == steps_of_all:
        assert run is not None
    elif len(kept) < 2 or len(kept) < len(set(rows)):
        assert messages
    if run is not None:
        assert rows_in(run) == kept
