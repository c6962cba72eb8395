"""What the docstrings of public names must have."""

import doctest
import inspect
import re
from typing import get_overloads

import pytest
from support.docs.reference import NAMES, entries, members, parameters

pytestmark = pytest.mark.slow


def test_every_public_name_has_an_example_that_runs() -> None:
    finder = doctest.DocTestFinder(recurse=False)
    missing = [n for n, found in NAMES.items() if not any(t.examples for t in finder.find(found, n))]
    assert not missing, "\n".join(missing)


def test_every_member_says_what_it_is() -> None:
    missing = [
        member.name
        for member in members()
        # Python writes a docstring for each field of a NamedTuple.
        if not member.docstring.removeprefix("Alias for field number").strip(" 0123456789")
        and member.name.rpartition(".")[2] not in entries(member.described, "Args", "Attributes")
    ]
    assert not missing, "\n".join(missing)


def test_every_parameter_is_described() -> None:
    missing = [
        f"{member.name}({parameter})"
        for member in members()
        for parameter in parameters(member)
        if parameter not in entries(member.described, "Args", "Attributes")
    ]
    assert not missing, "\n".join(missing)


def test_arrays_have_a_shape_and_a_dtype() -> None:
    """In the docstring for arguments and attributes; in `Returns`, if there is one, for results."""
    words = r"\b(shapes?|scalars?|dimensions)\b", r"\b(u?int\d+|float\d+|floating-point|dtypes?)\b"
    missing: list[str] = []
    for member in members():
        taken, given = member.annotation, ""
        if member.function is not None:
            forms = map(inspect.signature, [member.function, *get_overloads(member.function)])
            taken, given = zip(*(str(form).rpartition("->")[::2] for form in forms), strict=True)
        returns = re.search(r"^Returns:\n((?:(?: .*)?\n)+)", member.described, re.MULTILINE)
        texts = (taken, member.described), (given, returns[1] if returns else member.described)
        for types, text in texts:
            is_array = re.search(r"\b(Tensor|Array|ndarray)\b", str(types))
            if is_array and not all(re.search(word, text) for word in words):
                missing.append(member.name)
    assert not missing, "\n".join(missing)
