"""Arrays that are made once, a loader that resumes in mid-epoch, and copies to the device that run ahead.

`make_loader` needs torchdata, which is imported when it is first asked for.
"""

from typing import TYPE_CHECKING, Any

from torch_bridge.core import checks
from torch_bridge.data.array_cache import cached_arrays
from torch_bridge.data.prefetching import prefetch

if TYPE_CHECKING:
    from torch_bridge.data.loader import make_loader

__all__ = ["cached_arrays", "make_loader", "prefetch"]


def __getattr__(name: str) -> Any:
    if name != "make_loader":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from torch_bridge.data.loader import make_loader
    except ModuleNotFoundError as error:
        raise checks.missing("make_loader", error, "torch") from None

    return make_loader


def __dir__() -> list[str]:
    return sorted(__all__)
