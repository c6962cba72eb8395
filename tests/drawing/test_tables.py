"""Tables of segments as text: headings, and columns that line up."""

import numpy as np

from plateau_jax import StagedCurve
from plateau_jax.tools.drawing.segment_table import segment_table

CURVE = StagedCurve([(5, 1.0), (100_000,), (5, 0.25, "1-sqrt")])


def test_headings_say_if_levels_are_learning_rates():
    multipliers = segment_table(CURVE.segments)
    learning_rates = segment_table(CURVE.segments, np.float32(0.5))
    assert multipliers.headings[-2:] == ("from", "to")
    assert learning_rates.headings[-2:] == ("lr from", "lr to")
    assert learning_rates.rows[-1][-1] == "0.125"


def test_kinds_line_up_at_the_left_and_numbers_at_the_right():
    assert CURVE.describe().splitlines() == [
        "first step  last step  kind                 from          to",
        "         0          4  linear stage            0           1",
        "         5     100004  plateau                 1           1",
        "    100005     100009  1-sqrt stage            1        0.25",
        "    100010          …  end                  0.25        0.25",
    ]
