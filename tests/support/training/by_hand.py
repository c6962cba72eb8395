"""The loop that a user would write for a kind of run; it uses only the product's curves."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from support.clocks.holds import curve_steps_of
from support.schedulers.runs import learning_rate
from support.training.kind import Kind
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from plateau_jax import Curve, DataClock

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Update(NamedTuple):
    """The values that the result of a step must have."""

    loss: Tensor
    grad_norm: Tensor
    lr: Tensor
    counters: Tensor
    """Applied and skipped updates, the step of the curve, and the data consumed."""
    aux: tuple[Any, ...]


@dataclass
class Forward:
    """The outputs of the loss function for one micro-batch."""

    loss: Tensor
    weight: Any
    """None if the loss is a mean and not a sum."""
    aux: list[Any]
    carry: Any


class ByHand:
    """The loop that a step of this kind must equal, which reads every decision on the host."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.options = kind.options
        self.model = kind.model()
        self.optimizers = kind.optimizers(self.model)
        self.groups: list[dict[str, Any]] = []
        self.curves: list[Curve] = []
        for optimizer, entry in zip(self.optimizers, self.curves_by_optimizer(), strict=True):
            groups = optimizer.param_groups
            self.groups += groups
            if isinstance(entry, Curve):
                self.curves += [entry] * len(groups)
            else:
                self.curves += entry
        # The groups' tensors at the start, or numbers.
        self.lr_tensors = [group["lr"] for group in self.groups]
        self.peaks: list[float] = []
        for group in self.groups:
            peak = group.get("initial_lr", group["lr"])
            # `float(tensor)` would warn for a tensor that requires grad.
            self.peaks.append(torch.as_tensor(peak, dtype=torch.float64).item())

        self.is_fp16 = self.options.get("precision") == "fp16"
        self.scaler = torch.amp.GradScaler("cpu", init_scale=kind.loss_scale, enabled=self.is_fp16)
        if self.is_fp16:
            state = self.scaler.state_dict()
            self.scaler.load_state_dict(state | {"_growth_tracker": kind.growth_tracker})
        self.divisor = 1.0
        """In fp16 the first weight of an update, by which its sums are divided: they could
        overflow."""

        self.carry: Any = self.options.get("carry")
        self.applied = self.options.get("initial_updates", 0)
        self.curve_step = self.applied
        self.skipped = 0
        self.losses: list[float] = []
        self.counts = [1] * self.applied

    def curves_by_optimizer(self) -> Sequence[Any]:
        curve = self.kind.curve
        if len(self.optimizers) == 1 or isinstance(curve, Curve):
            return [curve] * len(self.optimizers)
        return curve

    def update(self, micro_batches: Sequence[Any]) -> Update:
        curve_step = self.curve_step
        lrs = self.lrs_at(curve_step)
        self.model.zero_grad()
        loss, aux, carry = self.forward_and_backward(micro_batches)
        parameters = self.parameters_with_gradients()
        norm = nn.utils.get_total_norm([_values(p.grad) for p in parameters])

        if loss.isfinite() and norm.isfinite():
            max_norm = self.options.get("max_norm")
            if max_norm is not None:
                nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
            self.step_optimizers(lrs)
            self.advance_clock(loss, micro_batches)
            self.carry = carry
        else:
            self.skipped += 1
        if loss.isfinite():
            self.scaler.update()
        else:  # which is not due to the scale
            self.scaler.update(self.scaler.get_scale())

        counters = [self.applied, self.skipped, curve_step, sum(self.counts)]
        lr = torch.tensor(lrs, dtype=torch.float32)
        return Update(loss, norm, lr, torch.tensor(counters), tuple(aux))

    def lrs_at(self, curve_step: int) -> list[float]:
        """Return the learning rate of each group at a step of the curve."""
        lrs: list[float] = []
        for peak, curve in zip(self.peaks, self.curves, strict=True):
            lrs.append(learning_rate(peak, curve, curve_step))
        return lrs

    def parameters_with_gradients(self) -> list[Any]:
        parameters: list[Any] = []
        for group in self.groups:
            parameters += [p for p in group["params"] if p.grad is not None]
        return parameters

    def forward_and_backward(self, micro_batches: Sequence[Any]) -> tuple[Tensor, list[Any], Any]:
        """Leave the gradients in the parameters; return the loss, the aux outputs and the carry."""
        losses: list[Tensor] = []
        weights: list[Any] = []
        aux: list[Any] = []
        carry = pytree.tree_map_only(Tensor, torch.clone, self.carry)
        for number, batch in enumerate(micro_batches):
            forward = self.forward(batch, carry)
            if number == 0 and forward.weight is not None and self.can_overflow():
                self.divisor = _positive(float(forward.weight))
            loss = forward.loss / self.divisor_for(forward.weight, len(micro_batches))
            self.scaler.scale(loss).backward()
            # In float32 at least.
            losses.append(
                loss.detach().to(torch.promote_types(loss.dtype, torch.float32), copy=True)
            )
            if forward.weight is not None:
                weights.append(forward.weight)
            aux += forward.aux
            carry = forward.carry
        for optimizer in self.optimizers:
            self.scaler.unscale_(optimizer)
        total = sum(losses[1:], start=losses[0])
        if len(weights) > 1:
            # Only now the sum of the weights is known.
            factor = torch.tensor(self.divisor) / sum(weights)
            total = total * factor
            for parameter in self.parameters_with_gradients():
                parameter.grad.mul_(factor)
        return total, aux, carry

    def divisor_for(self, weight: Any, num_micro_batches: int) -> float:
        if weight is None:
            return num_micro_batches
        if num_micro_batches == 1:
            return float(weight)
        return self.divisor

    def can_overflow(self) -> bool:
        return self.is_fp16 or any(p.dtype == torch.float16 for p in self.model.parameters())

    def forward(self, batch: Any, carry: Any) -> Forward:
        torch.clear_autocast_cache()
        arguments = [self.model, batch]
        if carry is not None:
            arguments.append(carry)
        dtype = _AUTOCAST.get(self.options.get("precision", "fp32"))
        with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
            outputs = self.kind.loss_fn(*arguments)
        if carry is not None:
            outputs, new_carry = outputs
            carry = pytree.tree_map(_like_old, new_carry, carry)
        aux: list[Any] = []
        if self.options.get("has_aux"):
            outputs, aux_of_batch = outputs
            aux.append(pytree.tree_map(Tensor.detach, aux_of_batch))
        if isinstance(outputs, Tensor):
            return Forward(outputs, None, aux, carry)
        total, weight = outputs
        return Forward(total, weight, aux, carry)

    def step_optimizers(self, lrs: list[float]) -> None:
        for group, tensor, lr in zip(self.groups, self.lr_tensors, lrs, strict=True):
            if isinstance(tensor, Tensor):
                group["lr"] = torch.full_like(tensor, lr)
            elif group.get("fused"):
                group["lr"] = torch.tensor(lr, dtype=torch.float32)
            else:
                group["lr"] = lr
        for optimizer in self.optimizers:
            self.scaler.step(optimizer)

    def advance_clock(self, loss: Tensor, micro_batches: Sequence[Any]) -> None:
        self.applied += 1
        self.losses.append(loss.item())
        self.counts.append(self.count(micro_batches))
        clock = self.options.get("clock")
        curve_steps = curve_steps_of(clock, self.curves[0], self.counts, self.losses)
        self.curve_step = curve_steps[-1]

    def count(self, micro_batches: Sequence[Any]) -> int:
        count_of_batch: Any = self.options.get("count")
        clock = self.options.get("clock")
        if count_of_batch is not None:
            return sum(int(count_of_batch(batch)) for batch in micro_batches)
        if isinstance(clock, DataClock):
            return clock.count or 1
        return 1

    def loss_scale(self) -> list[float]:
        """Return the numbers of `loss_scale` in the state of a step."""
        numbers: list[float] = []
        if self.is_fp16:
            state = self.scaler.state_dict()
            numbers += [state["scale"], state["_growth_tracker"]]
        return numbers

    def carry_leaves(self) -> list[Tensor] | None:
        if self.carry is None:
            return None
        return pytree.tree_leaves(self.carry)


def _positive(weight: float) -> float:
    """Return a weight that can divide, or else 1."""
    if 0 < weight < math.inf:
        return weight
    return 1.0


def _values(gradient: Tensor) -> Tensor:
    if gradient.is_sparse:
        return gradient.coalesce().values()
    return gradient


def _like_old(leaf: Tensor, old: Tensor) -> Tensor:
    return leaf.detach().to(old.dtype).clone()
