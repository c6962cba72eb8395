"""The public surface as text, a line per name, argument, field, error and entry.

python -m support.surface    (in `tests/`) writes it into `surface.txt`.
"""

import argparse
import inspect
import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import torch
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import TensorDataset

import plateau_jax
import torch_bridge
from plateau_jax import (
    BatchPlan,
    Curve,
    DataClock,
    HoldBelow,
    HoldUntilFlat,
    PlateauCurve,
    StagedCurve,
    resume_record,
)
from plateau_jax.curves.staged_curve import Stage
from plateau_jax.forecasts.loss_comparison import LossComparison, LossDifference, LossForecast
from plateau_jax.option_parser import command_line_parser
from plateau_jax.schedules.transformation import CountedCurveState, ScaleByCurveState
from plateau_jax.theory.comparison import Comparison
from torch_bridge import Checkpoints, MetricLog, TrainStep, follow, lambda_lr, make_loader, prefetch
from torch_bridge.data.resumable_loader import ResumableLoader
from torch_bridge.training.result import StepResult

FILE = Path(__file__).parents[1] / "surface.txt"

RETURNED = [
    Comparison,
    CountedCurveState,
    LossComparison,
    LossDifference,
    LossForecast,
    ScaleByCurveState,
    Stage,
    StepResult,
]
"""Classes that public functions return, and that have no public name."""


def surface() -> str:
    """Return all lines, sorted."""
    lines = [*_names(), *_attributes(), *_returned_values(), *_states(), *_options()]
    return "".join(f"{line}\n" for line in sorted(set(lines)))


def _names() -> Iterator[str]:
    for name in _exported(plateau_jax):
        yield from _describe(f"plateau_jax.{name}", getattr(plateau_jax, name))
    for name in _exported(torch_bridge):
        value = getattr(torch_bridge, name)
        if value is getattr(plateau_jax, name, None):
            yield f"torch_bridge.{name} is plateau_jax.{name}"
        else:
            yield from _describe(f"torch_bridge.{name}", value)


def _exported(package: Any) -> list[str]:
    return package.__all__


def _attributes() -> Iterator[str]:
    """Yield the attributes that constructors set, other than those of a torch scheduler."""
    curve = PlateauCurve(100)
    optimizer = _optimizer()
    attributes_of_torch = vars(LambdaLR(optimizer, float))
    instances: dict[str, Any] = {
        "Checkpoints": Checkpoints("checkpoints"),
        "MetricLog": MetricLog(),
        "TrainStep": _train_step(curve),
        "follow": follow(optimizer, "momentum", curve),
        "lambda_lr": lambda_lr(optimizer, curve),
        "prefetch": prefetch([], "cpu"),
    }
    for name, instance in instances.items():
        attributes: dict[str, Any] = instance.__dict__
        for attribute in attributes:
            if not attribute.startswith("_") and attribute not in attributes_of_torch:
                yield f"torch_bridge.{name}.{attribute}"


def _returned_values() -> Iterator[str]:
    for cls in RETURNED:
        yield from _describe(f"value {cls.__name__}", cls)
    yield from _members("value of make_loader", ResumableLoader)  # only make_loader builds it


def _describe(name: str, value: Any) -> Iterator[str]:
    """Yield the signature and the errors of a function, or of a class and its members."""
    if not callable(value):
        yield name
        return
    yield name + _signature(value)
    yield from _errors(name, value)
    if inspect.isclass(value):
        yield from _members(name, value)


def _members(name: str, cls: type) -> Iterator[str]:
    for member in sorted(_public_names(cls)):
        value: Any = inspect.getattr_static(cls, member, None)
        if isinstance(value, staticmethod | classmethod):
            value = cast("Any", value).__func__
        if inspect.isfunction(value):
            yield f"{name}.{member}{_signature(value)}"
            yield from _errors(f"{name}.{member}", value)
        else:
            yield f"{name}.{member}"


def _public_names(cls: type) -> set[str]:
    """Return the members that this project defines, without those of `Curve` in its subclasses."""
    names: set[str] = set()
    for base in cls.__mro__:
        package = base.__module__.partition(".")[0]
        if package not in ("plateau_jax", "torch_bridge"):
            continue
        if base is not Curve or cls is Curve:
            names.update(vars(base))
            names.update(inspect.get_annotations(base))
    return {name for name in names if not name.startswith("_") or name == "__call__"}


def _signature(function: Any) -> str:
    """Return the names, kinds and defaults of the parameters."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of a class without one, such as a warning
        return ""
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        if parameter.name not in ("self", "cls"):
            parameters.append(parameter.replace(annotation=inspect.Parameter.empty))
    return str(inspect.Signature(parameters))


def _errors(name: str, value: Any) -> Iterator[str]:
    """Yield the types under "Raises" and "Warns" in a docstring."""
    docstring = inspect.cleandoc(getattr(value, "__doc__", None) or "")
    section = ""
    for line in docstring.splitlines():
        if line and not line.startswith(" "):
            section = line
        types = re.match(r"    ([A-Z]\w+(?:, [A-Z]\w+)*):", line)
        if types is None or section not in ("Raises:", "Warns:"):
            continue
        verb = section.removesuffix(":").lower()
        for error in types[1].split(", "):
            yield f"{name} {verb} {error}"


def _states() -> Iterator[str]:
    """Yield the entries of saved states and of JSON values, with their types."""
    curve = PlateauCurve(100, plateaus=[(50, 10)])
    staged = StagedCurve([(10, 1.0), (20,)])
    plan = BatchPlan([(0, 8), (80, 16)])
    loader = make_loader(TensorDataset(torch.zeros(4)), 2, device="cpu")
    states = {
        "BatchPlan": plan.to_dict(),
        "DataClock": DataClock(8).to_dict(),
        "HoldBelow": HoldBelow(0.5, 3).to_dict(),
        "HoldUntilFlat": HoldUntilFlat(3, limit=9).to_dict(),
        "MetricLog": MetricLog(every=10).state_dict(),
        "PlateauCurve": curve.to_dict(),
        "StagedCurve": staged.to_dict(),
        "TrainStep": _train_step(curve).state_dict(),
        "a cooldown": curve.cooldown(50, 10).to_dict(),
        "a curve and the next": curve.then(staged).to_dict(),
        "a part": curve.part(10, 50).to_dict(),
        "a scaled curve": plan.scale(curve, 8, reference=16).to_dict(),
        "checkpoint.json": _manifest(),
        "follow": follow(_optimizer(), "momentum", curve).state_dict(),
        "lambda_lr": lambda_lr(_optimizer(), curve).state_dict(),
        "make_loader": loader.state_dict(),
        "resume_record": resume_record(curve, 0.1, DataClock(8)),
    }
    for kind, state in states.items():
        for entry, value in state.items():
            yield f"state {kind} {entry}: {type(value).__name__}"


def _optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=0.5, momentum=0.9)


def _train_step(curve: Curve) -> TrainStep:
    model = torch.nn.Linear(2, 1)
    return TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.5), _loss_fn, curve)


def _manifest() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        Checkpoints(directory).save(10, progress={"epoch": 1}, wait=True)
        return json.loads(Path(directory, "10", "checkpoint.json").read_text(encoding="utf-8"))


def _loss_fn(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).mean()


def _options() -> Iterator[str]:
    parser = command_line_parser()
    for action in parser._actions:
        if not isinstance(action, argparse._HelpAction):
            name = ", ".join(action.option_strings) or action.dest
            yield f"python -m plateau_jax {name} (default: {action.default!r})"


if __name__ == "__main__":
    FILE.write_text(surface(), encoding="utf-8")
