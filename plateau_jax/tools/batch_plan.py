"""Batch-size schedules: pure functions of the number of samples or tokens consumed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from plateau_jax.arguments import checks
from plateau_jax.arguments.checks import Count
from plateau_jax.curves.curve import Curve
from plateau_jax.curves.scaled_curve import ScaledCurve, check_pairs
from plateau_jax.saved_states.formats import DIFFERENT_VERSION
from plateau_jax.saved_states.storable import Storable


class _Phase(NamedTuple):
    """Consecutive updates with the same batch size."""

    earlier_updates: int
    consumed_earlier: int
    """Samples or tokens of the earlier updates."""
    batch_size: int

    def updates_to_reach(self, total: int) -> int:
        """Return how many updates of this phase it takes to consume `total` in all."""
        # A division, rounded up: from 4 to 25 in batches of 8, -((4 - 25) // 8) = 3 updates, up to
        # 28. It is negative if the previous batch has already passed the total.
        return max(0, -((self.consumed_earlier - total) // self.batch_size))


@dataclass(frozen=True)
class BatchPlan(Storable, kind="batch_plan"):
    """A schedule of batch sizes: a function of the samples or tokens consumed so far.

        plan(consumed) = the batch size of the last pair whose threshold is at most consumed

    An update consumes its whole batch. So after u updates

        consumed(0) = 0,    consumed(u + 1) = consumed(u) + plan(consumed(u))

    A batch that begins below a threshold may end above it. Thresholds and batch sizes both count
    samples, or both count tokens. All numbers are Python integers of any size, and no method loops
    over updates.

    Plans are frozen, hashable, and equal if their pairs are. `pairs` is also an attribute.

    Args:
        pairs: Pairs (threshold, batch size): the first threshold is 0, and thresholds increase. A
            batch size is at least 1, and may be smaller than the previous one. Both may be text:
            `"4000"`, or with a letter, `"4k"`; `"1.5M"` is 1,500,000 and `"2B"` 2·10⁹.

    >>> from plateau_jax import BatchPlan
    >>> plan = BatchPlan([(0, 8), (160, 16)])
    >>> plan(0), plan(159), plan(160)
    (8, 8, 16)
    >>> plan.updates(1440), plan.consumed(100)
    (100, 1440)
    """

    pairs: tuple[tuple[int, int], ...]

    def __init__(self, pairs: Sequence[tuple[Count, Count]]) -> None:
        vars(self).update(pairs=check_pairs(pairs))

    def __call__(self, consumed: int) -> int:
        """Return the batch size of the next update.

        Args:
            consumed: Samples or tokens of all earlier updates; at least 0.
        """
        consumed = checks.at_least("consumed", consumed, 0)
        return next(size for threshold, size in reversed(self.pairs) if threshold <= consumed)

    def updates(self, total: int) -> int:
        """Return the least number of updates that consume at least `total`.

            updates(total) = min {u : consumed(u) ≥ total}

        Args:
            total: Samples or tokens; at least 0.
        """
        total = checks.at_least("total", total, 0)
        updates = 0
        for phase in self._phases():
            if phase.consumed_earlier < total:
                updates = phase.earlier_updates + phase.updates_to_reach(total)
        return updates

    def consumed(self, updates: int) -> int:
        """Return the number of samples or tokens that the first `updates` updates consume.

        Args:
            updates: Number of updates from the start of the plan; at least 0.
        """
        updates = checks.at_least("updates", updates, 0)
        consumed = 0
        for phase in self._phases():
            if phase.earlier_updates <= updates:
                of_phase = (updates - phase.earlier_updates) * phase.batch_size
                consumed = phase.consumed_earlier + of_phase
        return consumed

    def _phases(self) -> list["_Phase"]:
        """Return one phase per pair. It is empty if the previous batch passes its end."""
        phases: list[_Phase] = []
        updates = 0
        consumed = 0
        for threshold, batch_size in self.pairs:
            if phases:
                count = phases[-1].updates_to_reach(threshold)
                updates += count
                consumed += count * phases[-1].batch_size
            phases.append(_Phase(updates, consumed, batch_size))
        return phases

    def scale(self, curve: Curve, unit: Count, *, reference: Count, exponent: float = 0.5) -> Curve:
        """Return the curve with its learning rates scaled by the batch sizes of the plan.

            scaled(step) = curve(step) · (plan(step · unit) / reference)^exponent

        A step of the curve is then `unit` samples or tokens, so each threshold falls on a step.
        Each factor is the float64 nearest to the exact power, read as the decimal that Python
        prints for it. Past its end the curve keeps its last level, so no threshold may lie there,
        unless that level is 0.

        Scale last: a cooldown of a scaled curve does not follow later batch sizes. Thresholds count
        from the first step of the scaled curve, also after `then` and `part`.

        Sources: the square root, for Adam and similar optimizers, Malladi et al. 2022
        (arXiv:2205.10287); the exponent 1, for SGD, Goyal et al. 2017 (arXiv:1706.02677).

        Args:
            curve: The curve, in steps of `unit` samples or tokens.
            unit: Samples or tokens per step, at least 1; every threshold must be a multiple of it.
            reference: The batch size at which the peak was tuned, at least 1.
            exponent: Above 0 and at most 2, read as the decimal that you write.

        Returns:
            A curve of `curve.total_steps` steps. Its `unit` is `unit`: without `clock=`,
            `lambda_lr`, `TrainStep`, `CurveScheduler` and `scale_by_curve` count in this unit, and
            they reject a clock with a different one. `optax_schedule` rejects the curve, because
            optax counts updates.

        Raises:
            ValueError: A value is out of range; a threshold is not a multiple of `unit`, or lies
                past the end of a curve that does not end at 0; a product is above 1 (use a larger
                `reference`); the curve has a different unit; derived curves nested more than 64
                deep.

        >>> from plateau_jax import BatchPlan, PlateauCurve
        >>> plan = BatchPlan([(0, 8), (400, 32)])
        >>> scaled = plan.scale(PlateauCurve(100, decay_shape="linear"), 8, reference=32)
        >>> scaled([0, 49, 50, 75]), scaled.unit
        (array([0.5  , 0.255, 0.5  , 0.25 ], dtype=float32), 8)
        """
        unit = checks.count("unit", unit, 1)
        reference = checks.count("reference", reference, 1)
        return ScaledCurve(curve, self.pairs, unit, reference=reference, exponent=exponent)

    def micro_batches(self, consumed: int, micro_batch: int, processes: int = 1) -> int:
        """Return the number of micro-batches per process in the next update.

            micro_batches = plan(consumed) / (micro_batch · processes)

        Args:
            consumed: Samples or tokens of all earlier updates; at least 0.
            micro_batch: Samples or tokens of one micro-batch in one process.
            processes: Number of processes that share a batch.

        Raises:
            ValueError: `micro_batch · processes` does not divide the batch size.

        >>> from plateau_jax import BatchPlan
        >>> BatchPlan([(0, 8), (160, 16)]).micro_batches(160, micro_batch=2, processes=4)
        2
        """
        return _micro_batches_of(self(consumed), micro_batch, processes)

    def every_k_schedule(self, micro_batch: int, processes: int = 1) -> Callable[[Any], Any]:
        """Return the number of micro-batches as a function of the number of updates.

            every_k(u) = plan(consumed(u)) / (micro_batch · processes)

        Pass it to `optax.MultiSteps` as `every_k_schedule=`, to average the gradients of all
        micro-batches of an update.

        Args:
            micro_batch: Samples or tokens of one micro-batch in one process.
            processes: Number of processes that share a batch; 1 if `micro_batch` counts all
                devices, as under `jit`.

        Returns:
            A function of the number of updates so far, an int32 array of any shape, traced or not,
            as optax counts them. Its result is int32, of the same shape. Needs JAX.

        >>> import jax.numpy as jnp
        >>> from plateau_jax import BatchPlan
        >>> plan = BatchPlan([(0, 8), (160, 16)])
        >>> every_k = plan.every_k_schedule(micro_batch=4)
        >>> every_k(jnp.int32(19)), every_k(jnp.int32(20))
        (Array(2, dtype=int32), Array(4, dtype=int32))
        """
        import jax.numpy as jnp  # not needed by the other methods

        self.check(micro_batch, processes)
        begins: list[int] = []
        changes: list[int] = []
        previous = 0
        for phase in self._phases():
            if phase.earlier_updates > checks.MAX_STEP:  # optax counts updates in int32
                break
            count = _micro_batches_of(phase.batch_size, micro_batch, processes)
            begins.append(phase.earlier_updates)
            changes.append(count - previous)
            previous = count

        def every_k(updates: Any) -> Any:
            updates = jnp.asarray(updates)
            if updates.dtype != jnp.int32:
                raise TypeError(f"updates must be an int32 array, not {updates.dtype}")
            # A sum, not an index: `jnp.searchsorted` fails inside a `shard_map` over some axes of a
            # mesh. With begins 0, 20 and changes 2, 2, update 19 gives 2 and update 20 gives 4.
            are_past = updates[..., None] >= jnp.array(begins, jnp.int32)
            return jnp.where(are_past, jnp.array(changes, jnp.int32), 0).sum(-1, dtype="int32")

        return every_k

    def check(self, micro_batch: int, processes: int = 1) -> None:
        """Check that `micro_batch · processes` divides every batch size of the plan.

        Call it before a run: `micro_batches` would raise the error only once the threshold is
        reached.

        Args:
            micro_batch: Samples or tokens of one micro-batch in one process.
            processes: Number of processes that share a batch.

        Raises:
            ValueError: `micro_batch · processes` does not divide a batch size.
        """
        for _, batch_size in self.pairs:
            _micro_batches_of(batch_size, micro_batch, processes)

    @classmethod
    def from_dict(cls, arguments: Mapping[str, Any]) -> "BatchPlan":
        """Build the plan that `to_dict` described.

        Args:
            arguments: The result of `to_dict`, or the same from a configuration file.

        >>> from plateau_jax import BatchPlan
        >>> plan = BatchPlan([(0, 8), (160, 16)])
        >>> BatchPlan.from_dict(plan.to_dict()) == plan
        True
        """
        is_plan = isinstance(arguments, Mapping) and arguments.get("kind") == cls._kind
        if not is_plan or set(arguments) != {"kind", "pairs"}:
            form = f"be {{'kind': {cls._kind!r}, 'pairs': …}}, as to_dict returns it"
            problem = f"{form}; or the plan was {DIFFERENT_VERSION}"
            raise ValueError(checks.must("arguments", arguments, problem))
        return cls(arguments["pairs"])


def _micro_batches_of(batch_size: int, micro_batch: int, processes: int) -> int:
    micro_batch = checks.at_least("micro_batch", micro_batch, 1)
    processes = checks.at_least("processes", processes, 1)
    count, rest = divmod(batch_size, micro_batch * processes)
    if rest:
        product = f"{micro_batch} · {processes} = {micro_batch * processes}"
        raise ValueError(
            f"micro_batch · processes = {product} does not divide the batch size {batch_size}"
        )
    return count
