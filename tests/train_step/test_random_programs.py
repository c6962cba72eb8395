"""Random programs of a training step equal a loop by hand, bit for bit, with any options."""

import torch
from hypothesis import given, strategies as st
from support.examples import examples
from support.training.by_hand import ByHand
from support.training.kind import Kind
from support.training.models import LOSSES, batches
from support.training.optimizers import FUSED, OPTIMIZERS, by_layer
from support.training.steps import through_file
from support.trees import assert_equal_trees
from train_step.kinds_of_run import count_samples, with_aux

from plateau_jax import DataClock, HoldBelow, PlateauCurve

ENDING = PlateauCurve(6, warmup_steps=3, init_lr_ratio=0.3)
FLAT = PlateauCurve(200, plateaus=[(20, 30)], min_lr_ratio=0.1)


CLOCKS = {
    "updates": {},
    "samples": {"clock": DataClock(8), "count": count_samples},
    "held": {"clock": HoldBelow(0.9, 3, every=2)},
}


def with_carry(loss_fn):
    def carried(model, batch, carry):
        inputs, targets = batch
        mean_outputs = model(inputs).detach().float().mean(0)
        next_carry = carry / 2 + mean_outputs
        return loss_fn(model, (inputs, targets + carry)), next_carry

    return carried


@st.composite
def kinds(draw):
    all_but_muon = [name for name in OPTIMIZERS if name != "muon"]
    names = st.sampled_from(list(FUSED)) | st.sampled_from(all_but_muon)
    loss_fn = draw(st.sampled_from(list(LOSSES.values())))
    clock = draw(st.sampled_from(list(CLOCKS)))
    curves = [ENDING, FLAT]  # programs continue past the end
    if clock == "held":
        curves = [FLAT]
    options = {
        "precision": draw(st.sampled_from(["fp32", "bf16", "fp16"])),
        "max_norm": draw(st.sampled_from([None, 1.0, 0.05])),
        "has_aux": draw(st.booleans()),
        **CLOCKS[clock],
    }
    if options["has_aux"]:
        loss_fn = with_aux(loss_fn)
    if draw(st.booleans()):
        loss_fn = with_carry(loss_fn)
        options["carry"] = torch.zeros(2)
    names_by_layer = draw(st.lists(names, min_size=1, max_size=2))
    optimizers = by_layer(*names_by_layer)
    first_curve = draw(st.sampled_from(curves))
    last_curve = draw(st.sampled_from(curves))
    return Kind(optimizers, loss_fn, curve=[first_curve, last_curve], **options)


def micro_batches_of(number, sizes, event):
    micro_batches = []
    for size in sizes:
        micro_batches += batches(1, size, seed=10 * number + size)
    if event == "bad":
        inputs, targets = micro_batches.pop()
        micro_batches.append((inputs * torch.nan, targets))
    elif event == "overflow":
        micro_batches = [(inputs, targets * 1000) for inputs, targets in micro_batches]
    return micro_batches


@examples(40)
@given(kind=kinds(), data=st.data())
def test_programs_equal_loop_by_hand(kind, data):
    step = kind.build()
    by_hand = ByHand(kind)
    event_names = ["none", "none", "bad", "overflow", "resume", "peaks", "reset"]
    events = data.draw(st.lists(st.sampled_from(event_names), min_size=1, max_size=12))
    for number, event in enumerate(events):
        sizes = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
        micro_batches = micro_batches_of(number, sizes, event)
        if event == "resume":
            state = through_file(step.state_dict())
            step = kind.build()
            step(*batches(1, seed=number))
            step.load_state_dict(state)
        elif event == "peaks":
            groups = range(len(by_hand.peaks))
            by_hand.peaks = [1 / (number + group + 3) for group in groups]
            step.set_peak(by_hand.peaks)
        elif event == "reset" and "carry" in kind.options:
            step.reset_carry()
            by_hand.carry = kind.options["carry"]
        result = step(*micro_batches)
        expected = by_hand.update(micro_batches)
        assert_equal_trees(tuple(result), expected)
        assert_equal_trees(step.model.state_dict(), by_hand.model.state_dict())
        carry = step.state_dict()["carry"]
        assert_equal_trees(carry, by_hand.carry_leaves())
    loss_scale = step.state_dict()["loss_scale"] or []
    assert list(map(float, loss_scale)) == by_hand.loss_scale()
    if by_hand.applied:  # a first update that a fused kernel skips leaves zeros as its state
        for optimizer, reference in zip(step.optimizers, by_hand.optimizers, strict=True):
            states = optimizer.state_dict()["state"]
            expected_states = reference.state_dict()["state"]
            assert_equal_trees(states, expected_states)
