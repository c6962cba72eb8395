"""Check errors and their messages."""

from collections.abc import Callable
from typing import Any

import pytest

from plateau_jax.__main__ import main


def rejects(kind: type[Exception], *parts: str, call: Callable[..., Any], **arguments: Any) -> None:
    """Check that a call raises this very error, with these parts in its message."""
    with pytest.raises(kind) as caught:
        call(**arguments)
    assert type(caught.value) is kind
    for part in parts:
        assert part in str(caught.value)


def rejected(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> str:
    """Return what `python -m plateau_jax` prints when it rejects its arguments."""
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    return printed.err
