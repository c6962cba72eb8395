"""The file that `Curve.to_source` writes, with every shape and the table of an example curve.

`source` replaces this docstring and the table, and leaves out what a curve does not need. The
functions return the same integers as `table` and `shapes`, by shorter formulas, because Python's
integers have any size. Plain Python 3.9: it imports only `math` and `struct`.
"""

import math
import struct

ONE = 1 << 62  # levels, fractions and exponents are integers, in units of 2**-62

# For each segment: its first step, its start level as a float32, and its shape. Unless it is flat:
# the steps cut off at its start, its length with them, both levels, and the numbers of its shape.
SEGMENTS = [
    (0, 0.0, "linear", (0, 100, 0x0, 0x4000000000000000)),
    (100, 1.0, "flat", ()),
    (500, 1.0, "cosine", (0, 500, 0x4000000000000000, 0x0)),
    (1000, 0.0, "flat", ()),
]
# The first steps of segments towards a level above 1, with n: their levels are divided by 2**n.
SHIFTS = {100: 0}
CHECK_VALUE = 1751329144812037204


def multiplier(step: int) -> float:
    """Return the multiplier at a step, which is any integer: a float32 in [0, 1]."""
    if isinstance(step, bool) or not hasattr(step, "__index__"):
        raise TypeError(f"step must be an integer, not {step!r}")
    step = max(step.__index__(), 0)
    index, end = 0, len(SEGMENTS)
    while end - index > 1:
        middle = (index + end) // 2
        if SEGMENTS[middle][0] <= step:
            index = middle
        else:
            end = middle
    first_step, level, shape, numbers = SEGMENTS[index]
    if not numbers or step == first_step - numbers[0]:
        return level
    skipped, *numbers_of_shape = numbers
    value = SHAPES[shape](step - first_step + skipped, *numbers_of_shape)
    return fixed_to_float32(shifted(value, first_step))


def learning_rate(step: int, peak: float) -> float:
    """Return float32(float32(peak) * multiplier(step)); the peak is 0, or at least 2**-126."""
    if isinstance(peak, bool) or not hasattr(peak, "__float__"):
        raise TypeError(f"peak must be a number, not {peak!r}")
    if peak != 0 and not 2**-126 <= float(peak) < 2**128 - 2**103:
        raise ValueError(f"peak must be 0, or a finite float32 of at least 2**-126, not {peak!r}")
    (rounded_peak,) = struct.unpack("f", struct.pack("f", abs(peak)))
    product = rounded_peak * multiplier(step)  # exact, since float has 53 bits
    return struct.unpack("f", struct.pack("f", product))[0]


def shifted(value: int, first_step: int) -> int:
    """Return value * 2**n, at most 1, in the segment with this first step."""
    return min(value << SHIFTS.get(first_step, 0), ONE)


def fixed_to_float32(value: int) -> float:
    """Return the float32 nearest to value / 2**62, ties to even."""
    unit = 1 << max(value.bit_length() - 24, 0)
    rounded, rest = divmod(value, unit)
    if 2 * rest > unit or (2 * rest == unit and rounded % 2):
        rounded += 1
    return rounded * unit / ONE


def multiply(a: int, b: int) -> int:
    """Return a * b, without the product of the two low halves."""
    a_high, a_low = a >> 31, a & 0x7FFFFFFF
    b_high, b_low = b >> 31, b & 0x7FFFFFFF
    return a_high * b_high + ((a_high * b_low + a_low * b_high) >> 31)


