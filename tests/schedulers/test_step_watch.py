"""A scheduler warns if it is stepped once an epoch or several times an update, and in no other case."""

import _thread
import copy
import gc
import operator
import pickle
import re
import threading
import warnings
import weakref
from collections import deque
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st
from support.examples import examples
from support.runs import advance, optimizer_with, rates_of, through_a_file
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
LATE_AT_0 = rf"^scheduler\.step\(\) came after 12 optimizer steps, all at rate 0.*{ADVICE}"
NEVER = rf"^scheduler\.step\(\) was not called in 20 optimizer steps, and every rate is 0.*{ADVICE}"

SEVERAL_TIMES = (
    r"twice or more after one optimizer step, three times in a row.*accelerate.*Don't prepare it; write "
    r"if accelerator\.sync_gradients and not accelerator\.optimizer_step_was_skipped: scheduler\.step\(\)\. "
    r"Without accelerate, call it once after every optimizer\.step\(\)"
)
RULE = re.compile("((o{10,}s){3}|(oss+){2}oss)$")
"""Ends where the warning is due: an s is a step of the scheduler, an o one of the optimizer."""
RULE_AT_0 = re.compile("o{10,}s$|^o{20}$")
"""And where every rate was 0 before the last event."""


def is_due(stretch, clock):
    return bool(RULE.search(stretch)) or bool(clock == 0 and RULE_AT_0.search(stretch))


def _plain(optimizer):
    scheduler = lambda_lr(optimizer, CURVE)
    return scheduler, scheduler.step


def _held(optimizer):
    scheduler = lambda_lr(optimizer, CURVE, hold=HoldUntilFlat(2, limit=5))
    return scheduler, lambda: scheduler.step(0.5)


def _chained(optimizer):
    scheduler = lambda_lr(optimizer, CURVE)
    return scheduler, ChainedScheduler([scheduler, ConstantLR(optimizer, 1.0, 1)]).step


def epoch(optimizer, step, updates=10):
    for _ in range(updates):
        optimizer.step()
    step()


def twice(optimizer, step):
    optimizer.step()
    step()
    step()


def begin(optimizer, step):
    """From the first step on the rate is above 0."""
    optimizer.step()
    step()


def repeat(times, wrong, optimizer, step):
    for _ in range(times):
        wrong(optimizer, step)


kinds = pytest.mark.parametrize("kind", [_plain, _held, _chained], ids=("plain", "held", "chained"))


_run = st.one_of(
    st.sampled_from((1, 1, 1, 2, 9, 10, 10, 11, 30)).map("o".__mul__),
    st.sampled_from((1, 1, 2, 2, 3, 5)).map("s".__mul__),
)
_repeated = st.tuples(_run, _run, st.integers(1, 4)).map(lambda drawn: (drawn[0] + drawn[1]) * drawn[2])


@kinds
@examples(60)
@given(st.lists(st.one_of(_run, _repeated, st.just("l")), max_size=12).map("".join))
@example("o" * 10 + "s" + "l" + ("o" * 10 + "s") * 3)
@example("oss" * 2 + "l" + "oss" * 3)
@example("ossos" + "oss" * 3)
@example("oossooss" + "oss" * 2)
@example(("o" * 10 + "ss") * 4)
@example("s" * 40 + "os" * 4 + "s" * 40 + "os" * 4)
def test_said_once_by_the_rule(kind, events):
    """Where a state is loaded (l), the count starts anew."""
    optimizer = optimizer_with([0.1])
    scheduler, step = kind(optimizer)
    stretch, expected = "", 0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")  # torch's own warnings
        warnings.simplefilter("always", CurveWarning)
        for event in events:
            clock = scheduler.clock
            if event == "l":
                scheduler.load_state_dict(through_a_file(scheduler.state_dict()))
                stretch = ""
            else:
                (step if event == "s" else optimizer.step)()
                stretch += event
            if is_due(stretch, clock):
                expected = 1
            assert len(caught) == expected


