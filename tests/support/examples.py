"""For several tests: the number of hypothesis examples, and often extreme integers."""

from collections.abc import Callable
from typing import Any

from hypothesis import settings, strategies as st


def examples(count: int, **options: Any) -> Callable[..., Any]:
    """Draw `count` examples; under the fast profile (25 instead of 100) a quarter of them."""
    return settings(max_examples=max(1, count * settings().max_examples // 100), **options)


def corners(lowest: int, highest: int) -> st.SearchStrategy[int]:
    """Draw an integer; in about half of all cases it is one of the two ends."""
    return st.sampled_from((lowest, highest)) | st.integers(lowest, highest)
