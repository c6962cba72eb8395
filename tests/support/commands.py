"""`python -m plateau_jax`, run in this process."""

import pytest

from plateau_jax.__main__ import main


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
