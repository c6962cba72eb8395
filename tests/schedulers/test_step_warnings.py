"""Warnings of `torch_bridge.schedulers.step_warnings`: wrong programs warn once, and right ones never."""

import copy
import gc
import pickle
import re
import warnings
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Self

import pytest
import torch
from support.schedulers.runs import lrs_of, optimizer_with
from support.training.optimizers import ADAGRAD_RECREATES_STATES
from support.training.steps import through_file
from torch.optim import SGD, Adafactor, Adagrad, Adam, AdamW, NAdam, RMSprop, lr_scheduler as torchs
from torch.optim.swa_utils import SWALR

from plateau_jax import CurveWarning, DataClock, HoldBelow, PlateauCurve, StagedCurve
from torch_bridge import follow, lambda_lr
from torch_bridge.clocks.position_warnings import end_message
from torch_bridge.param_groups import loaded_updates, updates_made

pytestmark = [
    pytest.mark.filterwarnings("ignore:The epoch parameter:UserWarning"),  # which SequentialLR passes
    pytest.mark.filterwarnings("ignore:Detected call of:UserWarning"),  # without updates, as in torch
]

LONG = PlateauCurve(10_000, min_lr_ratio=0.1)
WARMUP = PlateauCurve(10_000, warmup_steps=100)
CURVE = PlateauCurve(100, warmup_steps=10, plateaus=[(50, 20)], min_lr_ratio=0.1)
SHORT = PlateauCurve(10)
FLOOR = PlateauCurve(10, min_lr_ratio=0.1)
TO_A_PLATEAU = StagedCurve([(5, 1.0), (9000,)])
SPIKE = StagedCurve([(100,), (100, 1.0), (0, 0.5), (9000,)], start=0.5)
MOMENTUM: Any = partial(SGD, momentum=0.9)
NEVER_HOLDS = HoldBelow(-1.0, 1)

Build = Callable[[Any], Any]


def ours(curve: Any, *arguments: Any, **options: Any) -> Build:
    return lambda optimizer: lambda_lr(optimizer, curve, *arguments, **options)


def with_options(build: Build, **options: Any) -> Build:
    """Return a scheduler that is stepped like the others, without its metric or count."""

    def built(optimizer: Any) -> Any:
        scheduler = build(optimizer)
        scheduler.step = partial(scheduler.step, **options)
        return scheduler

    return built


def sequence(*parts: Build, at: Sequence[int] = (15,)) -> Build:
    return lambda optimizer: torchs.SequentialLR(optimizer, [part(optimizer) for part in parts], [*at])


def chain(*parts: Build) -> Build:
    return lambda optimizer: torchs.ChainedScheduler([part(optimizer) for part in parts], optimizer)


constant: Build = partial(torchs.ConstantLR, factor=1.0, total_iters=10)
linear: Build = partial(torchs.LinearLR, start_factor=0.5, total_iters=9)
fading: Build = partial(torchs.LinearLR, start_factor=1.0, end_factor=0.0, total_iters=1)
cosine: Build = partial(torchs.CosineAnnealingLR, T_max=2000)
averaging: Build = partial(SWALR, swa_lr=0.05, anneal_epochs=3)
decay: Build = partial(follow, key="weight_decay", curve=LONG)


def up_to(steps: int) -> Build:
    return ours(StagedCurve([(steps, 1.0)]))


a_curve, a_warmup = ours(LONG), ours(WARMUP)


