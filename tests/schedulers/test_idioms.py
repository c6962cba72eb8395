"""What programs do to a scheduler that `isinstance(scheduler, LambdaLR)` accepts.

Each test is such a program. It runs under torch's `LambdaLR` and under `lambda_lr`, with the same
curve, and the learning rates of all updates agree to one unit in the
last place of float32. Torch computes base · curve(step) in double, and an update rounds the
product; `lambda_lr` computes float32(float32(base) · curve(step)).

A program that no curve can follow is an error, which says what to build instead.
"""

import copy
import io
import pickle
import re
import types
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from warnings import catch_warnings, simplefilter

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from support.examples import examples
from support.runs.run import Run
from support.runs.torch_run import TorchRun
from support.trees import equal_trees
from torch.nn import Parameter
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    ExponentialLR,
    LambdaLR,
    LRScheduler,
    SequentialLR,
)

from plateau_jax import CurveWarning, PlateauCurve, StagedCurve
from torch_bridge import lambda_lr

CURVE = PlateauCurve(100, warmup_steps=10, plateaus=[(50, 20)], min_lr_ratio=0.1)
LINEAR = PlateauCurve(200, decay_shape="linear")
STAGED = StagedCurve([(50, 0.25), (150, 1.0)], start=0.5)


def new_groups(lrs: Sequence[Any]) -> list[dict[str, Any]]:
    """Return a group with a new parameter for each learning rate."""
    return [{"params": [Parameter(torch.zeros(1))], "lr": lr} for lr in lrs]


class LambdaRun(TorchRun):
    """A run whose updates note the learning rates that they used.

    Attributes:
        scheduler_class: `LambdaLR` or `lambda_lr`.
        lrs: The learning rate of each group in each update; None if it is not compared.
        added: The parameters of groups that were added since the last update.
    """

    def __init__(self, scheduler_class: Any, curve: Any, lrs: Sequence[Any]) -> None:
        self.scheduler_class = scheduler_class
        self.lrs: list[list[float | None]] = []
        self.added: list[Parameter] = []
        Run.__init__(self, copy.copy(curve), copy.deepcopy(lrs))

    def build(self) -> None:
        self.rebuild_optimizer(self.peaks)
        self.use(self.scheduler_class(self.optimizer, self.curve))

    @property
    def scheduler(self) -> Any:
        return self.schedulers[0]

    @scheduler.setter
    def scheduler(self, scheduler: Any) -> None:
        self.use(scheduler)

    def step_optimizer(self, times: int = 1) -> None:
        """From 0 and with a gradient of -1, the new weight is the learning rate."""
        for _ in range(times):
            parameters = [group["params"][0] for group in self.groups]
            for parameter in parameters:
                parameter.data.zero_()
                parameter.grad = -torch.ones(1)
            self.optimizer.step()
            lrs: list[float | None] = []
            for parameter in parameters:
                if any(parameter is added for added in self.added):
                    lrs.append(None)
                else:
                    lrs.append(parameter.item())
            self.added.clear()
            self.lrs.append(lrs)

    def unfreeze(self, **options: Any) -> None:
        """Add a group. Its first update is not compared.

        Under a LambdaLR, which writes a learning rate only when it is stepped, this update has the
        group's `lr`; under `lambda_lr` it has peak · curve(step).
        """
        parameter = Parameter(torch.zeros(1))
        self.added.append(parameter)
        self.optimizer.add_param_group({"params": [parameter], **options})

    def multipliers(self) -> list[float]:
        step = self.scheduler.last_epoch
        return [multiplier(step) for multiplier in self.scheduler.lr_lambdas]

    def rebuild_optimizer(self, lrs: Sequence[Any]) -> None:
        """Build one for new parameters, as for a model that was pruned, grown or converted."""
        self.optimizer = SGD(new_groups(copy.deepcopy(lrs)))

    def current_lrs(self) -> list[Any]:
        return [group["lr"] for group in self.groups]


# The decorators, which make a test of a program.

Program = Callable[[LambdaRun], None]
Multiplier = Callable[[int], float]
Decorator = Callable[[Program], Callable[..., None]]

ONE_GROUP = "one group"
TWO_GROUPS = "two groups"
CURVE_PER_GROUP = "a curve per group"
ALL_SETUPS = (ONE_GROUP, TWO_GROUPS, CURVE_PER_GROUP)
COMMON_CURVE = (ONE_GROUP, TWO_GROUPS)
SEVERAL_GROUPS = (TWO_GROUPS, CURVE_PER_GROUP)

peaks = st.sampled_from((0.5, 0.1, 3e-4, 1.0)) | st.floats(1e-4, 1.0)
curves = st.sampled_from((CURVE, LINEAR, STAGED))
forms: Any = st.sampled_from((float, torch.tensor))


@dataclass(frozen=True)
class Setup:
    """The curve, or the curves, the groups' learning rates, and the updates before a program."""

    curve: Any
    lrs: list[Any]
    updates: int

    def run(self, scheduler_class: Any, program: Program) -> LambdaRun:
        """Return a run that the program interrupts, and that then continues."""
        run = LambdaRun(scheduler_class, self.curve, self.lrs)
        run.train(self.updates)
        program(run)
        run.train(12)
        return run


@st.composite
def setups_of(draw: st.DrawFn, name: str) -> Setup:
    curve: Any = draw(curves)
    form = draw(forms)
    lrs = [form(draw(peaks))]
    if name != ONE_GROUP:
        lrs.append(form(draw(peaks)))
    if name == CURVE_PER_GROUP:
        curve = [curve, draw(curves)]
    return Setup(curve, lrs, draw(st.integers(0, 30)))


def in_each_setup(
    names: Sequence[str], program: Program, check: Callable[[Setup], None]
) -> Callable[..., None]:
    """Return a test, which has the name of the program."""

    @pytest.mark.parametrize("name", names)
    @examples(8)
    @given(data=st.data())
    def test(name: str, data: st.DataObject) -> None:
        with catch_warnings():
            simplefilter("ignore")  # the checks record those that they read
            check(data.draw(setups_of(name)))

    test.__name__ = program.__name__
    test.__doc__ = program.__doc__
    return test


def same(setups: Sequence[str] = ALL_SETUPS, under_torch: Program | None = None) -> Decorator:
    """The program has the same learning rates under both schedulers, and nothing warns.

    Args:
        setups: The groups and curves that it is run with.
        under_torch: The program that gives the right learning rates under a LambdaLR, if it is a
            different one.
    """

    def as_test(program: Program) -> Callable[..., None]:
        def check(setup: Setup) -> None:
            messages = compare(setup, program, under_torch or program)
            assert not messages
            check_without_advice(setup, program)

        return in_each_setup(setups, program, check)

    return as_test


