"""`python -m plateau_jax`, run in this process or another one."""

import sys

import pytest

from plateau_jax.tools.command_line.main import main

AT_A_TERMINAL = [
    sys.executable,
    "-c",
    """
import runpy, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module("plateau_jax", run_name="__main__", alter_sys=True)
""",
]
"""The command in a process that heeds Ctrl-C; a background process would ignore it."""


def output_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return what the command prints to standard output when it succeeds."""
    assert main(list(arguments)) == 0
    return capsys.readouterr().out


def error_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return what the command prints when it rejects its arguments."""
    with pytest.raises(SystemExit) as caught:
        main(list(arguments))
    assert caught.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    return printed.err
