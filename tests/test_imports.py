"""Imports of the two packages: users of one framework do not need the other."""

import pickle
import subprocess
import sys
from importlib import metadata

import pytest
from packaging.version import Version

import plateau_jax
import torch_bridge
from plateau_jax.validation.lazy_names import missing_package_error

JAX_NAMES = ["optax_schedule", "multiplier", "cosine_plateau_schedule", "scale_by_curve"]
TORCH_NAMES = ["lambda_lr", "CurveLR", "follow", "TrainStep", "evaluate", "Checkpoints", "make_loader"]

EVERY_KIND = """
from plateau_jax import Curve
staged = {"kind": "staged", "stages": [[9, 1.0]]}
then = {"kind": "then", "curve": staged, "other": {"total_steps": 9}}
assert Curve.from_dict({"kind": "cooldown", "curve": then, "at": 9, "steps": 1})(9) == 1
"""

A_SCHEDULER = """
import torch
from plateau_jax import PlateauCurve
from torch_bridge import lambda_lr
optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.5)
scheduler = lambda_lr(optimizer, PlateauCurve(4))
optimizer.step()
scheduler.step()
scheduler.load_state_dict(scheduler.state_dict())
assert optimizer.param_groups[0]["lr"] == 0.5 * float(PlateauCurve(4)(1))
"""

A_CURVE = """
from plateau_jax import *
assert "multiplier" not in globals()
assert PlateauCurve(9)(0) == 1.0 == HoldBelow(1.0, 3).value and len(stack([StagedCurve([(3,)])]).begin) == 1
import plateau_jax
assert set(plateau_jax.__all__) <= set(globals()) and "plot" in plateau_jax.__all__
import plateau_jax.holds.decision as d; d.initial_state(d.HoldBelow(0.5, 3))
"""

A_MULTIPLIER = """
from plateau_jax import *
assert multiplier(PlateauCurve(9).segments, 3) == PlateauCurve(9)(3)
assert "scale_by_curve" not in globals()
"""

A_SCHEDULE = "import plateau_jax; plateau_jax.optax_schedule(plateau_jax.PlateauCurve(9), 0.1)(3)"


HTML = "from plateau_jax import PlateauCurve; assert '<svg' in PlateauCurve(10)._repr_html_()"


def run(program: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", program], check=True, stdout=subprocess.PIPE, text=True
    ).stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("statements", "absent"),
    [
        (A_CURVE, ["jax", "jaxlib", "optax", "matplotlib", "torch"]),
        (EVERY_KIND, ["jax", "optax", "torch", "matplotlib"]),
        (A_MULTIPLIER, ["optax", "matplotlib", "torch"]),
        (A_SCHEDULE, ["matplotlib", "torch"]),
        ('sys.modules["jax"] = type(sys)("jax"); import plateau_jax', ["torch"]),  # without a spec, as a mock
        ("import plateau_jax.drawing.axes, plateau_jax.__main__", ["jax", "optax", "torch"]),
        ("import plateau_jax.__main__, plateau_jax.drawing.axes, plateau_jax.schedule", ["torch"]),
        (A_SCHEDULER, ["jax", "optax", "matplotlib"]),
        ("from torch_bridge import *; make_loader", ["jax"]),
        (HTML, ["matplotlib", "IPython", "jax", "torch"]),
    ],
)
def test_imports_without(statements, absent):
    run(f"""
import sys
for name in {absent}:
    sys.modules[name] = None  # importing it raises ImportError
{statements}
assert not {{name.partition(".")[0] for name, module in sys.modules.items() if module}} & set({absent})
""")


@pytest.mark.slow
def test_scheduler_imports_no_more_of_torch_than_lambda_lr():
    run(f"""
import sys
import torch
for name in ("torch.distributed.fsdp", "torch.distributed.checkpoint"):
    assert name not in sys.modules
    sys.modules[name] = None  # importing it raises ImportError
optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.5)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
optimizer.step()
scheduler.step()
before = set(sys.modules)
{A_SCHEDULER}
from torch_bridge import CurveLR, count_updates, follow
new = {{name for name in sys.modules.keys() - before if name.partition(".")[0] == "torch"}}
assert not new, new
subpackages = {{name.split(".")[1] for name in sys.modules if name.startswith("torch_bridge.")}}
assert subpackages == {{"curve_api", "saved_states", "schedulers"}}, subpackages
""")


