"""Shared by tests of JAX training programs: records of the learning rates used."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import jax
import numpy as np
import pytest
from support.jax.jax_cases import assert_equal_bits, product
from support.trainers.trainers import PAGE_CURVE, PAGE_PEAK, run_and_resume, train

import plateau_jax
from plateau_jax import Curve, optax_schedule


class Watched:
    """A replacement for `optax_schedule` that records each learning rate a program uses."""

    def __init__(self) -> None:
        self.used: dict[tuple[Curve, float], list[tuple[Any, Any]]] = {}
        """For a curve and a peak, each count of updates and its learning rate."""

    def __call__(self, curve: Curve, peak_value: float) -> Callable[[Any], jax.Array]:
        schedule = optax_schedule(curve, peak_value)
        used = self.used.setdefault((curve, peak_value), [])

        def note(count: Any, lr: Any) -> None:
            # Read later: with few threads, reading here may wait for the thread that runs this.
            used.append((count, lr))

        def watched(count: Any) -> jax.Array:
            lr = schedule(count)
            jax.debug.callback(note, count, lr)
            return lr

        return watched

    def assert_given(self, curve: Curve, peak: float, counts: range) -> None:
        """Check that exactly these counts were used, with the bits of peak times curve."""
        jax.effects_barrier()
        lrs = {int(count): np.asarray(lr) for count, lr in self.used[curve, peak]}
        assert sorted(lrs) == list(counts)
        in_order = np.stack([lrs[count] for count in counts])
        assert_equal_bits(in_order, product(curve, peak, np.array(counts)))


def assert_resumed(
    heading: str, folder: Path, state: Callable[[dict[str, Any]], Any], at: int = 100
) -> dict[str, Any]:
    """Compare a program of the page with the same program interrupted and resumed at update `at`.

    It must refuse to resume under a longer curve. `state` takes the program's variables; those of
    the uninterrupted program are returned.
    """
    first, second = run_and_resume(heading, folder, watched)
    uninterrupted, used_by_uninterrupted = first
    resumed, used_by_resumed = second
    used_by_uninterrupted.assert_given(PAGE_CURVE, PAGE_PEAK, range(200))
    used_by_resumed.assert_given(PAGE_CURVE, PAGE_PEAK, range(at, 200))
    jax.tree.map(np.testing.assert_array_equal, state(resumed.names), state(uninterrupted.names))
    assert_rejected_if_longer(heading, folder, "curve")
    return uninterrupted.names


def assert_rejected_if_longer(heading: str, folder: Path, curve: str) -> None:
    """Check that a program that `run_and_resume` has run is rejected if its curve is longer.

    Args:
        heading: The heading of the program.
        folder: The folder of its checkpoints.
        curve: The name of the curve in the program.
    """
    changes = {f"\n{curve} = PlateauCurve(UPDATES, ": f"\n{curve} = PlateauCurve(UPDATES + 40, "}
    message = r"^the run cannot resume at step \d+: it was saved with total_steps=200, now 240, "
    with pytest.raises(ValueError, match=message):
        train(heading, folder / "interrupted", changes=changes)


@contextmanager
def watched() -> Generator[Watched, None, None]:
    """The recorder that replaces `optax_schedule` in programs that import it from here."""
    watched = Watched()
    with patch.object(plateau_jax, "optax_schedule", watched):
        yield watched
