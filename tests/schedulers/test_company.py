"""Schedulers in company: optimizers whose groups change, that are wrapped or replaced, and others' states."""

import copy
import pickle
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from support.curves.descriptions import scaled
from support.examples import examples
from support.lines import Lines, Stop
from support.schedulers.runs import advance, learning_rate, lrs_of, optimizer_with
from support.training.models import Net, mean_loss
from support.training.steps import equal_trees, through_file
from torch.nn import Parameter
from torch.optim import SGD, AdamW, Optimizer, lr_scheduler as torchs
from torch.optim.lr_scheduler import LambdaLR

from plateau_jax import CurveWarning, PlateauCurve, StagedCurve, resume_record
from torch_bridge import TrainStep, follow, lambda_lr

CURVE = PlateauCurve(100, warmup_steps=10, plateaus=[(50, 20)], min_lr_ratio=0.1)
LINEAR = PlateauCurve(200, decay_shape="linear")
CURVES = [CURVE, LINEAR, StagedCurve([(50, 0.25), (100, 1.0)], start=0.5)]


def parameter() -> Parameter:
    made = Parameter(torch.ones(1))
    made.grad = torch.ones(1)
    return made


# Groups that come, go and move.

MOVES = [
    *("update", "update", "drop", "come_back", "reverse", "replace", "split", "add"),
    *("load", "save", "peak", "copy", "pickle"),
]


class Groups:
    """An optimizer whose groups change, and the value that each parameter must be trained with."""

    def __init__(self, kind: str, has_common_curve: bool) -> None:
        self.kind, self.key = kind, "lr" if kind == "scheduler" else "weight_decay"
        self.has_common_curve = has_common_curve
        bases = (0.5, 0.25, 0.75)
        curves = [CURVE] * 3 if has_common_curve else CURVES
        self.wanted = dict(enumerate(zip(bases, curves, strict=True)))
        groups = [
            {"params": [parameter(), parameter()], self.key: base, "number": number}
            for number, (base, _) in self.wanted.items()
        ]
        self.optimizer: Optimizer = SGD(groups, lr=0.125)
        self.part: Any = self.build(CURVE if has_common_curve else curves)
        self.step = 0
        self.dropped: list[Any] = []

    def build(self, curve: Any) -> Any:
        if self.kind == "scheduler":
            return lambda_lr(self.optimizer, curve)
        return follow(self.optimizer, self.key, curve)

    @property
    def groups(self) -> list[Any]:
        return self.optimizer.param_groups

    def check(self) -> None:
        for group in self.groups:
            base, curve = self.wanted[group["number"]]
            assert group[self.key] == learning_rate(base, curve, self.step)

    def update(self) -> None:
        hook = self.optimizer.register_step_pre_hook(lambda *_: self.check())  # after the scheduler's
        self.optimizer.step()
        hook.remove()
        self.part.step()
        self.step += 1
        self.check()
        if self.kind == "scheduler":
            assert self.part.get_last_lr() == lrs_of(self.optimizer)

    def drop(self) -> None:
        if self.groups:
            self.dropped = [self.groups.pop(self.step % len(self.groups))]

    def come_back(self) -> None:
        self.groups.extend(self.dropped)
        self.dropped = []

    def reverse(self) -> None:
        self.groups.reverse()

    def replace(self) -> None:
        self.optimizer.param_groups = [dict(group) for group in self.groups]

    def split(self) -> None:
        group = next(iter(self.groups), {"params": []})
        if len(group["params"]) > 1:
            number, other = group["number"], len(self.wanted)
            first, second = group["params"]
            self.groups[:1] = [{**group, "params": [first]}, {**group, "params": [second], "number": other}]
            self.wanted[other] = self.wanted[number]

    def add(self) -> None:
        if self.has_common_curve:
            number = len(self.wanted)
            self.optimizer.add_param_group({"params": [parameter()], self.key: 1.0, "number": number})
            self.wanted[number] = (1.0, CURVE)

    def load(self) -> None:
        self.part.state_dict()  # else the state of the optimizer may have groups without their values
        self.optimizer.load_state_dict(through_file(self.optimizer.state_dict()))

    def save(self) -> None:
        bases = "base_lrs" if self.kind == "scheduler" else "base_values"
        state = through_file(self.part.state_dict())
        wanted = [self.wanted[group["number"]] for group in self.groups]
        assert state[bases] == [base for base, _ in wanted]
        assert state["records"] == [resume_record(curve, base) for base, curve in wanted]
        self.part.load_state_dict(state)
        self.check()

    def peak(self) -> None:
        if self.kind == "scheduler":
            peaks = [0.5 + 0.125 * place for place in range(len(self.groups))]
            self.part.set_peak(peaks)
            for group, peak in zip(self.groups, peaks, strict=True):
                self.wanted[group["number"]] = (peak, self.wanted[group["number"]][1])
            self.check()

    def copy(self) -> None:
        self.optimizer, self.part, self.dropped = copy.deepcopy((self.optimizer, self.part, self.dropped))

    def pickle(self) -> None:
        pickled = pickle.dumps((self.optimizer, self.part, self.dropped))
        self.optimizer, self.part, self.dropped = pickle.loads(pickled)


