"""What a program may write: each row of the table in `docs/pytorch.md`, as a program.

Its result is right; or an error or a warning says what to write instead, and that works.
"""

import copy

import pytest
import torch
from support.schedulers.runs import learning_rate, lrs_of, new_parameter, optimizer_with
from support.trees import equal_trees
from torch.optim import SGD

from plateau_jax import CurveWarning, DataClock, HoldBelow, PlateauCurve, StagedCurve
from torch_bridge import follow, lambda_lr

LINE = StagedCurve([(100, 0.0, "linear")], start=1.0)
WARMUP = PlateauCurve(100, warmup_steps=10)
UPDATES = 12


class Training:
    """An optimizer of two groups with a scheduler or a follower, after some updates.

    Args:
        name: The option that it sets, `"lr"` or `"weight_decay"`.
        curve: One curve, or one for each group.
        form: Makes the value of a group from a number.
    """

    def __init__(self, name, curve=LINE, form=float):
        self.name = name
        self.base_key = f"initial_{name}"
        options = [{name: form(0.5)}, {name: form(0.25)}]
        self.optimizer = SGD([new_group(**group) for group in options], lr=0.125)
        self.part = self.build(curve)
        self.update(UPDATES)

    @property
    def groups(self):
        return self.optimizer.param_groups

    def build(self, curve):
        if self.name == "lr":
            return lambda_lr(self.optimizer, curve)
        return follow(self.optimizer, self.name, curve)

    def update(self, times=1):
        for _ in range(times):
            self.optimizer.step()
            self.part.step()

    def values(self):
        return [float(group[self.name]) for group in self.groups]

    def set_base(self, base):
        if self.name == "lr":
            self.part.set_peak(base)
        else:
            self.part.set_base_value(base)

    def rejects(self, error, message, call):
        """Check that a call raises this error, and leaves the groups unchanged."""
        before = copy.deepcopy(self.groups)
        with pytest.raises(error, match=message):
            call()
        assert equal_trees(self.groups, before)


def new_group(**options):
    return {"params": [new_parameter()], **options}


def on_line(step, *bases):
    """Return the values of groups with these bases at a step of `LINE`."""
    return [learning_rate(base, LINE, step) for base in bases]


NAMES = ["lr", "weight_decay"]


@pytest.fixture(params=NAMES)
def training(request):
    return Training(request.param)


# `last_epoch`.


def test_last_epoch_moves_the_scheduler(training):
    training.part.last_epoch = 29
    training.update()
    assert training.values() == on_line(30, 0.5, 0.25)


@pytest.mark.parametrize("clock", [DataClock(8, count=4), HoldBelow(-1.0, 1)], ids=str)
@pytest.mark.parametrize("last_epoch", [-1, 4, 13, 100])
def test_last_epoch_under_a_clock_is_an_error(clock, last_epoch):
    optimizer = optimizer_with([0.5])
    scheduler = lambda_lr(optimizer, LINE, clock=clock)
    arguments = {"metric": 0.5}
    if isinstance(clock, DataClock):
        arguments = {}
    for _ in range(5):
        optimizer.step()
        scheduler.step(**arguments)
    state = copy.deepcopy(scheduler.state_dict())
    with pytest.raises(ValueError, match=rf"last_epoch = {last_epoch}, .*load_state_dict\(state\)"):
        scheduler.last_epoch = last_epoch
    assert scheduler.state_dict() == state


# `base_lrs`.


def test_written_bases_count_from_the_next_step(training):
    training.part.base_lrs[0] *= 0.5
    assert training.values() == on_line(UPDATES, 0.5, 0.25)
    training.update()
    assert training.values() == on_line(UPDATES + 1, 0.25, 0.25)
    training.part.base_lrs = tuple(base * 4 for base in training.part.base_lrs)
    training.update()
    assert training.values() == on_line(UPDATES + 2, 1.0, 1.0)


@pytest.mark.parametrize(
    ("bases", "error", "message"),
    [
        ([0.5, None], TypeError, r"\[1\] = None"),
        ([0.5, -1.0], ValueError, r"\[1\] = -1.0"),
        ([0.5] * 3, ValueError, "has length 3"),
    ],
)
def test_wrong_bases_are_an_error(training, bases, error, message):
    training.part.base_lrs = bases
    training.rejects(error, message, training.part.step)


# Groups that are added.


@pytest.mark.parametrize("read", [lambda_lr.get_last_lr, lambda_lr.get_lr, lambda_lr.state_dict])
def test_added_group_has_its_value_from_its_first_update_on(training, read):
    """Whatever the program reads before; and its value may be written until then."""
    training.optimizer.add_param_group(new_group(**{training.name: 0.75}))
    if training.name == "lr":
        read(training.part)
    training.groups[2][training.name] = 1.0
    training.optimizer.step()
    assert training.values() == on_line(UPDATES, 0.5, 0.25, 1.0)
    training.part.step()
    assert training.values() == on_line(UPDATES + 1, 0.5, 0.25, 1.0)


@pytest.mark.parametrize("base", [0.75, 1.0])
def test_group_is_added_and_its_base_is_appended(training, base):
    """As programs do for a `LambdaLR`; the list is right, not the value in the group."""
    training.optimizer.add_param_group(new_group(**{training.name: 0.75}))
    training.part.base_lrs.append(base)
    training.part.lr_lambdas.append(training.part.lr_lambdas[-1])
    training.update()
    assert training.values() == on_line(UPDATES + 1, 0.5, 0.25, base)
    training.update()
    assert training.values() == on_line(UPDATES + 2, 0.5, 0.25, base)


