"""A curve for another of an optimizer's settings than its rate: weight decay, momentum, a beta."""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, cast

from torch.optim import Optimizer

from torch_bridge.core import Curve, checks
from torch_bridge.schedulers.multipliers import Multipliers
from torch_bridge.schedulers.param_groups import (
    Setting,
    base_of,
    check_number_of_groups,
    curves_of,
    separate,
)
from torch_bridge.schedulers.resume import bases_in, check_past, curves_in


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
    """The steps so far."""
    key: str | list[str | int]
    """The setting that follows; a pair as a list."""
    base_values: list[float]
    """What each group's multiplier is multiplied by, in float32."""
    curves: list[Mapping[str, Any]]
    """Each group's curve, as its `to_dict` has it."""


class Follower:
    """What `follow` builds. `step()` after each update; `state_dict` and `load_state_dict` as a scheduler.

        group[key] = float32(base) · curve(last_epoch)

    Args:
        optimizer, key, curve, strict: As in `follow`.

    Attributes:
        last_epoch: How many steps were made; the value in the groups is the one there.
        base_values: What each group's multiplier is multiplied by.
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
    ) -> None:
        self.curves = curves_of(optimizer, curve)
        self.optimizer, self.strict = optimizer, strict
        self._setting = _setting(key)
        self.base_values = [
            _base(index, group, self._setting) for index, group in enumerate(optimizer.param_groups)
        ]
        self._factors = Multipliers(self.curves)
        separate(optimizer, self._setting, self.base_values, self.curves)
        self._move_to(0)

    def step(self) -> None:
        """The values of the next step.

        Raises:
            ValueError: The optimizer has other groups than it had at first. Nothing was changed.
        """
        self._move_to(self.last_epoch + 1)

    def _move_to(self, step: int) -> None:
        check_number_of_groups(self.optimizer, len(self.base_values))
        groups = self.optimizer.param_groups
        for group, base, factor in zip(groups, self.base_values, self._factors[step], strict=True):
            self._setting.set(group, base * factor)
        self.last_epoch = step

    def state_dict(self) -> FollowerState:
        """Plain numbers and lists: the step, the base values, and the key and the curves to check."""
        return {
            "last_epoch": self.last_epoch,
            "key": self._key,
            "base_values": list(self.base_values),
            "curves": [curve.to_dict() for curve in self.curves],
        }

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool | None = None) -> None:
        """Go on where the state was saved, and write the values of that moment into the groups.

        So the optimizer's own state may be loaded before or after. The state of another curve is taken if
        the steps so far are the same in both; load the optimizer's state first then.

        Args:
            state_dict: What `state_dict` returned.
            strict: Whether the state of a curve with another past is refused. By default as the follower
                was built.

        Raises:
            ValueError: The state is another curve's (unless `strict` is False), another key's, or not a
                state, or has another number of groups. Nothing was changed.
        """
        strict = self.strict if strict is None else strict
        count = len(self.base_values)
        try:
            step = checks.at_least("last_epoch", state_dict["last_epoch"], 0)
            saved_key: Any = state_dict["key"]
            bases = bases_in("base_values", state_dict["base_values"], count)
            curves = curves_in(state_dict["curves"], count) if strict else []
        except KeyError as error:
            raise ValueError(f"state_dict is not the state of a follower: it has no {error}") from None
        except (OverflowError, TypeError) as error:
            raise ValueError(f"state_dict is not the state of a follower: {error}") from None
        if (list(cast("Any", saved_key)) if isinstance(saved_key, tuple) else saved_key) != self._key:
            raise ValueError(f"state_dict is of {saved_key!r}, and this follower sets {self._key!r}")
        if strict:
            check_past(curves, self.curves, step, "follow")
        check_number_of_groups(self.optimizer, count)
        self.base_values = bases
        separate(self.optimizer, self._setting, bases, self.curves)
        self._move_to(step)

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
) -> Follower:
    """A curve for another of an optimizer's settings than its rate.

    After n calls of `step()` each group has

        group[key] = float32(base) · curve(n)

    The base is each group's present value, **rounded to float32** as a peak is, so that the product is
    exact in a Python float, and its float32 is that of JAX. A value that is a tensor stays the same tensor
    and is filled. Any number of followers, and a scheduler or a `TrainStep`, go together, one a setting:
    each writes its own alone. A follower counts its own steps: neither a skipped update nor a hold stops it.

    Build it while the groups hold the values that are meant, or load its state afterwards: the base is part
    of the state, and is in no group.

    A CUDA graph keeps the numbers that it was captured with. So under `TrainStep(cuda_graph=True)` an update
    after a change runs eagerly, and is captured again once the value has stood for three updates: on a
    plateau, or on a `StagedCurve` of stairs.

    Args:
        optimizer: Any torch optimizer.
        key: A key of the parameter groups, or a pair of a key and an index: `("betas", 0)`.
        curve: One curve for all parameter groups, or a sequence of one each.
        strict: As in `lambda_lr`.

    Returns:
        A `Follower`: `step()`, `state_dict()`, `load_state_dict(state)`. Its state holds plain numbers and
        lists, and survives `torch.load(weights_only=True)`.

    Raises:
        TypeError: `optimizer`, `key` or `curve` is something else; a value that is no number.
        ValueError: A key that a group lacks; the rate, which is for `lambda_lr`; another number of curves
            than of groups; a value that is negative, not finite, or positive and below 2⁻¹²⁶.

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
    return Follower(optimizer, key, curve, strict=strict)


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
