"""A scheduler that is stepped once an epoch says so; one that is stepped once an update never does."""

import _thread
import copy
import gc
import operator
import pickle
import threading
import warnings
import weakref
from collections import deque
from types import SimpleNamespace

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from support.examples import examples
from support.runs import advance, optimizer_with, rates_of, through_a_file
from torch.optim.lr_scheduler import ChainedScheduler, ConstantLR, LinearLR, SequentialLR
from torch.optim.swa_utils import SWALR

from plateau_jax import CurveWarning, HoldUntilFlat, PlateauCurve
from torch_bridge import lambda_lr

CURVE = PlateauCurve(100, warmup_steps=10, plateaus=[(50, 20)], min_lr_ratio=0.1)
SAID = r"10 or more optimizer steps, three times in a row.*after every optimizer\.step\(\).*count_updates"


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


def epochs(count, optimizer, step):
    for _ in range(count):
        epoch(optimizer, step)


kinds = pytest.mark.parametrize("kind", [_plain, _held, _chained], ids=("plain", "held", "chained"))


@kinds
@examples(40)
@given(st.lists(st.one_of(st.sampled_from((1, 2, 9, 10, 11, 30)), st.just("load")), max_size=14))
@example([10, 10, 10, 10])
@example([10, 10, 9, 10, 10, "load", 10, 10, 10])
def test_said_at_the_third_step_in_a_row_that_follows_ten_updates(kind, events):
    optimizer = optimizer_with([0.1])
    scheduler, step = kind(optimizer)
    found = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for event in events:
            if event == "load":
                scheduler.load_state_dict(through_a_file(scheduler.state_dict()))
            else:
                epoch(optimizer, step, event)
            found.append(len(caught))
    many = [event != "load" and event >= 10 for event in events]
    thirds = [index for index in range(2, len(many)) if all(many[index - 2 : index + 1])]
    first = thirds[0] if thirds else len(events)
    assert found == [int(index >= first) for index in range(len(events))]
    assert all(warning.category is CurveWarning for warning in caught)


@kinds
def test_what_it_says_and_where(kind):
    optimizer = optimizer_with([0.1])
    _, step = kind(optimizer)
    with pytest.warns(CurveWarning, match=SAID) as caught:
        epochs(9, optimizer, step)
    (warning,) = caught
    assert warning.filename == __file__


@kinds
def test_an_error_made_of_it_leaves_all_as_it_was(kind):
    optimizer = optimizer_with([0.1])
    scheduler, step = kind(optimizer)
    epochs(2, optimizer, step)
    before = scheduler.state_dict(), rates_of(optimizer)
    with pytest.raises(CurveWarning):
        epoch(optimizer, step)
    assert (scheduler.state_dict() | {"warned": False}, rates_of(optimizer)) == before
    epochs(5, optimizer, step)
    assert scheduler.last_epoch == 7


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))], ids=("deep", "pickle")
)
@pytest.mark.parametrize("before", [0, 2, 5])
@kinds
def test_copies_do_not_repeat_it(kind, copied, before):
    optimizer = optimizer_with([0.1])
    scheduler, step = kind(optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CurveWarning)
        epochs(before, optimizer, step)
    for _ in range(10):
        optimizer.step()
    with warnings.catch_warnings():
        # torch says of every copy that its step has been overridden.
        warnings.filterwarnings("ignore", "Seems like `optimizer.step", UserWarning)
        other, again = copied((optimizer, scheduler))
        for _ in range(5):
            epoch(other, lambda: again.step(0.5) if kind is _held else again.step())
    assert again.last_epoch == scheduler.last_epoch + 5


def test_a_saved_run_that_was_told_is_not_told_again():
    optimizer = optimizer_with([0.1])
    scheduler = lambda_lr(optimizer, CURVE)
    with pytest.warns(CurveWarning):
        epochs(3, optimizer, scheduler.step)
    resumed = optimizer_with([0.1])
    again = lambda_lr(resumed, CURVE)
    again.load_state_dict(through_a_file(scheduler.state_dict()))
    for _ in range(5):
        epoch(resumed, again.step)


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
    # Resumed again and again, before the curve's turn and after it.
    for _ in range(5):
        saved = through_a_file([optimizer.state_dict(), scheduler.state_dict()])
        for _ in range(20):
            optimizer.step()  # lost, as of a run that is killed
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


def test_a_step_that_is_given_its_number_is_where_it_should_be():
    optimizer = optimizer_with([0.1])
    scheduler = lambda_lr(optimizer, CURVE)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The epoch parameter", UserWarning)
        for done in range(20, 120, 20):
            epoch(optimizer, lambda done=done: scheduler.step(done), 20)
    assert rates_of(optimizer) == [pytest.approx(0.1 * CURVE(100))]


def test_torchs_own_warning_of_the_wrong_order_is_kept():
    scheduler = lambda_lr(optimizer_with([0.1]), CURVE)
    with pytest.warns(UserWarning, match=r"Detected call of `lr_scheduler.step\(\)` before") as caught:
        scheduler.step()
    assert [warning.category for warning in caught] == [UserWarning]


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


def test_through_accelerate_batches_that_are_accumulated_do_not_count():
    accelerate = pytest.importorskip("accelerate")
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

        with pytest.warns(CurveWarning, match=SAID):
            epochs(3, SimpleNamespace(step=four_batches), scheduler.step)


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
    module = pytest.importorskip("accelerate.scheduler")
    monkeypatch.setattr(module, "AcceleratorState", lambda: SimpleNamespace(num_processes=2))
    monkeypatch.setattr(module, "GradientState", lambda: SimpleNamespace(sync_gradients=True))
    optimizer = optimizer_with([0.1])
    prepared = module.AcceleratedScheduler(build(optimizer), SimpleNamespace(step_was_skipped=False))
    with pytest.warns(CurveWarning, match="steps a prepared scheduler 2 times an update") as caught:
        advance(optimizer, SimpleNamespace(step=lambda: prepared.step(*metric)), 5)
    assert [warning.filename for warning in caught] == [module.__file__]


def test_a_thread_that_does_nothing_but_step_it():
    optimizer = optimizer_with([0.1])
    scheduler = lambda_lr(optimizer, CURVE)
    advance(optimizer, scheduler)
    done = threading.Lock()
    done.acquire()
    # No line of Python calls the step.
    _thread.start_new_thread(deque, (map(operator.call, (scheduler.step, done.release)), 0))
    assert done.acquire(timeout=10)
    assert scheduler.last_epoch == 2


@pytest.mark.slow
def test_through_fabric():
    fabric = pytest.importorskip("lightning_fabric").Fabric(accelerator="cpu", devices=1)
    model = torch.nn.Linear(2, 1)
    _, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    scheduler = lambda_lr(optimizer, CURVE)
    for _ in range(30):
        advance(optimizer, scheduler)
    with pytest.warns(CurveWarning, match=SAID) as caught:
        epochs(3, optimizer, scheduler.step)
    assert caught[0].filename == __file__


class _NoHooks(torch.optim.Optimizer):
    """A wrapper that is an optimizer by name."""

    def __init__(self, inner):
        self.optim, self.param_groups = inner, inner.param_groups

    def step(self, closure=None):
        return self.optim.step(closure)


def test_an_optimizer_that_takes_no_hooks_is_taken_all_the_same():
    optimizer = _NoHooks(optimizer_with([0.1]))
    scheduler = lambda_lr(optimizer, CURVE)
    epochs(4, optimizer, scheduler.step)
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
        counts.append(counter.frame_count)
        assert rates_of(optimizer) == [0.5 * CURVE(25)]
    assert counts[0] == counts[1]
