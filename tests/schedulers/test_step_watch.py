"""A scheduler warns if it is stepped too rarely or too often, but not in legitimate programs."""

import copy
import gc
import pickle
import re
import warnings
import weakref
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import example, given, strategies as st
from support.examples import examples
from support.schedulers import runs
from support.schedulers.runs import advance, lrs_of, optimizer_with
from support.training.trees import through_file
from torch.optim.lr_scheduler import ChainedScheduler, ConstantLR, LinearLR, SequentialLR
from torch.optim.swa_utils import SWALR

from plateau_jax import CurveWarning, HoldUntilFlat, PlateauCurve
from torch_bridge import lambda_lr

CURVE = PlateauCurve(100, warmup_steps=10, plateaus=[(50, 20)], min_lr_ratio=0.1)
ADVICE = (
    r'after every optimizer\.step\(\).*Lightning "interval": "step".*count_updates.*meant to count epochs, '
    r'or something else, turn this warning off: warnings\.filterwarnings\("ignore", "scheduler\.step"\)$'
)
ONCE_AN_EPOCH = rf"^scheduler\.step\(\) came after 10 or more optimizer steps, three times in a row.*{ADVICE}"
LATE_AT_0 = rf"^scheduler\.step\(\) came after 12 optimizer steps, all at learning rate 0.*{ADVICE}"
NEVER = rf"^scheduler\.step\(\) was not called in 20 optimizer steps, and every learning rate is 0.*{ADVICE}"
SEVERAL_TIMES = (
    r"twice or more after one optimizer step, three times in a row.*accelerate.*Don't prepare it; write "
    r"if accelerator\.sync_gradients and not accelerator\.optimizer_step_was_skipped: scheduler\.step\(\)\. "
    r"Without accelerate, call it once after every optimizer\.step\(\)"
)


def _plain(optimizer: Any) -> Any:
    scheduler = lambda_lr(optimizer, CURVE)
    return scheduler, scheduler.step


def _held(optimizer: Any) -> Any:
    scheduler = lambda_lr(optimizer, CURVE, hold=HoldUntilFlat(2, limit=5))
    return scheduler, lambda: scheduler.step(0.5)


def _chained(optimizer: Any) -> Any:
    scheduler = lambda_lr(optimizer, CURVE)
    return scheduler, ChainedScheduler([scheduler, ConstantLR(optimizer, 1.0, 1)]).step


def _counted(optimizer: Any) -> Any:
    scheduler = lambda_lr(optimizer, CURVE, unit=8)
    return scheduler, lambda: scheduler.step(count=10)


kinds = pytest.mark.parametrize(
    "kind", [_plain, _held, _chained, _counted], ids=("plain", "held", "chained", "counted")
)


def _repeat(pattern: str, optimizer: Any, step: Any, times: int = 1) -> None:
    """Step the optimizer for each o, and the scheduler for each s."""
    for event in pattern * times:
        (step if event == "s" else optimizer.step)()


EPOCH, TWICE = "o" * 10 + "s", "oss"
RULE = re.compile("((o{50,}s){2}|(o{10,}s){3}|(oss+){2}oss)$")
"""Matches a history that ends where the warning is due."""
RULE_AT_0 = re.compile("(o{10,}s|o{20})$")
"""The same if every learning rate was 0 before the last event."""

_run = st.one_of(
    st.sampled_from((1, 1, 1, 2, 9, 10, 10, 11, 30, 49, 50)).map("o".__mul__),
    st.sampled_from((1, 1, 2, 2, 3, 5)).map("s".__mul__),
)
_repeated = st.tuples(_run, _run, st.integers(1, 4)).map(lambda drawn: (drawn[0] + drawn[1]) * drawn[2])
_events = st.lists(st.one_of(_run, _repeated, st.sampled_from("l+0-")), max_size=12).map("".join)


def _changes(clock: int, stretch: str) -> bool:
    """Return True if a step for each update of the late steps would have changed the learning rate."""
    late = re.search("(o{10,}s)+$", stretch)
    if late is None:
        return True
    first = clock + 1 - late[0].count("s")
    return len(set(CURVE(range(first, first + late[0].count("o") + 1)))) > 1


