"""Curves in JAX: a pure function of the step, and optax schedules."""

# jax.jit is not fully typed:
# pyright: reportUnknownVariableType=false

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike

from plateau_jax.arguments import checks
from plateau_jax.arguments.checks import MAX_STEP
from plateau_jax.curves.curve import Curve, check_curve
from plateau_jax.table.evaluation import (
    LIMB_BITS,
    Operations,
    Table,
    WideTable,
    evaluate,
    find_rows,
    join_limbs,
    scale_down,
)


def multiplier(table: Table, step: ArrayLike) -> jax.Array:
    """Return the multiplier of a table at each step, as a pure function.

        multiplier(curve.table, step) = curve(step)

    The table may be a traced argument: plateaus can then move, and JAX compiles again only if the
    new table has arrays of a different shape, which is rare. `jax.vmap` over a table from `stack`
    evaluates many curves at once.

    Args:
        table: `curve.table`, a pytree of int32 arrays.
        step: An integer, or an integer array of any shape and dtype. It counts updates, or, for a
            curve from `BatchPlan.scale`, its unit of samples or tokens.

    Returns:
        float32 in [0, 1] of the same shape as `step`, with x64 on or off.

    Raises:
        TypeError: A step is not an integer (bool, float); or `table` is not a single table.

    >>> import jax.numpy as jnp
    >>> from plateau_jax import PlateauCurve, multiplier
    >>> curve = PlateauCurve(100, warmup_steps=10)
    >>> multiplier(curve.table, jnp.array([0, 5, 10, 55, 100]))
    Array([0. , 0.5, 1. , 0.5, 0. ], dtype=float32)
    """
    if not isinstance(table, Table) or jnp.ndim(table.begin) != 1:
        raise TypeError("table must be one table, curve.table; a table from stack is for jax.vmap")
    return _multiplier(table, _check_steps(step))


@jax.jit
def _multiplier(table: Table, step: Any) -> jax.Array:
    # With x64 off, JAX truncates 64-bit arguments of a jitted function to 32 bits, so a traced
    # table arrives as int32 limbs, which are joined only here.
    return _call_on_mesh(_evaluate, step, table)


def optax_schedule(curve: Curve, peak_value: ArrayLike) -> Callable[[ArrayLike], jax.Array]:
    """Return the curve as an optax schedule, which optax takes as `learning_rate`.

        lr(step) = float32(float32(peak_value) · curve(step))

    The schedule is a pure function. It works under every JAX transformation, such as `jit`, `vmap`
    and `scan`; an eager call is a single jitted call. Schedules with equal curves and peaks are
    equal and have the same hash; they can be pickled. One with a traced peak equals only itself.

    optax saves the number of updates, but not the curve, so a resume under a different curve is not
    noticed. Save `resume_record(curve, peak_value)` with each checkpoint, and call `check_resume`
    after you restore one.

    Args:
        curve: The curve.
        peak_value: The peak learning rate, rounded to float32: 0, or at least 2⁻¹²⁶. A traced
            scalar is rounded too, but its range is not checked.

    Returns:
        A function of the step, an integer or an integer array of any shape and dtype. Its result
        has the step's shape and is float32, with x64 on or off.

    Raises:
        TypeError: `curve` is not a curve, or `peak_value` is not a real scalar, or is an array of
            less precision than float32. From the schedule: a step is not an integer.
        ValueError: `peak_value` is negative, not finite, or positive and below 2⁻¹²⁶; the curve is
            from `BatchPlan.scale`, and needs `scale_by_curve`.

    >>> import optax
    >>> from plateau_jax import PlateauCurve, optax_schedule
    >>> curve = PlateauCurve(1000, warmup_steps=100, plateaus=[(50, 20)])
    >>> schedule = optax_schedule(curve, peak_value=3e-4)
    >>> optimizer = optax.adamw(schedule)
    >>> schedule(100)
    Array(0.0003, dtype=float32)
    """
    curve = check_curve("curve", curve)
    if curve.unit is not None:
        raise ValueError(
            f"curve is from BatchPlan.scale: a step is {curve.unit} samples or tokens, but optax "
            "calls a schedule with the number of updates. Use scale_by_curve(curve, peak_value) at "
            "the end of the chain, and pass count= to each update"
        )
    return OptaxSchedule(curve, check_peak(peak_value))


