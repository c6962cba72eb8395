"""Batch-size schedules: pure functions of the number of samples or tokens consumed."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

from plateau_jax.validation import checks


@dataclass(frozen=True)
class BatchPlan:
    """A schedule of batch sizes, by the number of samples or tokens consumed so far.

        plan(consumed) = the batch of the last pair whose threshold is at most consumed

    An update consumes its whole batch. So after u updates

        consumed(0) = 0,    consumed(u + 1) = consumed(u) + plan(consumed(u))

    and a batch that begins below a threshold may end above it. Thresholds and batches are in the same unit,
    samples or tokens. All numbers are Python integers of any size, and no method loops over updates.

    Plans are frozen. Plans with equal pairs are equal and have the same hash.

    Args:
        pairs: Pairs (threshold, batch): the first threshold is 0, and thresholds increase. A batch is at
            least 1, and may be smaller than the previous one.

    Raises:
        TypeError: A threshold or a batch is not an integer, or an item is not a pair.
        ValueError: No pair was given; the first threshold is not 0; the thresholds do not increase; a batch
            is below 1.

    >>> plan = BatchPlan([(0, 8), (160, 16)])
    >>> plan(0), plan(159), plan(160)
    (8, 8, 16)
    >>> plan.updates(1440), plan.consumed(100)
    (100, 1440)
    """

    pairs: Sequence[tuple[int, int]]

    def __post_init__(self) -> None:
        pairs = [
            (
                checks.integer(place.with_part("threshold"), threshold),
                checks.at_least(place.with_part("batch"), batch, 1),
            )
            for place, threshold, batch in checks.pairs("pairs", self.pairs, "(threshold, batch)")
        ]
        if not pairs:
            raise ValueError("pairs holds no pair (threshold, batch); at least one is needed")
        if pairs[0][0] != 0:
            raise ValueError(f"pairs[0] = {pairs[0]!r} must have the threshold 0: the plan begins there")
        for (threshold, _), (following, _) in pairwise(pairs):
            if following <= threshold:
                raise ValueError(
                    f"pairs = {checks.short_repr(self.pairs)} must hold rising thresholds; "
                    f"{following} follows {threshold}"
                )
        object.__setattr__(self, "pairs", tuple(pairs))

    def __call__(self, consumed: int) -> int:
        """Return the batch of the next update.

        Args:
            consumed: Samples or tokens of all earlier updates; at least 0.

        Returns:
            The batch of the last pair whose threshold is at most `consumed`.

        Raises:
            TypeError: `consumed` is not an integer.
            ValueError: `consumed` is below 0.
        """
        consumed = checks.at_least("consumed", consumed, 0)
        return next(batch for threshold, batch in reversed(self.pairs) if threshold <= consumed)

    def updates(self, total: int) -> int:
        """Return the least number of updates that consume at least `total`.

            updates(total) = min {u : consumed(u) ≥ total}

        Args:
            total: Samples or tokens; at least 0.

        Returns:
            The number of updates. Together they consume `consumed(updates(total))`, which may be more.

        Raises:
            TypeError: `total` is not an integer.
            ValueError: `total` is below 0.
        """
        total = checks.at_least("total", total, 0)
        updates = consumed = 0
        for batch, end in self._parts():
            goal = total if end is None else min(end, total)
            # Division, rounded up: from 4 to 25 in batches of 8, -((4 - 25) // 8) = 3 updates, up to 28.
            # There is none if the previous batch has already passed this part's end.
            count = max(0, -((consumed - goal) // batch))
            updates, consumed = updates + count, consumed + count * batch
        return updates

    def consumed(self, updates: int) -> int:
        """Return the samples or tokens that the first `updates` updates consume.

        Args:
            updates: Number of updates from the start of the plan; at least 0.

        Returns:
            Samples or tokens.

        Raises:
            TypeError: `updates` is not an integer.
            ValueError: `updates` is below 0.
        """
        remaining = checks.at_least("updates", updates, 0)
        consumed = 0
        for batch, end in self._parts():
            count = remaining if end is None else min(remaining, max(0, -((consumed - end) // batch)))
            remaining, consumed = remaining - count, consumed + count * batch
        return consumed

    def _parts(self) -> Iterator[tuple[int, int | None]]:
        """Return each batch with the threshold that ends its part; None for the last."""
        ends = [threshold for threshold, _ in self.pairs[1:]]
        return zip((batch for _, batch in self.pairs), [*ends, None], strict=True)

    def micro_batches(self, consumed: int, micro_batch: int, processes: int = 1) -> int:
        """Return the number of micro-batches per process in the next update.

            micro_batches = plan(consumed) / (micro_batch · processes)

        Args:
            consumed: Samples or tokens of all earlier updates; at least 0.
            micro_batch: Samples or tokens of one micro-batch in one process.
            processes: Number of processes that share a batch.

        Returns:
            The number of micro-batches, at least 1.

        Raises:
            TypeError: A number is not an integer.
            ValueError: `consumed` is below 0 or another number below 1, or `micro_batch · processes` does not
                divide the batch.

        >>> BatchPlan([(0, 8), (160, 16)]).micro_batches(160, micro_batch=2, processes=4)
        2
        """
        return _micro_batches_of(
            self(consumed), f"the batch at consumed = {consumed}", micro_batch, processes
        )

    def check(self, micro_batch: int, processes: int = 1) -> None:
        """Check that `micro_batch · processes` divides every batch of the plan.

        Call it before a run: `micro_batches` would raise the error only once the threshold is reached.

        Args:
            micro_batch: Samples or tokens of one micro-batch in one process.
            processes: Number of processes that share a batch.

        Raises:
            TypeError: A number is not an integer.
            ValueError: A number is below 1, or `micro_batch · processes` does not divide a batch.
        """
        for index, (threshold, batch) in enumerate(self.pairs):
            _micro_batches_of(
                batch, f"the batch of pairs[{index}] = {(threshold, batch)}", micro_batch, processes
            )

    def to_dict(self) -> dict[str, Any]:
        """Return the pairs as plain JSON values."""
        return {"pairs": [list(pair) for pair in self.pairs]}

    @classmethod
    def from_dict(cls, arguments: Mapping[str, Any]) -> "BatchPlan":
        """Build the plan that `to_dict` described.

        Args:
            arguments: The result of `to_dict`.

        Returns:
            An equal plan.

        Raises:
            TypeError: `arguments` is not a mapping. As for `BatchPlan`.
            ValueError: The keys are not those of `to_dict`. As for `BatchPlan`.

        >>> plan = BatchPlan([(0, 8), (160, 16)])
        >>> BatchPlan.from_dict(plan.to_dict()) == plan
        True
        """
        if not isinstance(cast("Any", arguments), Mapping):
            raise TypeError(
                f"arguments = {checks.short_repr(arguments)} must be a mapping, as to_dict returns it"
            )
        if set(arguments) != {"pairs"}:
            raise ValueError(
                f"arguments = {checks.short_repr(arguments)} must have the one key 'pairs', "
                "as to_dict returns it"
            )
        return cls(arguments["pairs"])


def _micro_batches_of(batch: int, label: str, micro_batch: int, processes: int) -> int:
    micro_batch = checks.at_least("micro_batch", micro_batch, 1)
    processes = checks.at_least("processes", processes, 1)
    count, rest = divmod(batch, micro_batch * processes)
    if rest:
        raise ValueError(
            f"{label} is {batch}, which micro_batch · processes = {micro_batch} · {processes} = "
            f"{micro_batch * processes} does not divide"
        )
    return count