class Training:
    """An optimizer of two groups, the schedulers and followers in charge, and what a program does."""

    def __init__(self, kind: Any = SGD, form: Any = float, lr: float = 0.1) -> None:
        options = {"weight_decay": 0.5} | ({"momentum": 0.5} if kind is SGD else {})
        self.kind, self.form = kind, form
        self.optimizer = optimizer_with([form(lr), form(lr)], kind, **options)
        self.built = self.parts = list[Any]()

    def of(self, kind: Any, lr: float = 0.1) -> Self:
        """Begin with another kind of optimizer."""
        self.__init__(kind, self.form, lr)
        return self

    def use(self, *builds: Build) -> Self:
        """Build what is in charge from now on."""
        self.built = self.parts = [build(self.optimizer) for build in builds]
        return self

    def take(self, *numbers: int) -> Self:
        """Put those in charge that were built together with others."""
        self.parts = [self.built[number] for number in numbers]
        return self

    def updates(self, count: int) -> Self:
        for _ in range(count):
            self.optimizer.step()
        return self

    def steps(self, count: int = 1) -> Self:
        for _ in range(count):
            for part in self.parts:
                part.step()
        return self

    def train(self, count: int) -> Self:
        return self.epochs(1, count)

    def epochs(self, updates: int, count: int, steps: int = 1) -> Self:
        """Make some steps after these updates, this number of times."""
        for _ in range(count):
            self.updates(updates).steps(steps)
        return self

    def set(self, **options: float) -> Self:
        """Write into the groups as a user does."""
        for group in self.optimizer.param_groups:
            for name, value in options.items():
                if isinstance(group.get(name), torch.Tensor):
                    group[name].fill_(value)
                else:
                    group[name] = value
        return self

    def peak(self, peak: float) -> Self:
        for part in self.parts:
            for scheduler in getattr(part, "_schedulers", [part]):
                scheduler.set_peak(peak)
        return self

    def states(self) -> list[Any]:
        parts = [self.optimizer, *self.parts]
        return through_file([part.state_dict() for part in parts])

    def load(self, state: Any, *, optimizer: bool = True, parts: bool = False) -> Self:
        chosen = [self.optimizer] * optimizer + self.parts * parts
        states = state[:1] * optimizer + state[1:] * parts
        for part, saved in zip(chosen, states, strict=True):
            part.load_state_dict(copy.deepcopy(saved))
        return self

    def lost(self) -> Any:
        """Return the states of an earlier run of a different peak, which ended."""
        return Training(self.kind, lr=0.01).use(a_curve).train(20).states()

    def resumed(self) -> Self:
        """Return the run as another process resumes it."""
        return Training(self.kind, self.form)

    def copied(self, way: Callable[[Any], Any] = copy.deepcopy) -> Self:
        self.optimizer, self.parts = way((self.optimizer, self.parts))
        return self


SCHEDULERS: dict[str, Callable[[Any], Build]] = {
    "lambda_lr": ours,
    "held": lambda curve: with_options(ours(curve, clock=NEVER_HOLDS), metric=0.5),
    "unit": lambda curve: ours(curve, clock=DataClock(8, count=8)),
    "curves": lambda curve: ours([curve, curve]),
    "chained": lambda curve: chain(ours(curve), constant),
    "first": lambda curve: sequence(ours(curve), constant, at=(3000,)),
}

# Wrong programs.

CALLED = r"^scheduler\.step\(\) was called {} times in the last \d+ optimizer steps"
NEVER, FEW = CALLED.format("0"), CALLED.format(r"\d")
OFF = r'turn this warning off: warnings\.filterwarnings\("ignore", "scheduler\.step"\)$'
RARELY = CALLED + r"\. Call scheduler\.step\((count=n)?\) once after every optimizer\.step\(\).*" + OFF
AT_0 = (
    CALLED.format(r"\d+")
    + ", and the curve stays at step 0, where every learning rate is 0, so no weight changes"
)
OFF_PAST = r'turn this warning off: warnings\.filterwarnings\("ignore", "the curve has total_steps"\)$'
PAST = r"^the curve has total_steps = 10, but training continues at step \d+, with every learning rate at "
LACKS = r"^the optimizer has made {}, .*, scheduler\.load_state_dict\(state\){}\. .*set_peak\({}\)$"
LACKS_20 = LACKS.format("20 updates", ".*", ".*")
LOADED = (
    r"^the optimizer has made updates, but the curve starts at step 0: .*\(state\)\. .*set_peak\(0\.01\)$"
)

Program = Callable[[Training], Any]

