"""The public names, and what their docstrings have entries for."""

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, cast

from sphinx.pycode import ModuleAnalyzer

import plateau_jax
import torch_bridge

PACKAGES = (plateau_jax, torch_bridge)

NAMES: dict[str, Any] = {
    f"{package.__name__}.{name}": getattr(package, name)
    for package in PACKAGES
    for name in package.__all__
    # `torch_bridge` hands on the curves of `plateau_jax`.
    if getattr(package, name).__module__.startswith(f"{package.__name__}.")
}


@dataclass(frozen=True)
class Member:
    """A public name, or a method or an attribute of one."""

    name: str
    docstring: str
    its_class: str = ""
    """The docstring of the class that it belongs to, which may describe it too."""
    function: Callable[..., Any] | None = None
    """What is called; None for an attribute."""
    annotation: str = ""

    @property
    def described(self) -> str:
        """The docstrings that may describe it."""
        return f"{self.docstring}\n\n{self.its_class}"


def _function(found: Any) -> Callable[..., Any] | None:
    found = getattr(found, "__func__", found)  # of a classmethod or a staticmethod
    return found if inspect.isfunction(found) else None


def _own(kind: type[Any]) -> Iterator[tuple[str, Any, str, str]]:
    """(name, what it is, docstring, annotation) of what a class defines itself."""
    written = ModuleAnalyzer.for_module(kind.__module__).find_attr_docs()
    annotations = inspect.get_annotations(kind)
    for name in dict.fromkeys([*annotations, *vars(kind)]):
        found = vars(kind).get(name)
        is_code = isinstance(found, property | cached_property) or _function(found) is not None
        docstring = inspect.getdoc(cast(object, found)) if is_code else None
        docstring = docstring or "\n".join(written.get((kind.__name__, name), ()))
        yield name, found, docstring, str(annotations.get(name, ""))


def _is_hidden(kind: type[Any]) -> bool:
    """Whether a class of ours is not public, so that its members are those of the public classes."""
    ours = kind.__module__.partition(".")[0] in {package.__name__ for package in PACKAGES}
    return ours and kind not in NAMES.values()


def members() -> Iterator[Member]:
    """All that pages show.

    A constructor has the name and the docstring of its class. What a Protocol, a NamedTuple or a TypedDict is
    made with are its members.
    """
    for name, found in NAMES.items():
        docstring = inspect.getdoc(found) or ""
        yield Member(name, docstring, function=_function(found))
        if not isinstance(found, type):
            continue
        shown = [found, *(base for base in found.__mro__ if _is_hidden(base))]
        for own, value, written, annotation in chain.from_iterable(map(_own, shown)):
            is_field = bool(annotation)
            if own == "__call__" or (not own.startswith("_") and (is_field or value is not None)):
                yield Member(f"{name}.{own}", written, docstring, _function(value), annotation)
            elif own == "__init__" and not {"_is_protocol", "_fields"} & vars(found).keys():
                yield Member(name, docstring, function=_function(value))


def parameters(member: Member) -> set[str]:
    """What a function or a constructor takes; none for anything else."""
    if member.function is None:
        return set()
    return set(inspect.signature(member.function).parameters) - {"self", "cls"}


def entries(docstring: str, *sections: str) -> set[str]:
    """What these sections of a docstring in Google's style describe: names of arguments, of errors."""
    bodies = re.findall(rf"^(?:{'|'.join(sections)}):\n((?:(?: .*)?\n)+)", docstring + "\n", re.MULTILINE)
    found = re.findall(r"^ {4}([\w*][\w*, ]*):", "\n".join(bodies), re.MULTILINE)
    return {name.strip("* ") for names in found for name in names.split(",")}
