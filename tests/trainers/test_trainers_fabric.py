"""Lightning Fabric under a curve, by the page's program: accumulation, clipping, bf16, saved and loaded."""

import pytest
from support.trainers import OF_PAGE, PEAK_OF_PAGE, rates, rates_used, same_weights, whole_and_resumed

pytestmark = pytest.mark.slow


def test_resumed_it_is_as_uninterrupted(tmp_path):
    (whole, used), (resumed, used_later) = whole_and_resumed("Lightning Fabric", tmp_path, rates_used)
    assert used == rates(OF_PAGE, range(200), PEAK_OF_PAGE)
    assert used_later == rates(OF_PAGE, range(100, 200), PEAK_OF_PAGE)
    assert same_weights(resumed.names["model"], whole.names["model"])