@pytest.mark.parametrize("kind", ["scheduler", "follower"])
@pytest.mark.parametrize("has_common_curve", [True, False])
@examples(40)
@given(moves=st.lists(st.sampled_from(MOVES), max_size=12))
def test_groups_keep_their_curves_and_peaks(kind: str, has_common_curve: bool, moves: list[str]) -> None:
    run = Groups(kind, has_common_curve)
    for move in moves:
        getattr(run, move)()
    run.update()


@pytest.mark.parametrize("kind", ["scheduler", "follower"])
def test_interrupt_while_groups_are_followed(kind: str) -> None:
    """At every seventh line: afterwards each group still has its own curve and base."""

    def build() -> Groups:
        run = Groups(kind, has_common_curve=False)
        run.update()
        run.reverse()
        run.drop()
        return run

    stops = 0
    while True:
        run = build()
        try:
            with Lines(1 + 7 * stops):
                run.part.state_dict()
            break
        except Stop:
            stops += 1
        run.update()
        run.come_back()
        run.update()
    assert stops > 10


@pytest.mark.parametrize("kind", ["scheduler", "follower"])
def test_curve_per_group_is_built_again_for_a_new_group(kind: str) -> None:
    """The error comes before the update; its advice works, and the old hook raises no more."""
    run = Groups(kind, has_common_curve=False)
    for _ in range(20):
        run.update()
    old = run.part
    run.optimizer.add_param_group({"params": [parameter()], run.key: 1.0, "number": 3})
    parameters = [one for group in run.groups for one in group["params"]]
    weights = [one.clone() for one in parameters]
    steps = [run.optimizer.step, old.step, lambda: old.load_state_dict(old.state_dict())]
    for call in (*steps, run.optimizer.step):
        with pytest.raises(ValueError, match=r"4 parameter groups, but curves for 3 .*new\.load_state_dict"):
            call()
    assert equal_trees(parameters, weights)
    run.wanted[3] = (1.0, CURVE)
    run.part = run.build([*CURVES, CURVE])
    run.part.load_state_dict(old.state_dict())
    for _ in range(3):
        run.update()


