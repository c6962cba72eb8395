"""A curve as text to copy: Python code for optax and for PyTorch, and JSON."""

import json
import textwrap
from collections.abc import Mapping
from typing import Any, cast

from plateau_jax.curves.curve import Curve
from plateau_jax.curves.derived_curves import Cooldown, Part, Then

_CLASSES = "BatchPlan", "PlateauCurve", "StagedCurve"


def optax_code(curve: Curve, peak: float) -> str:
    """Return a program that builds the curve, and an optax optimizer that follows it."""
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
    names = ", ".join([*_used_classes(curve), function])
    lines = ["import optax", f"from plateau_jax import {names}", "", _statement(curve), use, ""]
    return "\n".join(lines)


def torch_code(curve: Curve, peak: float) -> str:
    """Return a program that builds the curve, and a PyTorch scheduler that follows it."""
    names = ", ".join(_used_classes(curve))
    count = "" if curve.unit is None else "count=samples"
    call = f"scheduler.step({count})"
    lines = [
        "import torch",
        f"from plateau_jax import {names}",
        "from torch_bridge import lambda_lr",
        "",
        _statement(curve),
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


def _statement(curve: Curve) -> str:
    """Assign the `repr` of a curve to `curve`, in lines of at most 88 characters."""
    expression = repr(curve)
    if len(expression) <= 80:
        return f"curve = {expression}"
    lines = ["curve = ("]
    for call in _calls(curve):
        lines += textwrap.wrap(
            call,
            width=88,
            initial_indent="    ",
            subsequent_indent="        ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    return "\n".join([*lines, ")"])


def _calls(curve: Curve) -> list[str]:
    """Split the `repr` of a curve into the first curve and the calls after it: .cooldown(…)."""
    if isinstance(curve, Cooldown | Part | Then):
        return [*_calls(curve.curve), repr(curve).removeprefix(repr(curve.curve))]
    return [repr(curve)]


def _used_classes(curve: Curve) -> list[str]:
    """Return the classes that the expression of the curve calls."""
    return [name for name in _CLASSES if f"{name}(" in repr(curve)]
