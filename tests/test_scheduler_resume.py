"""A resumed run has the rates of the run that never stopped, however it was saved and loaded."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from runs import ROUTES, Run, expected_rates, modest_peaks, rates_of
from strategies import arguments, magnitudes

from plateau_jax import PlateauCurve


def _narrow(rate):
    return torch.tensor(rate, dtype=torch.float32)


def _wide(rate):
    return torch.tensor(rate, dtype=torch.float64)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW, torch.optim.Adagrad])
@pytest.mark.parametrize("route", ROUTES)
@settings(max_examples=8)
@given(
    st.lists(st.tuples(arguments(st.integers(0, 4)), modest_peaks), min_size=1, max_size=3),
    magnitudes(0, 2**31 - 1),
    st.integers(0, 6),
    st.sampled_from((float, _wide)),
)
def test_every_route_goes_on_like_the_run_that_never_stopped(route, kind, cases, first, steps, form):
    curves = [PlateauCurve(**chosen) for chosen, _ in cases]
    rates = [peak for _, peak in cases]
    whole = Run(curves, rates, form, kind, last_epoch=first - 1)
    resumed = Run(curves, rates, form, kind, last_epoch=first - 1)
    for run in (whole, resumed):
        run.advance(steps)
    getattr(resumed, route)()
    whole.advance(resumed.scheduler.last_epoch - whole.scheduler.last_epoch)
    for _ in range(5):
        assert resumed.scheduler.last_epoch == whole.scheduler.last_epoch
        assert rates_of(resumed.optimizer) == rates_of(whole.optimizer)
        assert rates_of(resumed.optimizer) == expected_rates(resumed, rates, resumed.scheduler.last_epoch)
        for run in (whole, resumed):
            run.advance(1)
    assert resumed.scheduler.get_last_lr() == whole.scheduler.get_last_lr()
    assert resumed.scheduler.base_lrs == whole.scheduler.base_lrs
    assert all(isinstance(rate, float) for rate in resumed.scheduler.base_lrs)


@settings(max_examples=40)
@given(
    st.lists(st.tuples(arguments(st.integers(0, 4)), modest_peaks), min_size=1, max_size=3),
    st.sampled_from((float, _narrow, _wide)),
    st.lists(st.one_of(st.integers(1, 40), st.sampled_from((*ROUTES, 3100))), max_size=8),
)
def test_any_walk_of_steps_and_resumptions(cases, form, walk):
    curves = [PlateauCurve(**chosen) for chosen, _ in cases]
    rates = [peak for _, peak in cases]
    run = Run(curves, rates, form)
    for move in walk:
        if isinstance(move, int):
            run.advance(move)
        else:
            getattr(run, move)()
        assert rates_of(run.optimizer) == expected_rates(run, rates, run.scheduler.last_epoch)
