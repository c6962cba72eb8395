"""The page's program for accelerate: one and two processes, accumulation, resuming."""

import pytest
from support.distributed.processes import run
from support.trainers import accelerate_runs
from support.trainers.trainers import PAGE_CURVE, PAGE_PEAK, expected_lrs

from plateau_jax import PlateauCurve

pytestmark = pytest.mark.slow

CURVES = {1: PAGE_CURVE, 2: PlateauCurve(100, warmup_steps=10, plateaus=[(0, 60)])}


@pytest.mark.parametrize("processes", [1, 2])
def test_resume_matches_uninterrupted_run(processes, tmp_path):
    expected = expected_lrs(CURVES[processes], range(200 // processes), PAGE_PEAK)
    for used, used_later, same in run(accelerate_runs.compare_resumed, str(tmp_path), processes=processes):
        assert used == expected
        assert used_later == expected[100 // processes :]
        assert same


@pytest.mark.parametrize("processes", [1, 2])
def test_prepared_scheduler_steps_per_process_and_warns(processes, tmp_path):
    for used, caught in run(accelerate_runs.run_with_prepared_scheduler, str(tmp_path), processes=processes):
        assert used == expected_lrs(CURVES[processes], range(0, 60 * processes, processes), PAGE_PEAK)
        assert [folder for folder, _ in caught] == ["accelerate"] * (processes - 1)
        assert all(accelerate_runs.advice() in text for _, text in caught)


def test_skipped_fp16_update_does_not_move_the_curve(tmp_path):
    (used,) = run(accelerate_runs.run_with_overflow, str(tmp_path), 2, processes=1)
    assert used == expected_lrs(PAGE_CURVE, range(19), PAGE_PEAK)