@pytest.mark.parametrize("others", [torchs.ConstantLR, torchs.ExponentialLR])
def test_group_added_under_another_scheduler_is_left_to_it(others: Any) -> None:
    """Ours waits for its turn in a `SequentialLR`."""
    optimizer = optimizer_with([0.5])
    first = others(optimizer, 0.5)
    ours = lambda_lr(optimizer, CURVE)
    scheduler = torchs.SequentialLR(optimizer, [first, ours], [4])
    advance(optimizer, scheduler, 2)
    optimizer.add_param_group({"params": [parameter()], "lr": 0.25})
    before = lrs_of(optimizer)
    optimizer.step()
    assert lrs_of(optimizer) == before
    for group in optimizer.param_groups:
        group["lr"] *= 0.5  # as the scheduler in charge may do
    ours.step()  # as the sequence does, but for torch's first part, which takes no other groups
    assert lrs_of(optimizer) == [learning_rate(peak, CURVE, 0) for peak in (0.5, 0.25)]


@pytest.mark.parametrize("stage", [2, 3])
def test_one_call_of_the_optimizer_for_each_group_is_one_update(stage: int) -> None:
    """DeepSpeed shows one group at a time, or empties the others: no group is lost, and nothing warns."""
    optimizer = optimizer_with([0.5] * 24)
    scheduler = lambda_lr(optimizer, PlateauCurve(1000))
    groups = optimizer.param_groups
    parameters = [group["params"] for group in groups]
    for step in range(100):
        for group, own in zip(groups, parameters, strict=True):
            assert group["lr"] == learning_rate(0.5, scheduler.curves[0], step)
            if stage == 2:
                optimizer.param_groups = [group]
            for other in groups:
                other["params"] = own if other is group else []
            optimizer.step()
        optimizer.param_groups = groups
        scheduler.step()


def test_optimizer_without_groups_gets_one_later() -> None:
    optimizer, later = optimizer_with([0.5], AdamW), parameter()
    optimizer.step()
    optimizer.param_groups.clear()
    assert lambda_lr(optimizer, CURVE, 5).curve_step == 6
    assert lambda_lr(optimizer, scaled()).unit == 8
    scheduler = lambda_lr(optimizer, CURVE)
    advance(optimizer, scheduler, 60)
    optimizer.add_param_group({"params": [later], "lr": 0.25})
    advance(optimizer, scheduler)
    assert lrs_of(optimizer) == scheduler.get_last_lr() == [learning_rate(0.25, CURVE, 61)]


# Factors of an option in the groups.

SCALED = [
    *(("lr", key) for key in ("lr_scale", "lr_mult", "lr_multiplier")),
    ("weight_decay", "wd_multiplier"),
]


@pytest.mark.parametrize(("option", "key"), SCALED)
@pytest.mark.parametrize("form", [float, torch.tensor])
def test_factor_in_a_group_warns_with_the_line_that_applies_it(option: str, key: str, form: Any) -> None:
    def start(scales: list[float]) -> Any:
        groups = [{"params": [parameter()], key: scale} for scale in scales]
        return AdamW(groups, **{option: form(0.5)})

    def drive(optimizer: Any) -> Any:
        return lambda_lr(optimizer, LINEAR) if option == "lr" else follow(optimizer, option, LINEAR)

    drive(start([1.0, 1]))
    optimizer = start([1.0, 0.5, 0.25])
    with pytest.warns(CurveWarning, match=f"2 of 3 parameter groups have a factor {key}") as caught:
        drive(optimizer)
    line = str(caught[0].message).rpartition(": ")[2]
    optimizer = start([1.0, 0.5, 0.25])
    for group in optimizer.param_groups:
        exec(line, {"group": group})
    part = drive(optimizer)
    optimizer.step()
    part.step()
    wanted = [learning_rate(base, LINEAR, 1) for base in (0.5, 0.25, 0.125)]
    assert [float(group[option]) for group in optimizer.param_groups] == wanted
    optimizer.add_param_group({"params": [parameter()], key: 0.5})
    with pytest.warns(CurveWarning, match=f"1 of 1 parameter groups have a factor {key}"):
        optimizer.step()


