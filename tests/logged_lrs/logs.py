"""The rows of a log."""

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray


def rows_of(**columns: Sequence[Any] | NDArray[Any]) -> list[dict[str, Any]]:
    """Return the rows of a log with these columns."""
    return [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
