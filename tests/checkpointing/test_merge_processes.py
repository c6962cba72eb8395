"""`Checkpoints.merge` on several processes."""

from pathlib import Path

import numpy as np
import pytest
from support.checkpointing import merging as support
from support.distributed import processes

pytestmark = pytest.mark.slow

COUNTS, WEIGHTS = [1, 2, 3], [0.5, 0.2, 0.3]
NUMBERS = {1: ["plain"], 2: ["ddp", "fsdp", "plain"], 3: ["fsdp"]}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The same checkpoints, of one process and of two, under each wrapper."""
    folder = tmp_path_factory.mktemp("saved")
    support.save_each(folder / "plain", "plain", COUNTS)
    for wrapper in ("ddp", "fsdp"):
        processes.run(support.save_each, folder / wrapper, wrapper, COUNTS)
    return [folder / name for name in ("plain", "ddp", "fsdp")]


def test_merge_has_same_bits_on_any_world_size(saved: list[Path]) -> None:
    expected, *others = support.merged(saved, COUNTS, WEIGHTS, ["plain"])
    assert expected["['1.num_batches_tracked']"] == 3
    exact = sum(
        weight * support.net(count)[0].weight.detach().numpy().astype(float)
        for count, weight in zip(COUNTS, WEIGHTS, strict=True)
    )
    np.testing.assert_allclose(expected["['0.weight']"], exact, rtol=1e-5, atol=1e-6)
    merged = list(others)
    for number, wrappers in NUMBERS.items():
        if number > 1:
            ranks = processes.run(support.merged, saved, COUNTS, WEIGHTS, wrappers, processes=number)
            merged += [tensors for rank in ranks for tensors in rank]
    assert len(merged) == 2 + 2 * 3 * 3 + 3 * 3
    for tensors in merged:
        assert tensors.keys() == expected.keys()
        for name, values in expected.items():
            np.testing.assert_array_equal(tensors[name], values, strict=True)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("weights", "[0.5, 0.25, 0.25], 'model'), and rank 1 with ([1, 2, 3], [0.25, 0.5, 0.25], 'model')"),
        ("counts", "ValueError: rank 0 calls merge with (counts, weights, part) = ([1, 2, 3], "),
        ("sum", "ValueError: weights add up to 1.5"),
        ("into", "TypeError: into = None must be a module"),
        ("loading", "KeyError: 'not this one'"),
    ],
)
def test_rejection_on_one_rank_raises_on_all(saved: list[Path], how: str, message: str) -> None:
    """And the module is as before on all."""
    for rank, (raised, is_as_before) in enumerate(processes.run(support.rejected, saved[2], how)):
        assert message in raised
        if how in ("sum", "into", "loading"):
            assert raised.startswith("RuntimeError: rank 1 failed: ") == (rank == 0)
        assert is_as_before


def test_damage_is_known_to_all_ranks(saved: list[Path]) -> None:
    path = saved[2] / "2" / "rank-1.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    try:
        for raised, is_as_before in processes.run(support.rejected, saved[2], "damage"):
            assert "a damaged checkpoint: 2: rank-1.safetensors is damaged" in raised
            assert is_as_before
    finally:
        path.write_bytes(content)


@pytest.mark.parametrize("wrapper", ["plain", "bf16", "ddp", "fsdp"])
def test_running_average_equals_merge(tmp_path: Path, wrapper: str) -> None:
    """At the end of each window, to the rounding of the merge's dtype."""
    if wrapper in ("plain", "bf16"):
        ranks = [support.running_averages(tmp_path, wrapper)]
    else:
        ranks = processes.run(support.running_averages, tmp_path, wrapper)
    for windows in ranks:
        assert len(windows) == 2
        for pairs in windows:
            for average, merge in pairs.values():
                np.testing.assert_allclose(average, merge, rtol=1e-6, atol=1e-6)
