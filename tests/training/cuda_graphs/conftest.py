"""Captured updates on a GPU, and on the CPU with a stand-in for CUDA graphs."""

from collections.abc import Iterator

import pytest
from support.training.cuda_graphs.graphs import without_cuda


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """Return the device for `captured_step`."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        if request.param == "cpu":
            without_cuda(monkeypatch)
        yield request.param
