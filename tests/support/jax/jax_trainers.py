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
    """A replacement for `optax_schedule` that records each learning rate a program uses, by its count."""

    def __init__(self) -> None:
        self.given: dict[tuple[Curve, float], list[tuple[Any, Any]]] = {}

    def __call__(self, curve: Curve, peak_value: float) -> Callable[[Any], jax.Array]:
        schedule = optax_schedule(curve, peak_value)
        given = self.given.setdefault((curve, peak_value), [])

        def note(count: Any, rate: Any) -> None:
            # Read later: with few threads, reading here may wait for the thread that runs this.
            given.append((count, rate))

        def watched(count: Any) -> jax.Array:
            rate = schedule(count)
            jax.debug.callback(note, count, rate)
            return rate

        return watched

    def assert_given(self, curve: Curve, peak: float, counts: range) -> None:
        """Check that exactly these counts were used, with the bits of peak times curve."""
        jax.effects_barrier()
        given = {int(count): np.asarray(rate) for count, rate in self.given[curve, peak]}
        assert sorted(given) == list(counts)
        assert_equal_bits(
            np.stack([given[count] for count in counts]), product(curve, peak, np.array(counts))
        )


def assert_resumed(
    heading: str, folder: Path, state: Callable[[dict[str, Any]], Any], at: int = 100
) -> dict[str, Any]:
    """Compare a program of the page with the same program interrupted and resumed at update `at`.

    It must refuse to resume under a longer curve. `state` takes the program's variables; those of the
    uninterrupted program are returned.
    """
    (uninterrupted, given), (resumed, given_later) = run_and_resume(heading, folder, watched)
    given.assert_given(PAGE_CURVE, PAGE_PEAK, range(200))
    given_later.assert_given(PAGE_CURVE, PAGE_PEAK, range(at, 200))
    jax.tree.map(np.testing.assert_array_equal, state(resumed.names), state(uninterrupted.names))
    assert_rejected_if_longer(heading, folder, "curve")
    return uninterrupted.names


def assert_rejected_if_longer(heading: str, folder: Path, curve: str) -> None:
    """Check that a program that `run_and_resume` has run is rejected if this curve becomes longer."""
    changes = {f"\n{curve} = PlateauCurve(UPDATES, ": f"\n{curve} = PlateauCurve(UPDATES + 40, "}
    with pytest.raises(
        ValueError, match=r"^the run cannot resume at step \d+: it was saved with total_steps=200, now 240, "
    ):
        train(heading, folder / "interrupted", changes=changes)


@contextmanager
def watched() -> Generator[Watched, None, None]:
    """The recorder that replaces `optax_schedule` in programs that import it from here."""
    watched = Watched()
    with patch.object(plateau_jax, "optax_schedule", watched):
        yield watched
