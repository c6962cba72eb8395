"""A log of the results of updates, which synchronizes with the device only now and then."""

import math
from collections.abc import Mapping
from typing import Any, TypedDict, cast

import torch
from torch import Tensor

from plateau_jax.arguments import checks
from plateau_jax.arguments.curve_warning import warn
from plateau_jax.saved_states.formats import Format, reading_state_of
from torch_bridge.training.train_step.result import StepResult


class _LogState(TypedDict):
    kind: str
    format: int
    rows: list[dict[str, Any]]
    since_flush: int
    """Number of results since the last call that returned a row."""


_FORMAT = Format("metric_log", _LogState)

_COUNTER_NAMES = "applied", "skipped", "curve_step", "consumed"

# fp16 skips some updates until its loss scale fits.
_MIN_SKIPPED = 10
"""The fewest skipped updates in a row that bring a warning."""


class MetricLog:
    """A log that keeps results on the device, and copies them to rows of numbers now and then.

    Call `log(result)` after each update. Every `every` calls, the log copies all kept results from
    the device at once, which synchronizes with it, and makes a row of each. Such a call returns the
    newest row, to print or to show in a progress bar; other calls return None. `flush` makes rows
    immediately, and `every` counts from then on. `state_dict` makes rows too, but does not change
    which later calls return a row.

    Args:
        every: Number of updates from one copy to the next.
        keep: Number of rows that are kept and saved, the newest ones; None for all, without bound.

    Attributes:
        rows: A dictionary for each update, the newest last: "loss", "grad_norm", "lr" (a float, or
            a list of one per parameter group), "applied", "skipped", "curve_step", "consumed".

    Raises:
        TypeError, ValueError: `every` or `keep` is not a positive integer.

    >>> import torch
    >>> from torch_bridge import MetricLog, PlateauCurve, TrainStep
    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    >>> curve = PlateauCurve(4, decay_shape="linear")
    >>> def loss_fn(model, batch):
    ...     return model(batch).square().mean()
    >>> train_step = TrainStep(model, optimizer, loss_fn, curve)
    >>> log = MetricLog(every=2)
    >>> log(train_step(torch.ones(3, 2))) is None
    True
    >>> row = log(train_step(torch.ones(3, 2)))
    >>> row["applied"], row["lr"]
    (2, 0.375)
    """

    def __init__(self, every: int = 100, *, keep: int | None = 1000) -> None:
        self.every = checks.at_least("every", every, 1)
        self.keep = None if keep is None else checks.at_least("keep", keep, 1)
        self.rows: list[dict[str, Any]] = []
        self._pending: list[tuple[Tensor, ...]] = []
        self._since_flush = 0
        """Number of calls since the last flush. (A save also makes rows, but does not flush.)"""
        self._skipped_in_a_row = 0
        self._has_warned = False

    def __call__(self, result: StepResult) -> dict[str, Any] | None:
        """Keep a result; after every `every` calls, make rows of all kept results.

        Args:
            result: The result of an update.

        Returns:
            The newest row if rows were made, else None.

        Raises:
            TypeError: `result` is not the result of an update.

        Warns:
            CurveWarning: Once, when rows are made, if the last updates were all skipped: `every` of
                them, and at least 10.
        """
        if not isinstance(result, StepResult):
            raise TypeError(
                checks.must(
                    "result",
                    result,
                    "be the whole result of an update, as "
                    "in result = train_step(batch); log(result)",
                )
            )
        self._pending.append(result[:4])  # without aux, which may be large
        self._since_flush += 1
        if self._since_flush < self.every:
            return None
        return self.flush()

    def flush(self) -> dict[str, Any] | None:
        """Make rows of the kept results. Synchronizes with the device if there are any.

        Returns:
            The newest row of all; None if there is none.
        """
        self._since_flush = 0
        self._make_rows()
        if not self.rows:
            return None
        return self.rows[-1]

    def _make_rows(self) -> None:
        if not self._pending:
            return
        # Four copies to the host, of all losses, norms, learning rates and counters; the first one
        # waits.
        columns: list[list[Any]] = [
            cast("list[Any]", torch.stack(tensors).tolist())
            for tensors in zip(*self._pending, strict=True)
        ]
        self._pending.clear()
        for loss, norm, lrs, counters in zip(*columns, strict=True):
            self._add_row(loss, norm, lrs, counters)
        self._drop_old_rows()
        self._warn_of_skipped_updates()

    def _add_row(self, loss: float, norm: float, lrs: list[float], counters: list[int]) -> None:
        row: dict[str, Any] = {"loss": loss, "grad_norm": norm, "lr": lrs}
        if len(lrs) == 1:
            row["lr"] = lrs[0]
        row.update(zip(_COUNTER_NAMES, counters, strict=True))
        self.rows.append(row)
        if math.isfinite(loss) and math.isfinite(norm):
            self._skipped_in_a_row = 0
        else:
            self._skipped_in_a_row += 1

    def _drop_old_rows(self) -> None:
        if self.keep is not None:
            del self.rows[: -self.keep]

    def _warn_of_skipped_updates(self) -> None:
        """Warn, once, if many updates in a row, up to the newest, were all skipped."""
        if self._has_warned or self._skipped_in_a_row < max(self.every, _MIN_SKIPPED):
            return
        self._has_warned = True
        newest = self.rows[-1]
        warn(
            f"the last {self._skipped_in_a_row} updates were all skipped, so no weight changed: "
            f"the newest loss is {newest['loss']}, its gradient norm {newest['grad_norm']}. Resume "
            "from a checkpoint before the first of them, and after the load call "
            "train_step.set_peak(…) with a lower peak, or build the step with max_norm=1.0; "
            'on_nonfinite="raise" ends a run at the first nonfinite loss'
        )

    def state_dict(self) -> dict[str, Any]:
        """Return all rows, including those of kept results. Synchronizes as `flush` does."""
        self._make_rows()
        rows = [dict(row) for row in self.rows]
        return _FORMAT.build(rows=rows, since_flush=self._since_flush)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue with the rows of a state. Drops the rows and kept results of this log.

        Args:
            state_dict: A state that `state_dict` returned.

        Raises:
            ValueError: `state_dict` is not the state of a log. Nothing was changed.
        """
        with reading_state_of("a MetricLog", state_dict):
            state = _FORMAT.read("state_dict", state_dict)
            since_flush = checks.at_least("since_flush", state["since_flush"], 0)
            rows = [dict(row) for row in state["rows"]]
        self.rows[:] = rows
        self._drop_old_rows()
        self._pending.clear()
        self._since_flush = since_flush
        self._skipped_in_a_row = 0