def warns(*parts: str) -> Decorator:
    """The program has the same learning rates under both, and one warning, with these parts."""

    def as_test(program: Program) -> Callable[..., None]:
        def check(setup: Setup) -> None:
            (message,) = compare(setup, program, program)
            for part in parts:
                assert part in message
            for message in check_without_advice(setup, program):
                assert "advise=False" not in message

        return in_each_setup(ALL_SETUPS, program, check)

    return as_test


def rejected(*parts: str, setups: Sequence[str] = ALL_SETUPS) -> Decorator:
    """The program is an error under `lambda_lr`, at once or at the next step, with these parts."""

    def as_test(program: Program) -> Callable[..., None]:
        def check(setup: Setup) -> None:
            with pytest.raises((TypeError, ValueError)) as caught:
                setup.run(lambda_lr, program)
            for part in parts:
                assert part in str(caught.value)
            check_without_advice(setup, program)

        return in_each_setup(setups, program, check)

    return as_test


def compare(setup: Setup, program: Program, under_torch: Program) -> list[str]:
    """Run the programs under both schedulers, compare all updates; return the CurveWarnings."""
    with catch_warnings(record=True) as caught:
        # Torch's own warnings, about the order of steps and epochs, are the same.
        simplefilter("always")
        reference = setup.run(LambdaLR, under_torch)
        run = setup.run(lambda_lr, program)
    assert_same_learning_rates(run, reference)
    return [str(item.message) for item in caught if issubclass(item.category, CurveWarning)]


def assert_same_learning_rates(run: LambdaRun, reference: LambdaRun) -> None:
    assert len(run.lrs) == len(reference.lrs)
    for update, (lrs, expected_lrs) in enumerate(zip(run.lrs, reference.lrs, strict=True)):
        message = f"update {update}: {lrs}, expected {expected_lrs}"
        assert len(lrs) == len(expected_lrs), message
        for lr, expected in zip(lrs, expected_lrs, strict=True):
            if lr is None or expected is None:
                assert lr is expected, message
            else:
                unit_in_last_place = np.spacing(np.float32(max(lr, expected)))
                assert abs(lr - expected) <= unit_in_last_place, message


class without_advice(lambda_lr):
    def __init__(self, *arguments: Any, advise: bool = False, **options: Any) -> None:
        super().__init__(*arguments, advise=advise, **options)


def check_without_advice(setup: Setup, program: Program) -> list[str]:
    """Check that advice changes nothing; return the warnings without it."""
    advised = outcome(setup, lambda_lr, program)
    with catch_warnings(record=True) as caught:
        simplefilter("always")
        assert equal_trees(outcome(setup, without_advice, program), advised)
    return [str(item.message) for item in caught]


def outcome(setup: Setup, scheduler_class: Any, program: Program) -> Any:
    """Return what a program did: its learning rates, and the states or the error at the end."""
    try:
        run = setup.run(scheduler_class, program)
    except (TypeError, ValueError) as error:
        return type(error), re.sub("0x[0-9a-f]+", "", str(error))  # a function's address
    state = run.scheduler.state_dict()
    state.pop("after", None)  # the scheduler itself that `Warmup` steps
    return run.lrs, run.optimizer.state_dict(), state


def through_torch_save(value: Any) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def notes_the_learning_rates(run: LambdaRun) -> None:
    """Let `get_last_lr` return what is in the groups."""
    run.scheduler._last_lr = run.current_lrs()


def writes_the_learning_rates_of_the_step(run: LambdaRun) -> None:
    for group, base, multiplier in zip(
        run.groups, run.scheduler.base_lrs, run.multipliers(), strict=True
    ):
        group["lr"] = base * multiplier


# The step of the scheduler.


@same()
def test_sets_last_epoch(run: LambdaRun) -> None:
    """As after `scheduler = LambdaLR(…)` in a resumed run."""
    run.scheduler.last_epoch = 29


@same()
def test_restores_position_and_learning_rates(run: LambdaRun) -> None:
    """As for a checkpoint that has no state of the scheduler."""
    scheduler = run.scheduler
    scheduler.last_epoch = 30
    scheduler._step_count = 31
    writes_the_learning_rates_of_the_step(run)
    notes_the_learning_rates(run)


@same()
def test_restores_learning_rates_alone(run: LambdaRun) -> None:
    run.scheduler.last_epoch = 40
    writes_the_learning_rates_of_the_step(run)


@same()
def test_restores_from_get_lr(run: LambdaRun) -> None:
    run.scheduler.last_epoch = 35
    run.scheduler._last_lr = run.scheduler.get_lr()
    for group, lr in zip(run.groups, run.scheduler.get_last_lr(), strict=True):
        group["lr"] = lr


@same()
def test_clears_last_lr_before_a_step(run: LambdaRun) -> None:
    run.scheduler._last_lr = None
    run.scheduler.step()


@same()
def test_replays_steps(run: LambdaRun) -> None:
    """As in a resumed run; nothing warns that there were no updates."""
    for _ in range(60):
        run.scheduler.step()


@same()
def test_skips_ahead(run: LambdaRun) -> None:
    run.scheduler.last_epoch += 25


@same()
def test_divides_by_accumulation_steps(run: LambdaRun) -> None:
    run.scheduler.last_epoch = run.scheduler.last_epoch // 2


@same()
def test_jumps_to_an_epoch(run: LambdaRun) -> None:
    run.scheduler.step(40)


@same()
def test_passes_the_epoch_to_every_step(run: LambdaRun) -> None:
    for epoch in range(20, 25):
        run.step_optimizer()
        run.scheduler.step(epoch=epoch)


@same()
def test_undoes_a_step(run: LambdaRun) -> None:
    run.scheduler.step()
    run.scheduler.last_epoch -= 1


@same()
def test_restarts_with_a_step(run: LambdaRun) -> None:
    run.scheduler.last_epoch = -1
    run.scheduler.step()


@same()
def test_restarts_from_the_bases(run: LambdaRun) -> None:
    for group, base in zip(run.groups, run.scheduler.base_lrs, strict=True):
        group["lr"] = float(base)
    run.scheduler.last_epoch = 0


@same()
def test_restarts_with_the_initial_step(run: LambdaRun) -> None:
    run.scheduler.last_epoch = -1
    run.scheduler._initial_step()


@same()
def test_restarts_with_update_lr(run: LambdaRun) -> None:
    run.scheduler._update_lr(0)


@same()
def test_restarts_after_a_count_of_0(run: LambdaRun) -> None:
    run.scheduler.last_epoch = -1
    run.scheduler._step_count = 0
    run.scheduler._get_lr_called_within_step = False
    run.scheduler.step()


@same()
def test_counts_steps_that_it_skips(run: LambdaRun) -> None:
    """As with gradient accumulation, where the scheduler is not stepped."""
    for _ in range(3):
        run.step_optimizer()
        run.scheduler._step_count += 1


