"""After an error inside an update the next update is right; and no update synchronizes with the device."""

from itertools import permutations, product

import pytest
from support.broken_updates import Broken, Unused, all_go_on, all_go_on_apart, all_reads, error_on_rank_1
from support.distributed_updates import Case
from support.processes import run

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("wrapper", ["ddp", "fsdp"])
def test_the_next_update_is_right(wrapper: str) -> None:
    cases = [
        Broken(Case(wrapper, "adamw", "pair", 2, 0.1, synchronize=synchronize, updates=4), place, micro_batch)
        for synchronize, place, micro_batch in product(
            ("update", "micro"),
            ("before", "forward", "after", "refused", "backward", "within", "optimizer"),
            (0, 1),
        )
    ]
    for differences in run(all_go_on, cases):
        assert [case for case, found in zip(cases, differences, strict=True) if found > 1e-7] == []


def test_after_errors_in_different_micro_batches_and_with_layers_unused() -> None:
    """Errors before a backward pass averages; then nothing has been sent."""
    uses = (True, True), (False, False), (True, False), (False, True)
    same = [(place, place) for place in product((0, 1), ("before", "after", "backward"))]
    cases = [Unused(places, *used) for places, *used in product(same, uses, uses)]
    apart = list(permutations(product((0, 1), ("before", "after")), 2))
    cases += [Unused(places, finds_unused=finds_unused) for places in apart for finds_unused in (False, True)]
    for differences in run(all_go_on_apart, cases):
        assert [case for case, found in zip(cases, differences, strict=True) if found > 1e-7] == []


def test_a_rank_alone_with_an_error_says_that_it_cannot_go_on() -> None:
    first, second = run(error_on_rank_1)[1]
    assert first == second
    assert "rank 1 had an error in an update, and the ranks [0] did not" in first
    assert "restart from a checkpoint" in first


def test_no_update_synchronizes_with_the_device() -> None:
    cases = [
        Case(wrapper, "adamw", loss, 2, 0.1, precision, synchronize, spoiled=((3, 1, float("nan")),))
        for wrapper, loss, precision, synchronize in product(
            ("ddp", "fsdp"), ("mean", "device pair"), ("fp32", "fp16"), ("update", "micro")
        )
    ]
    assert run(all_reads, cases) == [[[]] * len(cases)] * 2