@kinds
@examples(60)
@given(_events)
@example("o" * 10 + "s" + "l" + EPOCH * 3)
@example("oss" * 2 + "l" + "oss" * 3)
@example("ossos" + "oss" * 3)
@example("oossooss" + "oss" * 2)
@example(("o" * 10 + "ss") * 4)
@example("os" + ("o" * 50 + "s") * 2)
@example("os" + ("o" * 49 + "s") * 2)
@example("os" * 55 + ("o" * 10 + "s") * 9)
@example("s" * 40 + "os" * 4 + "s" * 40 + "os" * 4)
@example(("o" * 10 + "+") * 4)
@example("os+" * 4)
@example("o0s" * 4)
def test_warns_once_by_the_rule(kind: Any, events: str) -> None:
    """A load (l) restarts the count, as does a step to a number (0, -) other than the next one (+)."""
    optimizer = optimizer_with([0.1])
    scheduler, step = kind(optimizer)
    stretch, expected = "", 0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")  # torch's own warnings
        warnings.simplefilter("always", CurveWarning)
        for event in events:
            clock = scheduler.clock
            if event == "l":
                scheduler.load_state_dict(through_file(scheduler.state_dict()))
                stretch = ""
            elif event in "so":
                (step if event == "s" else optimizer.step)()
                stretch += event
            elif kind is _plain:
                scheduler.step(scheduler.last_epoch + {"+": 1, "0": 0, "-": -1}[event])
                stretch = stretch + "s" if event == "+" else ""
            if (RULE.search(stretch) and _changes(clock, stretch)) or (
                clock == 0 and RULE_AT_0.search(stretch)
            ):
                expected = 1
            assert len(caught) == expected


_WRONG = [
    ("os", EPOCH, ONCE_AN_EPOCH),
    ("os", TWICE, SEVERAL_TIMES),
    ("os", "osss", SEVERAL_TIMES),
    ("", "o" * 12 + "s", LATE_AT_0),
    ("", "o" * 40 + "s", NEVER),
]


@kinds
@pytest.mark.parametrize(("begin", "wrong", "message"), _WRONG)
@pytest.mark.parametrize("form", [float, torch.tensor])
def test_warning_has_message_and_line(kind: Any, begin: str, wrong: str, message: str, form: Any) -> None:
    optimizer = optimizer_with([form(0.1), form(0.2)])
    scheduler, step = kind(optimizer)
    _repeat(begin, optimizer, step)
    if kind is _counted:
        message = message.partition(".*")[0]
    with pytest.warns(CurveWarning, match=message) as caught:
        _repeat(wrong, optimizer, step, 9)
    if kind is _counted:
        assert not re.search("count_updates|counts updates", str(caught[0].message))
    assert [warning.filename for warning in caught] == [__file__]
    # A resumed run does not repeat it, nor does a copy.
    resumed = optimizer_with([0.1, 0.2])
    again, resumed_step = kind(resumed)
    again.load_state_dict(through_file(scheduler.state_dict()))
    _repeat(EPOCH + TWICE, resumed, resumed_step, 4)


@kinds
@pytest.mark.parametrize("wrong", [EPOCH, TWICE])
def test_warning_as_error_changes_nothing(kind: Any, wrong: str) -> None:
    optimizer = optimizer_with([0.1])
    scheduler, step = kind(optimizer)
    _repeat("os", optimizer, step)
    before: list[Any] = []

    def noted() -> None:
        before.append((scheduler.state_dict(), lrs_of(optimizer)))
        step()

    with pytest.raises(CurveWarning):
        _repeat(wrong, optimizer, noted, 3)
    assert (scheduler.state_dict() | {"warned": False}, lrs_of(optimizer)) == before[-1]
    _repeat(wrong, optimizer, noted, 5)
    assert scheduler.last_epoch == len(before)


def _step_of(kind: Any, scheduler: Any) -> None:
    scheduler.step(**{_held: {"metric": 0.5}, _counted: {"count": 10}}.get(kind, {}))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
@pytest.mark.parametrize("pattern", [EPOCH, TWICE, ""])
@kinds
def test_copies_do_not_warn(kind: Any, pattern: str, copied: Any) -> None:
    optimizer = optimizer_with([0.1])
    scheduler, step = kind(optimizer)
    _repeat("os" + pattern * 2, optimizer, step)
    other, again = copied((optimizer, scheduler))
    _repeat(pattern or TWICE, other, lambda: _step_of(kind, again), 5)


