"""The program for each other library uses the curve's learning rates, and resumes.

Each runs once without interruption, and once killed and started again. A program that has finished
makes no update when it is started again. A program whose library is not installed is skipped;
`.[libraries]` installs some of them.
"""

import os
import re
import textwrap
from copy import deepcopy
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pydoc import locate

import numpy as np
import pytest
import yaml
from support.docs.pages import PAGES, ROOT, sections
from support.programs import Program
from support.schedulers.runs import advance, lrs_of, optimizer_with
from support.trainers import recorded
from support.trainers.trainers import import_from_pages
from torch.optim import AdamW
from torch.optim.lr_scheduler import SequentialLR

from plateau_jax import PlateauCurve, StagedCurve

pytestmark = pytest.mark.slow

# The page that has the section of Keras, and the set-up above it.
((INTRODUCTION, *SECTIONS),) = (
    parts
    for parts in map(list, map(sections, PAGES))
    if "Keras 3" in [part.heading for part in parts]
)
(SETUP,) = (block.code for block in INTRODUCTION.blocks)
PAGE = {section.heading: "".join(block.code for block in section.blocks) for section in SECTIONS}
UPDATES, PEAK, KILLED_AFTER = 120, 0.01, 70
CURVE = PlateauCurve(UPDATES, warmup_steps=12, plateaus=[(0, 60)])
EXPECTED = [CURVE.learning_rate(step, PEAK) for step in range(UPDATES)]

AROUND = {
    "CleanRL": """
from types import SimpleNamespace
args, saved = SimpleNamespace(learning_rate=PEAK), Path("iteration.txt")
for iteration in range(int(saved.read_text()) if saved.exists() else 1, UPDATES + 1):
    ...
    optimizer.step()
    saved.write_text(str(iteration + 1))
""",
    "torchvision's recipes": """
from torch_bridge import lambda_lr
...
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
""",
}
"""The reader's program, with ... in place of the page's lines, if the page has only a part."""


@dataclass(frozen=True)
class Case:
    heading: str
    package: str
    environment: str = ""
    """A variable and its value."""
    recorded: int = 1
    """How often a learning rate is recorded: for two parameters, or per update of a rollout."""
    repeats_results: bool = True
    """Does the resumed run print the numbers of the uninterrupted one?"""

    @property
    def code(self) -> str:
        around = AROUND.get(self.heading, "...")
        ((indent,),) = [re.findall(r"^( *)\.\.\.$", around, re.MULTILINE)]
        return SETUP + around.replace(f"{indent}...", textwrap.indent(PAGE[self.heading], indent))


CASES = [
    Case("Keras 3", "keras", "KERAS_BACKEND=jax"),
    Case("Keras 3", "keras", "KERAS_BACKEND=torch"),
    Case("MLX", "mlx"),
    Case("PyTorch Ignite", "ignite"),
    Case("skorch", "skorch"),
    Case("fastai", "fastai"),
    Case("Stable-Baselines3", "stable_baselines3", recorded=4, repeats_results=False),
    Case("CleanRL", "torch"),
    Case("NumPyro", "numpyro", recorded=2),
    Case("Ray Train", "ray"),
    Case("torchvision's recipes", "torch"),
]


def run(case: Case, folder: Path, killed_after: int = -1) -> tuple[list[float], str]:
    """Run a program; return the recorded learning rates, and the last line with results."""
    if find_spec(case.package) is None:
        pytest.skip(f"needs {case.package}")
    folder.mkdir(exist_ok=True)
    file, lrs = folder / "program.py", folder / "lrs.txt"
    arguments = str(lrs), str(killed_after)
    # Ray trains in a different process.
    record = f"from support.trainers.recorded import record; record{arguments}"
    code = case.code.replace("def train(config):", f"def train(config):\n    {record}")
    file.write_text(code, encoding="utf-8")
    script = Path(recorded.__file__)
    variables = [f"PYTHONPATH={ROOT / 'tests'}{os.pathsep}{ROOT}", *case.environment.split()]
    environment = dict(variable.split("=") for variable in variables)
    program = Program(script, file, *arguments, folder=folder, environment=environment)
    status, output, errors = program.finish()
    assert (status == 0) == (killed_after < 0), errors
    used = [float.fromhex(line) for line in lrs.read_text(encoding="utf-8").splitlines()]
    return used, "".join(line for line in output.splitlines() if line.startswith("final "))


