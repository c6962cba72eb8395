"""A curve as lines to copy: Python for optax and for PyTorch, and JSON."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from itertools import count
from typing import Any, cast

from plateau_jax.curves.curve import Curve
from plateau_jax.curves.derived_curves import Cooldown, Then
from plateau_jax.curves.staged_curve import Stage

_WIDTH = 88


def for_optax(curve: Curve, peak: float) -> str:
    use = f"tx = optax.adamw(optax_schedule(curve, peak_value={peak!r}))"
    return _program("optax", "plateau_jax", "optax_schedule", curve, use)


def for_torch(curve: Curve, peak: float) -> str:
    use = (
        f"optimizer = torch.optim.AdamW(model.parameters(), lr={peak!r})  # the peak",
        "scheduler = lambda_lr(optimizer, curve)  # scheduler.step() after each optimizer.step()",
    )
    return _program("torch", "torch_bridge", "lambda_lr", curve, *use)


def _program(framework: str, package: str, function: str, curve: Curve, *use: str) -> str:
    """Lines that import what they need, make the curve, and use it."""
    names = sorted({function, *_kinds(curve)})
    imports = f"import {framework}", f"from {package} import {', '.join(names)}"
    return "\n".join([*imports, "", *_statements(curve), *use, ""])


def as_json(value: Any, indent: str = "") -> str:
    """JSON with a line for each key, and lists in one line."""
    if not isinstance(value, Mapping):
        return json.dumps(value)
    inner = indent + "  "
    found = cast("Mapping[str, Any]", value)
    lines = [f"{inner}{json.dumps(key)}: {as_json(item, inner)}" for key, item in found.items()]
    return "{\n" + ",\n".join(lines) + f"\n{indent}}}"


def _kinds(curve: Curve) -> set[str]:
    """The classes that the statements name."""
    match curve:
        case Cooldown():
            return _kinds(curve.curve)
        case Then():
            return _kinds(curve.curve) | _kinds(curve.other)
        case _:
            return {type(curve).__name__}


def _statements(curve: Curve) -> Iterator[str]:
    return _assigned("curve", curve, (f"curve_{number}" for number in count(2)))


def _assigned(name: str, curve: Curve, names: Iterator[str]) -> Iterator[str]:
    """Statements after which the variable is the curve; `names` are for other curves that it needs."""
    match curve:
        case Cooldown():
            yield from _assigned(name, curve.curve, names)
            yield _call(f"{name} = {name}.cooldown", _arguments(curve))
        case Then():
            other = next(names)
            yield from _assigned(name, curve.curve, names)
            yield from _assigned(other, curve.other, names)
            yield _call(f"{name} = {name}.then", [other, *_arguments(curve)])
        case _:
            yield _call(f"{name} = {type(curve).__name__}", _arguments(curve))


def _arguments(curve: Any) -> list[str]:
    """The arguments that are no curves, without those that have their default."""
    found: list[str] = []
    for field in fields(curve):
        value = getattr(curve, field.name)
        if isinstance(value, Curve) or (field.default is not MISSING and value == field.default):
            continue
        prefix = f"{field.name}=" if field.kw_only else ""
        found.append(prefix + _literal(value, _WIDTH - len(prefix)))
    return found


def _literal(value: Any, width: int) -> str:
    match value:
        case Stage():
            items = list(value)
            while len(items) > 1 and items[-1] == Stage(0)[len(items) - 1]:
                items.pop()
            return f"({_literal(items[0], width)},)" if len(items) == 1 else _literal(tuple(items), width)
        case tuple():
            items = [_literal(item, width) for item in cast("tuple[Any, ...]", value)]
            if not items or not items[0].startswith("("):  # a pair
                return f"({', '.join(items)})"
            line = f"[{', '.join(items)}]"
            inner = "".join(f"        {item},\n" for item in items)
            return line if len(line) <= width - 10 else f"[\n{inner}    ]"
        case int():
            return f"{value:_}"
        case str():
            return json.dumps(value)
        case _:
            return repr(value)


def _call(function: str, arguments: list[str]) -> str:
    line = f"{function}({', '.join(arguments)})"
    if len(line) <= _WIDTH and "\n" not in line:
        return line
    inner = "".join(f"    {argument},\n" for argument in arguments)
    return f"{function}(\n{inner})"