@same()
def test_writes_an_epoch_after_each_step(run: LambdaRun) -> None:
    for epoch in range(7, 12):
        run.step_optimizer()
        run.scheduler.step()
        run.scheduler.last_epoch = epoch


@same()
def test_builds_again_from_its_functions(run: LambdaRun) -> None:
    kind = type(run.scheduler)
    last_epoch = run.scheduler.last_epoch - 1
    run.scheduler = kind(run.optimizer, run.scheduler.lr_lambdas, last_epoch=last_epoch)


@same()
def test_builds_again(run: LambdaRun) -> None:
    """The peak is `initial_lr`."""
    run.scheduler = run.scheduler_class(run.optimizer, run.curve)


@same()
def test_removes_initial_lr_and_builds_again(run: LambdaRun) -> None:
    """The peak is `lr`."""
    for group in run.groups:
        group["lr"] = 0.1171875
        group.pop("initial_lr")
    run.scheduler = run.scheduler_class(run.optimizer, run.curve)


@warns("lr = 0.1171875", "initial_lr = ", "set_peak(0.1171875)", 'del group["initial_lr"]')
def test_changes_lr_and_builds_again(run: LambdaRun) -> None:
    """As a notebook's cell that is run again: the first build has left `initial_lr`, the peak."""
    for group in run.groups:
        group["lr"] = 0.1171875
    run.scheduler = run.scheduler_class(run.optimizer, run.curve)


@warns("param_groups[0] had lr = ", "initial_lr = ")
def test_scales_a_group_and_builds_again(run: LambdaRun) -> None:
    run.train(1)
    run.groups[0]["lr"] = run.groups[0]["lr"] * 0.25
    run.scheduler = run.scheduler_class(run.optimizer, run.curve)


@same()
def test_runs_the_constructor_of_the_base_class(run: LambdaRun) -> None:
    """As Lightning did for wrapped optimizers."""
    state = run.scheduler.state_dict()
    LRScheduler.__init__(run.scheduler, run.optimizer)
    run.scheduler.load_state_dict(state)
    writes_the_learning_rates_of_the_step(run)


# Base learning rates.


@same()
def test_scales_bases_by_the_world_size(run: LambdaRun) -> None:
    run.scheduler.base_lrs = [base * 4 for base in run.scheduler.base_lrs]


@same()
def test_gives_bases_as_a_tuple(run: LambdaRun) -> None:
    run.scheduler.base_lrs = tuple(base / 2 for base in run.scheduler.base_lrs)


@same()
def test_halves_the_first_base(run: LambdaRun) -> None:
    run.scheduler.base_lrs[0] *= 0.5


@same()
def test_replaces_each_base_and_last_lr(run: LambdaRun) -> None:
    scheduler = run.scheduler
    for group in run.groups:
        group["lr"] = 0.125
    for index in range(len(scheduler.base_lrs)):
        scheduler.base_lrs[index] = 0.125
    for index in range(len(run.groups)):
        scheduler._last_lr[index] = 0.125


@same()
def test_replaces_all_bases_in_place(run: LambdaRun) -> None:
    run.scheduler.base_lrs[:] = [0.25] * len(run.groups)


@same()
def test_lowers_everything(run: LambdaRun) -> None:
    """As after a loss that is not finite."""
    for group in run.groups:
        group["lr"] = group["lr"] * 0.5
        group["initial_lr"] = group["initial_lr"] * 0.5
    run.scheduler.base_lrs = [base * 0.5 for base in run.scheduler.base_lrs]
    notes_the_learning_rates(run)


@same()
def test_reads_bases_from_initial_lr(run: LambdaRun) -> None:
    for index, group in enumerate(run.groups):
        group["initial_lr"] = 0.5 ** (index + 1)
    run.scheduler.base_lrs = [group["initial_lr"] for group in run.groups]
    run.scheduler.step(run.scheduler.last_epoch)


@same()
def test_changes_initial_lr_alone(run: LambdaRun) -> None:
    """It has no effect until the next scheduler is built."""
    for group in run.groups:
        group["initial_lr"] = 0.75


@same()
def test_removes_initial_lr(run: LambdaRun) -> None:
    for group in run.groups:
        del group["initial_lr"]


@same()
def test_freezes_a_group_for_a_while(run: LambdaRun) -> None:
    group = run.groups[-1]
    run.scheduler.base_lrs[-1] = 0.0
    group["lr"] = 0.0
    run.train(3)
    run.scheduler.base_lrs[-1] = group["initial_lr"]


@same(setups=COMMON_CURVE)
def test_adds_a_group_while_another_is_frozen(run: LambdaRun) -> None:
    group = run.groups[-1]
    run.scheduler.base_lrs[-1] = 0.0
    run.unfreeze(lr=0.25)
    run.scheduler.base_lrs.append(0.25)
    run.scheduler.lr_lambdas.append(run.scheduler.lr_lambdas[0])
    run.train(3)
    run.scheduler.base_lrs[-2] = group["initial_lr"]


@same()
def test_restarts_from_the_current_learning_rate(run: LambdaRun) -> None:
    scheduler = run.scheduler
    scheduler._step_count = 0
    scheduler.last_epoch = 0
    for index, lr in enumerate(scheduler.get_last_lr()):
        scheduler.base_lrs[index] = lr


@same()
def test_keeps_its_own_list_of_bases(run: LambdaRun) -> None:
    bases = run.scheduler.base_lrs
    run.scheduler.base_lrs = [base * 2 for base in bases]
    run.train(2)
    run.scheduler.base_lrs = bases


@same()
def test_changes_the_peak_at_every_update(run: LambdaRun) -> None:
    """As a warmup that the scheduler does not know."""
    for update in range(1, 5):
        run.step_optimizer()
        run.scheduler.base_lrs[0] = 0.125 * update
        run.scheduler.step()


@rejected("not iterable")
def test_assigns_a_number_for_the_bases(run: LambdaRun) -> None:
    run.scheduler.base_lrs = 0.1


@rejected("base_lrs[0]", "nan")
def test_assigns_a_base_that_is_not_finite(run: LambdaRun) -> None:
    run.scheduler.base_lrs[0] = float("nan")


# The learning rates in the groups.


@same()
def test_writes_learning_rates_for_some_updates(run: LambdaRun) -> None:
    for lr in (0.01, 0.02, 0.03):
        for group in run.groups:
            group["lr"] = lr
        run.step_optimizer()
    run.scheduler.step()


@same()
def test_warms_up_from_initial_lr(run: LambdaRun) -> None:
    """As trainers that interpolate up to `initial_lr · function(epoch)`; one step per epoch."""
    for epoch in range(2):
        for batch in range(4):
            for group, multiplier in zip(run.groups, run.scheduler.lr_lambdas, strict=True):
                update = 4 * epoch + batch
                lr_after_warmup = 0.5 * multiplier(epoch)
                group["lr"] = float(np.interp(update, [0, 8], [0.0, lr_after_warmup]))
            run.step_optimizer()
        run.scheduler.step()


