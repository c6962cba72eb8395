"""A curve as text to copy: Python code for optax and for PyTorch, and JSON."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from typing import Any, cast

from plateau_jax.curves.curve import Curve
from plateau_jax.curves.derived_curves import Cooldown, Part, Then
from plateau_jax.curves.scaled_curve import ScaledCurve
from plateau_jax.curves.staged_curve import Stage

_CLASSES = "BatchPlan", "PlateauCurve", "StagedCurve"


def optax_code(curve: Curve, peak: float) -> str:
    if curve.unit is None:
        use = f"tx = optax.adamw(optax_schedule(curve, peak_value={peak!r}))"
        return _program("optax", "optax_schedule", curve, use)
    scale = f"scale_by_curve(curve, {peak!r})"
    use = (
        f"tx = optax.chain(optax.scale_by_adam(), optax.add_decayed_weights(1e-4), {scale})\n"
        "# tx.update(grads, state, params, count=...)  # samples or tokens of the update"
    )
    return _program("optax", "scale_by_curve", curve, use)


def torch_code(curve: Curve, peak: float) -> str:
    count = "" if curve.unit is None else "count=samples"
    use = (
        f"optimizer = torch.optim.AdamW(model.parameters(), lr={peak!r})  # the peak\n"
        f"scheduler = lambda_lr(optimizer, curve)  # scheduler.step({count}) after each "
        "optimizer.step()"
    )
    return _program("torch", "lambda_lr", curve, use)


def _program(framework: str, function: str, curve: Curve, use: str) -> str:
    """Return a program that imports what it needs, builds the curve and uses it."""
    statements = "\n".join(_statements(curve))
    names = [name for name in _CLASSES if f"{name}(" in statements]
    imports = [f"import {framework}"]
    if framework == "torch":
        imports += [
            f"from plateau_jax import {', '.join(names)}",
            f"from torch_bridge import {function}",
        ]
    else:
        imports.append(f"from plateau_jax import {', '.join([*names, function])}")
    return "\n".join([*imports, "", statements, use, ""])


def as_json(value: Any, indent: str = "") -> str:
    """Format JSON with one line per key and each list on one line."""
    if not isinstance(value, Mapping):
        return json.dumps(value)
    inner = indent + "  "
    items = cast("Mapping[str, Any]", value).items()
    lines = [f"{inner}{json.dumps(key)}: {as_json(item, inner)}" for key, item in items]
    return "{\n" + ",\n".join(lines) + f"\n{indent}}}"


def _statements(curve: Curve, name: str = "curve") -> Iterator[str]:
    """Yield one statement for each call that builds the curve, the last of which assigns it to `name`."""
    arguments = _arguments(curve)
    match curve:
        case Cooldown():
            yield from _statements(curve.curve, name)
            yield f"{name} = {name}.cooldown({', '.join(arguments)})"
        case Part():
            yield from _statements(curve.curve, name)
            yield f"{name} = {name}.part({curve.start}, {curve.stop})"
        case ScaledCurve():
            pairs, *others = arguments
            yield from _statements(curve.curve, name)
            yield f"{name} = BatchPlan({pairs}).scale({', '.join([name, *others])})"
        case Then():
            following = f"next_{name}"
            yield from _statements(curve.curve, name)
            yield from _statements(curve.other, following)
            yield f"{name} = {name}.then({', '.join([following, *arguments])})"
        case _:
            yield f"{name} = {type(curve).__name__}({', '.join(arguments)})"


def _arguments(curve: Any) -> list[str]:
    """Return the arguments that are not curves, except those with their default value."""
    arguments: list[str] = []
    for field in fields(curve):
        value = getattr(curve, field.name)
        if isinstance(value, Curve) or (field.default is not MISSING and value == field.default):
            continue
        arguments.append((f"{field.name}=" if field.kw_only else "") + _literal(value))
    return arguments


def _literal(value: Any) -> str:
    """Return the `repr` of a value; pairs and stages are tuples in a list."""
    if not isinstance(value, tuple):
        return repr(value)
    items = cast("tuple[Any, ...]", value)
    return repr([_without_defaults(item) if isinstance(item, Stage) else item for item in items])


def _without_defaults(stage: Stage) -> tuple[Any, ...]:
    if stage[1:] == Stage(0)[1:]:
        return stage[:1]
    return stage[:2] if stage.shape == Stage(0).shape else tuple(stage)