def test_copies_of_fresh_schedulers_do_not_warn() -> None:
    """Torch does not note the steps of a copied optimizer, so it warns about a plain `LambdaLR` here."""
    optimizer = optimizer_with([0.1])
    advance(*copy.deepcopy((optimizer, lambda_lr(optimizer, CURVE))), 3)


# Legitimate programs, with every warning an error.


def _accumulation(optimizer: Any) -> None:
    scheduler = lambda_lr(optimizer, CURVE)
    for batch in range(16 * 20):
        if batch % 16 == 15:
            advance(optimizer, scheduler)


def _a_unit_that_takes_long_to_fill(optimizer: Any) -> None:
    """At learning rate 0 for less than 20 updates, or above 0."""
    scheduler = lambda_lr(optimizer, CURVE, unit=200)
    _repeat("os", optimizer, lambda: scheduler.step(count=10), 60)
    above_0 = lambda_lr(optimizer, replace(CURVE, init_lr_ratio=0.1), unit=10**6)
    _repeat("os", optimizer, lambda: above_0.step(count=10), 60)


def _a_unit_that_is_plotted(optimizer: Any) -> None:
    scheduler = lambda_lr(optimizer, CURVE, unit=10**6)
    _repeat("os", optimizer, lambda: scheduler.step(count=10))
    _repeat("s", optimizer, lambda: scheduler.step(count=0), 60)


def _range_tests(optimizer: Any) -> None:
    """Learning rates set by hand before the training, or after a part of it."""
    for steps in (0, 30):
        for tests in (5, 9, 10, 19, 20, 31):
            optimizer = optimizer_with([0.1])
            scheduler = lambda_lr(optimizer, CURVE)
            advance(optimizer, scheduler, steps)
            before = lrs_of(optimizer)
            for test in range(tests):
                optimizer.param_groups[0]["lr"] = 1e-6 * 2**test
                optimizer.step()
            optimizer.param_groups[0]["lr"] = before[0]
            advance(optimizer, scheduler, 3)


def _gan(optimizer: Any) -> None:
    """The discriminator makes 12 updates for each update of the generator."""
    other = optimizer_with([0.1])
    generator, discriminator = lambda_lr(optimizer, CURVE), lambda_lr(other, CURVE)
    for _ in range(5):
        advance(other, discriminator, 12)
        advance(optimizer, generator)


def _two_schedulers_on_one_optimizer(optimizer: Any) -> None:
    averaged, scheduler = SWALR(optimizer, 0.05, anneal_epochs=3), lambda_lr(optimizer, CURVE)
    for _ in range(4):
        advance(optimizer, scheduler, 20)
        _repeat("o" * 20 + "s", optimizer, averaged.step)


def _plots(optimizer: Any) -> None:
    scheduler = lambda_lr(optimizer, CURVE)
    for updates in (0, 2, 30, 1):
        advance(optimizer, scheduler, updates)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Detected call of", UserWarning)  # torch's
            for _ in range(50):
                scheduler.step()


def _sequence(optimizer: Any, curve_first: bool) -> Any:
    other = LinearLR(optimizer, 0.1, total_iters=30)
    curve = lambda_lr(optimizer, CURVE)
    return SequentialLR(optimizer, [curve, other] if curve_first else [other, curve], [40])


def _resumed_sequence(optimizer: Any) -> None:
    """Killed and resumed several times, before the curve's turn and after it."""
    for curve_first in (True, False):
        optimizer = optimizer_with([0.1])
        scheduler = _sequence(optimizer, curve_first)
        advance(optimizer, scheduler, 25)
        for _ in range(5):
            saved = through_file([optimizer.state_dict(), scheduler.state_dict()])
            _repeat("o" * 20, optimizer, None)  # these updates are lost
            optimizer = optimizer_with([0.1])
            scheduler = _sequence(optimizer, curve_first)
            optimizer.load_state_dict(saved[0])
            scheduler.load_state_dict(saved[1])
            advance(optimizer, scheduler, 12)


def _waits_for_its_turn(optimizer: Any) -> None:
    fading = LinearLR(optimizer, 1.0, 0.0, total_iters=1)
    scheduler = SequentialLR(optimizer, [fading, lambda_lr(optimizer, CURVE)], [3])
    _repeat("os" + "o" * 30, optimizer, scheduler.step)


