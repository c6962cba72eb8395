"""What prepared data was made from, as a digest: the source's bytes, the settings, the text of the code."""

import ast
import hashlib
import inspect
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, cast

_FORMAT = "1"  # of the files that are written: with another one, other digests


def combine(source: str, settings: str, code: str) -> str:
    return hashlib.sha256(json.dumps([_FORMAT, source, settings, code]).encode()).hexdigest()


def of_source(path: Path) -> str:
    """The digest of a file's bytes, or of a folder's: its files and folders in the order of their names.

    The names themselves, dates and permissions don't count.
    """
    if path.is_file():
        with path.open("rb") as file:
            return "file " + hashlib.file_digest(file, "sha256").hexdigest()
    if path.is_dir():
        parts = [of_source(part) for part in sorted(path.iterdir(), key=lambda part: part.name)]
        return "folder " + hashlib.sha256("\n".join(parts).encode()).hexdigest()
    if not path.exists():
        raise FileNotFoundError(f"source: there is no {path}")
    raise ValueError(f"source: {path} is neither a file nor a folder")


def of_settings(settings: Mapping[str, Any]) -> str:
    """The settings as JSON, sorted by name: 1, 1.0 and True are three values."""
    for name, value in settings.items():
        try:
            # Compared as they print, since 1 == 1.0 == True, and [1] is what a tuple comes back as.
            plain = repr(json.loads(json.dumps(value, allow_nan=False))) == repr(value)
        except (TypeError, ValueError, RecursionError):
            plain = False
        if not plain:
            raise TypeError(
                f"{name} = {value!r} must be a plain JSON value: None, a bool, an int, a finite float, "
                "a str, or a list or a dict (with str keys) of these"
            )
    return json.dumps(sorted(settings.items()))


def of_code(build: Callable[..., Any]) -> str:
    """The source text of a function, and of every function that it closes over, as a decorator's does."""
    if not isinstance(build, FunctionType):
        raise TypeError(
            f"build = {build!r} must be a function: the source text of a partial, a method or a callable "
            "object does not say what it holds; give that as settings"
        )
    texts: dict[int, Any] = {}
    waiting = [build]
    while waiting:
        function = waiting.pop()
        if id(function) not in texts:
            texts[id(function)] = _text(function), _compiled(function.__code__), _defaults(function)
            waiting += [value for value in _closed_over(function) if isinstance(value, FunctionType)]
    return json.dumps(list(texts.values()))


def _closed_over(function: FunctionType) -> list[object]:
    values: list[object] = []
    for cell in function.__closure__ or ():
        try:
            values.append(cell.cell_contents)
        except ValueError:  # a name that has no value yet
            continue
    return values


def _text(function: FunctionType) -> str:
    code = function.__code__  # not the function: inspect would go through to what it wraps
    try:
        if code.co_filename == "<string>":  # by exec; Python 3.13 has the text of `python -c` under this name
            raise OSError
        return _lambda_text(code) if code.co_name == "<lambda>" else inspect.getsource(code)
    except (OSError, SyntaxError, ValueError):
        raise TypeError(
            f"build: {function.__qualname__} has no source text of its own; define it with def, in a file"
        ) from None


def _compiled(code: CodeType) -> list[Any]:
    """What the text was when it was imported: the file may be another one by now."""
    constants = [
        _compiled(value) if isinstance(value, CodeType) else _constant(value) for value in code.co_consts
    ]
    return [code.co_code.hex(), code.co_names, constants]


def _defaults(function: FunctionType) -> list[str]:
    """Those that print as what they are."""
    values = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    return [repr(value) for value in values if isinstance(value, bool | int | float | str | bytes | None)]


def _constant(value: object) -> str:
    if isinstance(value, frozenset):  # its order is another one in each process
        value = sorted(map(repr, cast("frozenset[object]", value)))
    return repr(value)


def _lambda_text(code: CodeType) -> str:
    """The text of the one lambda that begins on the code's first line; inspect would give the line."""
    text = "".join(inspect.findsource(code)[0])
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Lambda)]
    (node,) = (node for node in nodes if node.lineno == code.co_firstlineno)
    return str(ast.get_source_segment(text, node))
