"""What importing each package needs and loads: a user of one framework does not need the other."""

import pickle
import subprocess
import sys
from importlib import metadata
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

import plateau_jax
import torch_bridge
from plateau_jax import checks, lazy_names

_PROGRAM = """
import sys
for name in {absent!r}:
    sys.modules[name] = None  # importing it raises ImportError
{statements}
assert not {{name.partition(".")[0] for name, module in sys.modules.items() if module}} & set({absent!r})
"""


_A_SCHEDULER = """
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

_STARS = """
from plateau_jax import *
assert "multiplier" not in globals()
assert PlateauCurve(9)(0) == 1.0 == HoldBelow(1.0, 3).value and len(stack([StagedCurve([(3,)])]).begin) == 1
import plateau_jax
assert set(plateau_jax.__all__) <= set(globals()) and "plot" in plateau_jax.__all__
"""
_STARS_WITH_JAX = """
from plateau_jax import *
assert multiplier(PlateauCurve(9).segments, 3) == PlateauCurve(9)(3)
assert "scale_by_curve" not in globals()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("statements", "absent"),
    [
        ("import plateau_jax; plateau_jax.PlateauCurve(9)(3)", ["jax", "optax", "torch", "matplotlib"]),
        (
            "import plateau_jax.decision as d; d.start(d.HoldBelow(0.5, 3))",
            ["jax", "optax", "torch", "matplotlib"],
        ),
        (
            "import plateau_jax; plateau_jax.multiplier(plateau_jax.PlateauCurve(9).segments, 3)",
            ["optax", "torch", "matplotlib"],
        ),
        (
            "import plateau_jax; plateau_jax.optax_schedule(plateau_jax.PlateauCurve(9), 0.1)(3)",
            ["torch", "matplotlib"],
        ),
        ("import plateau_jax.__main__, plateau_jax.plotting, plateau_jax.schedule", ["torch"]),
        ("import plateau_jax.plotting, plateau_jax.__main__", ["jax", "optax", "torch"]),
        (_STARS, ["jax", "jaxlib", "optax", "matplotlib", "torch"]),
        (_STARS, ["jaxlib", "torch"]),
        (_STARS_WITH_JAX, ["optax", "matplotlib", "torch"]),
        (_A_SCHEDULER, ["jax", "optax", "matplotlib"]),
        ("import torch_bridge; assert torch_bridge.count_updates(10, 3) == 30", ["jax", "torch"]),
        ("from torch_bridge import *; make_loader", ["jax"]),
    ],
)
def test_imports_without(statements, absent):
    program = _PROGRAM.format(statements=statements, absent=absent)
    subprocess.run([sys.executable, "-c", program], check=True)


_ALONE = """
import sys
import torch
import torch.nn.utils.parametrizations
del torch.nn.utils.parametrizations._SpectralNorm
for name in ("torch.distributed.fsdp", "torch.distributed.checkpoint"):
    assert name not in sys.modules
    sys.modules[name] = None  # importing it raises ImportError
optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.5)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
optimizer.step()
scheduler.step()
before = set(sys.modules)
{a_scheduler}
from torch_bridge import CurveLR, count_updates, follow
new = {{name for name in sys.modules.keys() - before if name.partition(".")[0] == "torch"}}
assert not new, new
rooms = {{name.split(".")[1] for name in sys.modules if name.startswith("torch_bridge.")}}
assert rooms == {{"core", "schedulers"}}, rooms
"""


@pytest.mark.slow
def test_a_scheduler_loads_no_more_of_torch_than_a_lambda_lr_of_torch():
    subprocess.run([sys.executable, "-c", _ALONE.format(a_scheduler=_A_SCHEDULER)], check=True)


_JAX_NAMES = ["optax_schedule", "multiplier", "cosine_plateau_schedule", "scale_by_curve"]
_TORCH_NAMES = ["lambda_lr", "CurveLR", "follow", "TrainStep", "evaluate", "Checkpoints", "make_loader"]
# What is absent, what asks for it, the name that the message begins with, and the extra that brings it.
_ASKED = [
    *(("jax", f"import plateau_jax; plateau_jax.{name}", name, "jax") for name in _JAX_NAMES),
    ("jax", "from plateau_jax import optax_schedule", "optax_schedule", "jax"),
    ("optax", "import plateau_jax; plateau_jax.scale_by_curve", "scale_by_curve", "jax"),
    ("matplotlib", "import plateau_jax as p; p.plot(p.PlateauCurve(9))", "plot", "plot"),
    ("matplotlib", "import plateau_jax as p; p.StagedCurve([(9, 1)]).plot()", "plot", "plot"),
    *(("torch", f"import torch_bridge; torch_bridge.{name}", name, "torch") for name in _TORCH_NAMES),
    ("torch", "from torch_bridge import count_updates, lambda_lr", "lambda_lr", "torch"),
]

_ASK_ALL = """
import sys
for absent, statements in {asked!r}:
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
"""


