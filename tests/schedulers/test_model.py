"""Random programs of schedulers and followers, against a model of which group has which base.

The model is the rule in Python: a group is its dictionary, and its base is read when it is met. The
multipliers are those of the exact oracle. All numbers are dyadic, so no product is rounded.
"""

import copy
import pickle
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import example, given, strategies as st
from support.clocks.holds import curve_steps_of
from support.curves.descriptions import build
from support.examples import examples
from support.numerics.oracle import Oracle
from support.runs.options import Key, option_of, set_option
from support.schedulers.runs import new_parameter
from support.training.steps import through_file
from support.trees import assert_equal_trees
from torch.optim import SGD
from torch.optim.lr_scheduler import SequentialLR

from plateau_jax import DataClock, HoldBelow
from torch_bridge import follow, lambda_lr

pytestmark = [
    # Programs that write values and load states on purpose.
    pytest.mark.filterwarnings("ignore::plateau_jax.CurveWarning"),
]

FIRST = {"kind": "staged", "stages": [(8, 1.0), (4,), (32, 0.25)], "start": 0.5}
SECOND = {"kind": "staged", "stages": [(16, 0.5), (4,), (8, 0.0)], "start": 1.0}
MILESTONE = 6


# The model.


@dataclass
class Group:
    """A dictionary of parameters, and what it must contain."""

    options: dict[str, Any]
    value: float
    initial: float | None
    """The entry `initial_lr`, or that of another option."""
    base: float | None = None
    """The base under which it is scheduled; None if the scheduler has not met it."""


@dataclass
class Model:
    """The groups of an optimizer, in their order, and those that were removed."""

    present: list[Group]
    removed: list[Group] = field(default_factory=list[Group])

    def meet(self, multiplier, *, writes):
        """Read the bases of the new groups, and forget the removed ones.

        A new group gets its value, unless it is not at its base: a different scheduler may have
        changed it.
        """
        for group in self.present:
            if group.base is None:
                group.base = group.value if group.initial is None else group.initial
                group.initial = group.base
                if writes and group.value == group.base:
                    group.value = float(group.base * multiplier)
        for group in self.removed:
            group.base = None

    def write(self, multiplier):
        """Meet the groups, and write the value of each."""
        self.meet(multiplier, writes=True)
        for group in self.present:
            assert group.base is not None
            group.value = float(group.base * multiplier)

    def forget(self):
        """A new scheduler knows no group."""
        for group in self.present + self.removed:
            group.base = None


# The programs.


@dataclass(frozen=True)
class Setting:
    """A scheduler or a follower."""

    key: Key = "lr"
    clock: Any = None
    is_sequence: bool = False


SETTINGS = {
    "updates": Setting(),
    "samples": Setting(clock=DataClock(8)),
    "held": Setting(clock=HoldBelow(0.5, 3)),
    "sequence": Setting(is_sequence=True),
    "weight decay": Setting("weight_decay"),
    "beta": Setting(("betas", 0)),
}
every_setting = pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)


