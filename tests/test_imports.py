"""What programs import: each runs in a new process, in which some packages cannot be imported."""

import functools
import importlib
import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]

PACKAGES = ["jax", "jaxlib", "optax", "matplotlib", "torch", "IPython"]
"""All that an import of `plateau_jax` does without."""


PROGRAMS = {}
"""The programs of this file by name, with their check. A new process runs one of them."""


def without(*absent):
    """Make a test that runs a program in a new process.

    Args:
        *absent: Packages or modules that raise ImportError when they are imported.
    """

    def as_test(program):
        def run_here():
            for module in absent:
                sys.modules[module] = None
            program()
            for module in absent:
                assert not submodules_of(module)

        @functools.wraps(program)
        def test():
            command = [sys.executable, __file__, program.__name__]
            path = os.pathsep.join(sys.path)
            subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, check=True)

        PROGRAMS[program.__name__] = run_here
        return test

    return as_test


def test_package_in_a_zip_file_that_is_not_installed(tmp_path):
    """No file next to a module can be read there, and there is no metadata of a distribution."""
    package = tmp_path / "plateau_jax.zip"
    with zipfile.ZipFile(package, "w") as file:
        for path in (ROOT / "plateau_jax").rglob("*.py"):
            file.write(path, path.relative_to(ROOT))
    for module in ("numpy", "mpmath"):
        installed = Path(str(importlib.import_module(module).__file__)).parent
        (tmp_path / module).symlink_to(installed)
        libraries = installed.with_name(f"{module}.libs")
        if libraries.exists():
            (tmp_path / libraries.name).symlink_to(libraries)
    program = (
        "import plateau_jax; curve = plateau_jax.PlateauCurve(100); curve.to_source(); "
        "print(plateau_jax.__version__, plateau_jax.__file__)"
    )
    # -S leaves out the packages that are installed, -I the current folder and PYTHONPATH.
    start = f"import sys; sys.path[:0] = {[str(package), str(tmp_path)]!r}; "
    command = [sys.executable, "-I", "-S", "-c"]
    run = subprocess.run([*command, start + program], capture_output=True, text=True, check=True)
    from plateau_jax.version import VERSION

    assert run.stdout == f"{VERSION} {package / 'plateau_jax' / '__init__.py'}\n"
    for name in ("schedule.py", "vectors.json"):
        main = (
            "from plateau_jax.tools.command_line.main import main; "
            f"main(['9', '--export', {name!r}])"
        )
        subprocess.run(
            [*command, start + main], cwd=tmp_path, check=True, stdout=subprocess.DEVNULL
        )
        assert (tmp_path / name).stat().st_size > 1000


def submodules_of(package):
    """Return the modules inside a package that have been imported."""
    imported = []
    for name, module in sys.modules.items():
        if name.startswith(f"{package}.") and module is not None:
            imported.append(name)
    return imported


def import_star(package):
    """Return the names that `from package import *` binds, with their values."""
    module = importlib.import_module(package)
    return {name: getattr(module, name) for name in module.__all__}


@without(*PACKAGES)
def test_curves():
    """Names that need JAX are not among the public ones."""
    from plateau_jax import Curve, HoldBelow, PlateauCurve, StagedCurve, stack
    from torch_bridge import count_updates

    assert PlateauCurve(count_updates(9, epochs=1))(0) == 1.0
    assert len(stack([StagedCurve([(3,)])]).begin) == 1
    assert "<svg" in PlateauCurve(10)._repr_html_()
    rule = HoldBelow(0.5, 3)
    assert rule.value == 0.5
    staged = {"kind": "staged", "stages": [[9, 1.0]]}
    longer = {"kind": "then", "curve": staged, "other": PlateauCurve(9)}
    cooled = Curve.from_dict({"kind": "cooldown", "curve": longer, "at": 9, "steps": 1})
    assert cooled(9) == 1
    names = import_star("plateau_jax")
    assert "plot" in names
    assert "multiplier" not in names


@without("jax", "matplotlib.pyplot", "torch")
def test_plot():
    from matplotlib.figure import Figure

    from plateau_jax import PlateauCurve, plot

    plot(PlateauCurve(10), ax=Figure().subplots())


@without("optax", "matplotlib", "torch")
def test_multiplier_in_jax():
    """What needs optax is not among the public names."""
    from plateau_jax import PlateauCurve, multiplier

    curve = PlateauCurve(9)
    assert multiplier(curve.table, 3) == curve(3)
    names = import_star("plateau_jax")
    assert "multiplier" in names
    assert "scale_by_curve" not in names