@examples(40)
@given(st.lists(st.one_of(st.just("o" * 10), st.sampled_from("oos"), st.integers(-3, 3)), max_size=25))
@example(["o" * 10, 1] * 4)
@example(["o", "s", 1] * 4)
@example(["o", 5, "s"] * 4)
def test_a_step_that_is_given_its_number_counts_where_it_is_the_next(events):
    """After a step to any other number, the count starts anew."""
    optimizer = optimizer_with([0.1])
    scheduler = lambda_lr(optimizer, CURVE)
    stretch, expected = "", 0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", CurveWarning)
        for event in events:
            clock = scheduler.clock
            if isinstance(event, int):
                is_next = max(scheduler.last_epoch + event, -1) == scheduler.last_epoch + 1
                scheduler.step(scheduler.last_epoch + event)
                stretch = stretch + "s" if is_next else ""
            elif event == "s":
                scheduler.step()
                stretch += event
            else:
                for _ in event:
                    optimizer.step()
                    stretch += "o"
                    if is_due(stretch, clock):
                        expected = 1
            if is_due(stretch, clock):
                expected = 1
            assert len(caught) == expected


@pytest.mark.parametrize(("wrong", "said"), [(epoch, ONCE_AN_EPOCH), (twice, SEVERAL_TIMES)])
@kinds
def test_what_it_says_and_where(kind, wrong, said):
    optimizer = optimizer_with([0.1])
    _, step = kind(optimizer)
    begin(optimizer, step)
    with pytest.warns(CurveWarning, match=said) as caught:
        repeat(9, wrong, optimizer, step)
    (warning,) = caught
    assert warning.filename == __file__


@pytest.mark.parametrize("wrong", [epoch, twice])
@kinds
def test_an_error_made_of_it_leaves_all_as_it_was(kind, wrong):
    optimizer = optimizer_with([0.1])
    scheduler, step = kind(optimizer)
    begin(optimizer, step)
    before = []

    def noted():
        before.append((scheduler.state_dict(), rates_of(optimizer)))
        step()

    with pytest.raises(CurveWarning):
        repeat(3, wrong, optimizer, noted)
    assert (scheduler.state_dict() | {"warned": False}, rates_of(optimizer)) == before[-1]
    repeat(5, wrong, optimizer, noted)
    assert scheduler.last_epoch == len(before)


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))], ids=("deep", "pickle")
)
@pytest.mark.parametrize("before", [0, 2, 5])
@pytest.mark.parametrize("wrong", [epoch, twice])
@kinds
def test_copies_do_not_repeat_it(kind, wrong, copied, before):
    optimizer = optimizer_with([0.1])
    scheduler, step = kind(optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CurveWarning)
        repeat(before, wrong, optimizer, step)
    for _ in range(10):
        optimizer.step()
    done = scheduler.last_epoch
    with warnings.catch_warnings():
        # torch warns of every copy that its step has been overridden.
        warnings.filterwarnings("ignore", "Seems like `optimizer.step", UserWarning)
        other, again = copied((optimizer, scheduler))
        repeat(5, wrong, other, lambda: again.step(0.5) if kind is _held else again.step())
    assert again.last_epoch == done + (10 if wrong is twice else 5)


def test_a_saved_run_that_was_told_is_not_told_again():
    optimizer = optimizer_with([0.1])
    scheduler = lambda_lr(optimizer, CURVE)
    with pytest.warns(CurveWarning):
        repeat(3, epoch, optimizer, scheduler.step)
    resumed = optimizer_with([0.1])
    again = lambda_lr(resumed, CURVE)
    again.load_state_dict(through_a_file(scheduler.state_dict()))
    for _ in range(5):
        epoch(resumed, again.step)


@pytest.mark.parametrize("updates", [12, 20, 40])
@kinds
def test_where_every_rate_is_0_it_is_said_in_the_first_epoch(kind, updates):
    """By the first late step of the scheduler, or before that by the twentieth step of the optimizer."""
    optimizer = optimizer_with([0.1, 0.2])
    _, step = kind(optimizer)
    with pytest.warns(CurveWarning, match=LATE_AT_0 if updates < 20 else NEVER) as caught:
        repeat(6, lambda *_: epoch(optimizer, step, updates), None, None)
    assert [warning.filename for warning in caught] == [__file__]


@pytest.mark.parametrize("form", [float, torch.tensor])
def test_a_scheduler_that_is_never_stepped_is_told_where_no_weight_moves(form):
    optimizer = optimizer_with([form(0.1), form(0.2)], torch.optim.AdamW)
    scheduler = lambda_lr(optimizer, CURVE)
    weights = [group["params"][0].clone() for group in optimizer.param_groups]
    for _ in range(19):
        optimizer.step()
    with pytest.warns(CurveWarning, match=NEVER) as caught:
        optimizer.step()
    assert [warning.filename for warning in caught] == [__file__]
    for _ in range(60):
        optimizer.step()
    assert all(
        torch.equal(*pair)
        for pair in zip(weights, (group["params"][0] for group in optimizer.param_groups), strict=True)
    )
    assert scheduler.state_dict()["warned"]