class Program:
    """An optimizer, its scheduler or follower, and the model of both."""

    def __init__(self, setting, make_value):
        self.setting = setting
        self.make_value = make_value
        self.base_key = "initial_lr"
        if setting.key == "weight_decay":
            self.base_key = "initial_weight_decay"
        elif setting.key != "lr":
            self.base_key = "initial_betas[0]"
        groups = [self.new_group(value) for value in (0.5, 0.25, 0.75)]
        self.optimizer = SGD([group.options for group in groups], lr=0.125)
        self.model = Model(groups)
        self.build(FIRST)
        self.check()

    def new_group(self, value, initial=None):
        """Return a group that the optimizer does not have yet."""
        options = {"params": [new_parameter()], "betas": (0.5, 0.75)}
        set_option(options, self.setting.key, self.make_value(value))
        if initial is not None:
            options[self.base_key] = initial
        return Group(options, value, initial)

    def build(self, description):
        """Build a scheduler or a follower, from step 0 on."""
        self.counts = []
        self.metrics = []
        self.curve = build(description)
        self.oracle = Oracle(description)
        self.scheduler = self.new_scheduler()
        self.model.forget()
        self.model.write(self.multiplier())

    def new_scheduler(self):
        if self.setting.key != "lr":
            return follow(self.optimizer, self.setting.key, self.curve)
        scheduler = lambda_lr(self.optimizer, self.curve, clock=self.setting.clock)
        if not self.setting.is_sequence:
            return scheduler
        second = lambda_lr(self.optimizer, build(SECOND))
        return SequentialLR(self.optimizer, [scheduler, second], [MILESTONE])

    @property
    def groups(self):
        return self.optimizer.param_groups

    def multiplier(self):
        """Return the multiplier of the next update."""
        step = curve_steps_of(self.setting.clock, self.curve, self.counts, self.metrics)[-1]
        if self.setting.is_sequence and step >= MILESTONE:
            return Oracle(SECOND)(step - MILESTONE)
        return self.oracle(step)

    # Checks.

    def check(self):
        """Check the values of the groups, and that reading changes nothing."""
        assert len(self.groups) == len(self.model.present)
        before = self.contents()
        for _ in range(2):
            self.read()
        assert_equal_trees(self.contents(), before)
        for group, options in zip(self.model.present, self.groups, strict=True):
            assert options is group.options
            assert option_of(options, self.setting.key) == self.make_value(group.value)
            assert options.get(self.base_key) == group.initial

    def contents(self):
        """Return the options of the groups, and the state."""
        return copy.deepcopy([self.groups, self.scheduler.state_dict()])

    def read(self):
        self.scheduler.get_last_lr()
        self.scheduler.state_dict()
        if not self.setting.is_sequence:
            self.scheduler.get_lr()
            repr(self.scheduler)

    # All that a program may do.

    def update(self, count=5, metric=0.75):
        self.optimizer.step()
        self.check()  # new groups have theirs from the next step on
        self.step(count, metric)

    def step(self, count=5, metric=0.75):
        if isinstance(self.setting.clock, DataClock):
            self.scheduler.step(count=count)
        elif self.setting.clock is not None:
            self.scheduler.step(metric)
        else:
            self.scheduler.step()
        self.counts.append(count)
        self.metrics.append(metric)
        self.model.write(self.multiplier())

    def big_update(self):
        self.update(count=20, metric=0.25)

    def add(self):
        base = 0.875 if self.setting.is_sequence else None  # it may be the second one's turn
        group = self.new_group(0.875, initial=base)
        self.optimizer.add_param_group(group.options)
        self.model.present.append(group)

    def add_with_a_base(self):
        group = self.new_group(0.125, initial=0.375)
        self.optimizer.add_param_group(group.options)
        self.model.present.append(group)

    def remove_first(self):
        if self.groups:
            del self.groups[0]
            self.model.removed.append(self.model.present.pop(0))

    def clear(self):
        self.groups.clear()
        self.model.removed += self.model.present
        self.model.present = []

    def reverse(self):
        self.groups.reverse()
        self.model.present.reverse()

    def add_again(self):
        """Add a removed dictionary once more; torch gives it a new list of parameters."""
        if self.model.removed:
            group = self.model.removed.pop()
            self.optimizer.add_param_group(group.options)
            self.model.present.append(group)

    def append_again(self):
        if self.model.removed:
            group = self.model.removed.pop(0)
            self.groups.append(group.options)
            self.model.present.append(group)

    def replace_all(self):
        """Add each group again in a new dictionary: a new group, with the same options."""
        groups = self.model.present
        self.clear()
        for group in groups:
            value = group.value
            added = self.new_group(value, group.initial)
            self.optimizer.add_param_group(added.options)
            self.model.present.append(added)

    def load_optimizer(self):
        """Load its own state, as accelerate does: the dictionaries are replaced."""
        state = through_file(self.optimizer.state_dict())
        self.optimizer.load_state_dict(state)
        self.take_over()

    def take_over(self):
        for group, options in zip(self.model.present, self.groups, strict=True):
            group.options = options

    def load_scheduler(self):
        self.update()  # so that all groups are met
        self.scheduler.load_state_dict(through_file(self.scheduler.state_dict()))

    def restart(self):
        """Resume in a new process."""
        self.update()
        states = through_file([self.optimizer.state_dict(), self.scheduler.state_dict()])
        if not self.groups:
            return
        rebuilt = [self.new_group(0.0625) for _ in self.groups]
        self.optimizer = SGD([group.options for group in rebuilt], lr=0.125)
        self.scheduler = self.new_scheduler()
        self.optimizer.load_state_dict(states[0])
        self.scheduler.load_state_dict(states[1])
        self.model.removed = []
        self.take_over()

    def roll_back(self):
        """Load the states of some updates ago."""
        self.update()
        saved = copy.deepcopy([self.optimizer.state_dict(), self.scheduler.state_dict()])
        counts, metrics = [*self.counts], [*self.metrics]
        for _ in range(3):
            self.update()
        self.optimizer.load_state_dict(saved[0])
        self.scheduler.load_state_dict(saved[1])
        self.counts, self.metrics = counts, metrics
        self.take_over()
        self.model.write(self.multiplier())

    def set_base(self):
        """Set the base of each group."""
        if self.setting.is_sequence:
            return
        bases = [0.5 - index / 64 for index in range(len(self.groups))]
        if self.setting.key == "lr":
            self.scheduler.set_peak(bases)
        else:
            self.scheduler.set_base_value(bases)
        self.model.meet(self.multiplier(), writes=True)
        for group, base in zip(self.model.present, bases, strict=True):
            group.base = group.initial = base
        self.model.write(self.multiplier())

    def write_bases(self):
        """Write into `base_lrs`; it counts from the next step on."""
        self.update()  # so that the list has all groups
        if self.groups and not self.setting.is_sequence:
            self.scheduler.base_lrs[-1] *= 0.5
            group = self.model.present[-1]
            assert group.base is not None
            if group.initial == group.base:  # else other code has written it
                group.initial = group.base / 2
            group.base /= 2
            self.step()

    def write_initial(self):
        """Write the entry with the base into a known group: no effect until it is met again."""
        self.update()
        if self.groups and not self.setting.is_sequence:
            self.groups[0][self.base_key] = 0.5
            self.model.present[0].initial = 0.5

    def copy(self):
        everything = (self.optimizer, self.scheduler, self.model)
        self.optimizer, self.scheduler, self.model = copy.deepcopy(everything)

    def pickle(self):
        pickled = pickle.dumps((self.optimizer, self.scheduler, self.model))
        self.optimizer, self.scheduler, self.model = pickle.loads(pickled)

    def second_phase(self):
        """Build a new scheduler. The old one lives on, and writes no more."""
        self.earlier = self.scheduler
        self.build(SECOND)


OPERATIONS = [
    Program.update,
    Program.big_update,
    Program.add,
    Program.add_with_a_base,
    Program.remove_first,
    Program.clear,
    Program.reverse,
    Program.add_again,
    Program.append_again,
    Program.replace_all,
    Program.load_optimizer,
    Program.load_scheduler,
    Program.restart,
    Program.roll_back,
    Program.set_base,
    Program.write_bases,
    Program.write_initial,
    Program.copy,
    Program.pickle,
    Program.second_phase,
]
operations = st.lists(st.sampled_from(OPERATIONS), max_size=12)


@every_setting
@pytest.mark.parametrize("make_value", [float, torch.tensor])
@examples(60)
@example(operations=[Program.restart, Program.reverse])
@example(operations=[Program.second_phase, Program.update, Program.add])
@given(operations=operations)
def test_program_follows_the_model(setting, make_value, operations):
    program = Program(setting, make_value)
    for operation in operations:
        operation(program)
        program.check()
    program.update()
    program.check()
