"""How many random examples a test draws, where the profile's own number does not suit it."""

from collections.abc import Callable
from typing import Any

from hypothesis import settings


def examples(count: int, **options: Any) -> Callable[..., Any]:
    """`count` of them, or the same share of them as the fast profile draws of the full 100."""
    return settings(max_examples=max(1, count * settings().max_examples // 100), **options)
