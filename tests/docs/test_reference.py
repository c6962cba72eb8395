"""Public names have examples that run, and type hints that resolve."""

import doctest
import inspect
from typing import get_type_hints

import pytest
from support.docs.reference import NAMES

pytestmark = pytest.mark.slow


def test_public_names_have_runnable_examples() -> None:
    finder = doctest.DocTestFinder(recurse=False)
    missing = [
        name for name, value in NAMES.items() if not any(test.examples for test in finder.find(value, name))
    ]
    assert not missing, "\n".join(missing)


def test_type_hints_resolve_at_run_time() -> None:
    """Tools such as jsonargparse and tyro build objects from them."""
    for value in NAMES.values():
        get_type_hints(value)
        for member in vars(value).values() if isinstance(value, type) else ():
            if inspect.isfunction(member := getattr(member, "__func__", member)):
                get_type_hints(member)
