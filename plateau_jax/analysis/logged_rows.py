"""Rows of a log, without those that a resumed run replaced, and without losses that are not finite."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

import numpy as np

from plateau_jax.validation.curve_warning import warn
from plateau_jax.validation.messages import Message, shown

_FEW_REPEATS = 4
"""Number of steps that may have several losses without a step back, if it is more than 5 % of them."""


_LARGEST_LOSS = float(np.finfo(np.float32).max)


class LoggedRow(NamedTuple):
    """What was logged at a step; None if nothing was."""

    step: int
    loss: float | None
    lr: float | None


def later_rows(rows: Sequence[LoggedRow], name: str) -> list[LoggedRow]:
    """Return the rows that no resumed run replaced, with at most one loss and one learning rate per step.

    A run that resumes logs lower steps again. At each return to a lower step, every earlier row at that step
    or above is dropped.

    Raises:
        ValueError: The steps go back so often that the rows are not in the order of training, or more than a
            few have several losses without going back.
    """
    resumed, steps = _resumed_rows(rows), [row.step for row in rows]
    _check_order(steps, len(resumed), name)
    lowest = math.inf  # of the steps at which the run resumed later
    kept, dropped = list[LoggedRow](), list[LoggedRow]()
    for index in reversed(range(len(rows))):
        (kept if steps[index] < lowest else dropped).append(rows[index])
        if index in resumed:
            lowest = min(lowest, steps[index])
    kept.reverse()
    losses = {row.step: row.loss for row in kept if row.loss is not None}
    _check_repeats(kept, losses, name)
    lrs = {row.step: row.lr for row in kept if row.lr is not None}
    replaced = Counter(row.step for row in rows if row.loss is not None) - Counter(list(losses))
    # Such as the evaluation after the last update, which some trainers make twice.
    logged = [(row.step, row.loss) for row in kept if row.loss is not None]
    replaced -= Counter(step for (step, loss), later in pairwise(logged) if (step, loss) == later)
    noun, nouns = "loss", "losses"
    if not replaced:
        noun, nouns = "learning rate", "learning rates"
        replaced = Counter(row.step for row in dropped if row.lr is not None and row.lr != lrs.get(row.step))
    if replaced:
        are = f"{noun} is" if replaced.total() == 1 else f"{nouns} are"
        how = (
            "repeats steps, as the log of a resumed run does"
            if resumed
            else "has steps that were logged twice"
        )
        warn(f"{name} {how}: {replaced.total()} earlier {are} left out, at {_listed(sorted(replaced))}")
    return [LoggedRow(step, losses.get(step), lrs.get(step)) for step in sorted({*losses, *lrs})]


def finite_losses(rows: Sequence[LoggedRow], name: str, column: str) -> list[tuple[int, float]]:
    """Return (step, loss) of each finite loss.

    Raises:
        ValueError: More than 5 % are not finite, or one is not positive.
    """
    losses = [(row.step, row.loss) for row in rows if row.loss is not None]
    for step, loss in losses:
        if math.isfinite(loss) and not 0 < loss <= _LARGEST_LOSS:
            problem = f" is {loss:.4g} at step {step}; losses must be finite and positive in float32"
            raise ValueError(Message(f"{name}: ", shown(column.strip()), problem))
    wrong = [step for step, loss in losses if not math.isfinite(loss)]
    if not wrong:
        return losses
    are = "is" if len(wrong) == 1 else "are"
    found = f"{name}: {len(wrong)} of {len(losses)} logged losses {are} not finite, at {_listed(wrong)}"
    if 20 * len(wrong) > len(losses):
        raise ValueError(
            f"{found}; at most 5% may be left out: the run diverged, or NaN stands for losses that were not "
            "logged, in rows to leave out"
        )
    warn(f"{found}, and {are} left out")
    return [(step, loss) for step, loss in losses if math.isfinite(loss)]


def _check_repeats(rows: Sequence[LoggedRow], losses: Mapping[int, float], name: str) -> None:
    """Raise if many steps have different losses, such as those of several ranks or splits."""
    counts = Counter(row.step for row in rows if row.loss is not None)
    several = (row for row in rows if row.loss is not None and counts[row.step] > 1)
    repeated = {row.step for row in several if row.loss != losses[row.step]}
    if len(repeated) > max(_FEW_REPEATS, len(losses) // 20):
        where = "each step" if len(repeated) == len(losses) else f"{len(repeated)} of {len(losses)} steps"
        raise ValueError(
            f"{name} has {max(counts.values())} losses at {where}: keep those of one split, rank or run, or "
            "their mean"
        )


def _check_order(steps: Sequence[int], resumes: int, name: str) -> None:
    """Raise if the steps are in a different order: the last first, as text, or shuffled."""
    texts = [str(step) for step, _ in groupby(steps)]
    changes = len(texts) - 1
    if (
        0 < resumes == changes
        or resumes > max(1, len(texts) // 3)
        or (resumes and len(set(texts)) == len(texts) and texts == sorted(texts))
    ):
        order = "from the last to the first" if resumes == changes else "not in the order of training"
        raise ValueError(
            f"{name} has its steps {order}: they go back in {resumes} of {changes} changes; sort "
            "the rows by step, the lowest first"
        )


def _resumed_rows(rows: Sequence[LoggedRow]) -> set[int]:
    """Return the indices of the rows in which the step of the losses or of the learning rates goes back.

    Rows of one may lie before earlier rows of the other: some evaluations end late.
    """
    resumed: set[int] = set()
    last_loss = last_lr = 0
    for index, (step, loss, lr) in enumerate(rows):
        if (loss is not None and step < last_loss) or (lr is not None and step < last_lr):
            resumed.add(index)
            last_loss, last_lr = min(last_loss, step), min(last_lr, step)
        if loss is not None:
            last_loss = step
        if lr is not None:
            last_lr = step
    return resumed


def _listed(steps: Sequence[int]) -> str:
    if len(steps) == 1:
        return f"step {steps[0]}"
    shown = ", ".join(map(str, steps)) if len(steps) <= 6 else f"{steps[0]}, {steps[1]}, … {steps[-1]}"
    return f"the steps {shown}"
