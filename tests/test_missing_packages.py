"""A name whose package is missing: the error says which extra installs it."""

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest

NAMES_THAT_NEED_JAX = ["optax_schedule", "multiplier", "scale_by_curve"]
NAMES_THAT_NEED_TORCH = [
    "lambda_lr",
    "follow",
    "TrainStep",
    "evaluate",
    "Checkpoints",
    "make_loader",
]


@dataclass(frozen=True)
class MissingPackage:
    """A program that needs a module."""

    name: str
    program: Callable[[], object]
    missing: str
    """The module, which the error has as its `name`."""
    message: str


CASES = []


def without(module, message):
    """Add a case: the program below ends with this message if the module is missing."""

    def add(program):
        CASES.append(MissingPackage(program.__name__, program, module, message))

    return add


def look_up(package, name):
    return getattr(importlib.import_module(package), name)


for name in NAMES_THAT_NEED_JAX:
    message = f"{name} needs jax: pip install 'plateau-jax[jax]'"
    CASES.append(MissingPackage(name, partial(look_up, "plateau_jax", name), "jax", message))

for name in NAMES_THAT_NEED_TORCH:
    message = f"{name} needs torch: pip install 'plateau-jax[torch]'"
    CASES.append(MissingPackage(name, partial(look_up, "torch_bridge", name), "torch", message))


@without("torch", "lambda_lr needs torch: pip install 'plateau-jax[torch]'")
def imported_name_of_torch_bridge():
    from torch_bridge import lambda_lr

    return lambda_lr


@without("optax", "scale_by_curve needs optax: pip install 'plateau-jax[jax]'")
def name_that_needs_optax():
    return look_up("plateau_jax", "scale_by_curve")


@without("matplotlib", "plot needs matplotlib: pip install 'plateau-jax[plot]'")
def plot():
    import plateau_jax

    return plateau_jax.plot(plateau_jax.PlateauCurve(9))


# pip cannot install a module that an installed package lacks, so Python's message stays.


@without(
    "plateau_jax.table.evaluation",
    "import of plateau_jax.table.evaluation halted; None in sys.modules",
)
def schedule_without_a_file_of_this_package():
    return look_up("plateau_jax", "optax_schedule")


def error_of(case):
    """Run the program of a case; return the error's message and the name of its module."""
    for module in list(sys.modules):
        if module.partition(".")[0] in ("plateau_jax", "torch_bridge"):
            del sys.modules[module]
    modules = sys.modules
    with pytest.MonkeyPatch.context() as patches:
        patches.setitem(modules, case.missing, None)  # importing it raises ImportError
        try:
            case.program()
        except ModuleNotFoundError as error:
            return [str(error), error.name]
    return None


@pytest.fixture(scope="module")
def errors():
    """Run all cases in one new process, so that torch is imported once."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, __file__]
    process = subprocess.run(
        command, env=environment, check=True, stdout=subprocess.PIPE, text=True
    )
    return json.loads(process.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_missing_package_is_named_with_its_extra(case, errors):
    assert errors[case.name] == [case.message, case.missing]


if __name__ == "__main__":
    print(json.dumps({case.name: error_of(case) for case in CASES}))
