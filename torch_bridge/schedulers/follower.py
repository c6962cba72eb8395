"""A curve for an option of an optimizer other than the learning rate, such as weight decay."""

import operator
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NotRequired, TypedDict, cast

from torch.optim import Optimizer

from torch_bridge.curve_api import (
    FOLLOWER,
    AnyCurve,
    CheckedClock,
    Curve,
    Format,
    SavedRun,
    as_curves,
    check_length,
    check_peaks,
    checks,
    compare_with_saved,
    dump_records,
    read_records,
    reading_state_of,
    schedules_of,
    shortest_decimals,
    warn,
)
from torch_bridge.groups.group_curves import GroupCurves
from torch_bridge.groups.optimizers import groups_of
from torch_bridge.groups.options import GroupOption, as_number, bases_per_group
from torch_bridge.schedulers.scheduler_state import read_bases, read_flag
from torch_bridge.schedulers.update_hook import hook_of


class _FollowerState(TypedDict):
    """See `follow.state_dict`."""

    kind: str
    format: int
    curve_step: int
    key: str | list[str | int]
    base_values: list[float]
    records: list[dict[str, Any]]
    base_value_was_set: NotRequired[bool]
    """Only if True: see `follow.state_dict`."""
    groups: NotRequired[list[int] | None]
    """Only if not None: see `follow.state_dict`."""


_FORMAT = Format("follower", _FollowerState, defaults={"base_value_was_set": False, "groups": None})


# Named like a function, as `torch.no_grad` is, because programs call it like one.
class follow:
    """A curve for an option of an optimizer other than the learning rate, such as the weight decay.

    After n calls of `step()` each group has

        group[key] = float32(float32(base) · curve(n))

    The base of a group is its `initial_<key>` if it has one, such as `initial_weight_decay`, else
    its value. The follower writes the base into this entry, where a later follower finds it. If the
    value is a tensor, the follower writes into that tensor.

    An optimizer may have any number of followers, one for each option, in addition to a scheduler
    or a `TrainStep`. `step()` moves to the next step of the curve. If the scheduler has a clock,
    call `step(scheduler.curve_step)`. Added groups join as in `lambda_lr`.

    A CUDA graph keeps the numbers that it was captured with. So under `TrainStep(cuda_graph=True)`,
    updates run eagerly while the value changes. Once it has stayed the same for three updates, they
    are captured again.

    Args:
        optimizer: Any torch optimizer.
        key: A key of the parameter groups, or a pair of a key and an index: `("betas", 0)`.
        curve: As in `lambda_lr`. In a sequence, write None for each group that lacks the option. If
            any item is None, later groups without the option are ignored too.

    Attributes:
        curves: The curve of each group that has the option.
        curve_step: The step of the curve that gives the values.

    Raises:
        TypeError, ValueError: As for `lambda_lr`; or one of these:

            - `key` is the learning rate, which needs `lambda_lr`.
            - A group with a curve lacks the option, or a group with the option has None as its
              curve.
            - The value of the option is not a number, or is out of the range of a peak.

    Warns:
        CurveWarning: A group has a factor of its weight decay that only other schedulers read,
            DINOv2's `wd_multiplier`.

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

    _is_base_set = False
    """True if `set_base_value` has set the bases, in this run or before. The saved ones may then
    differ from the program's without a warning."""

    def __init__(
        self,
        optimizer: Optimizer,
        key: str | tuple[str, int],
        curve: AnyCurve | Sequence[AnyCurve | None],
    ) -> None:
        groups = groups_of(optimizer)  # checks it before the other arguments
        curve = as_curves("curve", curve)
        option = _option(key)
        skips_groups = False
        if isinstance(curve, Sequence) and None in curve:
            skips_groups = True
            curve = _curves_of_groups_with(option, groups, curve)
        self._group_curves = GroupCurves(optimizer, option, curve, skips_groups=skips_groups)
        self._register()
        self._move_to(0)

    def __setstate__(self, state: Any) -> None:
        vars(self).update(state)
        self._register()  # a copied optimizer has no hook

    def _register(self) -> None:
        """Follow the updates of the optimizer."""
        hook_of(self.optimizer).register(self._group_curves)

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer whose groups follow the curve."""
        return self._group_curves.optimizer

    @optimizer.setter  # as programs do with a torch scheduler
    def optimizer(self, optimizer: Optimizer) -> None:
        if optimizer is self.optimizer:
            return
        option = self._group_curves.option
        if not any(option.is_in(group) for group in groups_of(optimizer)):
            raise ValueError(f"no parameter group of the new optimizer has {option}")
        hook_of(self.optimizer).unregister(self._group_curves)
        self._group_curves.retarget(optimizer)
        self._register()

    @property
    def curves(self) -> list[Curve]:
        """The curve of each group that has the option."""
        return self._group_curves.lists.curves

    @property
    def base_values(self) -> list[float]:
        """The base of each group that has the option, in float32."""
        return self._group_curves.lists.bases

    @property
    def curve_step(self) -> int:
        """The step of the curve that gives the values."""
        return self._group_curves.step

    def __repr__(self) -> str:
        curve, values = self._group_curves.describe()
        return f"{type(self).__name__}({curve}, curve_step={self.curve_step}, {values})"

    def step(self, curve_step: int | None = None) -> None:
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
            self._move_to(checks.at_least("curve_step", curve_step, 0))
            return
        for curve in self.curves:
            if curve.unit is not None:
                raise TypeError(
                    f"the curve counts samples or tokens, in units of {curve.unit}: pass the step "
                    "of a scheduler with the same clock, step(scheduler.curve_step)"
                )
        self._move_to(self.curve_step + 1)

    def _move_to(self, curve_step: int) -> None:
        self._group_curves.sync()  # before anything changes, since it may raise an error
        self._group_curves.write(curve_step, self._group_curves.ahead.at(curve_step))

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
        group_curves = self._group_curves
        group_curves.sync()
        groups = group_curves.words_for_groups
        bases = bases_per_group("value", value, len(group_curves.groups), groups)
        self._is_base_set = True
        group_curves.set_bases(bases)
        self._move_to(self.curve_step)

    def state_dict(self) -> dict[str, Any]:
        """Return numbers, lists and dictionaries, which `torch.load(weights_only=True)` accepts.

        The entries are:

        - `kind`, `format`, `key` and `curve_step`;
        - `base_values`: the base of each group that has the option;
        - `base_value_was_set`, only if `set_base_value` has set the bases;
        - `groups`, only if a group before one of these lacks the option: the indices of the groups
          that have it;
        - `records`: for each of these groups, what `plateau_jax.resume_record` returns for the
          curve and the base.
        """
        # If this raises an error, an added group has no curve, and is left out.
        group_curves = self._group_curves
        with suppress(TypeError, ValueError):
            group_curves.sync_groups()
        groups: list[int] | None = group_curves.indices()
        if groups == list(range(len(groups))):
            groups = None
        return _FORMAT.write(
            curve_step=self.curve_step,
            key=self._key,
            base_values=list(group_curves.bases),
            records=dump_records(group_curves.curves, group_curves.bases, CheckedClock()),
            base_value_was_set=self._is_base_set,
            groups=groups,
        )

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resume from the saved step and bases, and write the values into the groups.

        You may load the optimizer's own state before or after. If you load it after, it must come
        from the same update and curve, because the next update then uses the values that it
        restores. If the state has fewer groups than the optimizer, it is loaded into the first
        ones.

        Args:
            state_dict: A state that `state_dict` returned.

        Raises:
            ValueError: The state has a different `key`, more groups than the optimizer, or the
                option in different groups; it contradicts itself or was saved by a newer version;
                or `state_dict` is not the state of a follower. Nothing was changed.

        Warns:
            CurveWarning: The saved curve has different values at an earlier step, or is damaged. Or
                the saved bases, with which the run continues, differ from those that the follower
                was built with, and `set_base_value` did not set them.
        """
        group_curves = self._group_curves
        group_curves.sync()
        with reading_state_of("a follower", state_dict):
            state = _FORMAT.read("state_dict", state_dict)
            key: Any = state["key"]
            if isinstance(key, tuple):
                key = list(cast("tuple[Any, ...]", key))
            if key != self._key:
                raise ValueError(
                    f"state_dict is for key = {checks.short_repr(key)}, but this follower sets "
                    f"{group_curves.option}"
                )
            curve_step = checks.at_least("curve_step", state["curve_step"], 0)
            bases = read_bases("base_values", state["base_values"], len(self.base_values))
            is_base_set = read_flag(state, "base_value_was_set")
            saved_groups: Any = state.get("groups") or list(range(len(bases)))
            groups = group_curves.indices()[: len(bases)]
            if saved_groups != groups:
                raise ValueError(
                    f"state_dict has {group_curves.option} for param_groups {saved_groups}, and "
                    f"this optimizer has it in {groups}"
                )
            records = read_records("records", state["records"])
            check_length("state_dict['records']", records, len(bases))
            saved = SavedRun(records, shortest_decimals(bases), curve_step)
            check_peaks("base_values", saved, "follower.set_base_value")
            is_rollback = self._is_base_set and self.curve_step > 0  # on purpose, as in `lambda_lr`
            compared_bases = None
            if not is_base_set and not is_rollback:
                compared_bases = self.base_values[: len(bases)]
            now = schedules_of(self.curves[: len(bases)], compared_bases, CheckedClock())
            outcome = compare_with_saved(saved, now, FOLLOWER, strict=True)
        for message in outcome.warnings:
            warn(message)
        all_bases = [*bases, *group_curves.bases[len(bases) :]]
        group_curves.set_bases(all_bases)
        self._is_base_set = is_base_set
        self._move_to(curve_step)
        group_curves.show(len(bases))

    @property
    def _key(self) -> str | list[str | int]:
        name, item = self._group_curves.option
        if item is None:
            return name
        return [name, item]


