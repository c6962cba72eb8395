"""One error, which says what is wrong."""

from collections.abc import Callable
from typing import Any

import pytest


def refuses(kind: type[Exception], *parts: str, call: Callable[..., Any], **arguments: Any) -> None:
    """Check that a call raises this very error, with these parts in its message."""
    with pytest.raises(kind) as caught:
        call(**arguments)
    assert type(caught.value) is kind
    for part in parts:
        assert part in str(caught.value)
