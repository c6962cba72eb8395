"""Names: functions with their arguments and defaults, attributes and fields."""

import inspect
import re
from collections.abc import Iterator
from typing import Any, cast

from support.surface import samples
from support.surface.shown import PACKAGES, RETURNED, is_of_this_project, type_of
from torch.optim.lr_scheduler import LambdaLR

from plateau_jax import Curve, CurveScheduler
from torch_bridge import Checkpoints, MetricLog, follow, lambda_lr, prefetch
from torch_bridge.training.data.resumable_loader import ResumableLoader


def signatures() -> set[str]:
    """Return those that the reference shows, such as `plateau_jax.DataClock(unit, count=None)`."""
    shown = {line for line in _lines() if _is_signature(line)}
    return shown - {"plateau_jax.Curve()"}  # it is abstract


def other_names() -> Iterator[str]:
    """Yield attributes, and classes that functions return and that have no public name."""
    for line in _lines():
        if not _is_signature(line):
            yield line


def _is_signature(line: str) -> bool:
    return re.fullmatch(r"(plateau_jax|torch_bridge)\.[\w.]+\(.*\)", line) is not None


def _lines() -> Iterator[str]:
    for package in PACKAGES:
        yield from _names_in(package)
    for cls in RETURNED:
        yield from _describe(f"value {cls.__name__}", cls)
    yield from _members("value of make_loader", ResumableLoader)  # only make_loader builds it
    yield from _attributes()


def _names_in(package: Any) -> Iterator[str]:
    """Yield the names of a package; for those of the first one in another, only that."""
    first_package = PACKAGES[0]
    for name in package.__all__:
        value = getattr(package, name)
        full_name = f"{package.__name__}.{name}"
        if package is not first_package and value is getattr(first_package, name, None):
            yield f"{full_name} is {first_package.__name__}.{name}"
        else:
            yield from _describe(full_name, value)


def _attributes() -> Iterator[str]:
    """Yield the attributes that constructors set, other than those of a torch scheduler."""
    optimizer = samples.optimizer()
    attributes_of_torch = vars(LambdaLR(optimizer, float))
    instances: dict[str, Any] = {
        "plateau_jax.CurveScheduler": CurveScheduler(samples.CURVE, 0.5),
        "torch_bridge.Checkpoints": Checkpoints("checkpoints"),
        "torch_bridge.MetricLog": MetricLog(),
        "torch_bridge.TrainStep": samples.train_step(),
        "torch_bridge.follow": follow(optimizer, "momentum", samples.CURVE),
        "torch_bridge.lambda_lr": lambda_lr(optimizer, samples.CURVE),
        "torch_bridge.prefetch": prefetch([], "cpu"),
    }
    for name, instance in instances.items():
        attributes: dict[str, Any] = instance.__dict__
        for attribute in attributes:
            if not attribute.startswith("_") and attribute not in attributes_of_torch:
                yield f"{name}.{attribute}"


def _describe(name: str, value: Any) -> Iterator[str]:
    """Yield the signature of a function, or those of a class and its members."""
    if inspect.isclass(value):
        yield name + _parameters(value)
        yield from _members(name, value)
    elif callable(value):
        yield name + _parameters(value)
    else:
        yield f"{name}: {type_of(value)}"


def _members(name: str, cls: type) -> Iterator[str]:
    arguments = _parameters(cls)  # most are attributes, too
    for member in sorted(_public_names(cls)):
        value: Any = inspect.getattr_static(cls, member, None)
        if isinstance(value, staticmethod | classmethod):
            value = cast("Any", value).__func__
        if inspect.isfunction(value):
            yield f"{name}.{member}{_parameters(value)}"
        elif not re.search(rf"\b{member}\b", arguments):
            yield f"{name}.{member}"


def _public_names(cls: type) -> set[str]:
    """Return the members that this project defines, without those of `Curve` in its subclasses."""
    names: set[str] = set()
    for base in cls.__mro__:
        if not is_of_this_project(base):
            continue
        if cls is Curve or not (issubclass(cls, Curve) and issubclass(Curve, base)):
            names.update(vars(base))
            names.update(inspect.get_annotations(base))
    return {name for name in names if not name.startswith("_") or name == "__call__"}


def _parameters(function: Any) -> str:
    """Return the names, kinds and defaults of the parameters."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of a class without one, such as a warning
        return ""
    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in signature.parameters.values()
        if parameter.name not in ("self", "cls") and not parameter.name.startswith("_")
    ]
    return str(inspect.Signature(parameters))