def _no_warmup(optimizer):
    return lambda_lr(optimizer, PlateauCurve(100))


def _frozen(optimizer):
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    return lambda_lr(optimizer, CURVE)


def _one_group_without_warmup(optimizer):
    return lambda_lr(optimizer, [CURVE, PlateauCurve(100)])


def _rate_by_hand(optimizer):
    scheduler = lambda_lr(optimizer, CURVE)
    optimizer.param_groups[0]["lr"] = 0.05
    return scheduler


def _waits_for_its_turn(optimizer):
    fading = LinearLR(optimizer, 1.0, 0.0, total_iters=1)
    scheduler = SequentialLR(optimizer, [fading, lambda_lr(optimizer, CURVE)], [3])
    advance(optimizer, scheduler)
    optimizer.scheduler = scheduler
    return scheduler


@pytest.mark.parametrize(
    "build", [_no_warmup, _frozen, _one_group_without_warmup, _rate_by_hand, _waits_for_its_turn]
)
def test_where_a_rate_is_not_0_or_another_is_in_charge_nothing_is_said(build):
    optimizer = optimizer_with([0.1, 0.1])
    scheduler = build(optimizer)
    for _ in range(2):
        epoch(optimizer, scheduler.step, 30)


@pytest.mark.parametrize("updates", [12, 30])
def test_a_curve_that_is_meant_to_count_epochs_says_so_as_the_message_has_it(updates):
    optimizer = optimizer_with([0.1])
    scheduler = lambda_lr(optimizer, CURVE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "scheduler.step")
        for _ in range(5):
            epoch(optimizer, scheduler.step, updates)
    assert rates_of(optimizer) == [pytest.approx(0.1 * CURVE(5))]


def _draw(scheduler, steps=50):
    """Step the scheduler alone, as for a picture, or to bring a resumed run to its step."""
    return [rates_of(scheduler.optimizer) for _ in range(steps) if scheduler.step() is None]


FIRST = "ignore:Detected call of `lr_scheduler.step:UserWarning"
"""torch's warning of a scheduler whose first step comes before the optimizer's."""


@pytest.mark.filterwarnings(FIRST)
@pytest.mark.parametrize("before", [0, 2, 30])
def test_a_picture_may_be_drawn_without_an_optimizer_step_and_between_trainings(before):
    optimizer = optimizer_with([0.1])
    scheduler = lambda_lr(optimizer, CURVE)
    for _ in range(4):
        advance(optimizer, scheduler, before)
        assert len(_draw(scheduler)) == 50
    assert scheduler.last_epoch == 4 * (before + 50)


@pytest.mark.filterwarnings(FIRST)
def test_an_optimizer_whose_steps_are_not_seen_is_as_none():
    optimizer = optimizer_with([0.1])
    scheduler = lambda_lr(optimizer, CURVE)
    optimizer._optimizer_step_post_hooks.clear()
    for wrong in (epoch, twice):
        repeat(5, wrong, optimizer, scheduler.step)


@examples(20)
@given(st.sets(st.integers(0, 59)))
@example({0, 1, 2, 3})
@example({20, 22, 25, 27})
@example({10, 12, 30, 31, 32, 50})
def test_updates_that_fp16_skips_are_no_repeats(overflows):
    """The scheduler is stepped after skipped updates too, as many do; overflows come alone or in a row."""
    # Three rows of overflows with single updates between them look like a scheduler that is stepped twice.
    begins = sorted(number for number in overflows if number - 1 not in overflows)
    ends = sorted(number for number in overflows if number + 1 not in overflows)
    single = [begin - end == 2 for begin, end in zip(begins[1:], ends, strict=False)]
    assume((True, True) not in pairwise(single))
    optimizer = optimizer_with([0.1])
    scheduler = lambda_lr(optimizer, CURVE)
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    parameter = optimizer.param_groups[0]["params"][0]
    for number in range(60):
        loss = parameter.sum() * (torch.inf if number in overflows else 1)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Detected call of", UserWarning)
            scheduler.step()
    assert scheduler.last_epoch == 60


