"""A curve for a setting of an optimizer other than the rate: weight decay, momentum, a beta."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict, cast

from torch.optim import Optimizer

from torch_bridge.core import Curve, checks
from torch_bridge.schedulers.multipliers import Multipliers
from torch_bridge.schedulers.param_groups import (
    Setting,
    base_of,
    curves_of,
    separate,
    with_new_groups,
)
from torch_bridge.schedulers.resume import bases_in, check_no_path, check_past, curves_in
from torch_bridge.schedulers.unit_clocks import Clocked, place_in, refuse_count, unit_clock


class FollowerState(TypedDict):
    """What `Follower.state_dict` returns: plain numbers, lists and dictionaries.

    >>> import torch
    >>> from plateau_jax import PlateauCurve
    >>> optimizer = torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), weight_decay=0.5)
    >>> state: FollowerState = follow(optimizer, "weight_decay", PlateauCurve(100)).state_dict()
    >>> state["last_epoch"], state["key"], state["base_values"]
    (0, 'weight_decay', [0.5])
    """

    last_epoch: int
    """The number of steps so far."""
    clock: int
    """The step of the curve that gives the values."""
    consumed: int
    """What all updates consumed, in samples or tokens; without a unit the number of steps."""
    unit: int | None
    """How many samples or tokens make one step of the curve."""
    key: str | list[str | int]
    """The setting that follows the curve; a pair is a list here."""
    base_values: list[float]
    """Each group's base, in float32."""
    curves: list[Mapping[str, Any]]
    """Each group's curve, as its `to_dict` gives it."""


class Follower(Clocked):
    """What `follow` builds. Call `step()` after each update; save and load it as you do a scheduler.

        group[key] = float32(base) · curve(clock)

    Args:
        optimizer, key, curve, strict, unit, count: As in `follow`.

    Attributes:
        base_values: Each group's base.
        curves: The curve of each group.

    Raises:
        TypeError, ValueError: As `follow`.

    >>> import torch
    >>> from plateau_jax import PlateauCurve
    >>> optimizer = torch.optim.Adam(torch.nn.Linear(2, 1).parameters(), betas=(0.5, 0.99))
    >>> follower = follow(optimizer, ("betas", 0), PlateauCurve(4, decay_shape="linear"))
    >>> follower.step()
    >>> optimizer.param_groups[0]["betas"], follower.last_epoch
    ((0.375, 0.99), 1)
    """

    def __init__(
        self,
        optimizer: Optimizer,
        key: str | tuple[str, int],
        curve: Curve | Sequence[Curve],
        *,
        strict: bool = True,
        unit: int | None = None,
        count: Callable[[], int] | None = None,
    ) -> None:
        self._units = unit_clock(unit, count)
        self.curves = curves_of(optimizer, curve)
        self._for_all = curve if isinstance(curve, Curve) else None
        self.optimizer, self.strict = optimizer, strict
        self._setting = _setting(key)
        self.base_values = [
            _base(index, group, self._setting) for index, group in enumerate(optimizer.param_groups)
        ]
        self._factors = Multipliers(self.curves)
        separate(optimizer, self._setting, self.base_values, self.curves)
        self._move_to(0, 0)

    def step(self, *, count: int | None = None) -> None:
        """Write the values of the next step into the groups.

        Args:
            count: With `unit`, the samples or tokens of the update that took place. By default the function
                that the follower was built with is asked.

        Raises:
            TypeError: `count` is not an integer, or is given without `unit`; with `unit` there is neither a
                count nor a function to ask. Nothing was changed.
            ValueError: `count` is negative, or above 2⁶² together with what was consumed; the optimizer has
                other groups than it had at first. Nothing was changed.
        """
        if self._units is not None:
            self._move_to(self.last_epoch + 1, self._units.after(count))
        elif count is None:
            self._move_to(self.last_epoch + 1, 0)
        else:
            raise refuse_count(count, "follow")

    def _move_to(self, updates: int, consumed: int) -> None:
        groups = self.optimizer.param_groups
        if len(groups) != len(self.base_values):
            self._set_bases(self._bases())
        clock = updates if self._units is None else consumed // self._units.unit
        for group, base, factor in zip(groups, self.base_values, self._factors[clock], strict=True):
            self._setting.set(group, base * factor)
        self.last_epoch = updates
        if self._units is not None:
            self._units.consumed = consumed

    def _bases(self) -> list[float]:
        """The bases of all groups, those included that came since the last step."""
        return with_new_groups(
            self.optimizer,
            self._setting,
            self._for_all,
            self.base_values,
            lambda index, group: _base(index, group, self._setting),
        )

    def _set_bases(self, bases: list[float]) -> None:
        if self._for_all is not None and len(bases) != len(self.curves):
            self.curves = [self._for_all] * len(bases)
            self._factors = Multipliers(self.curves)
        self.base_values = bases
        separate(self.optimizer, self._setting, bases, self.curves)

    def state_dict(self) -> FollowerState:
        """The step and the base values; and the key, the curves and the unit, which a load compares."""
        if self._for_all is not None and len(self.optimizer.param_groups) > len(self.base_values):
            self._set_bases(self._bases())
        return {
            "last_epoch": self.last_epoch,
            "clock": self.clock,
            "consumed": self.consumed,
            "unit": self.unit,
            "key": self._key,
            "base_values": list(self.base_values),
            "curves": [curve.to_dict() for curve in self.curves],
        }

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool | None = None) -> None:
        """Continue from the saved step, and write the saved values into the groups.

        The optimizer's own state may be loaded before or after. The state of another curve is accepted if
        both have the same values at every step so far; then the optimizer's state must be loaded first.

        Args:
            state_dict: What `state_dict` returned.
            strict: Whether to refuse the state of a curve with another past, or of another unit. With False
                the follower goes on from the saved clock, as `CurveLR.load_state_dict` says. By default the
                value that the follower was built with.

        Raises:
            ValueError: The state is that of a curve with another past or of another unit (unless `strict` is
                False), of another key or of another number of groups, or is no state. Nothing was changed.
        """
        strict = self.strict if strict is None else strict
        try:
            check_no_path(state_dict)
            count = len(self._bases())
            own_curves = self.curves if self._for_all is None else [self._for_all] * count
            checks.at_least("last_epoch", state_dict["last_epoch"], 0)
            place = place_in(state_dict, self._units, True, strict, "follow")
            saved_key: Any = state_dict["key"]
            bases = bases_in("base_values", state_dict["base_values"], count)
            curves = curves_in(state_dict["curves"], own_curves) if strict else []
        except KeyError as error:
            raise ValueError(f"state_dict is not the state of a follower: it has no {error}") from None
        except (OverflowError, TypeError) as error:
            raise ValueError(f"state_dict is not the state of a follower: {error}") from None
        if (list(cast("Any", saved_key)) if isinstance(saved_key, tuple) else saved_key) != self._key:
            saved_key = checks.shown(saved_key)
            raise ValueError(f"state_dict is of {saved_key}, and this follower sets {self._key!r}")
        if strict:
            check_past(curves, own_curves, place.clock, "follow")
        self._set_bases(bases)
        self._move_to(place.last_epoch, place.consumed)

    @property
    def _key(self) -> str | list[str | int]:
        name, index = self._setting
        return name if index is None else [name, index]


