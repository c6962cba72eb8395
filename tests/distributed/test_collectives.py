"""Values that ranks gather; the ranks are threads."""

from typing import Any

import pytest
from support.distributed.processes import error_of
from support.distributed.threads import on_ranks

from torch_bridge.training.distributed import processes
from torch_bridge.training.distributed.processes import in_lockstep


class OfLengthOne(list[Any]):
    """Items whose length is wrong if there are several."""

    def __len__(self):
        return min(super().__len__(), 1)


@pytest.mark.parametrize("form", [list, iter, OfLengthOne])
@pytest.mark.parametrize(
    ("batches_by_rank", "passes_by_rank"),
    [
        (
            [["a", "b"], ["c", "d", "e"]],
            [[("a", True), ("b", True), ("b", False)], [("c", True), ("d", True), ("e", True)]],
        ),
        (
            [["a", "b", "c"], ["d", "e", "f"]],
            [[("a", True), ("b", True), ("c", True)], [("d", True), ("e", True), ("f", True)]],
        ),
        ([[], []], [[], []]),
    ],
)
def test_all_ranks_get_the_same_number_of_batches(form, batches_by_rank, passes_by_rank):
    """The filler is the last batch."""

    def passes():
        local = form(batches_by_rank[processes.rank()])
        return list(in_lockstep(local))

    assert on_ranks(passes, len(batches_by_rank)) == passes_by_rank


def test_rank_without_a_batch_is_an_error():
    def passes():
        batches = ["a"] * processes.rank()
        return error_of(lambda: list(in_lockstep(batches)))

    for error in on_ranks(passes, 3):
        assert error.startswith("ValueError: rank 0 has no batch")


@pytest.mark.parametrize("failing", [0, 2])
def test_error_on_one_rank_is_raised_on_all(failing):
    def work():
        if processes.rank() == failing:
            raise KeyError("none")

    errors = on_ranks(lambda: error_of(processes.collective_call, work), 3)
    assert errors.pop(failing) == "KeyError: 'none'"
    for error in errors:
        assert error.startswith(f"RuntimeError: rank {failing} ")
        assert "KeyError: 'none'" in error
