"""A curve for an option of an optimizer other than the learning rate."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch.optim import Optimizer

from plateau_jax.arguments import checks
from plateau_jax.arguments.curve_warning import warn
from plateau_jax.clocks.position import start_position
from plateau_jax.curves.curve import Curve
from plateau_jax.runs.comparison import StateOwner
from torch_bridge.groups.options import GroupOption
from torch_bridge.schedulers.group_scheduler import GroupScheduler
from torch_bridge.schedulers.scheduler_state import FOLLOWER_FORMAT, find_state


# Named like a function, as `lambda_lr` is.
class follow(GroupScheduler):
    """A curve for an option of an optimizer other than the learning rate, such as the weight decay.

    A class derived from torch's `LRScheduler`. After n calls of `step()` each group has

        group[key] = float32(float32(base) · curve(n))

    The base of a group is its `initial_<key>` if it has one, such as `initial_weight_decay`, else
    its value. The follower writes the base into this entry, where a later follower finds it. If the
    value is a tensor, the group gets a copy of it, and the follower writes into this copy.

    An optimizer may have any number of followers, one for each option, in addition to a scheduler
    or a `TrainStep`. `step()` moves to the next step of the curve. If the scheduler has a clock,
    call `step(scheduler.curve_step)`. Added groups join as in `lambda_lr`. Groups without the
    option are ignored.

    Args:
        optimizer: Any torch optimizer.
        key: A key of the parameter groups, or a pair of a key and an index: `("betas", 0)`.
        curve: As in `lambda_lr`. In a sequence, write None for each group that lacks the option.

    Attributes:
        base_values: The base of each group that has the option, in float32.
        curves: The curve of each of these groups.

    Raises:
        TypeError, ValueError: As for `lambda_lr`; or one of these:

            - `key` is the learning rate, which needs `lambda_lr`.
            - No group has the option; or, in a sequence, a group with the option has None as its
              curve, or one without it a curve.
            - The value of the option is not a number, or is out of the range of a peak.

    Warns:
        CurveWarning: A group has a factor of its weight decay that only other schedulers read,
            DINOv2's `wd_multiplier`; or the value is 0 in every group; or, before the first update,
            a group's value is neither its base nor what a follower wrote last.

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

    _owner = StateOwner(
        base_noun="base",
        base_setter="follower.set_base_value",
    )

    def __init__(
        self,
        optimizer: Optimizer,
        key: str | tuple[str, int],
        curve: Curve | Mapping[str, Any] | Sequence[Curve | None],
    ) -> None:
        option = _option(key)
        super().__init__(optimizer, option, curve, None, -1, advise=True)
        if self.base_values and not any(self.base_values):
            warn(f"{option} is 0 in every group, and stays 0: a curve is a factor of it")

    @property
    def base_values(self) -> list[float]:
        """The base of each group that has the option, in float32."""
        return self.base_lrs

    # Torch's `step` takes an epoch.
    def step(self, curve_step: int | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Write the values of the next step of the curve, or of step `curve_step`, into the groups.

        Args:
            curve_step: The step to go to, such as that of a scheduler, `scheduler.curve_step`; by
                default the next one.

        Raises:
            TypeError: `curve_step` is not an integer; or it is missing, and a curve counts samples
                or tokens.
            ValueError: `curve_step` is negative; or a group was added although each group has its
                own curve. Nothing was changed.
        """
        if curve_step is not None:
            number = checks.at_least("curve_step", curve_step, 0)
            position = start_position(self._clock, number, number)
        elif self.unit is not None:
            raise TypeError(
                f"the curve counts samples or tokens, in units of {self.unit}: pass the step of a "
                "scheduler with the same clock, step(scheduler.curve_step)"
            )
        else:
            position = self._position_after(None, None)
        self._move_to(position)
        self._step_count += 1

    def set_base_value(self, value: float | Sequence[float]) -> None:
        """Change the base, and write the values of this step into the groups.

        The new base is part of the state. A load keeps the saved base, so call this after it.

        Args:
            value: The value at multiplier 1: one number for all groups, or one for each group that
                has the option, in the order of the optimizer's groups.

        Raises:
            TypeError: A value is not a number.
            ValueError: The numbers of values and groups differ; a value is negative, not finite, or
                positive and below 2⁻¹²⁶; a group was added although each group has its own curve.
                Nothing was changed.

        >>> import torch
        >>> from plateau_jax import PlateauCurve
        >>> from torch_bridge import follow
        >>> optimizer = torch.optim.AdamW(torch.nn.Linear(2, 1).parameters(), weight_decay=0.5)
        >>> decay = follow(optimizer, "weight_decay", PlateauCurve(100, plateaus=[(0, 50)]))
        >>> decay.set_base_value(0.25)
        >>> optimizer.param_groups[0]["weight_decay"]
        0.25
        """
        self._set_bases("value", value)

    def state_dict(self) -> dict[str, Any]:
        """Return numbers, lists and dictionaries, which `torch.load(weights_only=True)` accepts.

        Waits for the device if a value is a tensor there. The entries are those of a `lambda_lr`,
        with the bases in `base_lrs`; `key`; and `groups`, the indices of the groups that have the
        option.
        """
        entries = self._state_entries()
        # Without a new group that has no curve yet, which has no record either.
        groups = self._indices()[: len(entries["records"])]
        return FOLLOWER_FORMAT.build(**entries, key=self._key, groups=groups)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resume from the saved step and bases, and write the values into the groups.

        You may load the optimizer's own state before or after. If you load it after, it must come
        from the same update and curve, because the next update then uses the values that it
        restores. If the state has fewer groups than the optimizer, it is loaded into the first
        ones. Of the state of a `ChainedScheduler`, the state of its follower is loaded.

        Args:
            state_dict: A state that `state_dict` returned.

        Raises:
            ValueError: The state has a different `key`, more groups than the optimizer, or the
                option in different groups; it was saved by a different version; or `state_dict` is
                not the state of a follower. Nothing was changed.

        Warns:
            CurveWarning: The saved curve has different values at an earlier step; or the saved
                bases, with which the run continues, differ from those that the follower was built
                with, and `set_base_value` did not set them.
        """
        self._load("a follower", self._read_state, state_dict, strict=False)

    def _read_state(self, state_dict: Mapping[str, Any]) -> Mapping[str, Any]:
        state: Any = find_state(FOLLOWER_FORMAT, state_dict)
        if state is None:  # `read` raises an error that says what it is
            state = FOLLOWER_FORMAT.read("state_dict", state_dict)
        if state["key"] != self._key:
            raise ValueError(
                f"state_dict is for key = {checks.short_repr(state['key'])}, but this follower "
                f"sets {self._option}"
            )
        groups = self._indices()[: len(state["records"])]
        if state["groups"] != groups:
            raise ValueError(
                f"state_dict has {self._option} for param_groups {state['groups']}, and "
                f"this optimizer has it in {groups}"
            )
        return state

    @property
    def _key(self) -> str | list[str | int]:
        name, item = self._option
        if item is None:
            return name
        return [name, item]


def _option(key: Any) -> GroupOption:
    match key:
        case str():
            option = GroupOption(key)
        case str(name), int(index) if index >= 0:
            option = GroupOption(name, index)
        case _:
            a_key = 'be a key, or a key and an index: ("betas", 0)'
            raise TypeError(checks.must("key", key, a_key))
    if option.name in ("lr", "initial_lr"):
        raise ValueError(f"key = {key!r} is the learning rate: use lambda_lr or TrainStep for it")
    return option