@pytest.mark.parametrize(
    "case", CASES, ids=lambda case: " ".join([case.heading, *case.environment.split()])
)
def test_program_uses_the_curve_and_resumes(case: Case, tmp_path: Path) -> None:
    expected = [lr for lr in EXPECTED for _ in range(case.recorded)]
    used, trained = run(case, tmp_path / "uninterrupted")
    assert used == expected
    used, _ = run(case, tmp_path / "uninterrupted")
    assert used == []
    killed_after = KILLED_AFTER * case.recorded
    used, _ = run(case, tmp_path / "resumed", killed_after=killed_after)
    assert used == expected[:killed_after]
    used, trained_later = run(case, tmp_path / "resumed")
    assert len(expected) - killed_after <= len(used) < len(expected)
    assert used == expected[-len(used) :]
    if case.repeats_results:
        assert trained_later == trained


IN_FILE = StagedCurve([("5%", 1.0), ("rest",), ("20%", 0.0, "1-sqrt")], total_steps=UPDATES)


@pytest.fixture
def configuration(tmp_path, monkeypatch):
    """The YAML for trainers that import a scheduler by name, from the current folder."""
    import_from_pages(tmp_path, monkeypatch, "curve.yaml", "curve_file.py", "curve_by_name.py")
    blocks = [block for page in PAGES for section in sections(page) for block in section.blocks]
    (code,) = (block.code for block in blocks if "_component_:" in block.code)
    return yaml.safe_load(code)


def of_nemo_rl(configuration, optimizer, _):
    """Build the scheduler from its name and the milestones, as NeMo-RL does."""
    named, last = configuration["policy"]["scheduler"]
    assert list(named["kwargs"]) == ["total_steps"]
    scheduler = locate(named["name"])(optimizer, total_steps=UPDATES)
    return SequentialLR(optimizer, [scheduler], last["milestones"])


def of_torchtune(configuration, optimizer, begin):
    """Torchtune saves no state of the scheduler."""
    function = locate(configuration["lr_scheduler"]["_component_"])
    return function(optimizer, num_training_steps=UPDATES, last_epoch=begin - 1)


@pytest.mark.parametrize("build", [of_nemo_rl, of_torchtune])
def test_scheduler_that_a_trainer_builds_by_name_resumes(configuration, build):
    used, states = [], []
    for begin, end in ((0, KILLED_AFTER), (KILLED_AFTER, UPDATES)):
        optimizer = optimizer_with([PEAK], AdamW)
        if begin:
            optimizer.load_state_dict(states[0])
        scheduler = build(configuration, optimizer, begin)
        if begin and build is of_nemo_rl:
            scheduler.load_state_dict(states[1])
        for _ in range(begin, end):
            used += lrs_of(optimizer)
            advance(optimizer, scheduler)
        states = deepcopy([optimizer.state_dict(), scheduler.state_dict()])
    assert used == [IN_FILE.learning_rate(step, PEAK) for step in range(UPDATES)]


def test_learning_rate_times_the_factors_follows_the_curve(tmp_path, monkeypatch):
    """skrl's JAX agents compute the product in float64, and round it to float32 for an update."""
    import_from_pages(tmp_path, monkeypatch, "curve_factors.py")
    curve_factors = import_module("curve_factors").curve_factors
    curve = PlateauCurve(UPDATES, warmup_steps=12, plateaus=[(0, 60)], init_lr_ratio=0.1)
    expected = [curve.learning_rate(step, PEAK) for step in range(UPDATES)]
    for begin in (0, KILLED_AFTER):
        lr = curve.learning_rate(begin, PEAK)
        factor = curve_factors(curve, PEAK, begin)
        used = []
        for timestep in range(begin, UPDATES):
            used.append(float(np.float32(lr)))
            lr *= factor(timestep)
        assert used == expected[begin:]
        assert factor(UPDATES) == 1.0
