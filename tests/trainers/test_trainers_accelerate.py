"""accelerate under a curve, with the README's lines: one and two processes, accumulation, resumed."""

import pytest
from support import accelerated
from support.accelerated import STEP
from support.processes import run
from support.trainers import CURVE, rates

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("processes", [1, 2])
def test_resumed_it_is_as_uninterrupted(processes, tmp_path):
    for report in run(accelerated.resumed, str(tmp_path), processes=processes):
        assert report["processes"] == processes
        assert report["whole"] == rates(CURVE, range(12))
        assert report["resumed"] == rates(CURVE, range(5, 12))
        assert report["same"]


@pytest.mark.parametrize("processes", [1, 2])
def test_a_prepared_scheduler_steps_once_a_process_and_says_so(processes):
    for used, said in run(accelerated.prepared, processes=processes):
        assert used == rates(CURVE, range(0, 6 * processes, processes))
        assert [where for where, _ in said] == ["accelerate"] * (processes - 1)
        assert all("twice or more after one optimizer step" in what and STEP in what for _, what in said)


def test_an_update_that_fp16_skips_leaves_the_curve_where_it_is():
    (used,) = run(accelerated.overflowing, 2, processes=1)
    assert used == rates(CURVE, range(5))