# A missing package, statements that need it, the name in the message, and the extra to install.
ASKED = [
    *(("jax", f"import plateau_jax; plateau_jax.{name}", name, "jax") for name in JAX_NAMES),
    ("jax", "from plateau_jax import optax_schedule", "optax_schedule", "jax"),
    ("optax", "import plateau_jax; plateau_jax.scale_by_curve", "scale_by_curve", "jax"),
    ("matplotlib", "import plateau_jax as p; p.plot(p.PlateauCurve(9))", "plot", "plot"),
    *(("torch", f"import torch_bridge; torch_bridge.{name}", name, "torch") for name in TORCH_NAMES),
    ("torch", "from torch_bridge import lambda_lr", "lambda_lr", "torch"),
]


@pytest.mark.slow
def test_missing_package_is_named_with_its_extra():
    """All cases share one process, so that torch is imported once."""
    printed = run(f"""
import sys
for absent, statements in {[asked[:2] for asked in ASKED]}:
    own = [name for name in sys.modules if name.partition(".")[0] in ("plateau_jax", "torch_bridge")]
    hidden = {{name: sys.modules.pop(name) for name in (*own, absent) if name in sys.modules}}
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
    for (absent, statements, name, extra), message in zip(ASKED, printed.splitlines(), strict=True):
        expected = f"{name} needs {absent}: pip install 'plateau-jax[{extra}]' {absent}"
        assert message == expected, statements


@pytest.mark.slow
@pytest.mark.parametrize(
    ("absent", "imports", "asked"),
    [
        ("plateau_jax.numerics.segments", "jax, plateau_jax", "plateau_jax.optax_schedule"),
        ("jax.core", "jax, plateau_jax", "plateau_jax.optax_schedule"),
        ("torch_bridge.schedulers.group_curves", "torch_bridge", "torch_bridge.lambda_lr"),
    ],
)
def test_missing_module_of_installed_package_is_named(absent, imports, asked):
    program = f"import sys, {imports}; sys.modules[{absent!r}] = None; {asked}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    last = done.stderr.splitlines()[-1]
    assert last == f"ModuleNotFoundError: import of {absent} halted; None in sys.modules"


@pytest.mark.parametrize("name", ["jax", "jaxlib", None])
def test_error_that_pip_cannot_fix_is_kept(name):
    error = ModuleNotFoundError("jax requires jaxlib to be installed", name=name)
    assert missing_package_error("optax_schedule", error, "jax") is error


def test_star_import_includes_jax_names_if_installed():
    namespace = {}
    exec("from plateau_jax import *", namespace)
    assert {*JAX_NAMES, "ScaleByCurveState", "PlateauCurve", "plot"} <= namespace.keys()


@pytest.mark.parametrize("package", [plateau_jax, torch_bridge])
def test_public_names_are_listed_and_pickle(package):
    assert set(package.__all__) <= set(dir(package))
    for name in package.__all__:
        value = getattr(package, name)
        assert value.__name__ == {"follow": "Follower"}.get(name, name)
        assert pickle.loads(pickle.dumps(value)) is value
    with pytest.raises(AttributeError, match="no attribute 'lambda_lrs'"):
        package.lambda_lrs  # noqa: B018 -- looking the name up is the test


# `torch_bridge` re-exports the curves; each package has its own `multiplier`.
REEXPORTED = {"Curve", "PlateauCurve", "StagedCurve"}
IN_BOTH = REEXPORTED | {"multiplier"}


def test_torch_bridge_reexports_the_curves():
    assert set(torch_bridge.__all__) & set(plateau_jax.__all__) == IN_BOTH
    for name in REEXPORTED:
        assert getattr(torch_bridge, name) is getattr(plateau_jax, name)


def test_version_is_that_of_the_distribution():
    installed = metadata.version("plateau-jax")
    assert plateau_jax.__version__ == torch_bridge.__version__ == installed
    assert str(Version(installed)) == installed
