"""The two packages: what an import needs, how their files import each other, versions."""

import ast
import pickle
import subprocess
import sys
import tomllib
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import plateau_jax
import torch_bridge
from plateau_jax.validation.lazy_names import missing_package_error

JAX_NAMES = ["optax_schedule", "multiplier", "scale_by_curve"]
TORCH_NAMES = ["lambda_lr", "follow", "TrainStep", "evaluate", "Checkpoints", "make_loader"]

A_CURVE = """
from plateau_jax import *
assert "multiplier" not in globals()
assert PlateauCurve(9)(0) == 1.0 == HoldBelow(1.0, 3).value
assert len(stack([StagedCurve([(3,)])]).begin) == 1
import plateau_jax
assert set(plateau_jax.__all__) <= set(globals()) and "plot" in plateau_jax.__all__
import plateau_jax.clocks.decision as decision
decision.initial_state(HoldBelow(0.5, 3))
assert "<svg" in PlateauCurve(10)._repr_html_()
staged = {"kind": "staged", "stages": [[9, 1.0]]}
then = {"kind": "then", "curve": staged, "other": {"total_steps": 9}}
assert Curve.from_dict({"kind": "cooldown", "curve": then, "at": 9, "steps": 1})(9) == 1
"""
A_PLOT = """
from matplotlib.figure import Figure
from plateau_jax import PlateauCurve, plot
plot(PlateauCurve(10), ax=Figure().subplots())
"""
A_MULTIPLIER = """
from plateau_jax import *
assert multiplier(PlateauCurve(9).table, 3) == PlateauCurve(9)(3)
assert "scale_by_curve" not in globals()
"""
A_SCHEDULER = """
import torch
from plateau_jax import PlateauCurve
from torch_bridge import count_updates, follow, lambda_lr
optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.5)
scheduler = lambda_lr(optimizer, PlateauCurve(4))
optimizer.step()
scheduler.step()
scheduler.load_state_dict(scheduler.state_dict())
assert optimizer.param_groups[0]["lr"] == 0.5 * float(PlateauCurve(4)(1))
"""
A_STEP = """
import torch
from plateau_jax import PlateauCurve
from torch_bridge import Checkpoints, MetricLog, TrainStep, evaluate, make_loader
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
step = TrainStep(model, optimizer, lambda model, batch: model(batch).sum(), PlateauCurve(4))
step(torch.ones(2, 1))
step.load_state_dict(step.state_dict())
"""
A_SCHEDULE = "import plateau_jax; plateau_jax.optax_schedule(plateau_jax.PlateauCurve(9), 0.1)(3)"


def run(program: str) -> str:
    command = [sys.executable, "-c", program]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("statements", "absent"),
    [
        (A_CURVE, ["jax", "jaxlib", "optax", "matplotlib", "torch", "IPython"]),
        (A_PLOT, ["jax", "matplotlib.pyplot", "torch"]),
        (A_MULTIPLIER, ["optax", "matplotlib", "torch"]),
        (A_SCHEDULE, ["matplotlib", "torch"]),
        (
            'sys.modules["jax"] = type(sys)("jax"); import plateau_jax',
            ["torch"],
        ),  # without a spec, as a mock
        ("import plateau_jax.drawing.axes, plateau_jax.__main__", ["jax", "optax", "torch"]),
        (
            "import plateau_jax.__main__, plateau_jax.drawing.axes, plateau_jax.schedules.schedule",
            ["torch"],
        ),
        # Importing FSDP or DCP takes longer than torch's own LambdaLR needs.
        (
            A_SCHEDULER,
            [
                "jax",
                "optax",
                "matplotlib",
                "torch.distributed.fsdp",
                "torch.distributed.checkpoint",
            ],
        ),
        (A_STEP, ["jax", "jaxlib", "optax"]),
        ("from torch_bridge import *; make_loader", ["jax"]),
    ],
)
def test_imports_without(statements, absent):
    run(f"""
import sys
for name in {absent}:
    sys.modules[name] = None  # importing it raises ImportError
{statements}
imported = [name + "." for name, module in sys.modules.items() if module]
assert not [name for name in imported if name.startswith({tuple(f"{name}." for name in absent)})]
""")


def needs(name, package, extra):
    return f"{name} needs {package}: pip install 'plateau-jax[{extra}]' {package}"


