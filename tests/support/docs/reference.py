"""Public names, their members and parameters, and the entries of their docstrings."""

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
    # `torch_bridge` re-exports the curves of `plateau_jax`, and `follow` is another name of `Follower`.
    if getattr(package, name).__module__.startswith(f"{package.__name__}.")
    if getattr(package, name).__name__ == name
}


@dataclass(frozen=True)
class Member:
    """A public name, or one of its methods or attributes."""

    name: str
    docstring: str
    class_docstring: str = ""
    """The docstring of its class, which may describe the member too; "" if it has none."""
    function: Callable[..., Any] | None = None
    """The function to call; None for an attribute."""
    annotation: str = ""

    @property
    def described(self) -> str:
        """All docstrings that may describe the member."""
        return f"{self.docstring}\n\n{self.class_docstring}"


def _unwrap_function(value: Any) -> Callable[..., Any] | None:
    value = getattr(value, "__func__", value)  # of a classmethod or a staticmethod
    return value if inspect.isfunction(value) else None


def _class_attributes(class_: type[Any]) -> Iterator[tuple[str, Any, str, str]]:
    """Yield (name, value, docstring, annotation) of each attribute that a class itself defines."""
    attribute_docs = ModuleAnalyzer.for_module(class_.__module__).find_attr_docs()
    annotations = inspect.get_annotations(class_)
    for name in dict.fromkeys([*annotations, *vars(class_)]):
        value = vars(class_).get(name)
        is_code = isinstance(value, property | cached_property) or _unwrap_function(value) is not None
        docstring = inspect.getdoc(cast(object, value)) if is_code else None
        docstring = docstring or "\n".join(attribute_docs.get((class_.__name__, name), ()))
        yield name, value, docstring, str(annotations.get(name, ""))


def _is_private_base(class_: type[Any]) -> bool:
    """Return True for a private class of this project: its members belong to the public subclasses."""
    in_packages = class_.__module__.partition(".")[0] in {package.__name__ for package in PACKAGES}
    return in_packages and class_ not in NAMES.values()


def members() -> Iterator[Member]:
    """Yield every public name and member that the reference pages show.

    A constructor has the name and the docstring of its class. The arguments of a Protocol, a NamedTuple or a
    TypedDict are its members.
    """
    for name, public in NAMES.items():
        docstring = inspect.getdoc(public) or ""
        yield Member(name, docstring, function=_unwrap_function(public))
        if not isinstance(public, type):
            continue
        classes = [public, *(base for base in public.__mro__ if _is_private_base(base))]
        attributes = chain.from_iterable(map(_class_attributes, classes))
        for attribute, value, attribute_docstring, annotation in attributes:
            is_public = not attribute.startswith("_") and (annotation or value is not None)
            if attribute == "__call__" or is_public:
                function = _unwrap_function(value)
                yield Member(f"{name}.{attribute}", attribute_docstring, docstring, function, annotation)
            elif attribute == "__init__" and not {"_is_protocol", "_fields"} & vars(public).keys():
                yield Member(name, docstring, function=_unwrap_function(value))


def parameters(member: Member) -> set[str]:
    """Return the parameters of a function or a constructor; none for anything else."""
    if member.function is None:
        return set()
    return set(inspect.signature(member.function).parameters) - {"self", "cls"}


def documented_names(docstring: str, *sections: str) -> set[str]:
    """Return the names (arguments, errors) that these sections of a Google-style docstring describe."""
    bodies = re.findall(rf"^(?:{'|'.join(sections)}):\n((?:(?: .*)?\n)+)", docstring + "\n", re.MULTILINE)
    matches = re.findall(r"^ {4}([\w*][\w*, ]*):", "\n".join(bodies), re.MULTILINE)
    return {name.strip("* ") for names in matches for name in names.split(",")}
