"""Random programs of a training step equal a loop by hand, bit for bit, whatever options they combine."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from support.examples import examples
from support.holds.held import clocks_of
from support.schedulers.runs import learning_rate
from support.training.models import Batch, Net, batches, device_pair_loss, mean_loss, nonfinite, pair_loss
from support.training.optimizers import FUSED, OPTIMIZERS
from support.training.trees import equal_trees, through_file
from torch import Tensor, nn
from torch.optim import Optimizer

from plateau_jax import Curve, HoldBelow, PlateauCurve
from torch_bridge import TrainStep

pytestmark = pytest.mark.filterwarnings("ignore:the curve has total_steps:plateau_jax.CurveWarning")

_LOSSES: dict[str, Any] = {"mean": mean_loss, "pair": pair_loss, "device pair": device_pair_loss}
_CURVES = [
    PlateauCurve(6, warmup_steps=3, init_lr_ratio=0.3),  # programs continue past its end
    PlateauCurve(200, plateaus=[(20, 30)], min_lr_ratio=0.1),
]
_RULE = HoldBelow([(2.0, 2), (0.9, 3)], every=2)
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Plan(NamedTuple):
    """The options of a program."""

    names: Sequence[str]
    """An optimizer for each of the two layers, or one for both."""
    loss: str
    curves: Sequence[Curve]
    """One for each layer."""
    precision: Any
    max_norm: float | None
    clock: str
    carry: bool
    aux: bool

    def loss_fn(self, model: nn.Module, batch: Batch, carry: Any = None) -> Any:
        inputs, targets = batch
        value = _LOSSES[self.loss](model, batch if carry is None else (inputs, targets + carry))
        value = (value, {"seen": inputs.sum()}) if self.aux else value
        return value if carry is None else (value, carry / 2 + model(inputs).detach().float().mean(0))

    def build(self, seed: int = 0) -> tuple[Net, list[Optimizer]]:
        model, (kind, options) = Net(seed), OPTIMIZERS[self.names[0]]
        groups = [{"params": model.first.parameters()}, {"params": model.last.parameters(), "lr": 0.02}]
        if len(self.names) == 1:
            return model, [kind(groups, **options)]
        kinds = zip(groups, map(OPTIMIZERS.__getitem__, self.names), strict=True)
        return model, [kind([group], **options) for group, (kind, options) in kinds]

    def step(self, seed: int = 0) -> TrainStep:
        model, optimizers = self.build(seed)
        options: dict[str, Any] = {
            "precision": self.precision,
            "max_norm": self.max_norm,
            "has_aux": self.aux,
        }
        options |= {"carry": torch.zeros(2)} if self.carry else {}
        options |= {"hold": _RULE} if self.clock == "held" else {}
        options |= {"unit": 8, "count": lambda batch: len(batch[0])} if self.clock == "samples" else {}
        optimizer = optimizers if len(optimizers) > 1 else optimizers[0]
        return TrainStep(model, optimizer, self.loss_fn, self.curves, **options)


class ByHand:
    """The same updates in a plain loop, which reads every decision."""

    def __init__(self, plan: Plan) -> None:
        self.plan, (self.model, self.optimizers) = plan, plan.build()
        self.groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
        self.peaks = [float(np.float32(group["lr"])) for group in self.groups]
        self.counters, self.losses, self.carry = [0, 0, 0, 0], list[float](), torch.zeros(2)
        self.scale: Any = torch.tensor(2.0**16) if plan.precision == "fp16" else 1.0
        self.divisor: Any = 1.0

    def loss(self, batch: Batch, carry: Tensor) -> tuple[Tensor, Any, Tensor]:
        """Return loss or sum, weight or None, and the carry."""
        torch.clear_autocast_cache()
        dtype = _DTYPES.get(self.plan.precision)
        with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
            value = self.plan.loss_fn(self.model, batch, *[carry] * self.plan.carry)
        value, carry = value if self.plan.carry else (value, carry)
        value = value[0] if self.plan.aux else value
        return (value, None, carry) if isinstance(value, Tensor) else (*value, carry)

    def update(self, data: Sequence[Batch]) -> list[Any]:
        """Return loss, norm, learning rates and counters, as in the result of a step."""
        total, weight, carry, divisor = torch.zeros(()), 0, self.carry, self.divisor
        self.model.zero_grad()
        for batch in data:
            part, own_weight, carry = self.loss(batch, carry)
            if own_weight is None:
                part = part / len(data)
            elif len(data) == 1:
                part = part / float(own_weight)
            else:
                # Sums in fp16 could overflow: the first weight of all divides them.
                is_first = self.plan.precision == "fp16" and not weight and not isinstance(divisor, Tensor)
                divisor = torch.tensor(float(own_weight)) if is_first else divisor
                part, weight = part / divisor, weight + own_weight
            (part * self.scale).backward()
            total = total + part.detach().float()
        share = divisor / weight if weight else 1.0
        self.divisor = divisor
        parameters = [parameter for group in self.groups for parameter in group["params"]]
        for parameter in parameters:
            parameter.grad.mul_(share * (1 / self.scale))
        loss = total * share
        norm = nn.utils.clip_grad_norm_(parameters, self.plan.max_norm or float("inf"))
        applied, skipped, clock, consumed = self.counters
        lrs = [
            learning_rate(peak, curve, clock)
            for peak, curve in zip(self.peaks, self.plan.curves, strict=True)
        ]
        if loss.isfinite() and norm.isfinite():
            self.step(lrs)
            self.carry, applied = carry, applied + 1
            consumed += sum(len(inputs) for inputs, _ in data) if self.plan.clock == "samples" else 1
            self.losses.append(loss.item())
        else:
            self.scale *= 0.5 if loss.isfinite() and self.plan.precision == "fp16" else 1
            skipped += 1
        result = [loss, norm, torch.tensor(lrs), torch.tensor([applied, skipped, clock, consumed])]
        clock = consumed // 8 if self.plan.clock == "samples" else applied
        if self.plan.clock == "held":
            clock = clocks_of(_RULE, self.plan.curves[0], self.losses)[-1]
        self.counters = [applied, skipped, clock, consumed]
        return result

    def step(self, lrs: Sequence[float]) -> None:
        for group, lr in zip(self.groups, lrs, strict=True):
            group["lr"] = torch.tensor(lr) if group.get("fused") else lr
        for optimizer in self.optimizers:
            optimizer.step()


_NAMES = st.sampled_from([name for name in OPTIMIZERS if name != "muon"])  # which takes matrices alone
_PLANS = st.builds(
    Plan,
    st.lists(st.sampled_from(list(FUSED)) | _NAMES, min_size=1, max_size=2),
    st.sampled_from(list(_LOSSES)),
    st.lists(st.sampled_from(_CURVES), min_size=2, max_size=2),
    st.sampled_from(["fp32", "bf16", "fp16"]),
    st.sampled_from([None, 1.0, 0.05]),
    st.sampled_from(["updates", "samples", "held"]),
    st.booleans(),
    st.booleans(),
).map(lambda plan: plan._replace(curves=[_CURVES[1]] * 2) if plan.clock == "held" else plan)


@examples(100)
@given(plan=_PLANS, data=st.data())
def test_programs_equal_loop_by_hand(plan: Plan, data: st.DataObject) -> None:
    step, by_hand = plan.step(), ByHand(plan)
    events = st.sampled_from(["none", "none", "bad", "overflow", "resume", "peaks", "reset"])
    for number, event in enumerate(data.draw(st.lists(events, min_size=1, max_size=12))):
        sizes = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
        micro_batches = [batches(1, size, seed=10 * number + size)[0] for size in sizes]
        if event == "bad":
            micro_batches[-1] = nonfinite(micro_batches[-1])
        if event == "overflow":
            micro_batches = [(inputs, targets * 1000) for inputs, targets in micro_batches]
        if event == "resume":
            state = through_file(step.state_dict())
            step = plan.step(seed=1)
            step.load_state_dict(state)
        if event == "peaks":
            by_hand.peaks = [0.25, 1 / (number + 3)]
            step.set_peak(by_hand.peaks)
            by_hand.peaks = [float(np.float32(peak)) for peak in by_hand.peaks]
        if event == "reset" and plan.carry:
            step.reset_carry()
            by_hand.carry = torch.zeros(2)
        result, expected = step(*micro_batches), by_hand.update(micro_batches)
        assert equal_trees(list(result[:4]), expected)
        seen = [{"seen": inputs.sum()} for inputs, _ in micro_batches] if plan.aux else []
        assert equal_trees(list(result.aux), seen)
        assert equal_trees(step.model.state_dict(), by_hand.model.state_dict())
        assert not plan.carry or equal_trees(step.state_dict()["carry"], [by_hand.carry])
    for optimizer, reference in zip(step.optimizers, by_hand.optimizers, strict=True):
        states, expected_states = (item.state_dict()["state"] for item in (optimizer, reference))
        if by_hand.counters[0]:  # a first update that a fused kernel skips leaves zeros as its state
            assert equal_trees(states, expected_states)