def add_copy_of_a_group(training, value):
    """Add a group with the options of another, but its own value."""
    group = {**training.groups[0], **new_group(**{training.name: value})}
    training.optimizer.add_param_group(group)
    return group


def test_copied_base_besides_a_different_value_warns(training):
    add_copy_of_a_group(training, 0.0078125)
    name, base_key = training.name, training.base_key
    message = rf"\[2\] has {name} = 0\.0078125, .* {base_key} = 0\.5.* del group.* set {name} to it"
    with pytest.warns(CurveWarning, match=message) as caught:
        training.update(3)
    assert len(caught) == 1
    assert training.values() == on_line(UPDATES + 3, 0.5, 0.25, 0.5)


def test_copied_base_is_deleted(training):
    group = add_copy_of_a_group(training, 0.0078125)
    del group[training.base_key]
    training.update()
    assert training.values() == on_line(UPDATES + 1, 0.5, 0.25, 0.0078125)


def test_curve_per_group_has_none_for_a_new_group():
    training = Training("lr", [LINE, LINE])
    training.optimizer.add_param_group(new_group(lr=0.75))
    message = r"param_groups\[2\] is new.*new\.load_state_dict\(old\.state_dict\(\)\)"
    for call in (training.optimizer.step, training.part.step):
        training.rejects(ValueError, message, call)
    old = training.part
    training.part = training.build([LINE, LINE, WARMUP])
    training.part.load_state_dict(old.state_dict())
    training.update()
    added = learning_rate(0.75, WARMUP, UPDATES + 1)
    assert training.values() == [*on_line(UPDATES + 1, 0.5, 0.25), added]


# Groups that are removed, or in another order.


def test_groups_keep_their_curves_in_any_order():
    training = Training("lr", [LINE, WARMUP])
    training.groups.reverse()
    training.update()
    second = learning_rate(0.25, WARMUP, UPDATES + 1)
    assert training.values() == [second, *on_line(UPDATES + 1, 0.5)]
    del training.groups[0]
    training.update()
    assert training.values() == on_line(UPDATES + 2, 0.5)


def test_group_is_removed_with_its_base_and_curve(training):
    for values in (training.groups, training.part.base_lrs, training.part.lr_lambdas):
        del values[0]
    training.update()
    assert training.values() == on_line(UPDATES + 1, 0.25)


# `lr_lambdas` and `optimizer`.


def constant(step):
    return 1.0


@pytest.mark.parametrize("replacement", [WARMUP, constant])
def test_changed_curve_is_an_error(training, replacement):
    training.part.lr_lambdas[0] = replacement
    message = r"new\.load_state_dict\(old\.state_dict\(\)\).*StagedCurve\.through.*LambdaLR"
    training.rejects(TypeError, message, training.part.step)


def test_replaced_optimizer_is_an_error(training):
    new = Training(training.name)

    def replace_optimizer():
        training.part.optimizer = new.optimizer

    training.rejects(ValueError, r"new\.load_state_dict\(old\.state_dict\(\)\)", replace_optimizer)
    training.update()
    assert training.values() == on_line(UPDATES + 1, 0.5, 0.25)
    new.part.load_state_dict(training.part.state_dict())
    assert new.values() == training.values()


# Values in the groups.


def test_value_written_into_a_group_lasts_until_the_next_step(training):
    """As in torch."""
    training.groups[0][training.name] = 0.01
    training.optimizer.step()
    assert training.values()[0] == 0.01
    training.part.step()
    assert training.values() == on_line(UPDATES + 1, 0.5, 0.25)


def test_value_written_before_a_second_phase_warns(training):
    training.groups[1][training.name] = 0.07
    training.part = training.build(LINE)
    name, base_key = training.name, training.base_key
    message = rf"\[1\] has {name} = 0\.07, .* {base_key} = 0\.25.*del group\[.{base_key}"
    with pytest.warns(CurveWarning, match=message) as caught:
        training.update(3)
    assert len(caught) == 1
    assert training.values() == on_line(3, 0.5, 0.25)


def test_value_becomes_the_base_of_a_second_phase(training):
    training.groups[1][training.name] = 0.07
    del training.groups[1][training.base_key]
    training.part = training.build(LINE)
    training.update(3)
    assert training.values() == on_line(3, 0.5, 0.07)


def test_base_is_set_in_a_second_phase(training):
    training.groups[1][training.name] = 0.07
    training.part = training.build(LINE)
    training.set_base([0.5, 0.07])
    training.update(3)
    assert training.values() == on_line(3, 0.5, 0.07)


# A state of the optimizer.


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore:the optimizer was loaded")
def test_loaded_values_last_until_the_next_step(name):
    """A scheduler that nobody steps any more never writes."""
    source = Training(name, WARMUP)
    training = Training(name)
    training.optimizer.load_state_dict(copy.deepcopy(source.optimizer.state_dict()))
    for read in (training.part.state_dict, training.part.get_last_lr, training.optimizer.step):
        read()
        assert training.values() == source.values()
    training.part.step()
    assert training.values() == on_line(UPDATES + 1, 0.5, 0.25)


# Tensors.


def optimizer_with_tensor(lr):
    return SGD([new_group()], lr=lr)


def test_tensor_of_two_optimizers_is_copied():
    lr = torch.tensor(0.5)
    first, second = optimizer_with_tensor(lr), optimizer_with_tensor(lr)
    schedulers = [lambda_lr(first, WARMUP), lambda_lr(second, LINE)]
    for _ in range(UPDATES):
        for part in (first, second, *schedulers):
            part.step()
    assert lrs_of(first) == [learning_rate(0.5, WARMUP, UPDATES)]
    assert lrs_of(second) == on_line(UPDATES, 0.5)
    assert lr.item() == 0.5
