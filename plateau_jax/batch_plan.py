"""A schedule of batch sizes, as a pure function of the samples or tokens that were consumed."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

from plateau_jax.validation import checks


@dataclass(frozen=True)
class BatchPlan:
    """How large the batch of each update is, by what was consumed before it.

        plan(consumed) = the batch of the last pair whose threshold is at most consumed

    An update consumes its whole batch. So after u updates

        consumed(0) = 0,    consumed(u + 1) = consumed(u) + plan(consumed(u))

    and a batch that begins below a threshold may end above it. Thresholds and batches count the same thing,
    samples or tokens. All numbers are Python integers of any size, and no method loops over updates.

    A plan is frozen. Plans of equal pairs are equal, and have one hash.

    Args:
        pairs: Pairs (threshold, batch): the first threshold is 0, and the thresholds rise. A batch is at
            least 1, and may be smaller than the one before.

    Raises:
        TypeError: A threshold or a batch that is no integer; something that is no pair.
        ValueError: No pair; a first threshold other than 0; thresholds that do not rise; a batch below 1.

    >>> plan = BatchPlan([(0, 8), (160, 16)])
    >>> plan(0), plan(159), plan(160)
    (8, 8, 16)
    >>> plan.updates(1440), plan.consumed(100)
    (100, 1440)
    """

    pairs: Sequence[tuple[int, int]]

    def __post_init__(self) -> None:
        found = [
            (checks.integer(f"{label}: threshold", threshold), checks.at_least(f"{label}: batch", batch, 1))
            for label, threshold, batch in checks.pairs("pairs", self.pairs, "(threshold, batch)")
        ]
        if not found:
            raise ValueError("pairs holds no pair (threshold, batch); at least one is needed")
        if found[0][0] != 0:
            raise ValueError(f"pairs[0] = {found[0]!r} must have the threshold 0: the plan begins there")
        for (threshold, _), (following, _) in pairwise(found):
            if following <= threshold:
                raise ValueError(
                    f"pairs = {self.pairs!r} must hold rising thresholds; {following} follows {threshold}"
                )
        object.__setattr__(self, "pairs", tuple(found))

    def __call__(self, consumed: int) -> int:
        """The batch of the next update.

        Args:
            consumed: Samples or tokens of all updates before it; at least 0.

        Returns:
            The batch of the last pair whose threshold is at most `consumed`.

        Raises:
            TypeError: `consumed` is no integer.
            ValueError: `consumed` is below 0.
        """
        consumed = checks.at_least("consumed", consumed, 0)
        return next(batch for threshold, batch in reversed(self.pairs) if threshold <= consumed)

    def updates(self, total: int) -> int:
        """The least number of updates that consume at least `total`.

            updates(total) = min {u : consumed(u) ≥ total}

        Args:
            total: Samples or tokens; at least 0.

        Returns:
            The number of updates. Together they consume `consumed(updates(total))`, which may be more.

        Raises:
            TypeError: `total` is no integer, as NaN.
            ValueError: `total` is below 0.
        """
        total = checks.at_least("total", total, 0)
        updates = consumed = 0
        for batch, end in self._parts():
            goal = total if end is None else min(end, total)
            count = max(0, -((consumed - goal) // batch))
            updates, consumed = updates + count, consumed + count * batch
        return updates

    def consumed(self, updates: int) -> int:
        """What so many updates consume, counted from the start of the plan.

        Args:
            updates: At least 0.

        Returns:
            Samples or tokens.

        Raises:
            TypeError: `updates` is no integer.
            ValueError: `updates` is below 0.
        """
        left = checks.at_least("updates", updates, 0)
        consumed = 0
        for batch, end in self._parts():
            count = left if end is None else min(left, max(0, -((consumed - end) // batch)))
            left, consumed = left - count, consumed + count * batch
        return consumed

    def _parts(self) -> Iterator[tuple[int, int | None]]:
        """Each batch, and the threshold that ends it; None for the last."""
        ends = [threshold for threshold, _ in self.pairs[1:]]
        return zip((batch for _, batch in self.pairs), [*ends, None], strict=True)

    def micro_batches(self, consumed: int, micro_batch: int, processes: int = 1) -> int:
        """How many micro-batches each process takes for the next update.

            micro_batches = plan(consumed) / (micro_batch · processes)

        Args:
            consumed: As for the call of the plan.
            micro_batch: Samples or tokens of one micro-batch in one process.
            processes: How many processes share a batch.

        Returns:
            The number, at least 1.

        Raises:
            TypeError: A number that is no integer.
            ValueError: `consumed` below 0, another number below 1; a batch that does not divide.

        >>> BatchPlan([(0, 8), (160, 16)]).micro_batches(160, micro_batch=2, processes=4)
        2
        """
        return _divided(self(consumed), f"the batch at consumed = {consumed}", micro_batch, processes)

    def check(self, micro_batch: int, processes: int = 1) -> None:
        """Refuse a micro-batch or a number of processes that some batch of the plan does not divide by.

        Before a run it tells what `micro_batches` would only tell at the threshold.

        Args:
            micro_batch: Samples or tokens of one micro-batch in one process.
            processes: How many processes share a batch.

        Raises:
            TypeError: A number that is no integer.
            ValueError: A number below 1; a batch of the plan that does not divide.
        """
        for index, (threshold, batch) in enumerate(self.pairs):
            _divided(batch, f"the batch of pairs[{index}] = {(threshold, batch)}", micro_batch, processes)

    def to_dict(self) -> dict[str, Any]:
        """The pairs, as plain JSON values."""
        return {"pairs": [list(pair) for pair in self.pairs]}

    @classmethod
    def from_dict(cls, arguments: Mapping[str, Any]) -> "BatchPlan":
        """The plan that `to_dict` described.

        Args:
            arguments: What `to_dict` returned.

        Returns:
            An equal plan.

        Raises:
            TypeError: `arguments` is no mapping. As for `BatchPlan`.
            ValueError: Other keys. As for `BatchPlan`.

        >>> plan = BatchPlan([(0, 8), (160, 16)])
        >>> BatchPlan.from_dict(plan.to_dict()) == plan
        True
        """
        if not isinstance(cast("Any", arguments), Mapping):
            raise TypeError(f"arguments = {arguments!r} must be a mapping, as to_dict returns it")
        if set(arguments) != {"pairs"}:
            raise ValueError(
                f"arguments = {arguments!r} must have the one key 'pairs', as to_dict returns it"
            )
        return cls(arguments["pairs"])


def _divided(batch: int, what: str, micro_batch: int, processes: int) -> int:
    micro_batch = checks.at_least("micro_batch", micro_batch, 1)
    processes = checks.at_least("processes", processes, 1)
    count, rest = divmod(batch, micro_batch * processes)
    if rest:
        raise ValueError(
            f"{what} is {batch}, which micro_batch · processes = {micro_batch} · {processes} = "
            f"{micro_batch * processes} does not divide"
        )
    return count