def ratio(steps: int, length: int) -> int:
    """Return steps / length."""
    return (steps * ((1 << 93) // length)) >> 31


def between(near: int, far: int, fraction: int) -> int:
    """Return the level at a fraction of the way from one level to another."""
    distance = multiply(abs(near - far), fraction)
    if near < far:
        return near + distance
    return near - distance


def linear(elapsed: int, length: int, start: int, end: int) -> int:
    """Return the level on a straight line, counted from the nearer end."""
    if 2 * elapsed < length:
        return between(start, end, ratio(elapsed, length))
    return between(end, start, ratio(length - elapsed, length))


def cosine(elapsed: int, length: int, start: int, end: int) -> int:
    """Return the level on half a cosine, counted from the nearer end."""
    if 2 * elapsed < length:
        return between(start, end, sine_squared(ratio(elapsed, length)))
    return between(end, start, sine_squared(ratio(length - elapsed, length)))


# Half the coefficients of the series of sin(pi * x / 2).
SINE = [
    0x3243F6A8885A308D, 0x14ABBCE625BE52BF, 0x28CD78CEEB55C3A, 0x265A599CC57B0B, 0x150783487EE78,
    0x78C1D3F7A22, 0x1E8F434D02, 0x5BEB6E7C, 0xD57619,
]  # fmt: skip


def sine_squared(x: int) -> int:
    """Return sin(pi * x / 2)**2, for x up to 1/2."""
    square = multiply(x, x)
    series = 0
    for coefficient in reversed(SINE):
        series = coefficient - multiply(series, square)
    sine = multiply(x, series) << 1
    return multiply(sine, sine)


def square_root(elapsed: int, length: int, start: int, end: int) -> int:
    """Return the level at a fraction sqrt(elapsed / length) of the way."""
    k = 0
    while elapsed << 2 < length:  # elapsed / length = y / 4**k, with y in [1/4, 1)
        elapsed <<= 2
        k += 1
    y = ratio(elapsed, length)
    h = 7 * (39 * ONE // 64) // 4 - multiply(y, 39 * ONE // 64)
    for _ in range(4):  # Newton's method for h = 1 / (2 * sqrt(y))
        h = multiply(h, 3 * ONE // 4 - multiply(y, multiply(h, h))) << 1
    root = multiply(y, h) << 1
    root += ((y - multiply(root, root)) * (h >> 31)) >> 31
    return between(start, end, root >> k)


LN_2 = 0xB17217F7D1CF79ABC9E3B39803F2F6AF40F343267298B62D8A0D175B  # in units of 2**-224
EXPONENTIAL = [ONE // math.factorial(k) for k in range(19)]
LOGARITHM = [(ONE << 224) // (2 * LN_2 * (2 * k + 1)) for k in range(12)]


def two_to_minus(exponent: int) -> int:
    """Return 2**-exponent, by the series of e**-u."""
    u = multiply(exponent % ONE, LN_2 >> 162)
    series = 0
    for coefficient in reversed(EXPONENTIAL):
        series = coefficient - multiply(series, u)
    return series >> min(exponent // ONE, 63)


def steps_from_higher(elapsed: int, length: int, start: int, end: int) -> int:
    """Return the steps from the end of the segment with the higher level."""
    if start < end:
        return length - elapsed
    return elapsed


def exponential(elapsed: int, length: int, start: int, end: int, rate: int) -> int:
    """Return the higher level times 2**(-steps * rate), for the steps from its end."""
    steps = steps_from_higher(elapsed, length, start, end)
    factor = two_to_minus((steps * rate) >> 31)
    return max(multiply(max(start, end), factor), min(start, end))


def power_of_x(elapsed: int, length: int, start: int, end: int, rate: int, power: int) -> int:
    """Return the level at a fraction (elapsed / length)**P of the way."""
    k, steps = 0, elapsed
    while 14 * steps < 10 * length:  # elapsed / length = y / 2**k, with y in [5/7, 10/7]
        steps <<= 1
        k += 1
    change = ((length - steps) * rate) >> 31  # P * (1 - y)
    exponent = k * power + times_slope(change, ratio(steps, length))
    return between(start, end, two_to_minus(exponent))


def power_to_end(elapsed: int, length: int, start: int, end: int, rate: int, power: int) -> int:
    """Return the level at a fraction (1 - elapsed / length)**P of the way back from the end."""
    return power_of_x(length - elapsed, length, end, start, rate, power)


def times_slope(change: int, y: int) -> int:
    """Return change * log2(y) / (y - 1), by the series of a logarithm in z = (y - 1) / (y + 1)."""
    half_sum = (ONE >> 1) + (y >> 1)
    short = 0x7D736899 - (((half_sum >> 31) * 0x1E47FEC4) >> 30)
    for _ in range(2):  # Newton's method for 1 / (1 + y), in 31 bits, then in 62
        short = (short * ((1 << 31) - (((half_sum >> 31) * short) >> 31))) >> 30
    inverse = short << 31
    for _ in range(2):
        inverse = multiply(inverse, ONE - multiply(half_sum, inverse)) << 1
    z = multiply(abs(ONE - y), inverse)
    square = multiply(z, z)
    series = 0
    for coefficient in reversed(LOGARITHM):
        series = coefficient + multiply(series, square)
    half_slope = multiply(inverse, series) << 1
    return 2 * ((change // ONE) * half_slope + multiply(change % ONE, half_slope))


def inverse_power(elapsed: int, length: int, start: int, end: int, rate: int, power: int) -> int:
    """Return the higher level times t**-P, with t = 1 + steps * rate."""
    steps = steps_from_higher(elapsed, length, start, end)
    t = ONE + ((steps * rate) >> 31)
    k = t.bit_length() - 63
    change = (t >> k) - ONE
    if change >= 3 * ONE // 7:  # t = y * 2**k, with y = 1 + change in [5/7, 10/7]
        k += 1
        change = (change - ONE) >> 1
    exponent = k * power + times_slope(times_power(change, power) + 6, ONE + change)
    return max(multiply(max(start, end), two_to_minus(exponent)), min(start, end))


def parabola(elapsed: int, length: int, start: int, end: int, rate: int, power: int) -> int:
    """Return the same between nearly equal levels, where a parabola is more exact."""
    steps = steps_from_higher(elapsed, length, start, end)
    growth = (steps * rate) >> 31
    x = ratio(steps, length)
    fraction = x + multiply((growth + times_power(growth, power)) >> 1, ONE - x)
    return between(max(start, end), min(start, end), fraction)


def times_power(number: int, power: int) -> int:
    """Return P * number."""
    return number * (power // ONE) + multiply(number, power % ONE)


SHAPES = {
    "linear": linear,
    "cosine": cosine,
    "1-sqrt": square_root,
    "exponential": exponential,
    "1-x^P": power_of_x,
    "(1-x)^P": power_to_end,
    "t^-P": inverse_power,
    "parabola": parabola,
}

if __name__ == "__main__":
    value, after = 0, 1 << 31
    for first_step, *_ in reversed(SEGMENTS):
        for eighth in range(9):
            step = first_step + (after - 1 - first_step) * eighth // 8
            (bits,) = struct.unpack("<I", struct.pack("<f", multiplier(step)))
            value = (65537 * value + bits) % (2**61 - 1)
        after = first_step
    if value != CHECK_VALUE:
        raise SystemExit(f"FAILED: the check value is {value}, not {CHECK_VALUE}")
    print(f"ok: {9 * len(SEGMENTS)} multipliers have the check value {value}")
