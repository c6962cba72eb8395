"""The program for each other library uses the curve's learning rates, and resumes.

Each runs once without interruption, and once killed and started again. A program that has finished
makes no update when it is started again. A program whose library is not installed is skipped;
`.[libraries]` installs some of them.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pydoc import locate

import numpy as np
import pytest
import yaml
from support.docs.pages import ROOT, all_blocks, section_named, sections
from support.programs import Program
from support.schedulers.runs import lrs_of, optimizer_with
from support.trainers.trainers import import_from_pages
from torch.optim import AdamW
from torch.optim.lr_scheduler import SequentialLR
from trainers import recorded

from plateau_jax import PlateauCurve, StagedCurve

pytestmark = pytest.mark.slow

UPDATES = 120
PEAK = 0.01
CURVE = PlateauCurve(UPDATES, warmup_steps=12, plateaus=[(0, 60)])
KILLED_AFTER = 70


# Complete programs: the lines above the first heading of the page, and those of a section.


def set_up():
    """Return the lines in front of every complete program: data, a model, a curve."""
    introduction, *_ = sections(ROOT / "docs" / "other_libraries.md")
    (block,) = introduction.blocks
    return block.code


def code_of(heading):
    return "".join(block.code for block in section_named(heading).blocks)


CLEANRL = """
from types import SimpleNamespace
args, saved = SimpleNamespace(learning_rate=PEAK), Path("iteration.txt")
for iteration in range(int(saved.read_text()) if saved.exists() else 1, UPDATES + 1):
    # Here is the line of the page.
    optimizer.step()
    saved.write_text(str(iteration + 1))
"""
"""A loop over iterations, as in CleanRL's ppo.py."""

TORCHVISION = """
from torch_bridge import lambda_lr
# Here are the lines of the page.
parts, saved, begin = [model, optimizer, lr_scheduler], Path("checkpoint.pth"), 0
if saved.exists():
    begin, *states = torch.load(saved)
    for part, state in zip(parts, states, strict=True):
        part.load_state_dict(state)
for epoch in range(begin, EPOCHS):
    for image, target in loader:
        loss = nn.functional.mse_loss(model(image), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.save([epoch + 1, *(part.state_dict() for part in parts)], saved)
print("final loss", nn.functional.mse_loss(model(inputs), targets).item())
"""
"""The loop of torchvision's references/classification/train.py."""


def program_under(heading):
    """Return the program that a reader of a section writes."""
    code = code_of(heading)
    if heading == "CleanRL":
        code = CLEANRL.replace("# Here is the line of the page.\n", code)
    if heading == "torchvision's recipes":
        code = TORCHVISION.replace("# Here are the lines of the page.\n", code)
    return set_up() + code


@dataclass(frozen=True)
class LibraryProgram:
    heading: str
    package: str
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    records_per_update: int = 1
    """More for two parameters, or for a rollout with several updates."""
    repeats_results: bool = True
    """Does the resumed run print the numbers of the uninterrupted one?"""

    def __str__(self):
        return " ".join([self.heading, *self.environment.values()])


LIBRARY_PROGRAMS = [
    LibraryProgram("Keras 3", "keras", {"KERAS_BACKEND": "jax"}),
    LibraryProgram("Keras 3", "keras", {"KERAS_BACKEND": "torch"}),
    LibraryProgram("MLX", "mlx"),
    LibraryProgram("PyTorch Ignite", "ignite"),
    LibraryProgram("skorch", "skorch"),
    LibraryProgram("fastai", "fastai"),
    LibraryProgram(
        "Stable-Baselines3", "stable_baselines3", records_per_update=4, repeats_results=False
    ),
    LibraryProgram("CleanRL", "torch"),
    LibraryProgram("NumPyro", "numpyro", records_per_update=2),
    LibraryProgram("Ray Train", "ray"),
    LibraryProgram("torchvision's recipes", "torch"),
]


@dataclass(frozen=True)
class LearningRatesOfProgram:
    lrs: list[float]
    """The learning rates that it has recorded."""
    results: list[str]
    """The lines that it has printed about its final loss."""


def run(program, folder, killed_after=-1):
    """Run a program in a separate process, which may be killed after a number of records."""
    folder.mkdir(exist_ok=True)
    file_of_lrs = folder / "lrs.txt"
    arguments = (str(file_of_lrs), str(killed_after))
    code = program_under(program.heading)
    if program.package == "ray":
        # Ray trains in a different process, which has to record too.
        train = "def train(config):"
        record = f"from trainers.recorded import record; record{arguments}"
        assert code.count(train) == 1
        code = code.replace(train, f"{train}\n    {record}")
    file = folder / "program.py"
    file.write_text(code, encoding="utf-8")
    path = f"{ROOT / 'tests'}{os.pathsep}{ROOT}"
    environment = {"PYTHONPATH": path, **program.environment}
    script = Path(recorded.__file__)
    process = Program(script, file, *arguments, folder=folder, environment=environment)
    status, output, errors = process.finish()
    if killed_after >= 0:
        assert status != 0
    else:
        assert status == 0, errors
    lrs = [float.fromhex(line) for line in file_of_lrs.read_text().splitlines()]
    results = [line for line in output.splitlines() if line.startswith("final ")]
    return LearningRatesOfProgram(lrs, results)


