"""Values for the names on the pages of docs/other_schedulers/, and the words that exclude some of them."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from hypothesis import strategies as st
from support.docs.other_schedulers import Pair
from support.examples import corners

LONGEST = 80

LIMITS: dict[str, Callable[[Mapping[str, Any]], bool]] = {
    "warmup, below total": lambda plan: plan["warmup"] < plan["total"],
    "warmup, below steps": lambda plan: plan["warmup"] < plan["steps"],
    "update of the schedule must follow the warmup": lambda plan: plan["warmup_steps_fraction"] < 1,
    "a `warmup` of at least 1": lambda plan: plan["warmup"] >= 1,
    "a `warmup` of at least 2": lambda plan: plan["warmup"] >= 2,
    "final decay, at least 1": lambda plan: plan["decay"] >= 1,
    "constant phase precedes it; at least 1": lambda plan: plan["decay"] >= 1,
    "first update, above 0": lambda plan: plan["start"] > 0,
    "a `stop` above `warmup`": lambda plan: plan["stop"] > plan["warmup"],
    "rate drops, above 0": lambda plan: plan["first"] >= 1,
    "milestones do not lie inside the warmup": lambda plan: plan["warmup"] <= plan["first"],
    "for a `power` of 1 or more": lambda plan: plan["power"] >= 1,
    "`lr_min_ratio` must be above 0": lambda plan: plan["lr_min_ratio"] > 0,
    "a `min_lr_ratio` above 0": lambda plan: plan["min_lr_ratio"] > 0,
}
"""The words by which a page or section excludes values, and the values that remain."""


def is_allowed(pair: Pair, plan: Mapping[str, Any]) -> bool:
    """Return whether neither the page's introduction nor the section excludes the values."""
    return all(allows(plan) for words, allows in LIMITS.items() if words in pair.limits)


@st.composite
def plans(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a value for each name that the pages set for their programs."""
    total = draw(corners(1, LONGEST))
    # `optax.cosine_onecycle_schedule` receives warmup / total, and computes int(warmup / total * total).
    warmup = draw(corners(0, total).filter(lambda steps: int(steps / total * total) == steps))
    period = draw(corners(1, total))
    first = draw(corners(0, total))
    peak = draw(st.floats(1e-5, 10))
    decay = draw(corners(0, total - warmup))
    # Each period of WSD-S has a decay; the first one a warmup too, and the others a constant phase.
    periods, remaining = [warmup + decay], total - warmup - decay
    for _ in range(draw(st.integers(0, 2)) if decay else 0):
        if remaining > decay:
            periods.append(decay + 1)
            remaining -= decay + 1
    periods[draw(st.integers(0, len(periods) - 1))] += remaining
    cuts = sorted(draw(st.lists(st.integers(0, 90), max_size=6, unique=True)))
    return {
        "total": total,
        "warmup": warmup,
        "decay": decay,
        "periods": periods,
        "multipliers": [draw(st.just(1.0) | st.floats(0.1, 1)) for _ in periods],
        "stop": draw(corners(1, total)),
        "period": period,
        "first": first,
        "second": draw(corners(first + 1, total + 1)),
        "cycles": draw(st.integers(1, 3)),
        "peak": peak,
        "floor": peak * draw(st.sampled_from((0.0, 0.1)) | st.floats(1e-4, 0.9)),
        "start": peak * draw(st.sampled_from((0.0, 0.1, 1.0)) | st.floats(1e-4, 1)),
        "gamma": math.exp(-draw(st.floats(1, 30)) / total),
        "factor": math.exp(-draw(st.floats(1, 30)) * period / total),
        "shape": draw(st.sampled_from(("linear", "cosine", "1-sqrt"))),
        "plateaus": [(start, end - start) for start, end in zip(cuts[::2], cuts[1::2], strict=False)],
        "power": draw(st.sampled_from((0.25, 0.4, 0.5, 1, 2, 4)) | st.floats(0.25, 4)),
        "batch": draw(st.integers(1, 4096)),
        "length": draw(st.integers(1, 8192)),
    }
