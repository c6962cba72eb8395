"""Peaks and ratios to them: rounded once, or refused with an error that names them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.refusals import refuses

from plateau_jax import checks

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    "value", [NAN, INF, -INF, -1, -1e-30, 2.0**-127, 1e-300, 1e39, 3.4028236e38, 10**400, -(10**400)]
)
def test_peaks_out_of_range(value):
    refuses(ValueError, f"peak_value = {value!r}", call=checks.peak, name="peak_value", value=value)


@pytest.mark.parametrize("value", [True, np.True_, "0.1", b"1", None, 1j, [0.1], np.ones(2)])
def test_peaks_that_are_no_numbers(value):
    refuses(TypeError, f"peak_value = {value!r}", call=checks.peak, name="peak_value", value=value)


@given(st.floats(2.0**-126, float(np.finfo(np.float32).max)) | st.sampled_from((0, 1, -0.0, 2.0**-126)))
def test_a_peak_is_rounded_to_float32_once(value):
    for kind in (float, np.float64, np.array):
        found = checks.peak("peak_value", kind(value))
        assert type(found) is np.float32
        assert found == np.float32(value)
        assert not np.signbit(found)


@given(st.floats(0, 1e30), st.floats(0, 1e30))
def test_a_ratio_to_the_peak(value, peak):
    if value <= peak:
        ratio = checks.ratio_to_peak("end_value", value, peak)
        assert 0 <= ratio <= 1
        assert ratio * peak == pytest.approx(value, rel=1e-15, abs=peak * 2.0**-1074)
    else:
        refuses(
            ValueError,
            f"end_value = {value!r}",
            repr(peak),
            call=checks.ratio_to_peak,
            name="end_value",
            value=value,
            peak=peak,
        )


def test_a_scalar_array_is_a_number_and_a_boolean_one_is_not():
    assert checks.number("r", np.asarray(np.float32(0.1))) == 0.1
    assert checks.peak("p", np.asarray(0.5)) == 0.5
    for check in (checks.number, checks.peak):
        with pytest.raises(TypeError, match="must be a number"):
            check("p", np.asarray(True))
