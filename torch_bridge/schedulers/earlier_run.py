"""Warnings at the first step: a stale peak, a scheduler that lacks its state, no update so far."""

import gc
from collections.abc import Iterator, Sequence
from inspect import signature
from typing import Any, NamedTuple

import numpy as np
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from torch_bridge.curve_api import Curve, warn
from torch_bridge.schedulers import step_messages as messages
from torch_bridge.schedulers.param_groups import as_number, is_same, updates_made
from torch_bridge.schedulers.update_counter import UpdateCounter, innermost


class StalePeak(NamedTuple):
    """A group whose `initial_lr` an earlier run has left, and the learning rate that may be meant."""

    group_index: int
    initial_lr: float
    origin: str
    """The words before `lr` in the message."""
    lr: float


class EarlierRun:
    """The traces of an earlier run in an optimizer; `step_watch` has the rules.

    Build it before the scheduler writes into the groups, and check it at the scheduler's first step: until
    then the user may load the scheduler's state, or set its peak. A copy does not warn.
    """

    _is_copy = False

    def __init__(
        self, optimizer: Optimizer, counter: UpdateCounter, last_epoch: int, curves: Sequence[Curve]
    ) -> None:
        self._is_open = last_epoch < 0
        self._counter, self._loads_before = counter, counter.loads
        # If another scheduler was stepped in this process, the curve is meant for a second part of the run.
        # The same holds if the optimizer has made updates in this process and was never loaded.
        is_driven = counter.latest is not None or getattr(optimizer, "_opt_called", False)
        self._may_lack_state = self._is_open and not is_driven
        self._made = updates_made(optimizer) if self._may_lack_state and was_loaded(optimizer) else 0
        self._stale = stale_peak(optimizer, counter, self._made) if self._is_open else None
        if self._made and curves and _is_set_to_start(optimizer, curves, self._made):
            self._made = 0

    def close(self) -> None:
        """Do not warn: the scheduler has loaded its state, or the user has set its peak or its step."""
        self._is_open = False

    def check_first_step(self, scheduler: Any) -> None:
        """Warn as `check` does; or, as torch does, if there was no optimizer step yet.

        Torch's own `step` would warn at a line of this package, not at the user's.

        Warns:
            CurveWarning: As `check`.
            UserWarning: The optimizer has made no step.
        """
        # Torch does not note the steps of a copied optimizer.
        if not (self._is_copy or getattr(scheduler.optimizer, "_opt_called", False)):
            warn(messages.BEFORE_OPTIMIZER, UserWarning)
        else:
            self.check(scheduler)

    def check(self, scheduler: Any) -> None:
        """Warn of an earlier run, once, at the scheduler's first step or turn.

        Warns:
            CurveWarning: The peak is that of an earlier run; or the scheduler lacks its state.
        """
        is_open, self._is_open = self._is_open, False
        # The user may have set another `last_epoch`, as some scripts resume.
        if not is_open or scheduler.last_epoch != 0 or self._counter.has_warned_of_earlier_run:
            return
        counter = self._counter
        peaks = [_decimal(peak) for peak in scheduler.base_lrs]
        was_loaded_since = self._may_lack_state and counter.loads > self._loads_before
        made = counter.loaded_updates if was_loaded_since else self._made
        resumed = "load the scheduler's state, scheduler.load_state_dict(state)"
        if made is not None and not scheduler.unit:
            resumed += f"; or pass last_epoch={made - 1}" if made else "; or pass last_epoch"
        stale = self._stale or loaded_peak(scheduler)
        if stale is not None:
            old, new = _decimal(stale.initial_lr), _decimal(stale.lr)
            each = "" if len(set(peaks)) == 1 else f", or a list for the groups, whose peaks are {peaks} now"
            counter.has_warned_of_earlier_run = True
            warn(
                f"param_groups[{stale.group_index}] has initial_lr = {old!r} from an earlier run, but "
                f"{stale.origin} lr = {new!r}; the curve's peak is {peaks[stale.group_index]!r}. If this run "
                f"continues the earlier one, {resumed}. If the curve starts anew, choose its peak: "
                f"scheduler.set_peak({new!r}), or scheduler.set_peak({old!r}) for the old one{each}"
            )
        elif made != 0:
            number = "updates" if made is None else f"{made} update{'s' * (made > 1)}"
            peak = peaks[0] if len(set(peaks)) == 1 else peaks
            counter.has_warned_of_earlier_run = True
            warn(
                f"the optimizer has made {number}, but the curve started at step 0: {resumed}. If the curve "
                f"starts anew, choose its peak, which is {peak!r} now: scheduler.set_peak({peak!r})"
            )

    def __reduce__(self) -> tuple[Any, ...]:
        return _copied, ()


def _is_set_to_start(optimizer: Optimizer, curves: Sequence[Curve], updates: int) -> bool:
    """Return True if each group is at its peak, which these curves would have left after these updates."""
    return all(
        is_same(as_number(group.get("initial_lr", -1.0)), as_number(group["lr"])) and curve(updates) < 1
        for group, curve in zip(optimizer.param_groups, curves, strict=True)
    )