def test_a_scheduler_that_is_stepped_with_every_accumulated_batch_is_told():
    optimizer = optimizer_with([0.1])
    scheduler = lambda_lr(optimizer, CURVE)

    def four_batches(optimizer, step):
        optimizer.step()
        for _ in range(4):
            step()

    with pytest.warns(CurveWarning, match=SEVERAL_TIMES):
        repeat(3, four_batches, optimizer, scheduler.step)


def test_each_of_several_schedulers_counts_its_own_steps():
    optimizer = optimizer_with([0.1])
    once, late = lambda_lr(optimizer, CURVE), lambda_lr(optimizer, CURVE)
    advance(optimizer, ChainedScheduler([once, late]))
    for _ in range(2):
        for _ in range(10):
            advance(optimizer, once)
        late.step()
    advance(optimizer, once, 10)
    with pytest.warns(CurveWarning, match=ONCE_AN_EPOCH):
        late.step()
    for _ in range(2):
        advance(optimizer, ChainedScheduler([once, late]), 20)


def test_accumulated_batches_are_not_updates():
    optimizer = optimizer_with([0.1])
    scheduler = lambda_lr(optimizer, CURVE)
    for batch in range(16 * 20):
        if batch % 16 == 15:
            optimizer.step()
            scheduler.step()
        optimizer.zero_grad()


def _in_sequence(optimizer, curve_first):
    other = LinearLR(optimizer, 0.1, total_iters=30)
    curve = lambda_lr(optimizer, CURVE)
    return SequentialLR(optimizer, [curve, other] if curve_first else [other, curve], [40])


@pytest.mark.parametrize("curve_first", [False, True])
def test_a_sequence_is_not_an_epoch(curve_first):
    optimizer = optimizer_with([0.1])
    scheduler = _in_sequence(optimizer, curve_first)
    advance(optimizer, scheduler, 25)
    # It is resumed several times, before the curve's turn and after it.
    for _ in range(5):
        saved = through_a_file([optimizer.state_dict(), scheduler.state_dict()])
        for _ in range(20):
            optimizer.step()  # these are lost, as when a run is killed
        resumed = optimizer_with([0.1])
        again = _in_sequence(resumed, curve_first)
        resumed.load_state_dict(saved[0])
        again.load_state_dict(saved[1])
        advance(resumed, again, 12)
        optimizer, scheduler = resumed, again


def test_swalr_may_take_over_for_whole_epochs():
    optimizer = optimizer_with([0.1])
    scheduler = lambda_lr(optimizer, CURVE)
    averaged = SWALR(optimizer, 0.05, anneal_epochs=3)
    for number in range(8):
        if number % 2:
            epoch(optimizer, averaged.step, 20)
        else:
            advance(optimizer, scheduler, 20)


def test_torchs_own_warning_of_the_wrong_order_is_kept():
    scheduler = lambda_lr(optimizer_with([0.1]), CURVE)
    with pytest.warns(UserWarning, match=r"Detected call of `lr_scheduler.step\(\)` before") as caught:
        scheduler.step()
    assert [(warning.category, warning.filename) for warning in caught] == [(UserWarning, __file__)]


@pytest.mark.parametrize("kind", [_plain, _held], ids=("plain", "held"))
def test_torchs_own_warnings_point_at_the_users_line(kind):
    _, step = kind(optimizer_with([0.1]))
    with pytest.warns(UserWarning, match=r"Detected call of") as caught:
        step()
    assert [warning.filename for warning in caught] == [__file__]
    optimizer = optimizer_with([0.1])
    scheduler = lambda_lr(optimizer, CURVE)
    optimizer.step()
    with pytest.warns(UserWarning, match="epoch parameter") as caught:
        scheduler.step(7)
    assert [warning.filename for warning in caught] == [__file__]


def _hooks(optimizer):
    return len(optimizer._optimizer_step_post_hooks)


def test_schedulers_that_are_gone_leave_one_watch_at_most():
    optimizer = optimizer_with([0.1])
    before = _hooks(optimizer)
    for _ in range(3):
        scheduler = lambda_lr(optimizer, CURVE)
        gone = weakref.ref(scheduler)
        assert _hooks(optimizer) == before + 1
        del scheduler
        assert gone() is None  # no cycle keeps it
        optimizer.step()


def _collect(*_):
    gc.collect()


