"""The example that decodes two-grams from Bloom filters: its data, its figures, a Ctrl-C."""

import re
import sys
from unittest.mock import patch

import numpy as np
import pytest
import torch
from support.programs import EXAMPLES, Program, assert_is_a_picture, finish, interrupt, later_lines

pytestmark = pytest.mark.slow

SETTINGS = (
    *("--count", "10000", "--epochs", "8", "--hidden", "128", "--every", "25"),
    *("--batch-size", "256", "--output", "new/bloom.png", "--device", "cpu"),
)
UPDATES = 8 * (8000 // 256)


def start(folder, *arguments):
    return Program(EXAMPLES / "train_bloom.py", *arguments, folder=folder)


@pytest.fixture(scope="module")
def bloom_filters():
    with patch.object(sys, "path", [str(EXAMPLES), *sys.path]):
        import bloom_filters

        yield bloom_filters
    del sys.modules["bloom_filters"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder and the output of an uninterrupted run."""
    folder = tmp_path_factory.mktemp("bloom")
    return folder, finish(start(folder, *SETTINGS))


def figures(lines):
    """Return precision, recall and F1 by the name of the model or rule."""
    rows = (re.fullmatch(r"  (.+?): +([\d.]+) +([\d.]+) +([\d.]+)", line) for line in lines)
    return {row[1]: tuple(float(number) for number in row.groups()[1:]) for row in rows if row}


def untimed_lines(lines):
    """Return all lines except those with a duration."""
    return [line for line in lines if not re.search(r"\d m?s[,:]", line)]


@pytest.mark.parametrize(("count", "bits", "hashes"), [(8200, 64, 8), (1, 100, 1), (500, 1000, 30)])
def test_encoding_at_once_matches_row_by_row(bloom_filters, count, bits, hashes):
    arguments = bloom_filters.SURNAMES, count, bits, bloom_filters.positions(bits, hashes)
    at_once = bloom_filters.encode_at_once(*arguments)
    row_by_row = bloom_filters.encode_row_by_row(*arguments)
    for vectorized, looped, width in zip(at_once, row_by_row, (bits, 728), strict=True):
        assert vectorized.dtype == looped.dtype == torch.float32
        assert vectorized.shape == (count, width)
        assert torch.equal(vectorized, looped)
    smith = [bloom_filters.TWO_GRAMS[index] for index in at_once[1][0].nonzero().flatten()]
    assert sorted(smith) == sorted(["_S", "SM", "MI", "IT", "TH", "H_"])


def test_all_names_are_encoded(bloom_filters):
    positions = bloom_filters.positions(8, 1)
    assert len(bloom_filters.encode(bloom_filters.SURNAMES, 88_799, 8, positions)["grams"]) == 88_799


def test_network_beats_linear_model_beats_most_frequent(trained):
    _, lines = trained
    scores = figures(lines)
    assert list(scores) == ["network", "linear model", "most frequent", "all bits, by the key"]
    network, linear, frequent, with_key = (f1 for _, _, f1 in scores.values())
    assert network > linear + 0.01
    assert linear > 2 * with_key > 2 * frequent > 0
    assert scores["all bits, by the key"][1] == 1.0  # every two-gram of the name has set all its bits
    for precision, recall, f1 in scores.values():
        assert f1 == pytest.approx(2 * precision * recall / (precision + recall), abs=2e-3)


def test_most_frequent_two_grams_are_those_of_the_names(bloom_filters, trained):
    _, lines = trained
    _, grams = bloom_filters.encode_at_once(bloom_filters.SURNAMES, 10_000, 8, bloom_filters.positions(8, 1))
    shuffled = grams[np.random.default_rng(0).permutation(10_000)].bool()
    training, validation, held_out = shuffled.split([8000, 1000, 1000])
    order = training.sum(0).argsort(descending=True)

    def f1_of(part, most):
        return 2 * part[:, order[:most]].sum().item() / (part.sum().item() + most * len(part))

    most = max(range(1, 100), key=lambda most: f1_of(validation, most))
    assert figures(lines)["most frequent"][2] == pytest.approx(f1_of(held_out, most), abs=2e-3)


def test_example_times_both_encodings_and_draws(trained):
    folder, lines = trained
    assert re.fullmatch(r"4,000 names row by row \d+ ms, at once [\d.]+ ms: \d+ times as fast", lines[-1])
    assert_is_a_picture(folder / "new" / "bloom.png")


def test_resume_matches_uninterrupted_run_and_uses_cache(trained, tmp_path):
    _, uninterrupted = trained
    updates = interrupt(start(tmp_path, *SETTINGS), "    50 ")
    assert 50 <= updates < UPDATES

    def cached():
        return {path: path.stat().st_ino for path in (tmp_path / "train_bloom_data").rglob("*.pkl")}

    before = cached()
    assert before
    status, _, errors = start(tmp_path, "--resume", "--epochs", 9).finish()
    assert status == 1
    assert errors.endswith("; without --epochs, --batch-size and --count, --resume continues as planned\n")
    resumed = finish(start(tmp_path, "--resume"))
    assert cached() == before
    assert resumed[0] == f"resumed from train_bloom.pt after update {updates} of {UPDATES}"
    assert untimed_lines(resumed[1:]) == later_lines(untimed_lines(uninterrupted), updates)
