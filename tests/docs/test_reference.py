"""Docstrings of public names are complete: examples, members, parameters, shapes and dtypes."""

import doctest
import inspect
import re
from typing import get_overloads, get_type_hints

import pytest
from support.docs.reference import NAMES, documented_names, members, parameters

pytestmark = pytest.mark.slow


def test_public_names_have_runnable_examples() -> None:
    finder = doctest.DocTestFinder(recurse=False)
    missing = [
        name for name, value in NAMES.items() if not any(test.examples for test in finder.find(value, name))
    ]
    assert not missing, "\n".join(missing)


def test_every_member_is_described() -> None:
    missing = [
        member.name
        for member in members()
        # Python generates a docstring for each field of a NamedTuple.
        if not member.docstring.removeprefix("Alias for field number").strip(" 0123456789")
        and member.name.rpartition(".")[2] not in documented_names(member.described, "Args", "Attributes")
    ]
    assert not missing, "\n".join(missing)


def test_every_parameter_is_described() -> None:
    missing = [
        f"{member.name}({parameter})"
        for member in members()
        for parameter in parameters(member)
        if parameter not in documented_names(member.described, "Args", "Attributes")
    ]
    assert not missing, "\n".join(missing)


def test_array_descriptions_give_shape_and_dtype() -> None:
    """Looks in the docstring for arguments and attributes, and in `Returns`, if present, for results."""
    words = r"\b(shapes?|scalars?|dimensions)\b", r"\b(u?int\d+|float\d+|floating-point|dtypes?)\b"
    missing: list[str] = []
    for member in members():
        argument_types, result_types = member.annotation, ""
        if member.function is not None:
            signatures = map(inspect.signature, [member.function, *get_overloads(member.function)])
            argument_types, result_types = zip(
                *(str(signature).rpartition("->")[::2] for signature in signatures), strict=True
            )
        returns = re.search(r"^Returns:\n((?:(?: .*)?\n)+)", member.described, re.MULTILINE)
        checks = (
            (argument_types, member.described),
            (result_types, returns[1] if returns else member.described),
        )
        for types, text in checks:
            is_array = re.search(r"\b(Tensor|Array|ndarray)\b", str(types))
            if is_array and not all(re.search(word, text) for word in words):
                missing.append(member.name)
    assert not missing, "\n".join(missing)


def test_type_hints_resolve_at_run_time() -> None:
    """Tools such as jsonargparse and tyro build objects from them."""
    for described in (*NAMES.values(), *filter(None, (member.function for member in members()))):
        get_type_hints(described)
