"""The remaining examples run, print the figures that they promise, and draw their pictures."""

import re

import numpy as np
import pytest
from PIL import Image
from support.programs import EXAMPLES, Program, assert_is_a_picture, assert_rejected, number_after, run

pytestmark = pytest.mark.slow


def test_train_digits_matches_between_jax_and_torch(tmp_path):
    picture = tmp_path / "new" / "digits.png"
    plateaus = "--plateau", 10, 20, "--plateau", 70, 30
    arguments = ["--steps", 60, *plateaus, "--seed", 3, "--output", picture]
    lines = run(EXAMPLES / "train_digits.py", *arguments, folder=tmp_path).splitlines()

    assert "steps at which the two learning rates differ: 0 of 60" in lines
    assert number_after("largest difference between the two losses", lines) < 1e-5
    for framework in ("JAX", "PyTorch"):
        assert number_after(f"test accuracy in {framework}", lines) > 70
    assert_is_a_picture(picture)


def test_train_digits_exits_quietly_on_ctrl_c(tmp_path):
    program = Program(EXAMPLES / "train_digits.py", "--steps", 20_000, folder=tmp_path)
    for line in program.lines():
        if re.match(r"\s*0  0\.0", line):
            break
    program.interrupt()
    status, rest, errors = program.finish()
    assert status == 130, errors
    assert rest.endswith("stopped\n")
    assert len(errors.splitlines()) == 1, errors  # only the expected cost
    assert list(tmp_path.iterdir()) == []


def test_sweep_trains_curves_together_and_in_turn(tmp_path):
    picture = tmp_path / "new" / "sweep.png"
    arguments = ["--steps", 40, "--batch-size", 16, "--hidden", 24, "--rounds", 1, "--seed", 3]
    arguments += ["--output", picture]
    text = run(EXAMPLES / "sweep.py", *arguments, folder=tmp_path)
    lines = text.splitlines()

    runs = int(re.search(r"^(\d+) runs at once:", text, re.MULTILINE)[1])
    assert runs > 64
    assert f"learning rates ≠ peak · curve(step):        0 of {40 * runs}\n" in text
    assert number_after("largest difference between their losses", lines) < 1e-4
    plain = number_after("held-out loss without a plateau", lines)
    best = re.search(r"^the best, a plateau at \d+ % for \d+ %: +([\d.]+)$", text, re.MULTILINE)
    assert float(best[1]) < plain < np.log(10)
    assert number_after("one after another", lines) > 0
    assert number_after("times as fast at once", lines) > 0
    assert_is_a_picture(picture)


@pytest.fixture(scope="module")
def branched(tmp_path_factory):
    """A short run: its folder, the rows of its two tables, and its remaining lines."""
    folder = tmp_path_factory.mktemp("branched")
    arguments = ["--warmup", 20, "--stable", 120, "--cooldowns", 10, 30, 60, "--every", 5, "--seeds", 2]
    text = run(EXAMPLES / "branch_cooldowns.py", *arguments, "--output", "new/runs.png", folder=folder)
    runs, ends, remaining = {}, {}, []
    for line in text.splitlines():
        if match := re.fullmatch(r" +(\d) (.+?) +(\d+) +(\d+) +(\d+) +([\d.]+) +([\d.]+)", line):
            seed, name, *numbers = match.groups()
            runs[int(seed), name] = [float(number) for number in numbers]
        elif match := re.fullmatch(r"(.+?) +(\d+) updates +([\d.]+) +([\d.]+) +([\d.]+)", line):
            name, steps, *losses = match.groups()
            ends[name, int(steps)] = [float(loss) for loss in losses]
        else:
            remaining.append(line)
    return folder, runs, ends, remaining


