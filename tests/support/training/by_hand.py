"""The loop that a user would write for a kind of run; it uses only the product's curves."""

from collections.abc import Sequence
from typing import Any

import torch
from support.clocks.holds import curve_steps_of
from support.schedulers.runs import learning_rate
from support.training.kinds_of_run import Kind
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from plateau_jax import Curve, DataClock

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class ByHand:
    """A training run that reads every decision on the host."""

    def __init__(self, kind: Kind) -> None:
        self.kind, self.options, self.model = kind, kind.options, kind.model()
        self.optimizers = kind.optimizers(self.model)
        self.groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
        self.lr_tensors = [group["lr"] for group in self.groups]
        """The groups' tensors at the start, or numbers."""
        self.peaks = [float(group.get("initial_lr", group["lr"])) for group in self.groups]
        is_shared = len(self.optimizers) == 1 or isinstance(kind.curve, Curve)
        entries: Any = [kind.curve] * len(self.optimizers) if is_shared else kind.curve
        self.curves: list[Curve] = []
        for optimizer, entry in zip(self.optimizers, entries, strict=True):
            is_single = isinstance(entry, Curve)
            self.curves += [entry] * len(optimizer.param_groups) if is_single else entry
        self.is_fp16 = self.options.get("precision") == "fp16"
        self.scaler = torch.amp.GradScaler("cpu", init_scale=kind.loss_scale, enabled=self.is_fp16)
        if self.is_fp16:
            self.scaler.load_state_dict(self.scaler.state_dict() | {"_growth_tracker": kind.good_updates})
        self.divisor: float | None = None
        """The first weight of all, by which sums in fp16 are divided: they could overflow."""
        self.carry: Any = self.options.get("carry")
        self.applied = self.curve_step = self.options.get("initial_updates", 0)
        self.skipped = 0
        self.losses: list[float] = []
        self.counts = [1] * self.applied

    def update(self, micro_batches: Sequence[Any]) -> tuple[Any, ...]:
        """Return what the result of a step must be: loss, norm, learning rates, counters, aux."""
        now, peaks_and_curves = self.curve_step, zip(self.peaks, self.curves, strict=True)
        lrs = [learning_rate(peak, curve, now) for peak, curve in peaks_and_curves]
        self.model.zero_grad()
        loss, share, aux, carry = self._forward_and_backward(micro_batches)
        for optimizer in self.optimizers:
            self.scaler.unscale_(optimizer)
        parameters = [p for group in self.groups for p in group["params"] if p.grad is not None]
        for parameter in parameters if share is not None else []:
            parameter.grad.mul_(share)
        gradients = [p.grad.coalesce().values() if p.grad.is_sparse else p.grad for p in parameters]
        norm = nn.utils.get_total_norm(gradients)
        if loss.isfinite() and norm.isfinite():
            if (max_norm := self.options.get("max_norm")) is not None:
                nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
            self._step(lrs)
            self._count(loss, micro_batches)
            self.carry = carry
        else:
            self.skipped += 1
        if loss.isfinite():
            self.scaler.update()
        else:  # which is not due to the scale
            self.scaler.update(self.scaler.get_scale())
        counters = [self.applied, self.skipped, now, sum(self.counts)]
        return loss, norm, torch.tensor(lrs, dtype=torch.float32), torch.tensor(counters), tuple(aux)

    def _forward_and_backward(self, micro_batches: Sequence[Any]) -> tuple[Tensor, Any, list[Any], Any]:
        """Return the loss, a factor for the gradients if it is known only now, aux outputs, and the carry."""
        parts: list[Tensor] = []
        weights: list[Any] = []
        all_aux: list[Any] = []
        carry = pytree.tree_map_only(Tensor, torch.clone, self.carry)
        for batch in micro_batches:
            part, weight, aux, carry = self._loss(batch, carry)
            if weight is None:
                part = part / len(micro_batches)
            elif len(micro_batches) == 1:
                part = part / float(weight)
            else:
                if self.divisor is None and self._can_overflow():
                    self.divisor = float(weight) or 1.0
                part = part / (self.divisor or 1.0)
                weights.append(weight)
            self.scaler.scale(part).backward()
            parts.append(part.detach().clone() if part.dtype.itemsize >= 4 else part.detach().float())
            all_aux += aux
        total = sum(parts[1:], start=parts[0])
        if not weights:
            return total, None, all_aux, carry
        share = torch.tensor(self.divisor or 1.0) / sum(weights)
        return total * share, share, all_aux, carry

    def _loss(self, batch: Any, carry: Any) -> tuple[Tensor, Any, list[Any], Any]:
        """Return the loss or a sum, its weight or None, the aux in a list, and the carry."""
        torch.clear_autocast_cache()
        dtype = _AUTOCAST.get(self.options.get("precision", "fp32"))
        with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
            value = self.kind.loss_fn(self.model, batch, *([] if carry is None else [carry]))
        if carry is not None:
            value, new = value
            carry = pytree.tree_map(_like_old, new, carry)
        aux: list[Any] = []
        if self.options.get("has_aux"):
            value, of_batch = value
            aux = [pytree.tree_map(Tensor.detach, of_batch)]
        return (value, None, aux, carry) if isinstance(value, Tensor) else (*value, aux, carry)

    def _can_overflow(self) -> bool:
        return self.is_fp16 or any(p.dtype == torch.float16 for p in self.model.parameters())

    def _step(self, lrs: list[float]) -> None:
        for group, tensor, lr in zip(self.groups, self.lr_tensors, lrs, strict=True):
            if isinstance(tensor, Tensor):
                group["lr"] = torch.full_like(tensor, lr)
            elif group.get("fused"):
                group["lr"] = torch.tensor(lr, dtype=torch.float32)
            else:
                group["lr"] = lr
        for optimizer in self.optimizers:
            self.scaler.step(optimizer)

    def _count(self, loss: Tensor, micro_batches: Sequence[Any]) -> None:
        clock: Any = self.options.get("clock")
        count: Any = self.options.get("count")
        self.applied += 1
        self.losses.append(loss.item())
        number = 1
        if count is not None:
            number = sum(int(count(batch)) for batch in micro_batches)
        elif isinstance(clock, DataClock):
            number = clock.count or 1
        self.counts.append(number)
        self.curve_step = curve_steps_of(clock, self.curves[0], self.counts, self.losses)[-1]

    def loss_scale(self) -> list[float]:
        scaler = self.scaler.state_dict()
        scale = [scaler["scale"], scaler["_growth_tracker"]] if self.is_fp16 else []
        return [*scale, *([] if self.divisor is None else [self.divisor])]

    def carry_leaves(self) -> list[Tensor] | None:
        return None if self.carry is None else pytree.tree_leaves(self.carry)


def _like_old(leaf: Tensor, old: Tensor) -> Tensor:
    return leaf.detach().to(old.dtype).clone()