# A missing module, statements that need it, and the message with the module's name.
# pip cannot install a module that an installed package lacks.
MISSING = [
    *(
        ("jax", f"import plateau_jax; plateau_jax.{name}", needs(name, "jax", "jax"))
        for name in JAX_NAMES
    ),
    ("jax", "from plateau_jax import optax_schedule", needs("optax_schedule", "jax", "jax")),
    (
        "optax",
        "import plateau_jax; plateau_jax.scale_by_curve",
        needs("scale_by_curve", "optax", "jax"),
    ),
    (
        "matplotlib",
        "import plateau_jax as p; p.plot(p.PlateauCurve(9))",
        needs("plot", "matplotlib", "plot"),
    ),
    *(
        ("torch", f"import torch_bridge; torch_bridge.{name}", needs(name, "torch", "torch"))
        for name in TORCH_NAMES
    ),
    ("torch", "from torch_bridge import lambda_lr", needs("lambda_lr", "torch", "torch")),
    *(
        (module, statements, f"import of {module} halted; None in sys.modules {module}")
        for module, statements in (
            ("plateau_jax.table.segments", "import plateau_jax; plateau_jax.optax_schedule"),
            ("jax.core", "import plateau_jax; plateau_jax.optax_schedule"),
            ("torch_bridge.schedulers.curve_lr", "import torch_bridge; torch_bridge.lambda_lr"),
        )
    ),
]


@pytest.mark.slow
def test_missing_package_is_named_with_its_extra():
    """All cases share one process, so that torch is imported once."""
    printed = run(f"""
import sys
for absent, statements in {[case[:2] for case in MISSING]}:
    packages = ("plateau_jax", "torch_bridge")
    own = [name for name in sys.modules if name.partition(".")[0] in packages]
    hidden = {{name: sys.modules.pop(name) for name in {{*own, absent}} if name in sys.modules}}
    sys.modules[absent] = None
    try:
        exec(statements, {{}})
        print("nothing was raised")
    except ModuleNotFoundError as error:
        print(error, error.name)
    del sys.modules[absent]
    if absent in hidden:
        sys.modules[absent] = hidden[absent]
""")
    for (_, statements, expected), message in zip(MISSING, printed.splitlines(), strict=True):
        assert message == expected, statements


@pytest.mark.slow
def test_import_of_torch_bridge_allows_its_values():
    """A program that loads a checkpoint needs no other name before."""
    printed = run("""
import io, torch, plateau_jax as p
curve = p.PlateauCurve(9)
curves = [curve, p.StagedCurve([(9, 1.0)]), curve.cooldown(3, 4), curve.then(curve), curve.part(3)]
curves.append(p.BatchPlan([(0, 8)]).scale(curve, 8, reference=8))
values = [p.BatchPlan([(0, 8)]), p.DataClock(8), p.HoldBelow(0.5, 9), p.HoldUntilFlat(5, limit=9)]
file = io.BytesIO()
torch.save(curves + values, file)
file.seek(0)
import torch_bridge
print(torch.load(file, weights_only=True) == curves + values)
""")
    assert printed == "True\n"


@pytest.mark.parametrize("name", ["jax", "jaxlib", None])
def test_error_that_pip_cannot_fix_is_kept(name):
    error = ModuleNotFoundError("jax requires jaxlib to be installed", name=name)
    assert missing_package_error("optax_schedule", error, "jax") is error


def test_names_of_jax_are_public_if_it_is_installed():
    assert {*JAX_NAMES, "PlateauCurve", "plot"} <= set(plateau_jax.__all__)


@pytest.mark.parametrize("package", [plateau_jax, torch_bridge])
def test_public_names_are_listed_and_pickle(package):
    assert set(package.__all__) <= set(dir(package))
    for name in package.__all__:
        value = getattr(package, name)
        assert value.__name__ == name
        assert pickle.loads(pickle.dumps(value)) is value
    with pytest.raises(AttributeError, match="no attribute 'lambda_lrs'"):
        package.lambda_lrs  # noqa: B018 -- looking the name up is the test
    assert package.__version__ == metadata.version("plateau-jax")


def test_torch_bridge_reexports_the_curves():
    """Each package has its own `multiplier`."""
    curves = {"Curve", "PlateauCurve", "StagedCurve", "BatchPlan"}
    reexported = curves | {"DataClock", "HoldBelow", "HoldUntilFlat"}
    assert set(torch_bridge.__all__) & set(plateau_jax.__all__) == reexported | {"multiplier"}
    for name in reexported:
        assert getattr(torch_bridge, name) is getattr(plateau_jax, name)


# The structure of the product's files, and the versions that it supports.

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@cache
def _trees() -> dict[str, ast.Module]:
    """Map each file of the product to its syntax tree."""
    paths = (
        path
        for package in ("plateau_jax", "torch_bridge")
        for path in (ROOT / package).rglob("*.py")
    )
    trees: dict[str, ast.Module] = {}
    for path in paths:
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        trees[name.removesuffix(".__init__")] = ast.parse(path.read_text("utf-8"))
    return trees


