"""Checks of single arguments, and the paths in messages; those of curves are in `curves/test_errors.py`."""

from functools import partial
from math import inf, nan

import numpy as np
from hypothesis import given, strategies as st
from support.errors import check_error, each_row

from plateau_jax.validation import checks

LARGE = [nan, inf, -inf, -1, -1e-30, 2.0**-127, 1e-300, 1e39, 3.4028236e38, 10**150, -(10**150)]
NOT_NUMBERS = [True, np.True_, "0.1", b"1", None, 1j, [0.1], np.ones(2)]
ERRORS = [
    *((partial(checks.peak, "peak_value", value), ValueError, f"peak_value = {checks.short_repr(value)}",
       "must") for value in LARGE),
    *((partial(checks.peak, "peak_value", value), TypeError, f"peak_value = {value!r}", "number")
      for value in NOT_NUMBERS),
    (lambda: checks.peak("p", np.asarray(True)), TypeError, "p = ", "number"),
    (lambda: checks.number("r", np.asarray(True)), TypeError, "r = ", "number"),
]  # fmt: skip


@each_row(ERRORS)
def test_errors(row):
    check_error(row)


@given(st.floats(2.0**-126, float(np.finfo(np.float32).max)) | st.sampled_from((0, 1, -0.0, 2.0**-126)))
def test_peak_is_rounded_to_float32_once(value):
    for kind in (float, np.float64, np.array):
        peak = checks.peak("peak_value", kind(value))
        assert type(peak) is np.float32
        assert peak == np.float32(value)
        assert not np.signbit(peak)
