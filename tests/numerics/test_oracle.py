"""The oracle itself, compared with each curve's definition in plain floats."""

import math

from hypothesis import given
from support.curves.descriptions import descriptions_and_steps
from support.examples import examples
from support.numerics.borders import PROMISED, steps_at_borders
from support.numerics.oracle import Oracle, complete_stage, exactly, half_ulp, mp

SHAPES = {
    "linear": lambda x: x,
    "cosine": lambda x: (1 - math.cos(math.pi * x)) / 2,
    "1-sqrt": math.sqrt,
}


def _between(start, end, shape, x):
    if shape == "exponential":
        return start ** (1 - x) * end**x
    formula, _, power = shape.rpartition("^")
    if formula == "1-x":
        return start + (end - start) * x ** float(power)
    if formula == "(1-x)":
        return end + (start - end) * (1 - x) ** float(power)
    if formula == "t":
        first, last = (level ** (1 / float(power)) for level in (start, end))
        return (first + (last - first) * x) ** float(power)
    return start + (end - start) * SHAPES[shape](x)


def _total(description):
    match description:
        case {"stages": stages}:
            return sum(stage[0] for stage in stages)
        case {"cooldown": _, "at": at, "steps": steps}:
            return at + steps
        case {"curve": first, "then": other}:
            return _total(first) + _total(other)
        case {"part": _, "start": start, "stop": stop}:
            return stop - start
        case {"scaled": parent}:
            return _total(parent)
    return description["total_steps"]


def _value(description, step):
    """Return the value of a curve by its definition in the documentation."""
    match description:
        case {"stages": stages, "start": level}:
            for steps, to, shape in map(complete_stage, stages):
                goal = level if to is None else to
                if step < steps:
                    return level if to is None else _between(level, goal, shape, step / steps)
                step, level = step - steps, goal
            return level
        case {"cooldown": parent, "at": at, "steps": steps, "to": to, "shape": shape}:
            if step < at:
                return _value(parent, step)
            return _between(_value(parent, at), to, shape, (step - at) / steps) if step < at + steps else to
        case {"curve": first, "then": other, "scale": scale}:
            total = _total(first)
            return _value(first, step) if step < total else scale * _value(other, step - total)
        case {"part": parent, "start": start, "stop": stop}:
            return _value(parent, min(start + step, stop))
        case {"scaled": parent, "pairs": pairs, "unit": unit, "reference": reference, "exponent": exponent}:
            is_past = step >= _total(parent)
            batch = [batch for threshold, batch in pairs if is_past or threshold <= step * unit][-1]
            return _value(parent, step) * (batch / reference) ** exponent
    return float(Oracle(description)(step))


@examples(200)
@given(descriptions_and_steps(range(1), size=16, scaled=True))
def test_oracle_follows_definitions(case):
    description, steps = case
    oracle = Oracle(description)
    assert oracle.total_steps == _total(description)
    for step in steps:
        assert math.isclose(
            float(oracle(step)), _value(description, max(step, 0)), rel_tol=1e-9, abs_tol=1e-12
        )


@examples(200)
@given(steps_at_borders())
def test_borders_expose_errors_just_above_promise(case):
    description, step = case
    value = Oracle(description)(step)
    # The distance from the value to the middle between the two float32 around it.
    unit = 2 * half_ulp(value)
    beyond = abs(mp.frac(value / unit) - exactly(0.5)) * unit
    assert exactly(PROMISED) < beyond <= 4 * exactly(PROMISED)