def follow(
    optimizer: Optimizer,
    key: str | tuple[str, int],
    curve: Curve | Sequence[Curve],
    *,
    strict: bool = True,
    unit: int | None = None,
    count: Callable[[], int] | None = None,
) -> Follower:
    """A curve for a setting of an optimizer other than the rate.

    After n calls of `step()` each group has

        group[key] = float32(base) · curve(n)

    The base is the group's value when the follower is built, **rounded to float32**. So the product is exact
    in a Python float, and rounded to float32 it is the value that JAX computes. Where the value is a tensor,
    the follower writes into that tensor. An optimizer may have any number of followers, one for each setting,
    beside a scheduler or a `TrainStep`. If one curve was given for all groups, a group that is added later
    follows it from the next `step()` on, with its own value as its base; if one curve was given for each
    group, an added group is refused. A follower counts its own `step()` calls: a hold of the scheduler, or an
    update that was skipped, does not stop it.

    With `unit` a step of the curve is so many samples or tokens, as in `lambda_lr`: after each update call
    `step(count=n)`, and each group has `float32(base) · curve(consumed // unit)`.

    The base is in the follower's state, not in the groups. So build the follower while the groups have their
    first values, or load its state afterwards.

    A CUDA graph keeps the numbers that it was captured with. So under `TrainStep(cuda_graph=True)` updates
    run eagerly while the value changes. They are captured again once the value has stayed the same for three
    updates, as on a plateau.

    Args:
        optimizer: Any torch optimizer.
        key: A key of the parameter groups, or a pair of a key and an index: `("betas", 0)`.
        curve: One curve for all parameter groups, or a sequence of one each.
        strict: As in `lambda_lr`.
        unit: As in `lambda_lr`.
        count: As in `lambda_lr`.

    Returns:
        A `Follower`, with `step()`, `state_dict()` and `load_state_dict(state)`. Its state consists of plain
        numbers and lists, and survives `torch.load(weights_only=True)`.

    Raises:
        TypeError: `optimizer`, `key` or `curve` is something else; a value is no number; `unit` is not an
            integer; `count` is no function, or is given without `unit`.
        ValueError: A group lacks the key; the key is that of the rate, which is for `lambda_lr`; another
            number of curves than of groups; a value is negative, not finite, or positive and below 2⁻¹²⁶;
            `unit` is below 1.

    >>> import torch
    >>> from plateau_jax import PlateauCurve
    >>> from torch_bridge import follow
    >>> optimizer = torch.optim.AdamW(torch.nn.Linear(2, 1).parameters(), weight_decay=0.5)
    >>> decay = follow(optimizer, "weight_decay", PlateauCurve(100, decay_shape="linear"))
    >>> for _ in range(50):
    ...     optimizer.step()
    ...     decay.step()
    >>> optimizer.param_groups[0]["weight_decay"]
    0.25
    """
    return Follower(optimizer, key, curve, strict=strict, unit=unit, count=count)


def _setting(key: Any) -> Setting:
    name, index = (key, None) if isinstance(key, str) else _pair(key)
    if name in ("lr", "initial_lr"):
        raise ValueError(f"key = {key!r} is the rate: that is for lambda_lr, or for TrainStep")
    return Setting(name, index)


def _pair(key: Any) -> tuple[str, int]:
    try:
        name, index = key
        if not isinstance(name, str):
            raise TypeError
        return name, checks.at_least("index", index, 0)
    except (TypeError, ValueError):
        raise TypeError(
            f'key = {key!r} must be a key of the parameter groups, or a key and an index: ("betas", 0)'
        ) from None


def _base(number: int, group: dict[str, Any], setting: Setting) -> float:
    try:
        value = setting.of(group)
    except (IndexError, KeyError, TypeError):
        raise ValueError(f"param_groups[{number}] has no {setting}") from None
    return base_of(f"{setting} of param_groups[{number}]", value)
