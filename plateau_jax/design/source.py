"""A curve as text to copy: Python code for optax and for PyTorch, and JSON."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from itertools import count
from typing import Any, cast

from plateau_jax.curves.curve import Curve
from plateau_jax.curves.derived_curves import Cooldown, Part, Then
from plateau_jax.curves.scaled_curve import ScaledCurve
from plateau_jax.curves.staged_curve import Stage

_WIDTH = 88


def optax_code(curve: Curve, peak: float) -> str:
    if curve.unit is None:
        use = f"tx = optax.adamw(optax_schedule(curve, peak_value={peak!r}))"
        return _program("optax", "plateau_jax", "optax_schedule", curve, use)
    scale = f"scale_by_curve(curve, {peak!r}, unit={curve.unit})"
    use = (
        f"tx = optax.chain(optax.scale_by_adam(), optax.add_decayed_weights(1e-4), {scale})",
        "# tx.update(grads, state, params, count=...)  # samples or tokens of the update",
    )
    return _program("optax", "plateau_jax", "scale_by_curve", curve, *use)


def torch_code(curve: Curve, peak: float) -> str:
    use = (
        f"optimizer = torch.optim.AdamW(model.parameters(), lr={peak!r})  # the peak",
        "scheduler = lambda_lr(optimizer, curve)  # scheduler.step() after each optimizer.step()"
        if curve.unit is None
        else f"scheduler = lambda_lr(optimizer, curve, unit={curve.unit})  # scheduler.step(count=samples)",
    )
    return _program("torch", "torch_bridge", "lambda_lr", curve, *use)


def _program(framework: str, package: str, function: str, curve: Curve, *use: str) -> str:
    """Return a program that imports what it needs, builds the curve and uses it."""
    names = {function, *_class_names(curve)}
    imports = [f"import {framework}"]
    if "BatchPlan" in names and package != "plateau_jax":
        names.remove("BatchPlan")
        imports.append("from plateau_jax import BatchPlan")
    imports.append(f"from {package} import {', '.join(sorted(names))}")
    return "\n".join([*imports, "", *_statements(curve), *use, ""])


def as_json(value: Any, indent: str = "") -> str:
    """Format JSON with one line per key and each list on one line."""
    if not isinstance(value, Mapping):
        return json.dumps(value)
    inner = indent + "  "
    items = cast("Mapping[str, Any]", value).items()
    lines = [f"{inner}{json.dumps(key)}: {as_json(item, inner)}" for key, item in items]
    return "{\n" + ",\n".join(lines) + f"\n{indent}}}"


def _class_names(curve: Curve) -> set[str]:
    """Return the names of the classes that the program must import."""
    match curve:
        case Cooldown() | Part():
            return _class_names(curve.curve)
        case ScaledCurve():
            return _class_names(curve.curve) | {"BatchPlan"}
        case Then():
            return _class_names(curve.curve) | _class_names(curve.other)
        case _:
            return {type(curve).__name__}


def _statements(curve: Curve) -> Iterator[str]:
    return _assignments("curve", curve, (f"curve_{number}" for number in count(2)))


def _assignments(name: str, curve: Curve, free_names: Iterator[str]) -> Iterator[str]:
    """Yield statements that assign the curve to `name`; a continuation needs one of the free names too."""
    match curve:
        case Cooldown():
            yield from _assignments(name, curve.curve, free_names)
            yield _call(f"{name} = {name}.cooldown", _arguments(curve))
        case Part():
            yield from _assignments(name, curve.curve, free_names)
            yield _call(
                f"{name} = {name}.part", [_literal(curve.start, _WIDTH), _literal(curve.stop, _WIDTH)]
            )
        case ScaledCurve():
            yield from _assignments(name, curve.curve, free_names)
            pairs, *arguments = _arguments(curve)
            yield _call(f"{name} = BatchPlan({pairs}).scale", [name, *arguments])
        case Then():
            other = next(free_names)
            yield from _assignments(name, curve.curve, free_names)
            yield from _assignments(other, curve.other, free_names)
            yield _call(f"{name} = {name}.then", [other, *_arguments(curve)])
        case _:
            yield _call(f"{name} = {type(curve).__name__}", _arguments(curve))


def _arguments(curve: Any) -> list[str]:
    """Return the arguments that are not curves, except those with their default value."""
    arguments: list[str] = []
    for field in fields(curve):
        value = getattr(curve, field.name)
        if isinstance(value, Curve) or (field.default is not MISSING and value == field.default):
            continue
        prefix = f"{field.name}=" if field.kw_only else ""
        arguments.append(prefix + _literal(value, _WIDTH - len(prefix)))
    return arguments


def _literal(value: Any, width: int) -> str:
    match value:
        case Stage():
            items = list(value)
            while len(items) > 1 and items[-1] == Stage(0)[len(items) - 1]:
                items.pop()  # defaults at the end
            return f"({_literal(items[0], width)},)" if len(items) == 1 else _literal(tuple(items), width)
        case tuple():
            items = [_literal(item, width) for item in cast("tuple[Any, ...]", value)]
            if not items or not items[0].startswith("("):  # one pair, or none; else a list of pairs
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