def test_factor_in_a_group_of_a_training_step_warns() -> None:
    model = Net()
    optimizer = SGD([{"params": model.parameters(), "lr_scale": 0.5}], lr=0.5)
    with pytest.warns(CurveWarning, match="have a factor lr_scale"):
        TrainStep(model, optimizer, mean_loss, CURVE)


# Optimizers that are not plain.


class WithoutHooks(Optimizer):
    """A wrapper that is an optimizer only by its class."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.param_groups, self.defaults = inner, inner.param_groups, inner.defaults

    def step(self, closure: Any = None) -> Any:
        return self.inner.step(closure)


class StepOfAnother:
    """Another object, whose method makes the update."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def step(self) -> None:
        self.inner()


def replaced(optimizer: Any, form: Any) -> Any:
    optimizer.step = form(optimizer.step)
    return optimizer


NOT_PLAIN: dict[str, Any] = {
    "partial": lambda optimizer: replaced(optimizer, partial),
    "method of another object": lambda optimizer: replaced(optimizer, lambda step: StepOfAnother(step).step),
    "compiled": lambda optimizer: replaced(optimizer, lambda step: torch.compile(step, backend="eager")),
    "no hooks": WithoutHooks,
}


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name == "compiled")) for name in NOT_PLAIN]
)
def test_optimizer_that_is_not_plain_trains_with_the_curve(name: str) -> None:
    inner, plain = optimizer_with([torch.tensor(0.5)]), optimizer_with([torch.tensor(0.5)])
    optimizer = NOT_PLAIN[name](inner)
    scheduler, reference = lambda_lr(optimizer, CURVE), lambda_lr(plain, CURVE)
    decay = follow(optimizer, "weight_decay", CURVE)
    for step in range(5):
        assert lrs_of(inner) == [learning_rate(0.5, CURVE, step)]
        advance(optimizer, scheduler)
        decay.step()
        advance(plain, reference)
    assert equal_trees(inner.param_groups[0]["params"], plain.param_groups[0]["params"])
    inner.add_param_group({"params": [parameter()], "lr": torch.tensor(0.25)})
    optimizer.step()
    scheduler.step()
    assert lrs_of(inner) == [learning_rate(peak, CURVE, 6) for peak in (0.5, 0.25)]
    scheduler.load_state_dict(through_file(scheduler.state_dict()))


# The order of steps.


def test_first_scheduler_step_before_the_optimizers_warns_as_in_torch() -> None:
    for build in (lambda_lr, lambda optimizer, curve: LambdaLR(optimizer, curve)):
        scheduler = build(optimizer_with([0.5]), CURVE)
        with pytest.warns(UserWarning, match="`lr_scheduler.step\\(\\)` before `optimizer.step"):
            scheduler.step()
        for _ in range(5):
            scheduler.step()
    optimizer = optimizer_with([0.5])
    advance(optimizer, lambda_lr(optimizer, CURVE))
    lambda_lr(optimizer, CURVE).step()  # the optimizer has been stepped
    scheduler = lambda_lr(optimizer_with([0.5]), CURVE)
    copy.deepcopy(scheduler).step()  # of which torch says that `optimizer.step` was replaced


# States.


def loaded(state: Any, peak: float = 0.5, curve: Any = CURVE) -> tuple[Optimizer, Any]:
    optimizer = optimizer_with([peak, peak])
    scheduler = lambda_lr(optimizer, curve)
    scheduler.load_state_dict(through_file(state))
    return optimizer, scheduler


def test_saved_peak_is_used_and_warns_unless_it_was_set() -> None:
    """`set_peak` is handed on by the states of later runs."""
    optimizer, scheduler = loaded(lambda_lr(optimizer_with([0.5, 0.5]), CURVE).state_dict())
    advance(optimizer, scheduler, 20)
    with pytest.warns(CurveWarning, match=r"peak_value=0\.5, now 0\.25\. .*set_peak\(0\.25\)"):
        other, again = loaded(scheduler.state_dict(), 0.25)
    assert lrs_of(other) == lrs_of(optimizer)
    again.set_peak(0.25)
    for _ in range(2):
        other, again = loaded(again.state_dict(), 0.125)
        assert again.base_lrs == [0.25, 0.25]
    advance(other, again)
    again.load_state_dict(scheduler.state_dict())  # a rollback in a run that has set its peak