def _copied() -> EarlierRun:
    copied = EarlierRun.__new__(EarlierRun)
    copied._is_copy = True
    copied.close()
    return copied


def was_loaded(optimizer: Optimizer) -> bool:
    """Return True if `load_state_dict` has replaced the groups, or copied groups that it had replaced."""
    # It writes the saved options into each group and then the parameters; the constructor begins with these.
    defaults: dict[str, Any] = getattr(innermost(optimizer), "defaults", {})
    keys = list(optimizer.param_groups[0])
    # A group that the user wrote may begin with a single option too.
    return len(defaults) > 1 and keys.index("params") > max(
        keys.index(key) for key in defaults if key in keys
    )


def stale_peak(optimizer: Optimizer, counter: UpdateCounter, made: int | None) -> StalePeak | None:
    """Return the first group whose `initial_lr` is probably not the peak that is meant."""
    inner = innermost(optimizer)
    is_driven = any(hasattr(one.step, "_wrapped_by_lr_sched") for one in (optimizer, inner))
    is_loaded_before = was_loaded(optimizer) and not counter.loads
    stale = None
    is_stepped = is_driven and (counter.updates or getattr(optimizer, "_opt_called", False))
    if counter.loads or (is_loaded_before and not is_stepped):
        stale = _peak_of_other_optimizer(inner, counter, made)
    return _overwritten_lr(optimizer, counter, is_loaded_before) if stale is None and is_driven else stale


def _peak_of_other_optimizer(
    optimizer: Optimizer, counter: UpdateCounter, made: int | None
) -> StalePeak | None:
    """Return the first group, if the loaded peak is not the learning rate that the constructor got."""
    default = as_number(getattr(optimizer, "defaults", {}).get("lr"))
    peaks = [as_number(group.get("initial_lr")) for group in optimizer.param_groups]
    if None in peaks or not isinstance(default, int | float):
        return None
    if counter.loads and not all(map(is_same, peaks, counter.loaded_peaks)):  # the user has written others
        return None
    # A loaded state hides the learning rates that groups were built with. They may all have had their own,
    # and the default be the class's.
    own_default = getattr(signature(type(optimizer)).parameters.get("lr"), "default", None)
    if default == own_default and (made == 0 or len(set(peaks)) > 1):
        return None
    known = [default, *(peak for watch in counter.watches for peak in watch.peaks)]
    if any(is_same(peak, one) for peak in peaks for one in known):
        return None
    return StalePeak(0, peaks[0], "the optimizer's default is", default)


def _overwritten_lr(optimizer: Optimizer, counter: UpdateCounter, is_loaded_before: bool) -> StalePeak | None:
    """Return the first group whose `lr` is neither its peak nor a value that a scheduler wrote."""
    written = [*(watch.lrs for watch in counter.watches), counter.loaded_lrs]
    # After further updates, a scheduler of torch's that no longer exists may have written the value.
    is_recent = any(watch.lrs and watch.count_missed() <= 1 for watch in counter.watches)
    others: list[Sequence[Any]] | None = None
    for index, group in enumerate(optimizer.param_groups):
        lr, initial_lr = as_number(group["lr"]), as_number(group.get("initial_lr", group["lr"]))
        if is_same(lr, initial_lr) or _is_among(lr, index, written):
            continue
        if others is None:
            others = list(_lrs_of_torchs_schedulers(optimizer))
        # Nor are the learning rates known that were loaded before the counter was there.
        is_known = is_recent or (bool(others) and not any(written) and not is_loaded_before)
        if is_known and not _is_among(lr, index, others):
            return StalePeak(index, initial_lr, "its", lr)
    return None


def loaded_peak(scheduler: Any) -> StalePeak | None:
    """Return the first group whose `initial_lr` a load has replaced since the scheduler was built."""
    for index, (group, peak) in enumerate(
        zip(scheduler.optimizer.param_groups, scheduler.base_lrs, strict=False)
    ):
        initial_lr = as_number(group.get("initial_lr", peak))
        if not is_same(initial_lr, peak):
            return StalePeak(index, initial_lr, "this scheduler was built with", peak)
    return None


def _lrs_of_torchs_schedulers(optimizer: Optimizer) -> Iterator[Sequence[Any]]:
    """Yield the learning rates that each of the optimizer's schedulers wrote last."""
    # An optimizer does not know its schedulers. This search takes some 30 ms, so it comes last.
    for one in {id(one): one for one in (optimizer, innermost(optimizer))}.values():
        for holder in gc.get_referrers(one):
            # An object's attributes may lie in the object itself, or in a dictionary.
            attributes = vars(holder) if isinstance(holder, LRScheduler) else holder
            if isinstance(attributes, dict) and isinstance(attributes.get("_last_lr"), list):
                yield attributes["_last_lr"]


def _is_among(lr: float, index: int, written: Sequence[Sequence[Any]]) -> bool:
    return any(index < len(lrs) and is_same(as_number(lrs[index]), lr) for lrs in written)


def _decimal(lr: float) -> float:
    """Return the shortest decimal of the learning rate in float32, which is probably what the user wrote."""
    return float(str(np.float32(lr)))