def _fp16(optimizer: Any) -> None:
    """Skipped updates, alone and in a row, after which the scheduler is stepped too."""
    scheduler = lambda_lr(optimizer, CURVE)
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    parameter = optimizer.param_groups[0]["params"][0]
    for number in range(60):
        optimizer.zero_grad()
        overflows = number in (10, 12, 30, 31, 32, 50)
        scaler.scale(parameter.sum() * (torch.inf if overflows else 1)).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()


def _above_0(optimizer: Any) -> None:
    """Without a warmup, or with another learning rate in the groups, two epochs do not warn."""
    for curve in (PlateauCurve(100), [CURVE, PlateauCurve(100)]):
        other = optimizer_with([0.1, 0.1])
        _repeat("o" * 30 + "s", other, lambda_lr(other, curve).step, 2)
    scheduler = lambda_lr(optimizer, CURVE)
    optimizer.param_groups[0]["lr"] = 0.05
    _repeat("o" * 30 + "s", optimizer, scheduler.step, 2)


def _frozen(optimizer: Any) -> None:
    optimizer.param_groups[0]["lr"] = 0.0
    _repeat("o" * 30 + "s", optimizer, lambda_lr(optimizer, CURVE).step, 2)


class _NoHooks(torch.optim.Optimizer):
    """A wrapper that is an optimizer only by its class."""

    def __init__(self, inner: Any) -> None:
        self.optim, self.param_groups = inner, inner.param_groups

    def step(self, closure: Any = None) -> Any:
        return self.optim.step(closure)


def _steps_are_not_seen(optimizer: Any) -> None:
    wrapped = _NoHooks(optimizer)
    _repeat(EPOCH + TWICE, wrapped, lambda_lr(wrapped, CURVE).step, 4)


def _curve_counts_epochs(optimizer: Any) -> None:
    """The warning is turned off as the message advises."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "scheduler.step")
        _repeat("o" * 30 + "s", optimizer, lambda_lr(optimizer, CURVE).step, 5)


def _late_now_and_then(optimizer: Any) -> None:
    _repeat(("o" * 12 + "s" + "os") * 5, optimizer, lambda_lr(optimizer, PlateauCurve(100)).step, 1)


@pytest.mark.parametrize(
    "program",
    [
        _accumulation, _a_unit_that_takes_long_to_fill, _a_unit_that_is_plotted, _range_tests, _gan,
        _two_schedulers_on_one_optimizer, _plots,
        _resumed_sequence, _waits_for_its_turn, _fp16, _above_0, _frozen, _steps_are_not_seen,
        _curve_counts_epochs, _late_now_and_then,
    ],
)  # fmt: skip
def test_legitimate_programs_do_not_warn(program: Any) -> None:
    program(optimizer_with([0.1]))


@pytest.mark.parametrize(("unit", "count"), [(10**6, 10), (8, 0), (201, 10)])
@pytest.mark.parametrize("form", [float, torch.tensor])
def test_unit_that_does_not_fill_warns(unit: int, count: int, form: Any) -> None:
    optimizer = optimizer_with([form(0.1)])
    scheduler = lambda_lr(optimizer, CURVE, unit=unit, count=lambda: count)
    advance(optimizer, scheduler, 19)
    message = rf"stayed at step 0 for 20 updates.* consumed {20 * count} in units of {unit}\. Choose a unit"
    with pytest.warns(CurveWarning, match=message) as caught:
        advance(optimizer, scheduler)
    assert [warning.filename for warning in caught] == [runs.__file__]
    advance(optimizer, scheduler, 60)


@pytest.mark.slow
@pytest.mark.parametrize("outside", [True, False])
def test_accumulation_by_accelerate_does_not_warn(outside: bool) -> None:
    """Its wrapper makes an update in one of four calls."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    inner, model = optimizer_with([0.1]), torch.nn.Linear(1, 1)
    wrapped: Any = accelerator.prepare(inner)
    scheduler = lambda_lr(wrapped if outside else inner, CURVE)

    def batches(count: int, step: Any) -> None:
        for _ in range(count):
            with accelerator.accumulate(model):
                wrapped.step()
                if accelerator.sync_gradients:
                    step()

    batches(60, scheduler.step)
    epoch = SimpleNamespace(step=lambda: batches(40, lambda: None))
    with pytest.warns(CurveWarning, match=ONCE_AN_EPOCH):
        _repeat("os", epoch, scheduler.step, 3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [_plain, _held, lambda optimizer: (_sequence(optimizer, True), None)])
