"""The public names, and what their docstrings have entries for."""

import re
from collections.abc import Iterator
from typing import Any

import pdoc.doc

import plateau_jax
import torch_bridge

PACKAGES = (plateau_jax, torch_bridge)


def _read(package: str, name: str, found: Any) -> pdoc.doc.Class | pdoc.doc.Function:
    kind: Any = pdoc.doc.Class if isinstance(found, type) else pdoc.doc.Function
    return kind(package, name, found, (found.__module__, name))


NAMES = {
    f"{package.__name__}.{name}": _read(package.__name__, name, getattr(package, name))
    for package in PACKAGES
    for name in package.__all__
    # `torch_bridge` hands on the curves of `plateau_jax`.
    if getattr(package, name).__module__.startswith(f"{package.__name__}.")
}


def members() -> Iterator[tuple[str, pdoc.doc.Doc[Any], str]]:
    """(name, what is there, the docstrings that may describe it) of all that pages show.

    A constructor has the name and the docstring of its class. What a Protocol or a NamedTuple is made with
    are its members.
    """
    for name, found in NAMES.items():
        yield name, found, found.docstring
        own: Any = getattr(found, "own_members", ())
        for member in own:
            if member.name == "__call__" or not member.name.startswith("_"):
                yield f"{name}.{member.name}", member, f"{member.docstring}\n\n{found.docstring}"
            elif member.name == "__init__" and not {"_is_protocol", "_fields"} & vars(found.obj).keys():
                yield name, member, found.docstring


def parameters(member: pdoc.doc.Doc[Any]) -> set[str]:
    """What a function or a constructor takes; none for anything else."""
    return (
        set(member.signature.parameters) - {"self", "cls"} if isinstance(member, pdoc.doc.Function) else set()
    )


def entries(docstring: str, *sections: str) -> set[str]:
    """What these sections of a docstring in Google's style describe: names of arguments, of errors."""
    bodies = re.findall(rf"^(?:{'|'.join(sections)}):\n((?:(?: .*)?\n)+)", docstring + "\n", re.MULTILINE)
    found = re.findall(r"^ {4}([\w*][\w*, ]*):", "\n".join(bodies), re.MULTILINE)
    return {name.strip("* ") for names in found for name in names.split(",")}
