"""Figures that the examples print, against their definitions; states that move between devices."""

import math
import re
import runpy
from types import SimpleNamespace

import jax
import numpy as np
import optax
import pytest
from flax import nnx
from support.programs import EXAMPLES, number_after

from plateau_jax import StagedCurve, optax_schedule, resume_record

pytestmark = pytest.mark.slow


def test_same_training_run_in_both_frameworks(ran):
    _, lines = ran("train_digits.py")
    assert "steps at which the two learning rates differ: 0 of 60" in lines
    assert number_after("largest difference between the two losses", lines) < 1e-5
    assert number_after("test accuracy in JAX", lines) > 70
    assert number_after("test accuracy in PyTorch", lines) > 70


def test_sweep_finds_a_plateau_that_helps(ran):
    _, lines = ran("sweep.py")
    assert "learning rates ≠ peak · curve(step):        0 of 3880" in lines  # 97 curves, 40 steps
    assert number_after("largest difference between their losses", lines) < 1e-4
    (best,) = (line.split()[-1] for line in lines if line.startswith("the best, a plateau"))
    without = number_after("held-out loss without a plateau:", lines)
    assert float(best) < without < math.log(10)


def test_models_beat_simple_forecasts(ran):
    _, lines = ran("train_gpt.py")
    of_frequencies = number_after("loss of byte frequencies:", lines)
    assert number_after("loss of the model:", lines) < of_frequencies < math.log(256)
    _, lines = ran("train_lstm.py")
    assert number_after("LSTM:", lines) < 0.9 * number_after("last year's changes:", lines)


def test_batch_plan_keeps_the_learning_rates(ran):
    _, lines = ran("batch_plan.py")
    for pair in ("at equal tokens in PyTorch: 0 of 25", "at equal tokens in JAX: 0 of 25"):
        assert f"learning rates that differ {pair}" in lines
    assert "learning rates that differ between PyTorch and JAX: 0 of 70" in lines


def test_branched_runs_agree_and_cool_down(ran):
    """A merge over 60 updates beats the constant learning rate, in PyTorch as in JAX."""
    _, lines = ran("branch_cooldowns.py")
    text = "\n".join(lines)
    row, merge = (
        r"^ +(\d) (.+?) +(\d+) +(\d+) +(\d+) +([\d.]+) +([\d.]+)$",
        r"^(.+?) +(\d+) updates +(.+)$",
    )
    runs = {(seed, name): numbers for seed, name, *numbers in re.findall(row, text, re.MULTILINE)}
    merged = {
        (name, steps): losses for name, steps, losses in re.findall(merge, text, re.MULTILINE)
    }

    held = int(number_after("updates that the plateau of one step lasted:", lines))
    assert 4 * 5 < held < 4 * 120
    expected = {("0", "held until flat"): ("0", str(20 + held + 60))}
    for seed in "01":
        expected |= {(seed, "stable phase"): ("0", "120"), (seed, "constant lr"): ("120", "180")}
        expected |= {
            (seed, f"cooldown of {steps}"): ("120", str(120 + steps)) for steps in (10, 30, 60)
        }
    assert {key: (begin, end) for key, (begin, end, *_) in runs.items()} == expected
    for _, _, differing, in_jax, in_torch in runs.values():
        assert int(differing) == 0
        assert float(in_jax) == pytest.approx(float(in_torch), abs=1e-2)
    assert float(runs["0", "cooldown of 60"][-1]) < float(runs["0", "stable phase"][-1]) - 0.05

    assert len(merged) == 9
    for (name, steps), losses in merged.items():
        *by_seed, mean = map(float, losses.split())
        assert mean == pytest.approx(np.mean(by_seed), abs=1e-4)
        if name == "cooled down":
            assert by_seed == [float(runs[seed, f"cooldown of {steps}"][-2]) for seed in "01"]
    after_merge, constant = (
        np.array(merged[n, "60"].split(), float) for n in ("merged", "constant lr")
    )
    assert (after_merge < constant).all()
    assert (
        number_after("largest difference between a merge in PyTorch and the same in JAX:", lines)
        < 1e-2
    )