def test_prepared_scheduler_of_accelerate_warns(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from accelerate import scheduler as module

    monkeypatch.setattr(module, "AcceleratorState", lambda: SimpleNamespace(num_processes=2))
    monkeypatch.setattr(module, "GradientState", lambda: SimpleNamespace(sync_gradients=True))
    optimizer = optimizer_with([0.1])
    scheduler, _ = kind(optimizer)
    prepared = module.AcceleratedScheduler(scheduler, SimpleNamespace(step_was_skipped=False))
    metric = [0.5] if kind is _held else []
    with pytest.warns(CurveWarning, match=SEVERAL_TIMES) as caught:
        _repeat("os", optimizer, lambda: prepared.step(*metric), 5)
    assert [warning.filename for warning in caught] == [module.__file__]


@pytest.mark.parametrize("kind", [_plain, _held], ids=("plain", "held"))
def test_torchs_warnings_point_at_the_users_line(kind: Any) -> None:
    scheduler, step = kind(optimizer_with([0.1]))
    with pytest.warns(UserWarning, match=r"Detected call of `lr_scheduler.step\(\)` before") as caught:
        step()
    if kind is _plain:
        with pytest.warns(UserWarning, match="epoch parameter") as more:
            scheduler.step(7)
        caught.list.extend(more.list)
    assert {(warning.category, warning.filename) for warning in caught} == {(UserWarning, __file__)}


def test_collected_schedulers_leave_one_watch() -> None:
    optimizer = optimizer_with([0.1])
    optimizer.register_step_post_hook(lambda *_: gc.collect() and None)  # while the hooks are iterated over
    hooks = optimizer._optimizer_step_post_hooks
    for _ in range(3):
        scheduler: Any = lambda_lr(optimizer, CURVE)
        gone = weakref.ref(scheduler)
        assert len(hooks) == 2
        scheduler.cycle = scheduler
        optimizer.step()
        scheduler.step()  # until then the watch keeps it: it may have been dropped by mistake
        del scheduler
        optimizer.step()
        assert gone() is None


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
def test_watch_causes_no_recompilation() -> None:
    from torch._dynamo.testing import CompileCounter

    counts: list[int] = []
    for watched in (False, True):
        torch.compiler.reset()
        optimizer = optimizer_with([torch.tensor(0.5)])
        scheduler = lambda_lr(optimizer, CURVE)
        if not watched:
            optimizer._optimizer_step_post_hooks.clear()
        counter = CompileCounter()
        step = torch.compile(optimizer.step, backend=counter)
        for _ in range(25):
            step()
            scheduler.step()
            scheduler.step()  # no warning, since compiled steps are not counted
        counts.append(counter.frame_count)
        assert lrs_of(optimizer) == [0.5 * CURVE(50)]
    assert counts[0] == counts[1]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
@pytest.mark.parametrize(
    ("rows", "curve", "options", "warns"),
    [
        (1, CURVE, {}, True),
        (1, CURVE, {"amsgrad": True, "foreach": False}, True),
        (4, CURVE, {}, False),
        (1, replace(CURVE, init_lr_ratio=0.1), {}, False),
        (1, CURVE, {"fused": True}, False),
    ],
)
@pytest.mark.parametrize("form", [float, torch.tensor])
def test_compiled_adam_at_lr_0_warns(rows: int, curve: Any, options: Any, warns: bool, form: Any) -> None:
    """It warns if there are NaN, and only then: rows of an embedding that no batch has used."""
    torch.compiler.reset()
    embedding = torch.nn.Embedding(4, 2)
    optimizer = torch.optim.AdamW(embedding.parameters(), lr=form(0.1), **options)
    scheduler = lambda_lr(optimizer, curve)
    step = torch.compile(optimizer.step, backend="eager")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CurveWarning)
        for _ in range(3):
            embedding(torch.arange(rows)).sum().backward()
            step()
            scheduler.step()
    messages = [str(warning.message) for warning in caught if warning.category is CurveWarning]
    assert [re.sub(r"^.* is compiled.*(init_lr_ratio).*", r"\1", message) for message in messages] == [
        "init_lr_ratio"
    ] * warns
    assert bool(embedding.weight.isnan().any()) is warns
