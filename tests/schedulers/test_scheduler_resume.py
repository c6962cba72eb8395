"""A resumed run has the learning rates of an uninterrupted run, however it was saved and loaded."""

import pytest
import torch
from hypothesis import given, strategies as st
from support.curves.descriptions import build, descriptions
from support.curves.strategies import magnitudes
from support.examples import examples
from support.schedulers.runs import ROUTES, Run, expected_lrs, lrs_of, modest_peaks, optimizer_with
from support.training.trees import through_file
from torch.optim import lr_scheduler
from torch.optim.swa_utils import SWALR

from plateau_jax import PlateauCurve
from torch_bridge import lambda_lr

pytestmark = [
    pytest.mark.usefixtures("short_windows"),
    # Short curves, far past their ends.
    pytest.mark.filterwarnings("ignore:the curve has total_steps:plateau_jax.CurveWarning"),
]


def _narrow(lr):
    return torch.tensor(lr, dtype=torch.float32)


def _wide(lr):
    return torch.tensor(lr, dtype=torch.float64)


@pytest.mark.parametrize("route", ROUTES)
@examples(20)
@given(
    st.sampled_from((torch.optim.SGD, torch.optim.AdamW, torch.optim.Adagrad)),
    st.lists(st.tuples(descriptions(range(5)), modest_peaks), min_size=1, max_size=3),
    magnitudes(0, 2**31 - 1),
    st.integers(0, 6),
    st.sampled_from((float, _wide)),
)
def test_every_route_matches_uninterrupted_run(route, kind, cases, first, steps, form):
    curves = [build(description) for description, _ in cases]
    lrs = [peak for _, peak in cases]
    uninterrupted = Run(curves, lrs, form, kind, last_epoch=first - 1)
    resumed = Run(curves, lrs, form, kind, last_epoch=first - 1)
    for run in (uninterrupted, resumed):
        run.advance(steps)
    getattr(resumed, route)()
    uninterrupted.advance(resumed.scheduler.last_epoch - uninterrupted.scheduler.last_epoch)
    for _ in range(5):
        assert resumed.scheduler.last_epoch == uninterrupted.scheduler.last_epoch
        assert lrs_of(resumed.optimizer) == lrs_of(uninterrupted.optimizer)
        assert lrs_of(resumed.optimizer) == expected_lrs(resumed, lrs, resumed.scheduler.last_epoch)
        for run in (uninterrupted, resumed):
            run.advance(1)
    assert resumed.scheduler.get_last_lr() == uninterrupted.scheduler.get_last_lr()
    assert resumed.scheduler.base_lrs == uninterrupted.scheduler.base_lrs
    assert all(isinstance(lr, float) for lr in resumed.scheduler.base_lrs)


@examples(40)
@given(
    st.lists(st.tuples(descriptions(range(5)), modest_peaks), min_size=1, max_size=3),
    st.sampled_from((float, _narrow, _wide)),
    st.lists(st.one_of(st.integers(1, 40), st.sampled_from((*ROUTES, 3100))), max_size=8),
)
def test_any_sequence_of_steps_and_resumes_matches(cases, form, walk):
    curves = [build(description) for description, _ in cases]
    lrs = [peak for _, peak in cases]
    run = Run(curves, lrs, form)
    for move in walk:
        if isinstance(move, int):
            run.advance(move)
        else:
            getattr(run, move)()
        assert lrs_of(run.optimizer) == expected_lrs(run, lrs, run.scheduler.last_epoch)


CURVE = PlateauCurve(100, warmup_steps=10, plateaus=[(50, 20)], min_lr_ratio=0.1)


def _curve_then_cosine(optimizer):
    cosine = lr_scheduler.CosineAnnealingLR(optimizer, 50, eta_min=0.01)
    return [lr_scheduler.SequentialLR(optimizer, [lambda_lr(optimizer, CURVE), cosine], [20])]


def _constant_then_curve(optimizer):
    constant = lr_scheduler.ConstantLR(optimizer, 0.5, total_iters=100)
    return [lr_scheduler.SequentialLR(optimizer, [constant, lambda_lr(optimizer, CURVE)], [20])]


def _curve_and_decay(optimizer):
    decay = lr_scheduler.ExponentialLR(optimizer, 0.9)
    return [lr_scheduler.ChainedScheduler([lambda_lr(optimizer, CURVE), decay], optimizer)]


def _curve_then_averaging(optimizer):
    return [lambda_lr(optimizer, CURVE), SWALR(optimizer, swa_lr=0.03, anneal_epochs=10)]


@pytest.mark.filterwarnings("ignore:The epoch parameter")  # which SequentialLR passes
@pytest.mark.parametrize(
    "build", [_curve_then_cosine, _constant_then_curve, _curve_and_decay, _curve_then_averaging]
)
@examples(15)
@given(
    st.one_of(st.integers(1, 40), st.sampled_from((19, 20, 21))),
    st.booleans(),
    st.sampled_from((float, _wide)),
)
def test_resume_with_other_schedulers_matches(build, saved_at, optimizer_first, form):
    def start():
        optimizer = optimizer_with([form(0.5), form(0.25)])
        return optimizer, build(optimizer)

    def follow(optimizer, schedulers, steps):
        """Return the learning rates of these steps; a second scheduler takes over at step 20."""
        lrs = []
        for step in steps:
            optimizer.step()
            schedulers[-1 if step >= 20 else 0].step()
            lrs.append(lrs_of(optimizer))
        return lrs

    optimizer, schedulers = start()
    follow(optimizer, schedulers, range(saved_at))
    saved = through_file([part.state_dict() for part in (optimizer, *schedulers)])
    expected = [lrs_of(optimizer), *follow(optimizer, schedulers, range(saved_at, saved_at + 30))]

    optimizer, schedulers = start()
    order = [optimizer, *schedulers] if optimizer_first else [*schedulers, optimizer]
    for part, state in zip(order, saved if optimizer_first else [*saved[1:], saved[0]], strict=True):
        part.load_state_dict(state)
    assert [lrs_of(optimizer), *follow(optimizer, schedulers, range(saved_at, saved_at + 30))] == expected