def test_branch_cooldowns_learning_rates_agree(branched):
    _, runs, _, remaining = branched
    updates = {key: (begin, end) for key, (begin, end, *_) in runs.items()}
    held = int(number_after("updates that the plateau of one step lasted:", remaining))
    assert 4 * 5 < held < 4 * 120
    expected = {
        "stable phase": (0, 120),
        "constant lr": (120, 180),
        "cooldown of 10": (120, 130),
        "cooldown of 30": (120, 150),
        "cooldown of 60": (120, 180),
    }
    by_seed = {(seed, name): ends for seed in (0, 1) for name, ends in expected.items()}
    assert updates == {**by_seed, (0, "held until flat"): (0, 20 + held + 60)}
    for _, _, differing, in_jax, in_torch in runs.values():
        assert differing == 0
        assert in_jax == pytest.approx(in_torch, abs=1e-2)


def test_branch_cooldowns_lowers_and_plots_the_loss(branched):
    folder, runs, _, _ = branched
    assert runs[0, "cooldown of 60"][-1] < runs[0, "stable phase"][-1] - 0.05
    assert_is_a_picture(folder / "new" / "runs.png")


def test_branch_cooldowns_compares_merges_with_cooldowns(branched):
    """A merge over 60 updates beats the constant learning rate, in PyTorch as in JAX."""
    _, runs, ends, remaining = branched
    names = "constant lr", "merged", "cooled down"
    assert ends.keys() == {(name, steps) for name in names for steps in (10, 30, 60)}
    for (name, steps), (*losses, mean) in ends.items():
        assert mean == pytest.approx(np.mean(losses), abs=1e-4)
        if name == "cooled down":
            assert losses == [runs[seed, f"cooldown of {steps}"][-2] for seed in (0, 1)]
    for seed in (0, 1):
        assert ends["merged", 60][seed] < ends["constant lr", 60][seed]
    assert (
        number_after("largest difference between a merge in PyTorch and the same in JAX:", remaining) < 1e-2
    )


def test_running_averages_replace_a_cooldown(tmp_path):
    arguments = ["--seeds", 3, "--interval", 20]
    text = run(EXAMPLES / "running_averages.py", *arguments, folder=tmp_path)
    rows = {
        name: [float(number) for number in re.findall(r"\d+\.\d{3}", line)]
        for name, line in re.findall(r"^(cooled down|running average|constant lr)(.+)$", text, re.MULTILINE)
    }
    losses = rows["cooled down"], rows["running average"][::3], rows["constant lr"][::3]
    for cooled, averaged, constant in zip(*losses, strict=True):
        assert abs(averaged - cooled) < 0.2 * (constant - cooled)
    lines = text.splitlines()
    assert number_after("largest difference between a running average and the merge:", lines) < 1e-5