@same()
def test_writes_the_last_learning_rates(run: LambdaRun) -> None:
    for group, lr in zip(run.groups, run.scheduler.get_last_lr(), strict=True):
        group["lr"] = lr


@same()
def test_multiplies_what_the_scheduler_wrote(run: LambdaRun) -> None:
    """As a factor for one group, at each update."""
    for _ in range(4):
        run.groups[-1]["lr"] = run.groups[-1]["lr"] * 0.5
        run.step_optimizer()
        run.scheduler.step()


@same()
def test_reads_everything(run: LambdaRun) -> None:
    scheduler = run.scheduler
    assert isinstance(scheduler, LambdaLR)
    assert not hasattr(scheduler, "_get_closed_form_lr")
    for values in (scheduler.get_lr(), scheduler.get_last_lr(), scheduler.base_lrs):
        assert len(values) == len(run.groups)
    assert scheduler.optimizer.param_groups is run.groups
    assert scheduler.state_dict()["_last_lr"] == scheduler.get_last_lr()
    assert scheduler.state_dict()["last_epoch"] == scheduler.last_epoch
    assert scheduler._step_count == scheduler.last_epoch + 1
    kinds = [type(multiplier) for multiplier in run.multipliers()]
    assert kinds == [float] * len(run.groups)


# Groups that are added.


def adds_a_group_and_tells_a_lambda_lr(run: LambdaRun) -> None:
    run.unfreeze(lr=0.25)
    run.scheduler.base_lrs.append(0.25)
    run.scheduler.lr_lambdas.append(run.scheduler.lr_lambdas[-1])


@same(setups=COMMON_CURVE, under_torch=adds_a_group_and_tells_a_lambda_lr)
def test_adds_a_group(run: LambdaRun) -> None:
    run.unfreeze(lr=0.25)


@same(setups=COMMON_CURVE, under_torch=adds_a_group_and_tells_a_lambda_lr)
def test_appends_a_base(run: LambdaRun) -> None:
    run.unfreeze(lr=0.25)
    run.scheduler.base_lrs.append(0.25)


@same(setups=COMMON_CURVE)
def test_appends_a_base_and_a_function(run: LambdaRun) -> None:
    adds_a_group_and_tells_a_lambda_lr(run)


@same(setups=COMMON_CURVE)
def test_appends_a_base_that_is_not_the_groups_lr(run: LambdaRun) -> None:
    run.unfreeze(lr=0.25)
    run.scheduler.base_lrs.append(0.75)
    run.scheduler.lr_lambdas.append(run.scheduler.lr_lambdas[0])


@same(setups=COMMON_CURVE)
def test_appends_before_the_group(run: LambdaRun) -> None:
    run.scheduler.base_lrs.append(0.25)
    run.scheduler.lr_lambdas.append(run.scheduler.lr_lambdas[0])
    run.unfreeze(lr=0.25)


@same(setups=COMMON_CURVE)
def test_extends_bases_and_functions(run: LambdaRun) -> None:
    run.unfreeze(lr=0.25)
    run.unfreeze(lr=0.5)
    run.scheduler.base_lrs.extend([0.25, 0.5])
    run.scheduler.lr_lambdas.extend([run.scheduler.lr_lambdas[0]] * 2)


@same(setups=COMMON_CURVE)
def test_extends_by_the_groups_that_are_missing(run: LambdaRun) -> None:
    run.unfreeze(lr=0.25)
    scheduler = run.scheduler
    new_groups = run.groups[len(scheduler.base_lrs) :]
    scheduler.base_lrs.extend(group["lr"] for group in new_groups)
    missing = len(run.groups) - len(scheduler.lr_lambdas)
    scheduler.lr_lambdas.extend([scheduler.lr_lambdas[-1]] * missing)


@same(setups=COMMON_CURVE)
def test_adds_lists_in_place(run: LambdaRun) -> None:
    run.unfreeze(lr=0.25)
    run.scheduler.base_lrs += [0.25]
    run.scheduler.lr_lambdas += [run.scheduler.lr_lambdas[0]]


@same(setups=COMMON_CURVE)
def test_assigns_longer_lists(run: LambdaRun) -> None:
    run.unfreeze(lr=0.25)
    run.scheduler.base_lrs = [*run.scheduler.base_lrs, 0.25]
    run.scheduler.lr_lambdas = [*run.scheduler.lr_lambdas, run.scheduler.lr_lambdas[0]]


@same(setups=COMMON_CURVE)
def test_assigns_a_base_and_a_function_for_each_group(run: LambdaRun) -> None:
    run.unfreeze(lr=0.25)
    for group in run.groups:
        group.setdefault("initial_lr", group["lr"])
    run.scheduler.base_lrs = [group["initial_lr"] for group in run.groups]
    run.scheduler.lr_lambdas = [run.scheduler.lr_lambdas[0]] * len(run.groups)


@same(setups=COMMON_CURVE)
def test_appends_last_lr_too(run: LambdaRun) -> None:
    adds_a_group_and_tells_a_lambda_lr(run)
    run.scheduler._last_lr.append(0.25)


@same(setups=COMMON_CURVE)
def test_saves_after_the_append(run: LambdaRun) -> None:
    adds_a_group_and_tells_a_lambda_lr(run)
    state = run.scheduler.state_dict()
    assert len(state["base_lrs"]) == len(run.groups)


@same(setups=COMMON_CURVE)
def test_adds_a_group_at_its_current_learning_rate(run: LambdaRun) -> None:
    """`lr` is what the curve gives for `initial_lr` now."""
    base = 0.25
    run.unfreeze(lr=base * run.multipliers()[-1], initial_lr=base)
    run.scheduler.base_lrs.append(base)
    run.scheduler.lr_lambdas.append(run.scheduler.lr_lambdas[-1])


@same(setups=COMMON_CURVE)
def test_gives_a_base_besides_a_decayed_initial_lr(run: LambdaRun) -> None:
    """As a finetuning callback that scales the new group's `lr` and `initial_lr`."""
    lr = 0.25 * run.multipliers()[-1]
    run.unfreeze(lr=lr, initial_lr=lr)
    run.scheduler.base_lrs.extend([0.25])
    run.scheduler.lr_lambdas.extend([run.scheduler.lr_lambdas[-1]])


def options_of_an_old_group(run: LambdaRun) -> dict[str, Any]:
    return {key: value for key, value in run.groups[0].items() if key not in ("params", "lr")}


def copies_options_and_tells_a_lambda_lr(run: LambdaRun) -> None:
    run.unfreeze(**options_of_an_old_group(run), lr=0.0078125)
    run.scheduler.base_lrs.append(0.0078125)
    run.scheduler.lr_lambdas.append(run.scheduler.lr_lambdas[-1])