def test_running_averages_replace_a_cooldown(ran):
    _, lines = ran("running_averages.py")
    rows = {
        name: [float(number) for number in re.findall(r"\d+\.\d{3}", line)]
        for line in lines
        for name in ("cooled down", "running average", "constant lr")
        if line.startswith(name)
    }
    losses = rows["cooled down"], rows["running average"][::3], rows["constant lr"][::3]
    for cooled, averaged, constant in zip(*losses, strict=True):
        assert abs(averaged - cooled) < 0.2 * (constant - cooled)
    assert number_after("largest difference between a running average and the merge:", lines) < 1e-5


def test_network_beats_linear_model_beats_most_frequent(ran):
    _, lines = ran("train_bloom.py")
    assert re.fullmatch(r"4,000 names row by row \d+ ms, at once .+ times as fast", lines[-1])
    rows = (re.fullmatch(r"  (.+?): +([\d.]+) +([\d.]+) +([\d.]+)", line) for line in lines)
    scores = {row[1]: tuple(map(float, row.groups()[1:])) for row in rows if row}
    assert list(scores) == ["network", "linear model", "most frequent", "all bits, by the key"]
    network, linear, frequent, with_key = (f1 for _, _, f1 in scores.values())
    assert network > linear + 0.01
    assert linear > 2 * with_key > 2 * frequent > 0
    assert (
        scores["all bits, by the key"][1] == 1.0
    )  # every two-gram of the name has set all its bits
    for precision, recall, f1 in scores.values():
        assert f1 == pytest.approx(2 * precision * recall / (precision + recall), abs=2e-3)


def test_each_device_holds_half_of_the_state(ran):
    """And the losses are those of one device."""
    _, lines = ran("train_flax.py")
    assert "  learning rates that differ:             0 of 100" in lines
    assert number_after("difference of the last training loss", lines) <= 1e-6
    assert number_after("difference of the last held-out loss", lines) <= 1e-6
    (line,) = (line for line in lines if line.startswith("weights and moments"))
    total, share = map(float, re.findall(r"([\d.]+) MB", line))
    assert total > 0.8
    assert share == pytest.approx(total / 2, abs=0.02)


def test_resume_on_another_number_of_devices(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    example = runpy.run_path(str(EXAMPLES / "train_flax.py"))
    args = SimpleNamespace(width=32, seed=0)
    curve = StagedCurve([(3, 1.0), (27,)])
    adamw = optax.inject_hyperparams(optax.adamw)(optax_schedule(curve, 5e-3))
    four, one = (
        example["Run"](args, adamw, jax.devices("cpu"), *shape) for shape in ((2, 2), (1, 1))
    )
    batches = np.random.default_rng(0).integers(2048, size=(12, 256, 9), dtype=np.int32)

    for turn, (saved, loaded) in enumerate([(four, one), (one, four)]):
        with example["manager"](tmp_path / str(turn)) as checkpoints:
            for batch in batches[6 * turn : 6 * turn + 3]:
                saved.update(batch)
            saved.save(checkpoints, {"peak": 5e-3}, curve)
        about = example["last_saved"](tmp_path / str(turn))
        assert about["record"] == resume_record(curve, peak_value=5e-3)
        with example["manager"](tmp_path / str(turn)) as checkpoints:
            loaded.load(checkpoints, about)
        expected, actual = (jax.tree.leaves(nnx.state(run.parts)) for run in (saved, loaded))
        assert {leaf.sharding.mesh for leaf in actual} == {loaded.mesh}
        for leaves in zip(actual, expected, strict=True):
            np.testing.assert_array_equal(*map(np.asarray, leaves), strict=True)
        for batch in batches[6 * turn + 3 : 6 * turn + 6]:
            saved.update(batch)
            loaded.update(batch)
        np.testing.assert_array_equal(
            *(np.array(run.learning_rates) for run in (saved, loaded)), strict=True
        )
        np.testing.assert_allclose(
            *(np.array(run.losses) for run in (saved, loaded)), rtol=0, atol=1e-6
        )