def test_saved_peak_of_a_training_step_warns_too() -> None:
    def build(peak: float) -> TrainStep:
        model = Net()
        return TrainStep(model, SGD(model.parameters(), lr=peak), mean_loss, CURVE)

    saved, step = build(0.5), build(0.25)
    with pytest.warns(CurveWarning, match=r"peak_value=0\.5, now 0\.25\. .*step\.set_peak\(0\.25\)"):
        step.load_state_dict(through_file(saved.state_dict()))
    step.load_state_dict(saved.state_dict())
    step.set_peak(0.25)
    for _ in range(2):
        state = through_file(step.state_dict())
        step = build(0.125)
        step.load_state_dict(state)
    assert step.state_dict()["optimizer"]["param_groups"][0]["initial_lr"] == 0.25


@pytest.mark.parametrize("optimizer_is_loaded", [False, True])
@pytest.mark.parametrize("slower", [CURVE, CURVE.part(0, 40).then(LINEAR), CURVE.cooldown(40, 9)])
def test_state_of_a_scheduler_on_the_same_optimizer(slower: Any, optimizer_is_loaded: bool) -> None:
    optimizer = optimizer_with([0.5, 0.25])
    old = lambda_lr(optimizer, CURVE)
    advance(optimizer, old, 40)
    state = optimizer.state_dict()
    new = lambda_lr(optimizer, slower)
    if optimizer_is_loaded:
        optimizer.load_state_dict(copy.deepcopy(state))
    new.load_state_dict(old.state_dict())
    for step in (40, 41):
        wanted = [learning_rate(peak, slower, step) for peak in (0.5, 0.25)]
        assert lrs_of(optimizer) == new.get_last_lr() == wanted
        advance(optimizer, new)


def with_warmup(optimizer: Optimizer) -> Any:
    parts: list[Any] = [
        torchs.LinearLR(optimizer, 0.1, total_iters=5),
        torchs.CosineAnnealingLR(optimizer, 50),
    ]
    return torchs.SequentialLR(optimizer, parts, [5])


OTHERS: dict[str, Any] = {
    "LambdaLR": lambda optimizer: LambdaLR(optimizer, lambda step: 1 / (1 + step)),
    "SequentialLR": with_warmup,
    "ChainedScheduler": lambda optimizer: torchs.ChainedScheduler([with_warmup(optimizer)]),
}


@pytest.mark.filterwarnings("ignore:The epoch parameter")  # which SequentialLR passes
@pytest.mark.parametrize("optimizer_first", [False, True])
@pytest.mark.parametrize("name", OTHERS)
def test_state_without_a_curve_continues_at_its_step(name: str, optimizer_first: bool) -> None:
    old = optimizer_with([0.5, 0.25])
    others = OTHERS[name](old)
    advance(old, others, 12)
    optimizer = optimizer_with([0.5, 0.25])
    scheduler = lambda_lr(optimizer, CURVE)
    if optimizer_first:
        optimizer.load_state_dict(through_file(old.state_dict()))
    with pytest.warns(CurveWarning, match="without a curve: this curve continues at step 12"):
        scheduler.load_state_dict(copy.deepcopy(others.state_dict()))
    for step in (12, 13):
        assert lrs_of(optimizer) == [learning_rate(peak, CURVE, step) for peak in (0.5, 0.25)]
        advance(optimizer, scheduler)
    again = optimizer_with([0.5, 0.25])
    lambda_lr(again, CURVE).load_state_dict(scheduler.state_dict())  # which has a curve, so does not warn
    assert lrs_of(again) == lrs_of(optimizer)