# Steps that do not fit the updates, for each kind of scheduler: they are called {} times.
WRONG_STEPS: dict[str, tuple[Program, str]] = {
    "never": (lambda run: run.updates(520), "0"),
    "once an epoch": (lambda run: run.epochs(60, 5), r"[012]"),
    "in one of ten updates": (lambda run: run.train(5).epochs(10, 70), r"\d+"),
    "three times in two updates": (lambda run: run.epochs(2, 60, steps=3), r"\d+"),
    "never after a resume": (lambda run: run.train(3).load(run.states(), parts=True).updates(520), "0"),
}
WRONG: dict[str, tuple[Program, str]] = {
    "past the end": (lambda run: run.use(ours(SHORT)).train(170), PAST + "0"),
    "past the end at a floor": (
        lambda run: run.use(ours(FLOOR)).train(1350),
        PAST + "its final value since step 10: does the curve count epochs.*" + OFF_PAST,
    ),
    "past the end at a floor, in units": (
        lambda run: run.use(ours(FLOOR, clock=DataClock(8, count=8))).train(1350), "is the unit too small",
    ),
    "lost state, optimizer loaded later": (
        lambda run: run.of(AdamW, 1e-5).use(a_curve).load(run.lost()).train(60),
        LACKS.format("20 updates", "; or pass last_epoch=19", "1e-05"),
    ),
    "large unit": (
        lambda run: run.use(ours(CURVE, clock=DataClock(10**6, count=10))).train(99),
        AT_0 + ": all updates consumed 420 in units of 1000000. Choose a",
    ),
    "epochs on a plateau": (
        lambda run: run.use(ours(PlateauCurve(5000, plateaus=[(0, 80)]))).epochs(250, 25), FEW,
    ),
    "two of ours": (lambda run: run.use(sequence(a_curve, a_curve, at=(3,))).epochs(60, 9), FEW),
    "lost momentum": (lambda run: run.of(MOMENTUM).load(run.lost()).use(a_curve).train(9), LOADED),
    "lost state of plain SGD, loaded later": (
        lambda run: run.of(SGD, 0.01).use(a_curve).load(run.lost()).train(9), LOADED,
    ),
    "lost state, options in another order": (  # as torch.distributed.checkpoint loads them
        lambda run: [
            state := run.of(AdamW).lost(), run.load(state),
            [group.update(params=group.pop("params"), initial_lr=group.pop("initial_lr"))
             for group in run.optimizer.param_groups],
            run.use(a_curve).train(9),
        ], LACKS_20,
    ),
    "lost state of an older torch, without an option": (
        lambda run: [
            state := run.of(AdamW).lost(),
            [group.pop("maximize") for group in state[0]["param_groups"]],
            run.load(state).use(a_curve).train(9),
        ], LACKS_20,
    ),
    "never, over a spike": (lambda run: run.use(ours(SPIKE)).updates(520), NEVER),
    "loaded and set by hand": (
        lambda run: run.load(run.lost()).set(lr=0.1, initial_lr=0.1).use(a_curve).train(60),
        LOADED.replace("01", "1"),
    ),
    "lost state of the second in a sequence": (
        lambda run: run.of(AdamW).load(run.lost()).use(sequence(constant, a_curve)).train(20), LACKS_20,
    ),
    "lost state, new peak in the first part only": (
        lambda run: [
            run.of(AdamW).load(run.lost()).use(sequence(a_curve, a_curve, at=(10,))),
            run.parts[0]._schedulers[0].set_peak(1.0), run.train(20),
        ], LACKS_20,
    ),
}  # fmt: skip


