"""The JAX programs on the page about flax and optax: learning rates; resumed equals uninterrupted.

Each program saves every 50 updates, and rejects a longer curve when it resumes.
"""

from contextlib import contextmanager
from unittest.mock import patch

import jax
import numpy as np
import pytest
from flax import nnx
from support.jax.jax_cases import assert_equal_bits, product
from trainers.runs import PAGE_CURVE, PAGE_PEAK, run_and_resume, train

import plateau_jax
from plateau_jax import optax_schedule

pytestmark = pytest.mark.slow

NNX = "flax nnx"
LINEN = "flax linen"
MULTI_STEPS = "optax: MultiSteps and apply_if_finite"
ORBAX = "Train with optax, save with orbax"


class RecordedSchedules:
    """Replaces `optax_schedule`: records each learning rate that a program uses."""

    def __init__(self):
        self.used = {}
        """For a curve and a peak, each count of updates and its learning rate."""

    def __call__(self, curve, peak_value):
        schedule = optax_schedule(curve, peak_value)
        used = self.used.setdefault((curve, peak_value), [])

        def note(count, lr):
            # Read later: with few threads, reading here may wait for the thread that runs this.
            used.append((count, lr))

        def recorded_schedule(count):
            lr = schedule(count)
            jax.debug.callback(note, count, lr)
            return lr

        return recorded_schedule

    def assert_used(self, curve, peak, counts):
        """Check that exactly these counts were used, with the bits of peak times curve."""
        jax.effects_barrier()
        lrs = {int(count): np.asarray(lr) for count, lr in self.used[curve, peak]}
        assert sorted(lrs) == list(counts)
        in_order = np.stack([lrs[count] for count in counts])
        expected = product(curve, peak, np.array(counts))
        assert_equal_bits(in_order, expected)


@contextmanager
def record_schedules():
    """Record the schedules of a program that imports `optax_schedule` from here."""
    recorded = RecordedSchedules()
    with patch.object(plateau_jax, "optax_schedule", recorded):
        yield recorded


def run_under_page_curve(heading, folder, resumes_at=100):
    """Run a program; return its variables, and those of the run that was interrupted and resumed.

    Checks the learning rates of both, and that the curve cannot become longer.
    """
    uninterrupted, resumed = run_and_resume(heading, folder, record_schedules)
    uninterrupted.recorded.assert_used(PAGE_CURVE, PAGE_PEAK, range(200))
    resumed.recorded.assert_used(PAGE_CURVE, PAGE_PEAK, range(resumes_at, 200))
    assert_longer_curve_is_rejected(heading, folder)
    return uninterrupted.names, resumed.names


def assert_longer_curve_is_rejected(heading, folder):
    """Resume a program that `run_and_resume` has run, under a curve with 40 more steps."""
    line = "\ncurve = StagedCurve.wsd(UPDATES, "
    changed_line = "\ncurve = StagedCurve.wsd(UPDATES + 40, "
    changes = {line: changed_line}
    message = r"^the run cannot resume at step \d+: it was saved with stages\[1\]="
    with pytest.raises(ValueError, match=message):
        train(heading, folder / "interrupted", changes=changes)


def assert_equal_arrays(actual, expected):
    jax.tree.map(np.testing.assert_array_equal, actual, expected)


# Programs under the curve of the page.


def test_nnx_resumes(tmp_path):
    uninterrupted, resumed = run_under_page_curve(NNX, tmp_path)

    def state_of(names):
        state = nnx.state((names["model"], names["optimizer"]))
        return nnx.to_pure_dict(state)

    assert_equal_arrays(state_of(resumed), state_of(uninterrupted))


def test_linen_resumes(tmp_path):
    uninterrupted, resumed = run_under_page_curve(LINEN, tmp_path)
    assert_equal_states(resumed["state"], uninterrupted["state"])


def assert_equal_states(actual, expected):
    """Compare the arrays of two flax TrainStates; their functions differ."""
    assert_equal_arrays(actual.params, expected.params)
    assert_equal_arrays(actual.opt_state, expected.opt_state)
    assert_equal_arrays(actual.step, expected.step)


def test_orbax_resumes(tmp_path):
    uninterrupted, resumed = run_under_page_curve(ORBAX, tmp_path)
    assert_equal_arrays(resumed["state"], uninterrupted["state"])


def test_multi_steps_and_apply_if_finite_resume(tmp_path):
    """The checkpoint after 200 micro-batches, one of which was skipped, is between two updates."""
    uninterrupted, resumed = run_under_page_curve(MULTI_STEPS, tmp_path, resumes_at=99)
    state = uninterrupted["opt_state"]
    assert_equal_arrays(resumed["params"], uninterrupted["params"])
    assert_equal_arrays(resumed["opt_state"], state)
    assert int(state.total_notfinite) == 1
