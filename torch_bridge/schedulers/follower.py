"""A curve for an option of an optimizer other than the learning rate: weight decay, momentum, a beta."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict, cast

from torch.optim import Optimizer

from torch_bridge.curve_api import Curve, checks
from torch_bridge.saved_states import read_values, reading_state_of
from torch_bridge.schedulers.group_curves import GroupCurves
from torch_bridge.schedulers.host_clock import Counts
from torch_bridge.schedulers.param_groups import GroupOption, as_number, base_value
from torch_bridge.schedulers.step_audit import StepWatch


class FollowerState(TypedDict):
    """The state that `Follower.state_dict` returns: plain numbers, lists and dictionaries.

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
    """The samples or tokens of all updates; without a unit, the number of steps."""
    unit: int | None
    """The number of samples or tokens in one step of the curve."""
    key: str | list[str | int]
    """The option that follows the curve; a pair is a list here."""
    base_values: list[float]
    """Each group's base, in float32."""
    new_values: list[float]
    """The values of the groups added since the last step; they change at the next step."""
    curves: list[Mapping[str, Any]]
    """Each group's curve, as its `to_dict` returns it."""
    warned: bool
    """True if the warning about too few or too many steps was given; it comes once."""


class Follower(GroupCurves):
    """A curve for an option of an optimizer other than the learning rate; `follow` is the same class.

    After n calls of `step()` each group has

        group[key] = float32(float32(base) · curve(n))

    The base is the group's value when the follower is built. If the value is a tensor, the follower writes
    into that tensor. The base is saved in the follower's state, not in the groups: build the
    follower while the groups have their initial values, or load its state afterwards.

    An optimizer may have any number of followers, one for each option, next to a scheduler or a `TrainStep`.
    A follower counts its own `step()` calls: a hold of the scheduler, or a skipped update, does not stop it.
    New groups join as in `lambda_lr`, and with `unit` the clock is that of `lambda_lr`.

    A CUDA graph keeps the numbers that it was captured with. So under `TrainStep(cuda_graph=True)`, updates
    run eagerly while the value changes, and are captured again once it has stayed the same for three updates.

    Args:
        optimizer: Any torch optimizer.
        key: A key of the parameter groups, or a pair of a key and an index: `("betas", 0)`.
        curve: One curve for all parameter groups, or a sequence with one for each.
        strict, unit, count: As in `lambda_lr`.

    Attributes:
        curves: The curve of each group.

    Raises:
        TypeError, ValueError: As `lambda_lr`; or `key` is wrong: a group lacks it, its value is not a number
            or out of the range of a peak, or it is the learning rate, which needs `lambda_lr`.

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

    _builder = "follow"

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
        self._set_curves(optimizer, _option(key), curve, strict=strict, unit=unit, count=count)
        self._set_bases([self._new_base(*pair) for pair in enumerate(optimizer.param_groups)])
        self._move_to(0, self._clock.counts)
        self._watch = StepWatch(self)

    @property
    def base_values(self) -> list[float]:
        """Each group's base, in float32."""
        return self._bases

    def step(self, *, count: int | None = None) -> None:
        """Write the values of the next step into the groups.

        Args:
            count: With `unit`, the samples or tokens of the update that took place. By default, the result
                of the `count` function that the follower was built with.

        Raises:
            TypeError, ValueError: As in `CurveLR.step`. Nothing was changed.
        """
        self._move_to(self.last_epoch + 1, self._clock.counts_after(self.last_epoch, count))

    def _move_to(self, updates: int, counts: Counts) -> None:
        self._admit_new_groups()  # before anything changes, since it may reject them
        self.last_epoch, self._clock.counts = updates, counts
        groups = self.optimizer.param_groups
        for group, value in zip(groups, self._values_at_clock(), strict=True):
            self._option.write(group, value)
        self._groups_written = len(groups)

    def _values_written(self) -> tuple[float, ...]:
        return self._values_at_clock()

    def _new_base(self, index: int, group: dict[str, Any]) -> float:
        try:
            value = self._option.read(group)
        except (IndexError, KeyError, TypeError):
            raise ValueError(f"param_groups[{index}] has no {self._option}") from None
        return base_value(f"{self._option} of param_groups[{index}]", value)

    def state_dict(self) -> FollowerState:
        """Return the step and the base values, and the key, curves and unit, which a load compares.

        The state consists of plain numbers and lists, and survives `torch.load(weights_only=True)`.
        """
        if self._common_curve is not None:
            self._admit_new_groups()
        return {
            "last_epoch": self.last_epoch,
            "clock": self.clock,
            "consumed": self.consumed,
            "unit": self.unit,
            "key": self._key,
            "base_values": list(self._bases),
            "new_values": [float(as_number(self._option.read(group))) for group in self._new_groups()],
            "curves": [curve.to_dict() for curve in self.curves],
            "warned": self._watch.warned,
        }

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool | None = None) -> None:
        """Resume from the saved step, and write the saved values into the groups.

        The optimizer's own state may be loaded before or after. The state of a different curve is accepted if
        both have the same values at every step so far, as in `CurveLR.load_state_dict`; then the optimizer's
        state must be loaded first.

        Args:
            state_dict: A state that `state_dict` returned.
            strict: As in `CurveLR.load_state_dict`.

        Raises:
            ValueError: As in `CurveLR.load_state_dict`, or the keys differ. Nothing was changed.
        """
        strict = self.strict if strict is None else strict
        with reading_state_of("a follower", state_dict):
            key: Any = state_dict["key"]
            if (list(cast("Any", key)) if isinstance(key, tuple) else key) != self._key:
                raise ValueError(
                    f"state_dict is for key = {checks.short_repr(key)}, but this follower sets {self._option}"
                )
            updates = checks.at_least("last_epoch", state_dict["last_epoch"], 0)
            counts, bases = self._read_counts_and_bases(state_dict, updates, "base_values", strict)
            new_values = read_values("new_values", state_dict.get("new_values", ()), 0, len(bases))
        self._set_bases(bases)
        self._move_to(updates, counts)
        self._groups_written -= len(new_values)
        for group, value in zip(self._new_groups(), new_values, strict=True):
            self._option.write(group, value)
        self._watch.resume(bool(state_dict.get("warned")))

    def _new_groups(self) -> list[dict[str, Any]]:
        """Return the groups that were added since the last step."""
        return self.optimizer.param_groups[self._groups_written :]

    @property
    def _key(self) -> str | list[str | int]:
        name, item = self._option
        return name if item is None else [name, item]


follow = Follower
"""`Follower` under the name of what it does: `follow(optimizer, "weight_decay", curve)`."""


def _option(key: Any) -> GroupOption:
    try:
        name, index = (key, None) if isinstance(key, str) else key
        if not isinstance(name, str):
            raise TypeError
        option = GroupOption(name, None if index is None else checks.at_least("index", index, 0))
    except (TypeError, ValueError):
        raise TypeError(
            f"key = {checks.short_repr(key)} must be a key of the parameter groups, or a key and an index: "
            '("betas", 0)'
        ) from None
    if name in ("lr", "initial_lr"):
        raise ValueError(f"key = {key!r} is the learning rate: use lambda_lr or TrainStep for it")
    return option