def check_warning(program: Callable[[], Any], pattern: str) -> str:
    """Check that a program warns once, at the user's line, and how to filter it; return the warning."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CurveWarning)
        program()
    (one,) = (warning for warning in caught if warning.category is CurveWarning)
    message = str(one.message)
    assert re.search(pattern, message), message
    assert one.filename == __file__
    for filtered in re.findall(r'filterwarnings\("ignore", "(.*)"\)', message):
        assert re.match(filtered, message)
    return message


@pytest.mark.parametrize("kind", SCHEDULERS)
@pytest.mark.parametrize("name", WRONG_STEPS)
def test_steps_that_do_not_fit_the_updates_warn_once(kind: str, name: str) -> None:
    """A copy does not repeat it."""
    program, times = WRONG_STEPS[name]
    run = Training().use(SCHEDULERS[kind](LONG))
    message = check_warning(lambda: program(run), RARELY.format(times))
    is_often = "three times" in name and kind != "unit"
    assert ("accelerator.num_processes" in message) == is_often
    assert ("step(count=n)" in message) == (kind == "unit")
    if kind in ("lambda_lr", "curves"):
        run.copied().epochs(60, 9).epochs(1, 90, steps=2)


@pytest.mark.parametrize("kind", SCHEDULERS)
def test_lost_state_warns_once(kind: str) -> None:
    run = Training(AdamW, torch.tensor, lr=1e-5)
    last_epoch = "" if kind == "unit" else "; or pass last_epoch=19"
    check_warning(
        lambda: run.load(run.lost()).use(SCHEDULERS[kind](LONG)).train(60),
        LACKS.format("20 updates", last_epoch, "0.01"),
    )


@pytest.mark.parametrize("name", WRONG)
def test_wrong_program_warns_once(name: str) -> None:
    program, pattern = WRONG[name]
    check_warning(lambda: program(Training(form=torch.tensor)), pattern)


@pytest.mark.parametrize("total", [1, 112, 3000])
@pytest.mark.parametrize("unit", [None, 40])
def test_end_is_far_past_by_its_rule(total: int, unit: int | None) -> None:
    """At 0, ten steps and 1 % past it; at a floor, at ten times the steps, and after 1000 updates there."""
    for clock in (total, total + max(10, total // 100), total + max(10, total // 100) + 1):
        message = end_message([PlateauCurve(total)], unit, clock, clock)
        assert bool(message) == (clock > total + max(10, total // 100))
        assert ("in units of 40" in message) == bool(message and unit)
    floor = [PlateauCurve(total, min_lr_ratio=0.1), SHORT]
    for clock in (10 * total, 10 * total + 20, 1001 * total, 1002 * total):
        for updates in (clock, clock // 7):
            is_far = clock > 10 * total and updates * (clock - total) / clock > 1000
            if total > 10:
                assert bool(end_message(floor, unit, clock, updates)) == is_far


@pytest.mark.parametrize(
    ("pattern", "last_epoch"),
    [("o" * 60 + "s", -1), ("oss", -1), ("os", 1000)],
    ids=["rarely", "often", "past the end"],
)
def test_warning_as_error_changes_nothing(pattern: str, last_epoch: int) -> None:
    """Of optimizer steps (o) and scheduler steps (s)."""
    run = Training().use(ours(FLOOR, last_epoch), decay)

    def states() -> Any:
        return run.states()[1:], lrs_of(run.optimizer)

    for event in pattern * 300:
        before = states()
        try:
            run.steps() if event == "s" else run.updates(1)
        except CurveWarning:
            assert states() == before
            return
    pytest.fail("no warning")


@pytest.mark.parametrize("advice", ["state", "last_epoch", "set_peak"])
def test_advice_about_a_missing_state_works(advice: str) -> None:
    run = Training(AdamW, lr=1e-5)
    run.load(state := run.lost()).use(ours(LONG, 19 if advice == "last_epoch" else -1))
    if advice == "state":
        run.load(state, optimizer=False, parts=True)
    elif advice == "set_peak":
        run.peak(1e-5)
    peak, step = (1e-5, 5) if advice == "set_peak" else (0.01, 25)
    assert lrs_of(run.train(5).optimizer)[0] == pytest.approx(peak * LONG(step))


# Right programs, on plain SGD and on AdamW with learning rates in tensors.


def _range_test(run: Training) -> None:
    before = lrs_of(run.optimizer)[0]
    for update in range(200):
        run.set(lr=1e-6 * 1.01**update).updates(1)
    run.set(lr=before)


def _new_group(run: Training) -> None:
    run.use(a_curve).train(50)
    run.optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))], "lr": 1e-3})
    run.train(600).use(cosine).train(600)


def _best_state(run: Training) -> None:
    """The best state comes back, with the learning rate of its time, and another phase begins."""
    best = run.use(a_curve).train(20).peak(0.5).train(20).states()
    run.train(20).load(best).use(a_warmup).train(30).use(a_curve).load(best).train(30)


RIGHT: dict[str, Program] = {
    "every kind": lambda run: [run.resumed().use(build(CURVE)).train(105) for build in SCHEDULERS.values()],
    "once for each of four processes": lambda run: (
        run.use(ours(LONG, clock=DataClock(4, count=1))).epochs(1, 700, steps=4)
    ),
    "no steps after the end at a floor": lambda run: run.use(ours(FLOOR)).train(15).updates(700),
    "unit of 20 updates": lambda run: run.use(ours(CURVE, clock=DataClock(200, count=10))).train(100),
    "range test": lambda run: [run.use(a_curve).train(30), _range_test(run), run.train(60)],
    "averaging": lambda run: [
        run.use(averaging, ours(CURVE)), [run.take(1).train(20).take(0).epochs(20, 1) for _ in range(4)],
    ],
    "plots": lambda run: [run.use(ours(CURVE)), [run.train(n).steps(50) for n in (0, 2, 30, 1)]],
    "sequence that fades": lambda run: run.use(sequence(fading, ours(CURVE), at=(3,))).epochs(31, 1),
    "fp16, whose bad updates are skipped": lambda run: [
        run.use(ours(CURVE)),
        [run.epochs(int(n not in (10, 12, 30, 31, 32, 50)), 1) for n in range(100)],
    ],
    "two epochs above 0": lambda run: run.use(a_curve).epochs(30, 2).use(ours([CURVE, LONG])).epochs(30, 2),
    "frozen past the end": lambda run: run.set(lr=0.0).use(ours(SHORT)).train(200),
    "late now and then": lambda run: [run.use(a_curve), [run.epochs(12, 1).train(1) for _ in range(60)]],
    "accumulation": lambda run: run.use(a_curve).epochs(9, 150),
    "plateau": lambda run: run.use(ours(PlateauCurve(10_000, plateaus=[(0, 50)]))).updates(1350),
    "plateau of the first in a sequence": lambda run: (
        run.use(sequence(ours(StagedCurve([(5000, 1.0)], start=1.0)), a_curve, at=(5000,))).updates(1350)
    ),
    "unit that lasts": lambda run: run.use(ours(LONG, clock=DataClock(10**6, count=1))).epochs(60, 9),
    "held for long": lambda run: (
        run.use(with_options(ours(LONG, clock=HoldBelow(1.0, 99)), metric=0.5)).epochs(60, 9)
    ),
    "ends at its highest level": lambda run: run.use(ours([FLOOR, StagedCurve([(5, 1.0)])])).train(1350),
    "jump past the end": lambda run: run.use(ours(FLOOR, 5000)).train(90),
    "resumed past the end": lambda run: [
        state := run.use(ours(FLOOR, 5000)).train(1).states(),
        run.resumed().use(ours(FLOOR)).load(state, parts=True).train(90),
    ],
    "phases": lambda run: [run.use(one).train(700) for one in (a_curve, a_warmup, ours(TO_A_PLATEAU))],
    "phases of others": lambda run: [
        run.use(one).train(20) for one in (cosine, a_curve, a_warmup, linear)
    ],
    "phases built at once": lambda run: (
        run.use(ours(StagedCurve([(100, 1.0), (900,)])), a_curve).take(0).train(1000).take(1).train(1000)
    ),
    "second begins when the first ends": lambda run: (
        run.use(up_to(50), a_curve).take(0).train(50).take(0, 1).train(850)
    ),
    "plateau scheduler takes over": lambda run: (
        run.use(up_to(20), with_options(torchs.ReduceLROnPlateau, metrics=0.5))
        .take(0)
        .train(20)
        .take(1)
        .train(1100)
    ),
    "new group": _new_group,
    "loop by hand first": lambda run: run.updates(30).use(a_curve).train(60),
    "set_peak": lambda run: run.use(a_curve).train(30).set(lr=1e-4).use(a_warmup).peak(1e-4).train(60),
    "best state": _best_state,
    "initial state": lambda run: [state := run.states(), run.use(a_warmup).load(state).train(60)],
    "own state": lambda run: [run.use(a_curve), run.load(run.states()).train(60)],  # as accelerate does
    "last_epoch": lambda run: run.load(run.lost()).use(ours(LONG, 19)).train(60),
    "fast-forward": lambda run: run.load(run.lost()).use(a_curve).steps(20).train(60),
    "loaded, new peaks": lambda run: run.load(run.lost()).use(sequence(a_curve, a_curve)).peak(1.0).train(60),
    "loaded after an update": lambda run: [
        state := run.lost(),
        run.of(run.kind, 0.01).use(a_curve).load(state).updates(1),
        run.load(state, optimizer=False, parts=True).train(60),
    ],
    # Torch does not note the steps of a copied optimizer, nor do we.
    "copies": lambda run: [
        run.resumed().use(a_curve).train(updates).copied(way).epochs(60, 9).epochs(1, 90, steps=2)
        for way in (copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))) for updates in (0, 3)
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize(("kind", "form"), [(SGD, float), (AdamW, torch.tensor)], ids=["SGD", "AdamW"])
def test_right_program_is_silent(name: str, kind: Any, form: Any) -> None:
    RIGHT[name](Training(kind, form))


@pytest.mark.parametrize(
    ("start", "kind"),
    [*((start, AdamW) for start in SCHEDULERS), ("lambda_lr", Adagrad), ("lambda_lr", MOMENTUM)],
)
@pytest.mark.parametrize("updates", [0, 1, 20])
def test_run_that_loads_its_states_is_silent(start: str, kind: Any, updates: int) -> None:
    build = SCHEDULERS[start](CURVE)
    state = Training(kind).use(build).train(updates).states()
    run = Training(kind)
    run.resumed().load(state).use(build).load(state, optimizer=False, parts=True).train(30)
    run.resumed().use(build).load(state, parts=True).train(30)
    run.resumed().use(build).load(state, optimizer=False, parts=True).load(state).train(30)


@pytest.mark.usefixtures("frozen")
def test_collected_schedulers_are_not_kept() -> None:
    """One that was stepped lives no longer than the user's reference, and another one replaces it."""
    optimizer = optimizer_with([0.1])
    optimizer.register_step_post_hook(lambda *_: gc.collect() and None)  # while the hooks are iterated over
    for _ in range(3):
        scheduler: Any = lambda_lr(optimizer, CURVE)
        gone = weakref.ref(scheduler)
        assert len(optimizer._optimizer_step_pre_hooks) == 1
        scheduler.cycle = scheduler
        for _ in range(21):
            optimizer.step()
            scheduler.step()
        del scheduler
        optimizer.step()
        assert gone() is None