@without("matplotlib", "torch")
def test_optax_schedule():
    from plateau_jax import PlateauCurve, optax_schedule

    optax_schedule(PlateauCurve(9), 0.1)(3)


@without("jax", "optax", "torch")
def test_command_line_and_axes():
    importlib.import_module("plateau_jax.tools.drawing.plots")
    importlib.import_module("plateau_jax.__main__")


# Importing FSDP or DCP takes longer than torch's own LambdaLR needs.
@without("jax", "optax", "matplotlib", "torch.distributed.fsdp", "torch.distributed.checkpoint")
def test_scheduler():
    import torch

    from plateau_jax import PlateauCurve
    from torch_bridge import count_updates, follow, lambda_lr

    curve = PlateauCurve(count_updates(2, epochs=2))
    parameter = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([parameter], lr=0.5, weight_decay=0.1)
    scheduler = lambda_lr(optimizer, curve)
    follower = follow(optimizer, "weight_decay", curve)
    optimizer.step()
    scheduler.step()
    follower.step()
    scheduler.load_state_dict(scheduler.state_dict())
    assert optimizer.param_groups[0]["lr"] == 0.5 * float(curve(1))


@without("jax", "jaxlib", "optax", "torch_bridge.training.train_step.cuda_graphs")
def test_checkpoints_of_a_plain_loop():
    import tempfile

    import torch

    from torch_bridge import Checkpoints

    with tempfile.TemporaryDirectory() as directory:
        Checkpoints(directory).save(1, model=torch.nn.Linear(1, 1), wait=True)


@without("jax", "jaxlib", "optax")
def test_training_step():
    import torch

    from plateau_jax import PlateauCurve
    from torch_bridge import TrainStep

    def sum_loss(model, batch):
        return model(batch).sum()

    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    step = TrainStep(model, optimizer, sum_loss, PlateauCurve(4))
    step(torch.ones(2, 1))
    step.load_state_dict(step.state_dict())
    names = import_star("torch_bridge")
    assert {"Checkpoints", "MetricLog", "evaluate", "make_loader"} <= names.keys()


@without()
def test_import_of_torch_bridge_allows_its_values():
    """A program that loads a checkpoint needs no other name before."""
    import torch

    from plateau_jax import (
        BatchPlan,
        DataClock,
        HoldBelow,
        HoldUntilFlat,
        PlateauCurve,
        StagedCurve,
    )

    curve = PlateauCurve(9)
    values = [
        curve,
        StagedCurve([(9, 1.0)]),
        curve.cooldown(3, 4),
        curve.then(curve),
        curve.part(3),
        BatchPlan([(0, 8)]).scale(curve, 8, reference=8),
        DataClock(8),
        HoldBelow(0.5, 9),
        HoldUntilFlat(5, limit=9),
    ]
    file = io.BytesIO()
    torch.save(values, file)
    file.seek(0)
    importlib.import_module("torch_bridge")
    assert torch.load(file, weights_only=True) == values


# Names whose package is missing.


def check_needs(package, name, message, missing):
    with pytest.raises(ModuleNotFoundError) as caught:
        getattr(importlib.import_module(package), name)
    assert str(caught.value) == message
    assert caught.value.name == missing


@without("jax", "torch")
def test_missing_package_is_named_with_its_extra():
    message = "multiplier needs jax: pip install 'plateau-jax[jax]'"
    check_needs("plateau_jax", "multiplier", message, "jax")
    message = "lambda_lr needs torch: pip install 'plateau-jax[torch]'"
    check_needs("torch_bridge", "lambda_lr", message, "torch")


@without("matplotlib")
def test_plot_without_matplotlib():
    from plateau_jax import PlateauCurve, plot

    message = "plot needs matplotlib: pip install 'plateau-jax[plot]'"
    with pytest.raises(ModuleNotFoundError) as caught:
        plot(PlateauCurve(9))
    assert str(caught.value) == message


@without("plateau_jax.tools.batch_plan")
def test_missing_file_of_this_package():
    """No extra installs it, so Python's message stays."""
    file = "plateau_jax.tools.batch_plan"
    check_needs("plateau_jax", "BatchPlan", f"import of {file} halted; None in sys.modules", file)


if __name__ == "__main__":
    (_, name) = sys.argv
    PROGRAMS[name]()
