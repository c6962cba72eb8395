"""The peak rates that a training step is given: another one in mid-run, or those of a run of one's own."""

from collections.abc import Sequence
from typing import Any, cast

from torch import Tensor
from torch.optim import Optimizer

from torch_bridge.core import checks
from torch_bridge.schedulers.param_groups import base_of, number_of


def given_peaks(peak: Any, count: int) -> list[float]:
    """A peak for each of so many groups: the one for all, or one a group; rounded to float32.

    Raises:
        TypeError, ValueError: As `base_of`; another number of peaks than of groups.
    """
    if isinstance(peak, Tensor) and peak.dim() > 0:
        peak = cast("list[float]", peak.tolist())
    if not checks.ordered(peak):
        return [base_of("peak", peak)] * count
    peaks = [base_of(f"peak[{index}]", each) for index, each in enumerate(cast("Sequence[Any]", peak))]
    if len(peaks) != count:
        raise ValueError(f"peak has {len(peaks)} entries; there are {count} parameter groups")
    return peaks


def check_peaks_are_known(optimizers: Sequence[Optimizer], applied: int) -> None:
    """Refuse optimizers in mid-run whose groups may hold a decayed rate, which would be taken as the peak.

    Raises:
        ValueError: An optimizer has made steps, and has a group without `initial_lr` whose `lr` is not the
            one that the optimizer was built with.
    """
    for optimizer in optimizers:
        built = number_of(optimizer.defaults.get("lr"))
        for group in optimizer.param_groups if optimizer.state else ():
            if "initial_lr" in group or number_of(group["lr"]) == built:
                continue
            raise ValueError(
                f"applied = {applied}, and the optimizer was stepped or loaded: its lr = "
                f"{number_of(group['lr'])} may be a rate in mid-run, and is not taken as the peak. Write "
                'group["initial_lr"] = peak into each of its param_groups before'
            )
