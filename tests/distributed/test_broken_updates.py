"""After an error inside an update the next update is right; and no update synchronizes with the device."""

from itertools import product

import pytest
from support.broken_updates import Broken, all_go_on, all_reads
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


def test_no_update_synchronizes_with_the_device() -> None:
    cases = [
        Case(wrapper, "adamw", loss, 2, 0.1, precision, synchronize, spoiled=((3, 1, float("nan")),))
        for wrapper, loss, precision, synchronize in product(
            ("ddp", "fsdp"), ("mean", "device pair"), ("fp32", "fp16"), ("update", "micro")
        )
    ]
    assert run(all_reads, cases) == [[[]] * len(cases)] * 2