@rejected("lr = 0.0078125", 'del group["initial_lr"]', 'group["lr"] = ', setups=COMMON_CURVE)
def test_adds_a_group_with_the_options_of_another(run: LambdaRun) -> None:
    """`initial_lr` is the other group's, and up to a hundred times `lr`."""
    run.unfreeze(**options_of_an_old_group(run), lr=0.0078125)


@rejected("lr = 0.0078125", 'del group["initial_lr"]', 'group["lr"] = ', setups=COMMON_CURVE)
def test_appends_a_dictionary_to_param_groups(run: LambdaRun) -> None:
    parameter = Parameter(torch.zeros(1))
    run.added.append(parameter)
    run.groups.append({**run.groups[0], "params": [parameter], "lr": 0.0078125})


@same(setups=COMMON_CURVE)
def test_copies_options_and_appends_a_base(run: LambdaRun) -> None:
    copies_options_and_tells_a_lambda_lr(run)


def copies_everything_and_tells_a_lambda_lr(run: LambdaRun) -> None:
    run.unfreeze(**options_of_an_old_group(run), lr=run.groups[0]["lr"])
    run.scheduler.base_lrs.append(run.groups[0]["initial_lr"])
    run.scheduler.lr_lambdas.append(run.scheduler.lr_lambdas[-1])


@same(setups=COMMON_CURVE, under_torch=copies_everything_and_tells_a_lambda_lr)
def test_adds_a_group_like_another(run: LambdaRun) -> None:
    """With its current `lr` too: `initial_lr` is the peak."""
    run.unfreeze(**options_of_an_old_group(run), lr=run.groups[0]["lr"])


# Groups that are removed or replaced.


@same(setups=SEVERAL_GROUPS)
def test_removes_a_group_with_its_base(run: LambdaRun) -> None:
    del run.groups[0]
    del run.scheduler.base_lrs[0]
    del run.scheduler.lr_lambdas[0]


@same(setups=SEVERAL_GROUPS)
def test_pops_a_group_with_its_base(run: LambdaRun) -> None:
    for values in (run.groups, run.scheduler.base_lrs, run.scheduler.lr_lambdas):
        values.pop()


@same(setups=SEVERAL_GROUPS)
def test_assigns_shorter_lists(run: LambdaRun) -> None:
    run.groups[:] = run.groups[1:]
    run.scheduler.base_lrs = run.scheduler.base_lrs[1:]
    run.scheduler.lr_lambdas = run.scheduler.lr_lambdas[1:]
    notes_the_learning_rates(run)


def removes_and_tells_a_lambda_lr(run: LambdaRun) -> None:
    for values in (run.groups, run.scheduler.base_lrs, run.scheduler.lr_lambdas):
        del values[0]


@same(setups=SEVERAL_GROUPS, under_torch=removes_and_tells_a_lambda_lr)
def test_removes_a_group(run: LambdaRun) -> None:
    del run.groups[0]


@same(setups=SEVERAL_GROUPS, under_torch=removes_and_tells_a_lambda_lr)
def test_removes_a_group_with_its_base_alone(run: LambdaRun) -> None:
    del run.groups[0]
    del run.scheduler.base_lrs[0]


@same()
def test_leaves_a_group_out_of_an_update(run: LambdaRun) -> None:
    group = run.groups.pop()
    run.optimizer.step()
    run.groups.append(group)


@same()
def test_puts_new_parameters_into_a_group(run: LambdaRun) -> None:
    """As a model that gets new heads."""
    run.groups[0]["params"] = [Parameter(torch.zeros(1))]
    run.optimizer.state = defaultdict(dict)


@same(setups=(ONE_GROUP,))
def test_puts_all_parameters_into_a_new_group(run: LambdaRun) -> None:
    parameters = run.groups[0]["params"]
    run.groups.clear()
    new_parameter = Parameter(torch.zeros(1))
    group = {"params": [*parameters, new_parameter], "lr": 0.125}
    run.optimizer.add_param_group(group)


@same(setups=COMMON_CURVE)
def test_regroups_with_layerwise_learning_rates(run: LambdaRun) -> None:
    scheduler = run.scheduler
    (multiplier, *_) = run.multipliers()
    groups: list[dict[str, Any]] = []
    for depth in range(3):
        base = 0.5**depth
        group = dict(run.groups[0])
        group["params"] = [Parameter(torch.zeros(1))]
        group["initial_lr"] = base
        group["lr"] = base * multiplier
        groups.append(group)
    run.groups[:] = groups
    scheduler.base_lrs = [group["initial_lr"] for group in groups]
    scheduler.lr_lambdas = [scheduler.lr_lambdas[0]] * 3
    notes_the_learning_rates(run)


@same(setups=(ONE_GROUP,))
def test_empties_the_optimizer_for_a_first_phase(run: LambdaRun) -> None:
    """As a finetuning callback that trains other parameters than `configure_optimizers` said."""
    run.optimizer.param_groups = []
    run.scheduler.last_epoch = -1
    run.scheduler.base_lrs = []
    run.unfreeze(lr=0.25, initial_lr=0.25)
    run.scheduler.base_lrs.extend([0.25])
    run.scheduler._initial_step()
    notes_the_learning_rates(run)


@rejected("3", "2", setups=SEVERAL_GROUPS)
def test_appends_a_base_without_a_group(run: LambdaRun) -> None:
    run.scheduler.base_lrs.append(0.25)


@rejected("4", "3", setups=(TWO_GROUPS,))
def test_appends_a_base_twice(run: LambdaRun) -> None:
    run.unfreeze(lr=0.25)
    run.scheduler.base_lrs.append(0.25)
    run.scheduler.base_lrs.append(0.25)
    run.scheduler.lr_lambdas.append(run.scheduler.lr_lambdas[0])


@rejected("1", "2", setups=SEVERAL_GROUPS)
def test_removes_a_base_without_a_group(run: LambdaRun) -> None:
    run.scheduler.base_lrs.pop()


@rejected("3 parameter groups", "curves for 2", setups=(CURVE_PER_GROUP,))
def test_adds_a_group_under_a_curve_for_each(run: LambdaRun) -> None:
    run.unfreeze(lr=0.25)


# Functions.


def with_floor(multiplier: Multiplier) -> Multiplier:
    return lambda step: max(0.3, multiplier(step))


@rejected("StagedCurve.through", "LambdaLR")
def test_replaces_the_functions(run: LambdaRun) -> None:
    """As a floor under a schedule."""
    run.scheduler.lr_lambdas = list(map(with_floor, run.scheduler.lr_lambdas))


@rejected("StagedCurve.through", "LambdaLR")
def test_replaces_the_first_function(run: LambdaRun) -> None:
    """As the level of a run that was extended."""
    level = run.multipliers()[0]
    run.scheduler.lr_lambdas[0] = lambda step: level


