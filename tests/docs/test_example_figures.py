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
from numpy.testing import assert_allclose, assert_array_equal
from support.docs.pages import README, sections
from support.programs import EXAMPLES, number_after, run

from plateau_jax import StagedCurve, optax_schedule, resume_record

pytestmark = pytest.mark.slow


def test_same_training_run_in_both_frameworks(ran):
    _, lines = ran("first_run.py")
    assert "steps at which the learning rates differ: 0 of 120" in lines
    for framework in ("JAX", "PyTorch"):
        loss = number_after(f"{framework} after 120 updates: held-out loss", lines)
        assert loss == pytest.approx(
            number_after("JAX after 120 updates: held-out loss", lines), rel=0.1
        )
        assert loss < 1.0
    (jump,) = [line for line in lines if line.startswith("optax: ")]
    before, after = re.findall(r"\d\.\d\de-\d\d", jump)
    assert float(after) > 2 * float(before)
    (error,) = [line for line in lines if line.startswith("here: ")]
    assert "ValueError: state_dict cannot resume at step 72" in error


def test_readme_shows_what_the_first_run_prints(tmp_path):
    """But for digits of its losses, which depend on the machine."""
    printed = without_figures(run(EXAMPLES / "first_run.py", folder=tmp_path))
    shown = "".join(block.code for block in blocks_of_readme("text"))
    assert "0 of 1000" in shown
    for line in without_figures(shown).splitlines():
        assert line in printed.splitlines()


def blocks_of_readme(language):
    return [
        block
        for section in sections(README)
        for block in section.blocks
        if block.language == language
    ]


def without_figures(text):
    return re.sub(r"\b0\.\d{4}\b|\d\d\.\d\d%", "", text)


def test_sweep_finds_a_plateau_that_helps(ran):
    _, lines = ran("sweep.py")
    assert "learning rates ≠ peak · curve(step):        0 of 3880" in lines  # 97 curves, 40 steps
    assert number_after("largest difference between their losses", lines) < 1e-4
    (best,) = [line for line in lines if line.startswith("the best, a plateau")]
    *_, last_word = best.split()
    with_plateau = float(last_word)
    without = number_after("held-out loss without a plateau:", lines)
    assert with_plateau < without < math.log(10)


def test_batch_plan_keeps_the_learning_rates(ran):
    _, lines = ran("batch_plan.py")
    for pair in ("at equal tokens in PyTorch: 0 of 25", "at equal tokens in JAX: 0 of 25"):
        assert f"learning rates that differ {pair}" in lines
    assert "learning rates that differ between PyTorch and JAX: 0 of 70" in lines


def test_branched_runs_agree_and_cool_down(ran):
    _, lines = ran("branch_cooldowns.py")
    losses = {}
    for line in lines:
        cells = re.fullmatch(r" +(\d) (.+?) +\d+ +\d+ +(\d+) +([\d.]+) +([\d.]+)", line)
        if cells is None:
            continue
        seed, name, differing_lrs, loss_in_jax, loss_in_torch = cells.groups()
        assert differing_lrs == "0"
        assert float(loss_in_jax) == pytest.approx(float(loss_in_torch), abs=1e-2)
        losses[seed, name] = float(loss_in_torch)
    assert losses["0", "cooldown of 60"] < losses["0", "stable phase"] - 0.05


def test_each_device_holds_half_of_the_state(ran):
    """And the losses are those of one device."""
    _, lines = ran("train_flax.py")
    assert "  learning rates that differ:             0 of 100" in lines
    assert number_after("difference of the last training loss", lines) <= 1e-6
    assert number_after("difference of the last held-out loss", lines) <= 1e-6
    (line,) = [line for line in lines if line.startswith("weights and moments")]
    sizes = re.findall(r"([\d.]+) MB", line)
    total, on_a_device = map(float, sizes)
    assert total > 0.8
    assert on_a_device == pytest.approx(total / 2, abs=0.02)


def leaves(run):
    return jax.tree.leaves(nnx.state(run.parts))


def assert_same_state(run, loaded):
    """Check that a run has loaded the state of another one onto its devices."""
    for leaf, saved in zip(leaves(loaded), leaves(run), strict=True):
        assert leaf.sharding.mesh == loaded.mesh
        values = np.asarray(leaf)
        expected = np.asarray(saved)
        assert_array_equal(values, expected, strict=True)


def test_resume_on_another_number_of_devices(tmp_path, monkeypatch):
    """From four devices to one, and back."""
    monkeypatch.syspath_prepend(EXAMPLES)
    example = runpy.run_path(str(EXAMPLES / "train_flax.py"))
    args = SimpleNamespace(width=32, seed=0)
    curve = StagedCurve([(3, 1.0), (27,)])
    schedule = optax_schedule(curve, 5e-3)
    adamw = optax.inject_hyperparams(optax.adamw)(schedule)
    four = example["Run"](args, adamw, jax.devices("cpu"), 2, 2)
    one = example["Run"](args, adamw, jax.devices("cpu"), 1, 1)
    batches = np.random.default_rng(0).integers(2048, size=(12, 256, 9), dtype=np.int32)

    def save_and_load(saved, loaded, directory, batches):
        with example["manager"](directory) as checkpoints:
            for batch in batches[:3]:
                saved.update(batch)
            saved.save(checkpoints, {"peak": 5e-3}, curve)
        about = example["last_saved"](directory)
        assert about["record"] == resume_record(curve, peak_value=5e-3)
        with example["manager"](directory) as checkpoints:
            loaded.load(checkpoints, about)
        assert_same_state(saved, loaded)
        for batch in batches[3:]:
            saved.update(batch)
            loaded.update(batch)
        lrs = np.array(loaded.learning_rates)
        expected_lrs = np.array(saved.learning_rates)
        assert_array_equal(lrs, expected_lrs, strict=True)
        losses = np.array(loaded.losses)
        expected_losses = np.array(saved.losses)
        assert_allclose(losses, expected_losses, rtol=0, atol=1e-6)

    save_and_load(four, one, tmp_path / "four", batches[:6])
    save_and_load(one, four, tmp_path / "one", batches[6:])
