"""An optimizer's own DTensors, in lists and dictionaries or of a different shape than the parameter."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.checkpointing import sharded_optimizer_state
from support.distributed import processes

pytestmark = pytest.mark.slow


def _check(resumed: Any, expected: Any, plain: bool = False, is_exact: bool = True) -> None:
    """Check that a resumed run equals the uninterrupted one.

    All its tensors may be `plain`. With another number of ranks its gradients, and everything computed from
    them, are not exact.
    """
    tolerance = 0.0 if is_exact else 1e-4
    for kept, original, limit in (
        (resumed.before, expected.before, 0.0),
        (resumed.after, expected.after, tolerance),
    ):
        assert kept.forms == {
            name: (dtype, shape, "plain" if plain else where)
            for name, (dtype, shape, where) in original.forms.items()
        }
        assert kept.tensors.keys() == original.tensors.keys()
        for name, value in original.tensors.items():
            np.testing.assert_allclose(kept.tensors[name], value, rtol=limit, atol=limit)
    np.testing.assert_allclose(resumed.losses, expected.losses, rtol=tolerance)


def test_sharded_state_resumes_from_state_dict(tmp_path: Path) -> None:
    """Directly, and from a file in the same process and in another one."""
    first = processes.run(sharded_optimizer_state.by_state_dict, tmp_path)
    for (uninterrupted, *resumed), later in zip(
        first, processes.run(sharded_optimizer_state.from_file, tmp_path), strict=True
    ):
        assert {where for *_, where in uninterrupted.before.forms.values()} == {
            "plain",
            "replicated",
            "sharded along 0",
            "sharded along 1",
        }
        for run in (*resumed, later):
            _check(run, uninterrupted)


@pytest.mark.parametrize(("wrapper", "ranks"), [("fsdp", 2), ("hybrid", 4)])
def test_sharded_state_resumes_from_checkpoint(tmp_path: Path, wrapper: str, ranks: int) -> None:
    """On as many ranks, on fewer, and as plain tensors if the parameters are plain."""
    uninterrupted = processes.run(sharded_optimizer_state.saved, tmp_path, wrapper, processes=ranks)[0]
    expected = {name: where for name, (*_, where) in uninterrupted.before.forms.items()}
    for now, other_wrapper in ((ranks, wrapper), (ranks // 2, "fsdp")):
        for resumed, placements in processes.run(
            sharded_optimizer_state.loaded, tmp_path, other_wrapper, processes=now
        ):
            _check(resumed, uninterrupted, is_exact=now == ranks)
            assert placements == expected
    resumed, _ = sharded_optimizer_state.loaded(tmp_path, "plain")
    _check(resumed, uninterrupted, plain=True, is_exact=False)