@pytest.fixture(scope="module")
def messages():
    """What each of them says, in one process: torch is imported once."""
    program = _ASK_ALL.format(asked=[(absent, statements) for absent, statements, _, _ in _ASKED])
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    return dict(zip(_ASKED, done.stdout.splitlines(), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("asked", _ASKED, ids=lambda asked: asked[1])
def test_what_is_not_installed_has_a_name_and_a_way_to_install_it(messages, asked):
    absent, _, name, extra = asked
    assert messages[asked] == f"{name} needs {absent}: pip install 'plateau-jax[{extra}]' {absent}"


def test_with_jax_a_star_brings_its_names():
    found = {}
    exec("from plateau_jax import *", found)
    assert {*_JAX_NAMES, "ScaleByCurveState", "PlateauCurve", "plot"} <= found.keys()


def test_a_module_that_was_put_in_place_by_hand_is_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "by_hand", type(sys)("by_hand"))
    assert checks.are_installed("sys", "by_hand")
    monkeypatch.setitem(sys.modules, "by_hand", None)
    assert not checks.are_installed("sys", "by_hand")
    assert not checks.are_installed("nowhere_to_be_found")


_OPTIONAL = {
    "jax": ["jax", "jaxlib", "optax"],
    "torch": ["torch", "safetensors", "filelock"],
    "plot": ["matplotlib"],
}
_parts = st.sampled_from(
    [*(name for names in _OPTIONAL.values() for name in names), "plateau_jax", "torch_bridge", "gone"]
)


@given(
    st.sampled_from(list(_OPTIONAL)),
    st.none() | st.lists(_parts, min_size=1, max_size=3).map(".".join),
    st.sets(_parts),
)
def test_only_a_package_of_the_extra_that_is_not_installed_is_advised(extra, name, absent):
    error = ModuleNotFoundError("as it is", name=name)
    with patch.dict(sys.modules, dict.fromkeys(absent)):
        found = checks.missing("what", error, extra)
    package = str(name).partition(".")[0]
    if package in absent and package in _OPTIONAL[extra]:
        assert str(found) == f"what needs {package}: pip install 'plateau-jax[{extra}]'"
        assert found.name == package
    else:
        assert found is error


@pytest.mark.slow
@pytest.mark.parametrize(
    ("absent", "imports", "asked"),
    [
        ("plateau_jax.segments", "jax, plateau_jax", "plateau_jax.optax_schedule"),
        ("jax.core", "jax, plateau_jax", "plateau_jax.optax_schedule"),
        ("torch_bridge.schedulers.group_curves", "torch_bridge", "torch_bridge.lambda_lr"),
    ],
)
def test_what_is_missing_inside_of_a_package_is_told_as_it_is(absent, imports, asked):
    program = f"import sys, {imports}; sys.modules[{absent!r}] = None; {asked}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    last = done.stderr.splitlines()[-1]
    assert last == f"ModuleNotFoundError: import of {absent} halted; None in sys.modules"


def test_the_message_of_a_package_that_says_itself_what_it_misses_is_kept():
    error = ModuleNotFoundError("jax requires jaxlib to be installed")  # it has no name
    assert checks.missing("optax_schedule", error, "jax") is error


def test_every_public_name_is_there():
    assert set(plateau_jax.__all__) <= set(dir(plateau_jax))
    for name in plateau_jax.__all__:
        assert getattr(plateau_jax, name).__name__ == name
    assert set(torch_bridge.__all__) <= set(dir(torch_bridge))
    for name in torch_bridge.__all__:
        assert getattr(torch_bridge, name).__name__ == name
    assert {*_TORCH_NAMES, "prefetch"} <= set(torch_bridge.__all__)


_HANDED_ON = {"Curve", "PlateauCurve", "StagedCurve"}
_IN_BOTH = {"multiplier"}
"""Each package has its own."""
_SHARED = _HANDED_ON | _IN_BOTH


def test_torch_bridge_hands_on_the_curves():
    assert set(torch_bridge.__all__) & set(plateau_jax.__all__) == _SHARED
    for name in _HANDED_ON:
        assert getattr(torch_bridge, name) is getattr(plateau_jax, name)


_ELSEWHERE = [
    *((plateau_jax, name, torch_bridge) for name in sorted({*torch_bridge.__all__} - _SHARED)),
    *((torch_bridge, name, plateau_jax) for name in sorted({*plateau_jax.__all__, *_JAX_NAMES} - _SHARED)),
]


@pytest.mark.parametrize(("module", "name", "other"), _ELSEWHERE, ids=lambda part: str(part))
def test_a_name_of_the_other_package_says_so(module, name, other):
    message = f"^{name} is not in {module.__name__}: write from {other.__name__} import {name}$"
    with pytest.raises(ImportError, match=message):
        exec(f"from {module.__name__} import {name}")
    with pytest.raises(ImportError, match=message):
        getattr(module, name)
    exec(f"from {other.__name__} import {name}")


def test_the_version_is_that_of_the_installed_package():
    installed = metadata.version("plateau-jax")
    assert plateau_jax.__version__ == torch_bridge.__version__ == installed
    assert str(Version(installed)) == installed


def test_the_version_of_a_checkout_that_was_not_installed():
    with patch.object(metadata, "distribution", side_effect=metadata.PackageNotFoundError("plateau-jax")):
        assert plateau_jax.__version__ == torch_bridge.__version__ == "0+unknown"
    assert Version("0+unknown") < Version("0.0.1")


def test_public_classes_of_torch_bridge_are_pickled_by_the_name_of_their_module():
    for name in torch_bridge.__all__:
        found = getattr(torch_bridge, name)
        assert pickle.loads(pickle.dumps(found)) is found
        assert name in _HANDED_ON or lazy_names._modules_of("torch_bridge")[name] == found.__module__


def test_other_names_are_not():
    with pytest.raises(AttributeError, match="no attribute 'PlateauCurves'"):
        plateau_jax.PlateauCurves  # noqa: B018 -- looking the name up is the test
    with pytest.raises(AttributeError, match="no attribute 'lambda_lrs'"):
        torch_bridge.lambda_lrs  # noqa: B018 -- the same
