"""Random programs of a training step equal a loop by hand, bit for bit, whatever options they combine."""

from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from support.examples import examples
from support.training.by_hand import ByHand
from support.training.kinds_of_run import Kind, by_layer, with_aux
from support.training.models import Batch, batches, device_pair_loss, mean_loss, nonfinite, pair_loss
from support.training.optimizers import FUSED, OPTIMIZERS
from support.training.trees import equal_trees, through_file
from torch import nn

from plateau_jax import DataClock, HoldBelow, PlateauCurve

pytestmark = pytest.mark.filterwarnings("ignore:the curve has total_steps:plateau_jax.CurveWarning")

_ENDING = PlateauCurve(6, warmup_steps=3, init_lr_ratio=0.3)  # programs continue past its end
_FLAT = PlateauCurve(200, plateaus=[(20, 30)], min_lr_ratio=0.1)
_CLOCKS: dict[str, dict[str, Any]] = {
    "updates": {},
    "samples": {"clock": DataClock(8), "count": lambda batch: len(batch[0])},
    "held": {"clock": HoldBelow([(2.0, 2), (0.9, 3)], every=2)},
}


def _with_carry(loss_fn: Any) -> Any:
    def carried(model: nn.Module, batch: Batch, carry: torch.Tensor) -> Any:
        inputs, targets = batch
        return loss_fn(model, (inputs, targets + carry)), carry / 2 + model(inputs).detach().float().mean(0)

    return carried


@st.composite
def _kinds(draw: st.DrawFn) -> Kind:
    names = st.sampled_from(list(FUSED)) | st.sampled_from([name for name in OPTIMIZERS if name != "muon"])
    loss_fn = draw(st.sampled_from([mean_loss, pair_loss, device_pair_loss]))
    clock = draw(st.sampled_from(list(_CLOCKS)))
    curves = st.just(_FLAT) if clock == "held" else st.sampled_from([_ENDING, _FLAT])
    options = {
        "precision": draw(st.sampled_from(["fp32", "bf16", "fp16"])),
        "max_norm": draw(st.sampled_from([None, 1.0, 0.05])),
        "has_aux": draw(st.booleans()),
        **_CLOCKS[clock],
    }
    loss_fn = with_aux(loss_fn) if options["has_aux"] else loss_fn
    if draw(st.booleans()):
        loss_fn, options["carry"] = _with_carry(loss_fn), torch.zeros(2)
    optimizers = by_layer(*draw(st.lists(names, min_size=1, max_size=2)))
    return Kind(optimizers, loss_fn, curve=[draw(curves), draw(curves)], **options)


@examples(40)
@given(kind=_kinds(), data=st.data())
def test_programs_equal_loop_by_hand(kind: Kind, data: st.DataObject) -> None:
    step, by_hand = kind.build(), ByHand(kind)
    events = st.sampled_from(["none", "none", "bad", "overflow", "resume", "peaks", "reset"])
    for number, event in enumerate(data.draw(st.lists(events, min_size=1, max_size=12))):
        sizes = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
        micro_batches = [batches(1, size, seed=10 * number + size)[0] for size in sizes]
        if event == "bad":
            micro_batches[-1] = nonfinite(micro_batches[-1])
        elif event == "overflow":
            micro_batches = [(inputs, targets * 1000) for inputs, targets in micro_batches]
        elif event == "resume":
            state = through_file(step.state_dict())
            step = kind.build()
            step(*batches(1, seed=number))
            step.load_state_dict(state)
        elif event == "peaks":
            by_hand.peaks = [1 / (number + index + 3) for index in range(len(by_hand.peaks))]
            step.set_peak(by_hand.peaks)
        elif event == "reset" and "carry" in kind.options:
            step.reset_carry()
            by_hand.carry = kind.options["carry"]
        assert equal_trees(tuple(step(*micro_batches)), by_hand.update(micro_batches))
        assert equal_trees(step.model.state_dict(), by_hand.model.state_dict())
        assert equal_trees(step.state_dict()["carry"], by_hand.carry_leaves())
    assert [float(value) for value in step.state_dict()["loss_scale"] or []] == by_hand.loss_scale()
    for optimizer, reference in zip(step.optimizers, by_hand.optimizers, strict=True):
        states, expected_states = (item.state_dict()["state"] for item in (optimizer, reference))
        if by_hand.applied:  # a first update that a fused kernel skips leaves zeros as its state
            assert equal_trees(states, expected_states)
