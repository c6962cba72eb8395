"""The flax example: equal learning rates and losses on any device mesh, and no trace of a Ctrl-C."""

import json
import re
import runpy
import shutil
from types import SimpleNamespace

import jax
import numpy as np
import optax
import pytest
from flax import nnx
from support.programs import EXAMPLES, Program, assert_rejected, finish, interrupt, later_lines, number_after

from plateau_jax import StagedCurve, optax_schedule, resume_record

pytestmark = pytest.mark.slow

SCRIPT = EXAMPLES / "train_flax.py"
SIZES = "--warmup", 5, "--batch-size", 128, "--width", 32, "--every", 20
PLAN = "--stable", 75, "--cooldown", 20
UPDATES = 100


def start(folder, *arguments):
    return Program(SCRIPT, *arguments, folder=folder)


def last_saved(folder):
    """Return the number of updates at the only checkpoint, and its metadata."""
    (last,) = (folder / "train_flax").glob("[0-9]*")
    return int(last.name), json.loads((last / "about" / "metadata").read_text())


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """The folder and the output of an uninterrupted run."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    return folder, finish(start(folder, *SIZES, *PLAN))


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """The folder of a run under a longer plan, and the number of updates before a Ctrl-C ended it."""
    folder = tmp_path_factory.mktemp("stopped")
    updates = interrupt(start(folder, *SIZES, "--stable", 1000), "    20 ")
    return folder, updates


def test_four_devices_match_one(uninterrupted):
    folder, lines = uninterrupted
    assert f"  learning rates that differ:             0 of {UPDATES}" in lines
    for name in ("training", "held-out"):
        assert number_after(f"difference of the last {name} loss", lines) <= 1e-6
    done, saved = last_saved(folder)
    assert done == UPDATES
    curve = StagedCurve([(5, 1.0), (75,), (20, 0.0, "1-sqrt")])
    expected = np.float32(5e-3) * curve(np.arange(UPDATES))
    np.testing.assert_array_equal(np.array(saved["rates"], np.float32), expected)


def test_each_device_holds_half_of_the_state(uninterrupted):
    """Each device holds half of every sharded array; biases and counters are replicated."""
    _, lines = uninterrupted
    (line,) = (line for line in lines if line.startswith("weights and moments"))
    total, share = map(float, re.findall(r"([\d.]+) MB", line))
    assert total > 0.8
    assert share == pytest.approx(total / 2, abs=0.02)


def test_resume_under_plan_with_same_past(uninterrupted, stopped, tmp_path):
    folder, lines = uninterrupted
    interrupted, updates = stopped
    assert last_saved(interrupted)[0] == updates
    shutil.copytree(interrupted, tmp_path, dirs_exist_ok=True)
    resumed = finish(start(tmp_path, "--resume", *PLAN))

    assert resumed[0] == f"resumed from train_flax after update {updates}"
    assert resumed[1:] == later_lines(lines, updates)
    assert last_saved(tmp_path) == last_saved(folder)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--resume", "--warmup", 6], "the learning rates differ from step 1 on; resume with the old curve"),
        (["--resume", "--peak", 1], "--resume: --batch-size, --width, --peak and --seed must not change"),
    ],
)
def test_resume_with_different_settings_is_rejected(stopped, arguments, message):
    folder, _ = stopped
    assert_rejected(folder, "train_flax.py", arguments, 2, message)


def assert_equal_states(saved, loaded):
    leaves = (jax.tree.leaves(nnx.state(run.parts)) for run in (saved, loaded))
    for expected, actual in zip(*leaves, strict=True):
        np.testing.assert_array_equal(np.asarray(actual), np.asarray(expected), strict=True)


def test_resume_on_another_number_of_devices(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)  # as if the script were run as a program
    example = runpy.run_path(str(SCRIPT))
    args = SimpleNamespace(width=32, seed=0)
    curve = StagedCurve([(3, 1.0), (27,)])
    adamw = optax.inject_hyperparams(optax.adamw)(optax_schedule(curve, 5e-3))
    four, one = (example["Run"](args, adamw, jax.devices("cpu"), *shape) for shape in ((2, 2), (1, 1)))
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
        assert_equal_states(saved, loaded)
        assert {part.sharding.mesh for part in jax.tree.leaves(nnx.state(loaded.parts))} == {loaded.mesh}
        for batch in batches[6 * turn + 3 : 6 * turn + 6]:
            saved.update(batch)
            loaded.update(batch)
        np.testing.assert_array_equal(
            np.array(saved.learning_rates), np.array(loaded.learning_rates), strict=True
        )
        np.testing.assert_allclose(np.array(saved.losses), np.array(loaded.losses), rtol=0, atol=1e-6)
