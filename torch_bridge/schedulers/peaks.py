"""Which of a group's `lr` and `initial_lr` is its peak, when a scheduler meets the group."""

import gc
from collections.abc import Sequence
from typing import Any

from torch.optim.lr_scheduler import LRScheduler

from torch_bridge.curve_api import Curve, shortest_decimal, warn
from torch_bridge.param_groups import LEARNING_RATE, as_number, base_value, is_same


class LastWrite:
    """The learning rates that were written last into an optimizer's groups, by any `lambda_lr`.

    It outlives the scheduler that wrote them, because the next one asks whether a group's learning
    rate came from a scheduler or from the user.
    """

    def __init__(self) -> None:
        self.latest: tuple[list[dict[str, Any]], list[Any]] = [], []
        """The groups, and the learning rate that was written into each."""
        self.other_updates = 0
        """The number of updates after the first one that followed."""
        self._at_update = self.latest

    def note_update(self) -> None:
        """Note that an update begins."""
        if self.latest is self._at_update:
            self.other_updates += 1
        else:
            self.other_updates = 0
        self._at_update = self.latest

    def lr_of(self, group: dict[str, Any]) -> Any:
        """Return the learning rate that was written into this group, or None."""
        for known, lr in zip(*self.latest, strict=False):
            if known is group:
                return lr
        return None


def peak_of_known_group(index: int, group: dict[str, Any], last_write: LastWrite) -> float:
    """Return the peak of a group that had a scheduler before, when another one is built.

    A learning rate that no scheduler wrote is the user's new peak; otherwise, `initial_lr` is the
    peak.

    Warns:
        CurveWarning: It is not known who wrote the learning rate.
    """
    peak = LEARNING_RATE.base_of(index, group)
    written = last_write.lr_of(group)
    if written is None:
        return peak
    lr = as_number(group["lr"])
    if is_same(lr, as_number(written)) or is_same(lr, peak):
        return peak
    others = _lrs_of_other_schedulers(index, group)
    if any(is_same(lr, as_number(other)) for other in others):
        return peak
    if last_write.other_updates == 0 and not others:
        return base_value(f"learning rate of param_groups[{index}]", lr)
    warn(
        f"param_groups[{index}] has lr = {lr!r} and, from an earlier scheduler, initial_lr = "
        f"{shortest_decimal(peak)}, which is the peak now. To use lr as the peak, delete "
        "initial_lr before the scheduler is built; to use initial_lr, write it into lr"
    )
    return peak


def _lrs_of_other_schedulers(index: int, group: dict[str, Any]) -> list[Any]:
    """Return what the living schedulers of torch have written last into a group."""
    lrs: list[Any] = []
    # A torch scheduler leaves no trace in its optimizer. This takes some 0.1 s, but only after the
    # learning rate was changed by something else than a `lambda_lr`.
    for item in gc.get_objects():
        if not issubclass(type(item), LRScheduler) or hasattr(item, "curve_step"):  # a `lambda_lr`
            continue
        groups = getattr(getattr(item, "optimizer", None), "param_groups", [])
        last_lrs = getattr(item, "_last_lr", [])
        if index < min(len(groups), len(last_lrs)) and groups[index] is group:
            lrs.append(last_lrs[index])
    return lrs


def peak_of_copied_options(
    index: int, group: dict[str, Any], curve: Curve, step: int, known: Sequence[dict[str, Any]]
) -> float:
    """Return the peak of an added group whose `initial_lr` may be that of the group it copies.

    If the learning rate was copied too, `initial_lr` is the peak: the learning rate is then that of
    a known group, or of the curve at this step. Otherwise it is the new group's peak.
    """
    peak = LEARNING_RATE.base_of(index, group)
    lr = as_number(group["lr"])
    if is_same(lr, curve.learning_rate(step, peak)):
        return peak
    for other in known:
        is_copy = is_same(as_number(other.get("initial_lr", 0.0)), peak)
        if is_copy and is_same(as_number(other["lr"]), lr):
            return peak
    return base_value(f"learning rate of param_groups[{index}]", lr)