@rejected("StagedCurve.through", "LambdaLR")
def test_replaces_a_function_by_a_partial(run: LambdaRun) -> None:
    run.scheduler.lr_lambdas[-1] = partial(max, 0.5)


@rejected("StagedCurve.through", "LambdaLR", setups=COMMON_CURVE)
def test_appends_a_different_function(run: LambdaRun) -> None:
    run.unfreeze(lr=0.25)
    run.scheduler.base_lrs.append(0.25)
    run.scheduler.lr_lambdas.append(lambda step: 1.0)


@rejected("load_state_dict")
def test_replaces_a_function_by_a_curve(run: LambdaRun) -> None:
    run.scheduler.lr_lambdas[0] = LINEAR.cooldown(150, 20)


@rejected("load_state_dict")
def test_replaces_all_functions_by_curves(run: LambdaRun) -> None:
    run.scheduler.lr_lambdas = [LINEAR.cooldown(150, 20)] * len(run.groups)


@same()
def test_replaces_the_functions_by_themselves(run: LambdaRun) -> None:
    run.scheduler.lr_lambdas = [*run.scheduler.lr_lambdas]
    run.scheduler.lr_lambdas[0] = run.scheduler.lr_lambdas[0]


@rejected("load_state_dict")
def test_replaces_a_curve(run: LambdaRun) -> None:
    """Only `lambda_lr` has `curves`."""
    run.scheduler.curves[0] = LINEAR.cooldown(150, 20)


# The optimizer.


@same()
def test_moves_to_an_optimizer_with_the_current_learning_rate(run: LambdaRun) -> None:
    """Twice, as a model that is pruned again."""
    for _ in range(2):
        run.rebuild_optimizer(run.current_lrs())
        run.scheduler.optimizer = run.optimizer
        run.train(5)


@same()
def test_moves_to_an_optimizer_with_the_first_learning_rate(run: LambdaRun) -> None:
    run.rebuild_optimizer(run.scheduler.base_lrs)
    run.scheduler.optimizer = run.optimizer


@same()
def test_moves_to_an_optimizer_with_current_initial_lrs(run: LambdaRun) -> None:
    """As a finetuning callback that changes the optimizer, and gives each group an `initial_lr`."""
    run.rebuild_optimizer(run.current_lrs())
    for group in run.groups:
        group["initial_lr"] = group.get("initial_lr", group["lr"])
    run.scheduler.optimizer = run.optimizer


@same()
def test_moves_to_an_optimizer_that_loaded_the_state(run: LambdaRun) -> None:
    old = run.optimizer
    run.rebuild_optimizer([1.0] * len(run.groups))
    run.optimizer.load_state_dict(old.state_dict())
    run.scheduler.optimizer = run.optimizer


@same()
def test_moves_to_an_optimizer_after_a_change_of_the_base(run: LambdaRun) -> None:
    old = run.optimizer
    run.scheduler.base_lrs[0] *= 0.5
    run.rebuild_optimizer([1.0] * len(run.groups))
    run.optimizer.load_state_dict(old.state_dict())
    run.scheduler.optimizer = run.optimizer


@same()
def test_moves_to_another_optimizer_of_the_same_parameters(run: LambdaRun) -> None:
    groups: list[dict[str, Any]] = []
    for group in run.groups:
        groups.append({"params": group["params"], "lr": group["lr"]})
    run.optimizer = SGD(groups, momentum=0.0, nesterov=False, foreach=True)
    run.scheduler.optimizer = run.optimizer


@same()
def test_moves_to_a_copy_of_the_optimizer(run: LambdaRun) -> None:
    run.optimizer = copy.deepcopy(run.optimizer)
    run.scheduler.optimizer = run.optimizer


@same(setups=(TWO_GROUPS,))
def test_moves_and_keeps_some_parameters(run: LambdaRun) -> None:
    kept = run.groups[1]["params"]
    lrs = run.current_lrs()
    new_group = {"params": [Parameter(torch.zeros(1))], "lr": lrs[0]}
    old_group = {"params": kept, "lr": lrs[1]}
    run.optimizer = SGD([new_group, old_group], lr=0.5)
    run.scheduler.optimizer = run.optimizer


@same()
def test_runs_the_optimizers_constructor_again(run: LambdaRun) -> None:
    run.optimizer.__init__(new_groups(run.current_lrs()))


@same()
def test_replaces_all_groups_by_new_ones(run: LambdaRun) -> None:
    """The optimizer stays; its groups and parameters are new."""
    groups: list[dict[str, Any]] = []
    for group in run.groups:
        groups.append({**group, "params": [Parameter(torch.zeros(1))]})
    run.optimizer.param_groups = groups


@same()
def test_clears_the_optimizers_state(run: LambdaRun) -> None:
    run.optimizer.state.clear()
    run.optimizer.state = defaultdict(dict)
    run.optimizer.__setstate__({"state": defaultdict(dict)})


@same()
def test_says_that_the_optimizer_was_stepped(run: LambdaRun) -> None:
    run.optimizer._step_count = 1
    run.optimizer._opt_called = True
    run.scheduler.step()


@same()
def test_builds_another_optimizer_and_does_not_tell(run: LambdaRun) -> None:
    """The scheduler writes into the groups of the optimizer that it was given."""
    run.train(1)
    run.rebuild_optimizer(run.current_lrs())
    run.train(45)


@rejected("3", "2", setups=SEVERAL_GROUPS)
def test_moves_to_an_optimizer_with_another_number_of_groups(run: LambdaRun) -> None:
    run.rebuild_optimizer([0.5, 0.25, 0.125])
    run.scheduler.optimizer = run.optimizer


# States.


@dataclass
class States:
    optimizer: dict[str, Any]
    scheduler: dict[str, Any]


def states_of(run: LambdaRun) -> States:
    return copy.deepcopy(States(run.optimizer.state_dict(), run.scheduler.state_dict()))


def load(run: LambdaRun, states: States, *, optimizer_first: bool) -> None:
    if optimizer_first:
        run.optimizer.load_state_dict(states.optimizer)
    run.scheduler.load_state_dict(states.scheduler)
    if not optimizer_first:
        run.optimizer.load_state_dict(states.optimizer)


def fresh_run(run: LambdaRun, peaks: Sequence[Any] | None = None) -> LambdaRun:
    """Return a run as the same program builds it when it is started again."""
    copied = copy.deepcopy(peaks or run.scheduler.base_lrs)
    return LambdaRun(run.scheduler_class, run.curve, copied)


def restart(run: LambdaRun, peaks: Sequence[Any] | None = None) -> None:
    """Replace the optimizer and the scheduler by those of a fresh run."""
    fresh = fresh_run(run, peaks)
    run.optimizer = fresh.optimizer
    run.scheduler = fresh.scheduler


