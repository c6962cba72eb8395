"""What an implementation in another language computes from a file of test vectors."""

from typing import Any

from plateau_jax.export import template


def fixed_value(segments: list[dict[str, Any]], step: int) -> int | None:
    """Return the integer at a step, with the functions of exported files.

    It is None if the multiplier is the start level of the segment.

    Args:
        segments: Those of a curve in the file.
        step: Any integer.
    """
    step = max(step, 0)
    segment = [segment for segment in segments if segment["first_step"] <= step][-1]
    if segment["shape"] == "flat":
        return None
    elapsed = step - segment["first_step"] + segment["skipped"]
    if elapsed == 0:
        return None
    numbers = [
        int(segment[name], 16) for name in ("start", "end", "rate", "power") if name in segment
    ]
    shape: Any = template.SHAPES[segment["shape"]]
    value = shape(elapsed, segment["length"], *numbers)
    return min(value << segment["shift"], template.ONE)