NO_CHECKPOINT, ON_CPU = "--resume: there is no checkpoint", ["--device", "cpu"]
WRONG_ARGUMENTS = [
    ("train_digits.py", ["--plateau", "50", "60"], 2, "must end by total_steps"),
    ("train_digits.py", ["--batch-size", "0"], 2, "--batch-size 0"),
    ("sweep.py", ["--peak", "nan"], 2, "--peak nan"),
    ("sweep.py", ["--hidden", "0"], 2, "--hidden"),
    ("sweep.py", ["--output", "sweep.xyz"], 2, "--output sweep.xyz"),
    ("branch_cooldowns.py", ["--cooldowns", "5", "0", "5"], 2, "steps = 0 must be at least 1"),
    ("branch_cooldowns.py", ["--output", "/dev/null/a.png"], 2, "a.png can't be written: Not a directory"),
    ("running_averages.py", ["--seeds", "1"], 2, "--seeds 1 must be at least 2"),
    ("train_flax.py", ["--resume"], 2, f"{NO_CHECKPOINT} in train_flax"),
    ("train_flax.py", ["--mesh", 2, 2, "--width", 7], 2, "--width of 2, for --mesh 2 2"),
    ("train_flax.py", ["--peak", "nan"], 2, "peak_value = nan"),
    ("batch_plan.py", [*ON_CPU, "--resume"], 2, f"{NO_CHECKPOINT} in batch_plan_checkpoints"),
    ("batch_plan.py", [*ON_CPU, "--plan", "0:many"], 2, "argument --plan: invalid stage value: '0:many'"),
    (
        "batch_plan.py",
        [*ON_CPU, "--plan", "0:512", "1024:700"],
        2,
        "micro_batch · processes = 512 · 1 = 512 does not divide",
    ),
    ("batch_plan.py", [*ON_CPU, "--micro-batch", "32"], 2, "--micro-batch 32 must be a multiple of 64"),
    ("batch_plan.py", ["--device", "nowhere"], 2, "--device nowhere: "),
    ("batch_plan.py", [*ON_CPU, "--checkpoints", "/dev/null/a"], 2, "--checkpoints /dev/null/a can't be"),
    ("train_bloom.py", [*ON_CPU, "--resume"], 2, f"{NO_CHECKPOINT} train_bloom.pt"),
    ("train_bloom.py", [*ON_CPU, "--output", "bloom.xyz"], 2, "--output bloom.xyz must end in .png"),
    ("train_bloom.py", [*ON_CPU, "--peak", "nan", "--count", "2000"], 1, "Invalid learning rate: nan"),
    ("train_bloom.py", [*ON_CPU, "--count", "100"], 1, "80 samples give no batch of batch_size = 512"),
    ("train_gpt.py", [*ON_CPU, "--resume"], 2, f"{NO_CHECKPOINT} in train_gpt_checkpoints"),
    ("train_gpt.py", [*ON_CPU, "--batch-size", "0"], 2, "--steps, --batch-size, --accumulation,"),
    ("train_gpt.py", [*ON_CPU, "--global-batch", "0"], 1, "global_batch = 0"),
    ("train_gpt.py", [*ON_CPU, "--peak", "nan"], 1, "train_gpt.py: Invalid learning rate: nan"),
    ("train_gpt.py", ["--device", "nowhere"], 2, "--device nowhere: "),
    ("train_lstm.py", [*ON_CPU, "--resume"], 2, f"{NO_CHECKPOINT} train_lstm.pt"),
    ("train_lstm.py", [*ON_CPU, "--output", "co2.xyz"], 2, "--output co2.xyz must end in .png"),
    ("train_lstm.py", [*ON_CPU, "--peak", "nan"], 1, "train_lstm.py: Invalid learning rate: nan"),
    ("train_lstm.py", [*ON_CPU, "--checkpoint", "/dev/null/a.pt"], 2, "/dev/null/a.pt can't be written: Not"),
]


@pytest.mark.parametrize(("script", "arguments", "status", "message"), WRONG_ARGUMENTS)
def test_wrong_argument_is_named_in_one_line(tmp_path, script, arguments, status, message):
    assert_rejected(tmp_path, script, arguments, status, message)


def test_benchmark_prints_every_table(tmp_path):
    text = run(EXAMPLES / "benchmarks" / "curve.py", "--quick", folder=tmp_path)
    titles = (
        "JAX inside a fori_loop",
        "JAX vectorised",
        "JAX, an eager call",
        "JAX, tracing and compiling",
        "JAX by shapes",
        "Parts of curves",
        "JAX, scale_by_curve in a fori_loop",
        "PyTorch, scheduler.step() with 1 parameter group\n",
        "PyTorch, scheduler.step() with 10 parameter groups\n",
        "NumPy, curve(steps)",
        "NumPy, outlook(curve)",
        "PyTorch on the CPU, multiplier(table, steps)",
        "Python, peak * curve(step) in a loop",
        "Construction, a curve scaled for 12 doublings",
        "Construction, the curve and its table",
        "Construction, most memory in use",
    )
    tables = dict(zip(titles, text.split("\n\n")[1:], strict=True))
    for title, table in tables.items():
        assert table.startswith(title)
        figures = [line.split()[-1] for line in table.splitlines()[2:]]
        assert figures
        assert all(float(figure) > 0 for figure in figures)


def test_plot_readme_draws_a_small_picture(tmp_path):
    copy = tmp_path / "plot_readme.py"
    copy.write_bytes((EXAMPLES / "plot_readme.py").read_bytes())
    run(copy, folder=tmp_path)
    assert_is_a_picture(tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size < 100_000
    with Image.open(tmp_path / "curves.png") as picture:  # few inches, so that a phone shows readable text
        assert 850 < picture.width < 6 * picture.info["dpi"][0]