def resumes(run: LambdaRun, *, optimizer_first: bool) -> None:
    checkpoint = {
        "optimizer": run.optimizer.state_dict(),
        "scheduler": run.scheduler.state_dict(),
    }
    states = States(**through_torch_save(checkpoint))
    restart(run)
    load(run, states, optimizer_first=optimizer_first)


@same()
def test_resumes_the_optimizer_first(run: LambdaRun) -> None:
    resumes(run, optimizer_first=True)


@same()
def test_resumes_the_scheduler_first(run: LambdaRun) -> None:
    resumes(run, optimizer_first=False)


@same()
def test_resumes_and_writes_the_learning_rates_again(run: LambdaRun) -> None:
    resumes(run, optimizer_first=False)
    run.scheduler.step(run.scheduler.last_epoch)


@rejected("peak_value", "scheduler.set_peak")
def test_changes_the_bases_in_a_state(run: LambdaRun) -> None:
    state = run.scheduler.state_dict()
    state["base_lrs"] = [0.125] * len(run.groups)
    run.scheduler.load_state_dict(state)


@same()
def test_changes_the_last_learning_rates_in_a_state(run: LambdaRun) -> None:
    """As a run that keeps its moments and restarts its learning rates."""
    for group, base in zip(run.groups, run.scheduler.base_lrs, strict=True):
        group["lr"] = float(base)
    bases = run.scheduler.base_lrs[:]
    run.scheduler.load_state_dict({**run.scheduler.state_dict(), "_last_lr": bases})
    run.scheduler.step()


@same()
def test_updates_the_attributes_with_a_state(run: LambdaRun) -> None:
    state = run.scheduler.state_dict()
    del state["lr_lambdas"]
    optimizer_state = run.optimizer.state_dict()
    restart(run)
    run.optimizer.load_state_dict(optimizer_state)
    run.scheduler.__dict__.update(state)
    run.scheduler.step()


@warns("without a curve", "step 30")
def test_loads_a_state_that_it_wrote(run: LambdaRun) -> None:
    bases = [float(base) for base in run.scheduler.base_lrs]
    state = {"last_epoch": 30, "_step_count": 31, "base_lrs": bases, "_last_lr": bases}
    run.scheduler.load_state_dict({**state, "lr_lambdas": [None] * len(run.groups)})
    run.scheduler.step()


@rejected("base_lrs")
def test_loads_only_a_step(run: LambdaRun) -> None:
    """Torch keeps all that the state does not have."""
    state = {"last_epoch": 30, "lr_lambdas": [None] * len(run.groups)}
    run.scheduler.load_state_dict(state)


@rejected("curve_step")
def test_changes_the_step_in_a_state(run: LambdaRun) -> None:
    state = run.scheduler.state_dict()
    state["last_epoch"] += 7
    run.scheduler.load_state_dict(state)


@same()
def test_loads_one_state_into_several_schedulers(run: LambdaRun) -> None:
    """As a container of optimizers that are alike."""
    states = states_of(run)
    first = fresh_run(run)
    second = fresh_run(run)
    for loaded in (first, second):
        load(loaded, copy.deepcopy(states), optimizer_first=False)
    run.optimizer = second.optimizer
    run.scheduler = second.scheduler


@same()
def test_goes_back_to_its_first_states(run: LambdaRun) -> None:
    first_states = states_of(fresh_run(run))
    for _ in range(2):
        run.train(3)
        load(run, first_states, optimizer_first=True)


@same()
def test_goes_back_to_its_first_states_scheduler_first(run: LambdaRun) -> None:
    load(run, states_of(fresh_run(run)), optimizer_first=False)


def loads_an_older_optimizer(run: LambdaRun, *, optimizer_first: bool) -> None:
    """The optimizer's state was taken ten updates before the scheduler's."""
    older = states_of(run).optimizer
    run.train(10)
    newer = states_of(run).scheduler
    restart(run)
    load(run, States(older, newer), optimizer_first=optimizer_first)


def loads_an_older_optimizer_and_writes(run: LambdaRun) -> None:
    loads_an_older_optimizer(run, optimizer_first=True)
    writes_the_learning_rates_of_the_step(run)


@same(under_torch=loads_an_older_optimizer_and_writes)
def test_loads_an_older_optimizer_first(run: LambdaRun) -> None:
    loads_an_older_optimizer(run, optimizer_first=True)


@same()
def test_loads_an_older_optimizer_last(run: LambdaRun) -> None:
    """The next update uses the learning rate of the optimizer's state."""
    loads_an_older_optimizer(run, optimizer_first=False)


def resumes_a_group_that_was_not_updated(run: LambdaRun, *, optimizer_first: bool) -> None:
    run.unfreeze(lr=0.25)
    states = states_of(run)
    old_groups = len(run.groups) - 1
    restart(run, run.scheduler.base_lrs[:old_groups])
    run.unfreeze(lr=0.25)
    run.added.clear()
    load(run, states, optimizer_first=optimizer_first)


def adds_a_group_and_writes(run: LambdaRun) -> None:
    adds_a_group_and_tells_a_lambda_lr(run)
    run.added.clear()
    writes_the_learning_rates_of_the_step(run)


@same(setups=COMMON_CURVE, under_torch=adds_a_group_and_writes)
def test_resumes_a_new_group_optimizer_first(run: LambdaRun) -> None:
    resumes_a_group_that_was_not_updated(run, optimizer_first=True)


def adds_a_group_and_compares_its_first_update(run: LambdaRun) -> None:
    adds_a_group_and_tells_a_lambda_lr(run)
    run.added.clear()


@same(setups=COMMON_CURVE, under_torch=adds_a_group_and_compares_its_first_update)
def test_resumes_a_new_group_scheduler_first(run: LambdaRun) -> None:
    """The optimizer's state was saved before the scheduler has written into the new group."""
    resumes_a_group_that_was_not_updated(run, optimizer_first=False)


# Copies.


@same()
def test_plots_with_a_copy(run: LambdaRun) -> None:
    """The run continues with its own scheduler, which the plot leaves alone."""
    plotted = copy.deepcopy(run.scheduler)
    for _ in range(30):
        plotted.step()


@same()
def test_plots_with_copies_of_both(run: LambdaRun) -> None:
    optimizer = copy.deepcopy(run.optimizer)
    scheduler = copy.deepcopy(run.scheduler)
    scheduler.optimizer = optimizer
    lrs: list[float] = []
    for _ in range(30):
        optimizer.step()
        scheduler.step()
        lrs.append(optimizer.param_groups[0]["lr"])
    assert lrs[-1] == scheduler.get_last_lr()[0]


@same()
def test_simulates_and_restores(run: LambdaRun) -> None:
    states = states_of(run)
    for _ in range(30):
        run.scheduler.step()
    load(run, states, optimizer_first=True)