def _curves_of_groups_with(
    option: GroupOption, groups: Sequence[dict[str, Any]], curves: Sequence[Any]
) -> list[Any]:
    """Return the curves of the groups that have the option; the other groups have None."""
    check_length("curve", curves, len(groups))
    followed: list[Any] = []
    for index, (group, curve) in enumerate(zip(groups, curves, strict=True)):
        if curve is not None:
            option.value_of(index, group)  # raises an error for a group without the option
            followed.append(curve)
        elif option.is_in(group):
            raise ValueError(
                f"curve[{index}] is None, but param_groups[{index}] has {option} = "
                f"{as_number(option.read(group))!r}. To keep it constant, write "
                "StagedCurve([(1,)], start=1.0)"
            )
    if not followed:
        raise ValueError(f"curve has only None: no parameter group has {option}")
    return followed


def _option(key: Any) -> GroupOption:
    name: Any = key
    index: Any = None
    if isinstance(key, tuple | list) and len(cast("Any", key)) == 2:
        name, index = cast("Any", key)
    if type(index) is not bool:
        with suppress(TypeError):
            index = operator.index(index)
    is_index = index is None or (type(index) is int and index >= 0)
    if not isinstance(name, str) or not is_index:
        raise TypeError(
            checks.must(
                "key", key, 'be a key of the parameter groups, or a key and an index: ("betas", 0)'
            )
        )
    if name in ("lr", "initial_lr"):
        raise ValueError(f"key = {key!r} is the learning rate: use lambda_lr or TrainStep for it")
    return GroupOption(name, index)