@pytest.mark.parametrize("program", LIBRARY_PROGRAMS, ids=str)
def test_program_uses_the_curve_and_resumes(program, tmp_path):
    if find_spec(program.package) is None:
        pytest.skip(f"needs {program.package}")
    expected = []
    for step in range(UPDATES):
        lr = CURVE.learning_rate(step, PEAK)
        expected += [lr] * program.records_per_update

    folder = tmp_path / "uninterrupted"
    uninterrupted = run(program, folder)
    assert uninterrupted.lrs == expected
    finished = run(program, folder)
    assert finished.lrs == []

    folder = tmp_path / "resumed"
    killed_after = KILLED_AFTER * program.records_per_update
    killed = run(program, folder, killed_after)
    assert killed.lrs == expected[:killed_after]
    resumed = run(program, folder)
    count = len(resumed.lrs)
    updates_left = len(expected) - killed_after
    assert updates_left <= count < len(expected)
    assert resumed.lrs == expected[-count:]
    if program.repeats_results:
        assert resumed.results == uninterrupted.results


# Trainers that import a scheduler by name, from the current folder.

STAGES = [("5%", 1.0), ("rest",), ("20%", 0.0, "1-sqrt")]
CURVE_IN_FILE = StagedCurve(STAGES, total_steps=UPDATES)
LRS_OF_FILE = [[CURVE_IN_FILE.learning_rate(step, PEAK)] for step in range(UPDATES)]


@pytest.fixture
def configuration(tmp_path, monkeypatch):
    """The YAML on the page; the current folder has the files that it names."""
    import_from_pages(tmp_path, monkeypatch, "curve.yaml", "curve_file.py", "curve_by_name.py")
    (block,) = [block for block in all_blocks() if "_component_:" in block.code]
    return yaml.safe_load(block.code)


def train(optimizer, scheduler, updates):
    """Train, and return the learning rates of each update."""
    lrs = []
    for _ in range(updates):
        lrs.append(lrs_of(optimizer))
        optimizer.step()
        scheduler.step()
    return lrs


def nemo_rl_scheduler(configuration, optimizer):
    """Build the scheduler from its name and the milestones, as NeMo-RL does."""
    named, last = configuration["policy"]["scheduler"]
    assert list(named["kwargs"]) == ["total_steps"]
    build = locate(named["name"])
    scheduler = build(optimizer, total_steps=UPDATES)
    return SequentialLR(optimizer, [scheduler], last["milestones"])


def test_scheduler_that_nemo_rl_builds_resumes(configuration):
    optimizer = optimizer_with([PEAK], AdamW)
    scheduler = nemo_rl_scheduler(configuration, optimizer)
    lrs = train(optimizer, scheduler, KILLED_AFTER)

    resumed = optimizer_with([PEAK], AdamW)
    resumed.load_state_dict(optimizer.state_dict())
    resumed_scheduler = nemo_rl_scheduler(configuration, resumed)
    resumed_scheduler.load_state_dict(scheduler.state_dict())
    lrs += train(resumed, resumed_scheduler, UPDATES - KILLED_AFTER)
    assert lrs == LRS_OF_FILE


def torchtune_scheduler(configuration, optimizer, updates):
    """Build the scheduler by its name, after a number of updates, as torchtune does."""
    name = configuration["lr_scheduler"]["_component_"]
    build = locate(name)
    return build(optimizer, num_training_steps=UPDATES, last_epoch=updates - 1)


def test_scheduler_that_torchtune_builds_resumes(configuration):
    """Torchtune saves no state of the scheduler."""
    optimizer = optimizer_with([PEAK], AdamW)
    scheduler = torchtune_scheduler(configuration, optimizer, 0)
    lrs = train(optimizer, scheduler, KILLED_AFTER)

    resumed = optimizer_with([PEAK], AdamW)
    resumed.load_state_dict(optimizer.state_dict())
    scheduler = torchtune_scheduler(configuration, resumed, KILLED_AFTER)
    lrs += train(resumed, scheduler, UPDATES - KILLED_AFTER)
    assert lrs == LRS_OF_FILE


# skrl, whose JAX agents multiply the learning rate by a factor.


@pytest.mark.parametrize("begin", [0, KILLED_AFTER])
def test_learning_rate_times_the_factors_follows_the_curve(begin, tmp_path, monkeypatch):
    """skrl's JAX agents compute the product in float64, and round it to float32 for an update."""
    import_from_pages(tmp_path, monkeypatch, "curve_factors.py")
    curve = PlateauCurve(UPDATES, warmup_steps=12, plateaus=[(0, 60)], init_lr_ratio=0.1)
    module = import_module("curve_factors")
    factor = module.curve_factors(curve, PEAK, begin)
    lr = curve.learning_rate(begin, PEAK)
    for timestep in range(begin, UPDATES):
        rounded = float(np.float32(lr))
        assert rounded == curve.learning_rate(timestep, PEAK)
        lr *= factor(timestep)
    assert factor(UPDATES) == 1.0