class OptaxSchedule:
    """The schedule of a curve, whose unit and peak its callers have checked."""

    def __init__(self, curve: Curve, peak: Any) -> None:
        # Every trace takes the finished table as a constant.
        evaluate_curve = partial(_evaluate, table=curve._wide_table)

        @jax.jit
        def learning_rate(step: Any, peak: Any) -> jax.Array:
            return peak.astype("float32") * _call_on_mesh(evaluate_curve, step)

        self._curve = curve
        self._peak = peak
        self._learning_rate = learning_rate

    def __call__(self, step: Any) -> jax.Array:
        return self._learning_rate(_check_steps(step), self._peak)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, OptaxSchedule):
            return NotImplemented
        if isinstance(self._peak, Tracer) or isinstance(other._peak, Tracer):
            # `==` of tracers is traced too, and `jit` compares static arguments.
            return self is other
        return (self._curve, self._peak) == (other._curve, other._peak)

    def __hash__(self) -> int:
        return hash(self._curve)

    def __repr__(self) -> str:
        return f"optax_schedule({self._curve!r}, {self._peak!s})"

    def __reduce__(self) -> tuple[Any, ...]:
        return OptaxSchedule, (self._curve, self._peak)


def _call_on_mesh(function: Any, step: Any, *arguments: Any) -> jax.Array:
    """Call a function of the step, whose result has the step's shape, on any mesh."""
    sharding = jax.typeof(step).sharding
    explicit = sharding.mesh.explicit_axes
    # On a mesh with explicit axes, the default of `jax.make_mesh`, JAX requires a sharding for
    # every gather; `auto_axes` leaves the choice to the compiler.
    if explicit:
        function = jax.sharding.auto_axes(function, axes=explicit, out_sharding=sharding)
    return function(step, *arguments)


def _evaluate(step: Any, table: Table | WideTable) -> jax.Array:
    """Return the multiplier at each step."""
    with jax.enable_x64(True):  # for int64
        # Steps are clipped in their own dtype, before the cast to int32 could wrap them around.
        if jnp.iinfo(step.dtype).max > MAX_STEP:
            step = jnp.clip(step, 0, MAX_STEP)
        step = jnp.maximum(step.astype("int32"), 0)
        return evaluate(_JAX, table, step)


_take = partial(jnp.take, mode="clip")


def _coefficients(table: Table | WideTable, piece: Any) -> Any:
    if isinstance(table, WideTable):
        return [_take(column, piece) for column in table.coefficients]
    if piece.ndim:
        return join_limbs(_take, jnp.int64, table, piece)
    # In a loop over single steps, a gather of all coefficients is twice as fast as one for each.
    high = jnp.int64(_take(table.high, piece, axis=1))
    return (high << LIMB_BITS) | jnp.int64(_take(table.low, piece, axis=1))


def _to_float32(value: Any, exponent: Any, piece: Any) -> Any:
    return scale_down(jnp, value.astype("float32"), _take(exponent, piece))


_JAX = Operations(
    search=partial(find_rows, _take, jnp.where),
    take=_take,
    coefficients=_coefficients,
    int64=jnp.int64,
    to_float32=_to_float32,
)


def check_peak(value: Any) -> Any:
    """Check a peak, and round it to float32; a traced peak is returned unchanged."""
    value = unwrap_array(value)
    if isinstance(value, jax.Array | np.ndarray | np.generic):
        _check_precision(value)
    if isinstance(value, Tracer):
        check_real_scalar("peak_value", value)
        return value
    peak: Any = value
    try:
        return checks.peak("peak_value", peak)
    except ValueError as error:
        if not peak < 0:
            raise
        sign = "optax.scale_by_learning_rate(schedule) and scale_by_curve add the minus sign"
        raise ValueError(f"{error}: {sign}") from None


def _check_precision(peak: Any) -> None:
    """Raise a TypeError if the dtype is complex, or a float of less precision than float32."""
    dtype = peak.dtype
    is_float = jnp.issubdtype(dtype, jnp.floating)
    if is_float and jnp.finfo(dtype).nmant < jnp.finfo(jnp.float32).nmant:
        # optax injects hyperparameters in the dtype of the parameters unless told otherwise.
        requirement = (
            f"be a real scalar of at least the precision of float32, not {dtype}. If "
            "optax.inject_hyperparams injects it, add hyperparam_dtype=jnp.float32"
        )
        raise TypeError(checks.must("peak_value", peak, requirement))


def check_real_scalar(name: str, value: Any) -> None:
    """Raise a TypeError unless an array, possibly traced, is a real number without dimensions."""
    is_float = jnp.issubdtype(value.dtype, jnp.floating)
    is_integer = jnp.issubdtype(value.dtype, jnp.integer)
    if value.shape or not (is_float or is_integer):
        raise TypeError(f"{name} = {checks.short_repr(value)} must be a real scalar")


def _check_steps(step: Any) -> Any:
    """Return integers: a JAX array with its own dtype, or NumPy's int32 in 0 … 2³¹ - 1."""
    step = unwrap_array(step)
    if not isinstance(step, jax.Array):
        return checks.clamp_steps(step)
    if not jnp.issubdtype(step.dtype, jnp.integer):
        raise TypeError(f"step must be an integer or an array of integers, not {step.dtype}")
    return step


def unwrap_array(value: Any) -> Any:
    """Return the array inside a wrapper such as a flax variable; any other value unchanged."""
    convert = getattr(value, "__jax_array__", None)
    if convert is None:
        return value
    return convert()