def _imported_names(module: str) -> set[str]:
    """Return the names of everything that a file imports, also from other libraries.

    Imports inside functions and under `TYPE_CHECKING` count too.
    """
    names: set[str] = set()
    for node in ast.walk(_trees()[module]):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


@cache
def _imports() -> dict[str, set[str]]:
    """Map each file of the product to the files that it imports."""
    modules = _trees().keys()
    return {module: _imported_names(module) & modules for module in modules}


def test_no_import_cycles() -> None:
    try:
        TopologicalSorter(_imports()).prepare()
    except CycleError as error:
        pytest.fail(" is imported by ".join(error.args[1]))


def _all_below(module: str) -> set[str]:
    """Return the files that this one imports, and the files that they import, and so on."""
    below: set[str] = set()
    waiting = [module]
    while waiting:
        new = _imports()[waiting.pop()] - below
        below |= new
        waiting += new
    return below


SCHEDULERS = "torch_bridge.schedulers."
SCHEDULER_FLOORS = ["group_curves", "step_warnings", "update_hook", "curve_lr", "follower"]


@pytest.mark.parametrize("name", SCHEDULER_FLOORS)
def test_floors_of_schedulers(name: str) -> None:
    """Group curves know no warnings, warnings no hook, and the hook no scheduler."""
    below = _all_below(SCHEDULERS + name)
    known = [floor for floor in SCHEDULER_FLOORS if SCHEDULERS + floor in below]
    below_schedulers = SCHEDULER_FLOORS[:3]
    assert known == below_schedulers[: SCHEDULER_FLOORS.index(name)]


def _attributes_of_classes(module: str) -> set[str]:
    """Return the names of what the classes of a file define, or assign to `self`."""
    names: set[str] = set()
    for definition in ast.walk(_trees()[module]):
        if not isinstance(definition, ast.ClassDef):
            continue
        for node in ast.walk(definition):
            if isinstance(node, ast.FunctionDef):
                names.add(node.name)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                names.add(node.target.id)
            elif isinstance(node, ast.Attribute) and ast.unparse(node) == f"self.{node.attr}":
                names.add(node.attr)
    return names


def test_lower_floors_of_schedulers_use_no_attribute_of_higher_ones() -> None:
    """Typed as `Any`, a scheduler could be used below its file without an import."""
    modules = [module for module in _trees() if module.startswith(SCHEDULERS)]
    for module in modules:
        defined_here_or_below: set[str] = set()
        for other in {module} | _all_below(module):
            defined_here_or_below |= _attributes_of_classes(other)
        defined_above: set[str] = set()
        for other in modules:
            if module in _all_below(other):
                defined_above |= _attributes_of_classes(other)
        used = {node.attr for node in ast.walk(_trees()[module]) if isinstance(node, ast.Attribute)}
        assert used & defined_above <= defined_here_or_below, module


def test_torch_bridge_imports_plateau_jax_in_one_file() -> None:
    """And `plateau_jax` never imports `torch_bridge`."""
    crossing = {
        module
        for module, names in _imports().items()
        if any(name.partition(".")[0] != module.partition(".")[0] for name in names)
    }
    assert crossing == {"torch_bridge.curve_api"}


@pytest.mark.parametrize("library", ["safetensors", "torch.distributed.checkpoint"])
def test_file_format_of_checkpoints_is_known_to_one_file(library: str) -> None:
    importing = {module for module in _trees() if library in _imported_names(module)}
    assert importing == {"torch_bridge.checkpointing.file_format"}


def _pins(name: str) -> dict[str, Version]:
    lines = (ROOT / "tests" / "versions" / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    pins = [line.partition("#")[0].split("==") for line in lines if not line.startswith("#")]
    return {package: Version(version.strip()) for package, version in pins}


EXTRAS = {"numpy": PROJECT["dependencies"], **PROJECT["optional-dependencies"]}
REQUIREMENTS = [
    pytest.param(extra, Requirement(line), id=line)
    for extra, lines in EXTRAS.items()
    for line in lines
    if not line.startswith("plateau-jax[")
]


@pytest.mark.parametrize(("extra", "requirement"), REQUIREMENTS)
def test_both_ends_of_the_versions_are_tested(extra: str, requirement: Requirement) -> None:
    assert requirement.specifier.contains(_pins("ci")[requirement.name])
    if extra != "dev":  # any release of the tools works, so .ci/versions does not install them
        floors = [
            Version(bound.version) for bound in requirement.specifier if bound.operator == ">="
        ]
        assert floors == [_pins("oldest")[requirement.name]]
        assert requirement.specifier.contains(_pins("newest")[requirement.name])
