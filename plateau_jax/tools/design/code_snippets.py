"""A curve as text to copy: Python code for optax and for PyTorch, and JSON."""

import inspect
import json
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any, cast

from plateau_jax.curves.curve import Curve
from plateau_jax.curves.derived_curves import Cooldown, Part, Then
from plateau_jax.curves.plateau_curve import PlateauCurve
from plateau_jax.curves.scaled_curve import ScaledCurve
from plateau_jax.curves.staged_curve import Stage, StagedCurve

_CLASSES = "BatchPlan", "PlateauCurve", "StagedCurve"

_DEFAULT_STAGE = Stage(0)


def optax_code(curve: Curve, peak: float) -> str:
    """Return a program that builds the curve, and an optax optimizer that follows it."""
    statements = _build_statements(curve)
    if curve.unit is None:
        function = "optax_schedule"
        use = f"tx = optax.adamw(optax_schedule(curve, peak_value={peak!r}))"
    else:
        function = "scale_by_curve"
        scale = f"scale_by_curve(curve, {peak!r})"
        use = (
            f"tx = optax.chain(optax.scale_by_adam(), optax.add_decayed_weights(1e-4), {scale})\n"
            "# tx.update(grads, state, params, count=...)  # samples or tokens of the update"
        )
    names = ", ".join([*_used_classes(statements), function])
    lines = ["import optax", f"from plateau_jax import {names}", "", statements, use, ""]
    return "\n".join(lines)


def torch_code(curve: Curve, peak: float) -> str:
    """Return a program that builds the curve, and a PyTorch scheduler that follows it."""
    statements = _build_statements(curve)
    names = ", ".join(_used_classes(statements))
    count = "" if curve.unit is None else "count=samples"
    call = f"scheduler.step({count})"
    lines = [
        "import torch",
        f"from plateau_jax import {names}",
        "from torch_bridge import lambda_lr",
        "",
        statements,
        f"optimizer = torch.optim.AdamW(model.parameters(), lr={peak!r})  # the peak",
        f"scheduler = lambda_lr(optimizer, curve)  # {call} after each optimizer.step()",
        "",
    ]
    return "\n".join(lines)


def as_json(value: Any, indent: str = "") -> str:
    """Format JSON with one line per key and each list on one line."""
    if not isinstance(value, Mapping):
        return json.dumps(value)
    inner = indent + "  "
    lines: list[str] = []
    for key, item in cast("Mapping[str, Any]", value).items():
        lines.append(f"{inner}{json.dumps(key)}: {as_json(item, inner)}")
    return "{\n" + ",\n".join(lines) + f"\n{indent}}}"


def _build_statements(curve: Curve) -> str:
    return "\n".join(_statements(curve, "curve"))


def _used_classes(statements: str) -> list[str]:
    """Return the classes that statements call."""
    return [name for name in _CLASSES if f"{name}(" in statements]


def _statements(curve: Curve, name: str) -> Iterator[str]:
    """Yield a statement for each call that builds the curve; the last one assigns it to `name`."""
    arguments = _arguments(curve)
    listed = ", ".join(arguments)
    match curve:
        case Cooldown():
            yield from _statements(curve.curve, name)
            yield f"{name} = {name}.cooldown({listed})"
        case Part():
            yield from _statements(curve.curve, name)
            yield f"{name} = {name}.part({curve.start}, {curve.stop})"
        case ScaledCurve():
            pairs, *others = arguments
            scaled = ", ".join([name, *others])
            yield from _statements(curve.curve, name)
            yield f"{name} = BatchPlan({pairs}).scale({scaled})"
        case Then():
            following = f"next_{name}"
            yield from _statements(curve.curve, name)
            yield from _statements(curve.other, following)
            continuation = ", ".join([following, *arguments])
            yield f"{name} = {name}.then({continuation})"
        case PlateauCurve() | StagedCurve():
            yield f"{name} = {type(curve).__name__}({listed})"
        case _:
            raise TypeError(f"a {type(curve).__name__} has no statement that builds it")


def _arguments(curve: Any) -> list[str]:
    """Return the arguments that are not curves, except those with their default value."""
    parameters = inspect.signature(cast("type[Any]", type(curve))).parameters
    arguments: list[str] = []
    for field in fields(curve):
        name, value = field.name, getattr(curve, field.name)
        parameter = parameters[name]
        if value == parameter.default or isinstance(value, Curve):
            continue
        keyword = f"{name}=" if parameter.kind is parameter.KEYWORD_ONLY else ""
        arguments.append(keyword + _literal(value))
    return arguments


def _literal(value: Any) -> str:
    """Return the `repr` of a value; pairs and stages are tuples in a list."""
    if not isinstance(value, tuple):
        return repr(value)
    items: list[Any] = []
    for item in cast("tuple[Any, ...]", value):
        if isinstance(item, Stage):
            item = _without_defaults(item)
        items.append(item)
    return repr(items)


def _without_defaults(stage: Stage) -> tuple[Any, ...]:
    """Return a stage as a tuple, without the default values at its end."""
    if stage[1:] == _DEFAULT_STAGE[1:]:
        return stage[:1]
    if stage.shape == _DEFAULT_STAGE.shape:
        return stage[:2]
    return tuple(stage)