def test_a_scheduler_may_go_while_the_optimizer_walks_through_its_hooks():
    optimizer = optimizer_with([0.1])
    optimizer.register_step_post_hook(_collect)
    scheduler = lambda_lr(optimizer, CURVE)
    scheduler.cycle = scheduler
    ran = []
    optimizer.register_step_post_hook(lambda *_: ran.append(True))
    gone = weakref.ref(scheduler)
    del scheduler
    optimizer.step()
    assert gone() is None
    assert ran


@pytest.mark.slow
def test_through_accelerate_batches_that_are_accumulated_do_not_count():
    import accelerate

    for outside in (True, False):
        accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=4)
        inner = optimizer_with([0.1])
        wrapped = accelerator.prepare(inner)
        scheduler = lambda_lr(wrapped if outside else inner, CURVE)
        model = torch.nn.Linear(1, 1)
        for _ in range(60):
            with accelerator.accumulate(model):
                wrapped.step()
                if accelerator.sync_gradients:
                    scheduler.step()

        def four_batches(model=model, wrapped=wrapped, accelerator=accelerator):
            for _ in range(4):
                with accelerator.accumulate(model):
                    wrapped.step()

        with pytest.warns(CurveWarning, match=ONCE_AN_EPOCH):
            repeat(3, epoch, SimpleNamespace(step=four_batches), scheduler.step)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "metric"),
    [
        (lambda optimizer: lambda_lr(optimizer, CURVE), ()),
        (lambda optimizer: lambda_lr(optimizer, CURVE, hold=HoldUntilFlat(2, limit=5)), (0.5,)),
        (lambda optimizer: ChainedScheduler([lambda_lr(optimizer, CURVE)]), ()),
        (lambda optimizer: _in_sequence(optimizer, True), ()),
    ],
    ids=("plain", "held", "chained", "in a sequence"),
)
def test_whatever_accelerate_steps_once_a_process_says_so(build, metric, monkeypatch):
    from accelerate import scheduler as module

    monkeypatch.setattr(module, "AcceleratorState", lambda: SimpleNamespace(num_processes=2))
    monkeypatch.setattr(module, "GradientState", lambda: SimpleNamespace(sync_gradients=True))
    optimizer = optimizer_with([0.1])
    prepared = module.AcceleratedScheduler(build(optimizer), SimpleNamespace(step_was_skipped=False))
    with pytest.warns(CurveWarning, match=SEVERAL_TIMES) as caught:
        advance(optimizer, SimpleNamespace(step=lambda: prepared.step(*metric)), 5)
    assert [warning.filename for warning in caught] == [module.__file__]


def test_a_thread_that_does_nothing_but_step_it():
    optimizer = optimizer_with([0.1])
    scheduler = lambda_lr(optimizer, CURVE)
    begin(optimizer, scheduler.step)
    repeat(2, epoch, optimizer, scheduler.step)
    done = threading.Lock()
    done.acquire()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        # No line of Python calls the last step, so the warning has no line to point at.
        epoch(optimizer, lambda: None)
        _thread.start_new_thread(deque, (map(operator.call, (scheduler.step, done.release)), 0))
        assert done.acquire(timeout=10)
    assert [warning.category for warning in caught] == [CurveWarning]
    assert scheduler.last_epoch == 4


@pytest.mark.slow
def test_through_fabric():
    from lightning_fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1)
    model = torch.nn.Linear(2, 1)
    _, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    scheduler = lambda_lr(optimizer, CURVE)
    for _ in range(30):
        advance(optimizer, scheduler)
    with pytest.warns(CurveWarning, match=ONCE_AN_EPOCH) as caught:
        repeat(3, epoch, optimizer, scheduler.step)
    assert caught[0].filename == __file__


class _NoHooks(torch.optim.Optimizer):
    """A wrapper that is an optimizer by its class alone."""

    def __init__(self, inner):
        self.optim, self.param_groups = inner, inner.param_groups

    def step(self, closure=None):
        return self.optim.step(closure)


def test_an_optimizer_that_takes_no_hooks_is_taken_all_the_same():
    optimizer = _NoHooks(optimizer_with([0.1]))
    scheduler = lambda_lr(optimizer, CURVE)
    repeat(4, epoch, optimizer, scheduler.step)
    assert rates_of(optimizer) == [pytest.approx(0.1 * CURVE(4))]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
def test_a_compiled_optimizer_is_compiled_as_often_as_without_it():
    from torch._dynamo.testing import CompileCounter

    counts = []
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
        assert rates_of(optimizer) == [0.5 * CURVE(50)]
    assert counts[0] == counts[1]
