"""accelerate under a curve, by the page's program: one and two processes, accumulation, resumed."""

import pytest
from support.distributed.processes import run
from support.trainers import accelerated
from support.trainers.trainers import OF_PAGE, PEAK_OF_PAGE, rates

from plateau_jax import PlateauCurve

pytestmark = pytest.mark.slow

CURVES = {1: OF_PAGE, 2: PlateauCurve(100, warmup_steps=10, plateaus=[(0, 60)])}


@pytest.mark.parametrize("processes", [1, 2])
def test_resumed_it_is_as_uninterrupted(processes, tmp_path):
    wanted = rates(CURVES[processes], range(200 // processes), PEAK_OF_PAGE)
    for used, used_later, same in run(accelerated.resumed, str(tmp_path), processes=processes):
        assert used == wanted
        assert used_later == wanted[100 // processes :]
        assert same


@pytest.mark.parametrize("processes", [1, 2])
def test_a_prepared_scheduler_steps_once_a_process_and_says_so(processes, tmp_path):
    for used, said in run(accelerated.prepared, str(tmp_path), processes=processes):
        assert used == rates(CURVES[processes], range(0, 20 * processes, processes), PEAK_OF_PAGE)
        assert [where for where, _ in said] == ["accelerate"] * (processes - 1)
        assert all("twice or more after one optimizer step" in what for _, what in said)
        assert all(accelerated.advice() in what for _, what in said)


def test_an_update_that_fp16_skips_leaves_the_curve_where_it_is(tmp_path):
    (used,) = run(accelerated.overflowing, str(tmp_path), 2, processes=1)
    assert used == rates(OF_PAGE, range(19), PEAK_OF_PAGE)