@same()
def test_continues_with_a_copy(run: LambdaRun) -> None:
    run.scheduler = copy.deepcopy(run.scheduler)
    run.optimizer = run.scheduler.optimizer


@same()
def test_pickles_the_scheduler_and_gives_it_an_optimizer(run: LambdaRun) -> None:
    """A scheduler that was saved whole, in a process with a new model."""
    bases = run.scheduler.base_lrs
    run.scheduler = pickle.loads(pickle.dumps(run.scheduler))
    run.rebuild_optimizer(bases)
    for group, lr in zip(run.groups, run.scheduler.get_last_lr(), strict=True):
        group["lr"] = lr
    run.scheduler.optimizer = run.optimizer


# Methods and attributes.


@same()
def test_sets_attributes(run: LambdaRun) -> None:
    scheduler = run.scheduler
    scheduler.verbose = False
    scheduler.total_steps = 200
    scheduler.warmup_steps = 10
    copied = copy.deepcopy(scheduler)
    assert (copied.verbose, copied.total_steps, copied.warmup_steps) == (False, 200, 10)


@same()
def test_reads_get_lr_as_if_within_a_step(run: LambdaRun) -> None:
    run.scheduler._get_lr_called_within_step = True
    run.scheduler.get_lr()
    run.scheduler._get_lr_called_within_step = False


@same()
def test_wraps_step(run: LambdaRun) -> None:
    step = run.scheduler.step
    steps: list[int] = []

    def step_and_count(*args: Any, **kwargs: Any) -> None:
        step(*args, **kwargs)
        steps.append(1)

    run.scheduler.step = step_and_count
    run.train(4)
    assert len(steps) == 4


def fixed_for(lrs: Callable[[], list[Any]], index: int, lr: float) -> list[Any]:
    """Return the learning rates, with a fixed one for this group."""
    values = lrs()
    values[index] = lr
    return values


@same()
def test_replaces_get_lr_for_a_group(run: LambdaRun) -> None:
    """As self-supervised methods that keep the learning rate of a predictor."""
    run.scheduler.get_lr = partial(fixed_for, run.scheduler.get_lr, -1, 0.0625)


@same()
def test_replaces_get_lr_by_a_method(run: LambdaRun) -> None:
    def get_lr(self: Any) -> list[float]:
        return [base / (1 + self.last_epoch) for base in self.base_lrs]

    run.scheduler.get_lr = types.MethodType(get_lr, run.scheduler)


@same()
def test_derives_a_class_with_a_floor(run: LambdaRun) -> None:
    class WithFloor(run.scheduler_class):
        def get_lr(self) -> list[Any]:
            return [max(lr, 0.0625) for lr in super().get_lr()]

    last_epoch = run.scheduler.last_epoch - 1
    run.scheduler = WithFloor(run.optimizer, run.curve, last_epoch=last_epoch)


@same()
def test_derives_a_class_with_its_own_step(run: LambdaRun) -> None:
    class EverySecond(run.scheduler_class):
        calls = 0

        def step(self, epoch: int | None = None) -> None:
            self.calls += 1
            if self.calls % 2 == 1:
                super().step(epoch)

    run.scheduler = EverySecond(run.optimizer, run.curve)


@same()
def test_derives_a_class_with_another_attribute(run: LambdaRun) -> None:
    class Frozen(run.scheduler_class):
        """Keeps the learning rates from a step on."""

        def __init__(self, optimizer: Any, curve: Any, steps: int) -> None:
            self.steps = steps
            super().__init__(optimizer, curve)

        def get_lr(self) -> list[Any]:
            if self.last_epoch > self.steps:
                return self.get_last_lr()
            return super().get_lr()

    run.scheduler = Frozen(run.optimizer, run.curve, 4)


# Other schedulers that hold this one.


class Warmup(LRScheduler):
    """Warms up to the bases, and then steps another scheduler from those bases."""

    def __init__(self, optimizer: Optimizer, steps: int, after: Any) -> None:
        self.steps = steps
        self.after = after
        self.is_finished = False
        super().__init__(optimizer)

    def get_lr(self) -> list[Any]:
        if self.last_epoch > self.steps:
            if not self.is_finished:
                self.after.base_lrs = [base * 2 for base in self.base_lrs]
                self.is_finished = True
            return self.after.get_last_lr()
        return [base * self.last_epoch / self.steps for base in self.base_lrs]

    def step(self, epoch: int | None = None) -> None:
        if self.is_finished:
            self.after.step(epoch)
        else:
            super().step(epoch)


@same()
def test_warms_up_by_another_scheduler(run: LambdaRun) -> None:
    after = run.scheduler
    after.last_epoch = 0
    run.scheduler = Warmup(run.optimizer, 4, after)


def start_sequence(run: LambdaRun) -> None:
    """Build a fresh optimizer, and a sequence of two schedulers."""
    run.optimizer = fresh_run(run).optimizer
    first = run.scheduler_class(run.optimizer, run.curve)
    second = run.scheduler_class(run.optimizer, run.curve)
    run.scheduler = SequentialLR(run.optimizer, [first, second], milestones=[6])


@same()
def test_changes_bases_inside_a_sequence(run: LambdaRun) -> None:
    start_sequence(run)
    run.train(3)
    for part in run.scheduler._schedulers:
        part.base_lrs = [base * 0.5 for base in part.base_lrs]


def resumes_a_sequence(run: LambdaRun, updates: int, *, optimizer_first: bool) -> None:
    start_sequence(run)
    run.train(updates)
    states = states_of(run)
    run.scheduler = run.scheduler._schedulers[0]
    start_sequence(run)
    load(run, states, optimizer_first=optimizer_first)


@same()
def test_resumes_in_the_first_part_of_a_sequence(run: LambdaRun) -> None:
    resumes_a_sequence(run, 3, optimizer_first=True)


@same()
def test_resumes_in_the_second_part_of_a_sequence(run: LambdaRun) -> None:
    resumes_a_sequence(run, 9, optimizer_first=True)


@same()
def test_resumes_a_sequence_scheduler_first(run: LambdaRun) -> None:
    resumes_a_sequence(run, 9, optimizer_first=False)


@same()
def test_halves_the_learning_rates_in_a_chain(run: LambdaRun) -> None:
    run.scheduler = ChainedScheduler([run.scheduler, ExponentialLR(run.optimizer, 0.5)])


@same()
def test_takes_turns_with_another_scheduler(run: LambdaRun) -> None:
    """Two phases, each with its own scheduler of the same optimizer."""
    first = run.scheduler
    run.scheduler = run.scheduler_class(run.optimizer, run.curve)
    run.train(3)
    run.scheduler = first
    run.train(3)


@rejected("must be an integer")
def test_steps_by_parts_of_an_epoch(run: LambdaRun) -> None:
    run.scheduler.step(1.5)