# What an optimizer's state shows.


@pytest.mark.parametrize("build", [Adagrad, Adam, partial(AdamW, fused=True), Adafactor, NAdam, RMSprop])
@pytest.mark.parametrize("updates", [0, 1, 7])
def test_updates_made_are_read_before_and_after_a_load(build: Any, updates: int) -> None:
    optimizer, loaded = optimizer_with([0.1], build), optimizer_with([0.1], build)
    for _ in range(updates):
        optimizer.step()
    assert (updates_made(optimizer), loaded_updates(optimizer)) == (updates, 0)
    loaded.load_state_dict(through_file(optimizer.state_dict()))
    assert updates_made(loaded) == loaded_updates(loaded) == updates
    if build is Adagrad and not ADAGRAD_RECREATES_STATES:
        return  # it could not train another parameter
    (trained_later,) = optimizer_with([0.1]).param_groups[0]["params"]
    optimizer.add_param_group({"params": [trained_later]})
    for _ in range(2):
        optimizer.step()
    assert updates_made(optimizer) == updates + 2, "a parameter that is trained later hides none"


def test_states_that_prove_nothing_count_as_none() -> None:
    optimizer = optimizer_with([0.1, 0.1])
    assert updates_made(optimizer) == 0
    first, second = (parameter for group in optimizer.param_groups for parameter in group["params"])
    optimizer.state[first] = {"start": torch.ones(3), "step": torch.ones(3)}
    optimizer.state[second] = {"step": torch.ones((), device="meta"), "momentum_buffer": torch.zeros(3)}
    optimizer.state["k"] = torch.tensor([4])
    assert updates_made(optimizer) == 0
    optimizer.state[second]["momentum_buffer"] = None
    assert updates_made(optimizer) == 0
    by_hand = SGD([{"lr": 0.1, "initial_lr": 0.1, "params": [torch.nn.Parameter(torch.ones(2))]}])
    assert loaded_updates(by_hand) == 0, "as a user may write a group"
