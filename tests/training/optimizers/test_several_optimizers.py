"""Several optimizers in one update: one clip, one decision, one clock."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support.training.models import Net, batches, mean_loss, nonfinite
from support.training.reads import reads_of
from support.training.steps import CURVE, check_resume, make_step, state_kept_by_skips, train, train_by_hand
from support.training.trees import equal_trees
from torch import nn
from torch.optim import SGD, AdamW, Muon, Optimizer

from plateau_jax import PlateauCurve
from torch_bridge import TrainStep

_LINEAR = PlateauCurve(30, decay_shape="linear")


def _muon_and_adamw(model: Net) -> list[Optimizer]:
    matrices, vectors = (
        [p for p in model.parameters() if (p.dim() == 2) is wanted] for wanted in (True, False)
    )
    groups = [{"params": vectors[:1], "lr": 0.03}, {"params": vectors[1:]}]
    return [Muon(matrices, lr=0.02), AdamW(groups, lr=0.01, fused=True)]


def _fused(model: Net) -> list[Optimizer]:
    adamw = AdamW(model.first.parameters(), lr=0.01, fused=True)
    return [adamw, SGD(model.last.parameters(), lr=0.1, fused=True)]


def _on_the_host(model: Net) -> list[Optimizer]:
    return [
        torch.optim.RMSprop(model.first.parameters(), lr=0.01),
        torch.optim.NAdam(model.last.parameters(), lr=0.01),
    ]


def _momentum_and_host(model: Net) -> list[Optimizer]:
    momentum = SGD(model.first.parameters(), lr=0.1, momentum=0.9, fused=True)
    return [momentum, torch.optim.Adam(model.last.parameters(), lr=0.01)]


_SETS: dict[str, Callable[[Net], list[Optimizer]]] = {
    "muon and adamw": _muon_and_adamw,
    "fused": _fused,
    "on the host": _on_the_host,
    "momentum and host": _momentum_and_host,
}


def _step(build: Callable[[Net], list[Optimizer]], curve: Any = CURVE, **options: Any) -> TrainStep:
    model = Net()
    return make_step(model=model, optimizer=build(model), curve=curve, **options)


@pytest.mark.parametrize("build", _SETS.values(), ids=_SETS)
@pytest.mark.parametrize("skips", [set(), {0, 5, 6}])
def test_several_optimizers_match_hand_written_loop(
    build: Callable[[Net], list[Optimizer]], skips: set[int]
) -> None:
    model = Net()
    optimizers, data = build(model), batches(20)
    expected = train_by_hand(model, optimizers, [[batch] for batch in data], 0.3, skips=skips)
    step = _step(build, max_norm=0.3)
    for number, (batch, values) in enumerate(zip(data, expected, strict=True)):
        result = step(nonfinite(batch) if number in skips else batch)
        assert equal_trees((result.lr, result.loss, result.grad_norm)[: len(values)], values)
    assert (result.applied, result.skipped) == (20 - len(skips), len(skips))
    assert equal_trees(step.model.state_dict(), model.state_dict())
    for optimizer, expected_optimizer in zip(step.optimizers, optimizers, strict=True):
        assert equal_trees(optimizer.state_dict()["state"], expected_optimizer.state_dict()["state"])


@pytest.mark.parametrize("build", _SETS.values(), ids=_SETS)
def test_optimizers_share_one_skip_decision(build: Callable[[Net], list[Optimizer]]) -> None:
    """A nonfinite gradient in one optimizer skips the others too."""

    def loss_fn(model: nn.Module, batch: Any) -> torch.Tensor:
        # Infinite only in the derivative with respect to the last layer's bias.
        return mean_loss(model, batch) + (model.last.bias * batch[2] + 1 - batch[2]).sqrt().sum()

    model = Net()
    nn.init.zeros_(model.last.bias)
    step = make_step(model=model, optimizer=build(model), loss_fn=loss_fn)
    good, bad = ((*batches(1)[0], value) for value in (0.0, 1.0))
    assert step(bad).skipped == 1
    step(good)
    nn.init.zeros_(model.last.bias)
    before = state_kept_by_skips(step)
    result = step(bad)
    after = state_kept_by_skips(step)
    assert result.loss.isfinite()
    assert after.pop("skipped") == before.pop("skipped") + 1
    assert equal_trees(after, before)


def test_optimizers_share_one_read() -> None:
    """One read per update for all host steppers together; none without them."""
    (batch,) = batches(1)
    step = _step(_fused)
    assert reads_of(lambda: train(step, [batch, nonfinite(batch), batch])) == 0
    for build in (_on_the_host, _momentum_and_host, _muon_and_adamw):
        step = _step(build)
        step(batch)
        assert reads_of(lambda step=step: step(nonfinite(batch))) == 1


@pytest.mark.parametrize(
    ("curve", "expected"),
    [
        (CURVE, [CURVE] * 3),
        ([CURVE, _LINEAR], [CURVE, _LINEAR, _LINEAR]),
        ([_LINEAR, [CURVE, _LINEAR]], [_LINEAR, CURVE, _LINEAR]),
        (([CURVE], (_LINEAR, CURVE)), [CURVE, _LINEAR, CURVE]),
    ],
    ids=["one for all", "an optimizer", "a group", "tuples"],
)
def test_curves_are_assigned_to_groups(curve: Any, expected: list[PlateauCurve]) -> None:
    step = _step(_muon_and_adamw, curve)
    peaks = [np.float32(peak) for peak in (0.02, 0.03, 0.01)]
    for applied, batch in enumerate(batches(6)):
        rates = [curve_of_group(applied) * peak for curve_of_group, peak in zip(expected, peaks, strict=True)]
        assert equal_trees(step(batch).lr, torch.tensor(np.array(rates)))
        used = [float(group["lr"]) for optimizer in step.optimizers for group in optimizer.param_groups]
        assert used == rates


@pytest.mark.parametrize("kind", [AdamW, torch.optim.RMSprop])
def test_list_of_one_equals_single_optimizer(kind: Any) -> None:
    def groups(model: Net) -> Optimizer:
        return kind([{"params": part.parameters()} for part in (model.first, model.last)], lr=0.01)

    one, listed = Net(), Net()
    step = make_step(model=one, optimizer=groups(one), curve=[CURVE, _LINEAR])
    other = make_step(model=listed, optimizer=[groups(listed)], curve=[[CURVE, _LINEAR]])
    data = batches(6)
    assert equal_trees(train(step, data), train(other, data))
    assert equal_trees(step.state_dict(), other.state_dict())
    assert other.optimizer is other.optimizers[0]
    other.load_state_dict(step.state_dict())
    step.load_state_dict(other.state_dict())


def test_optimizer_attribute_needs_a_single_one() -> None:
    step = _step(_fused)
    with pytest.raises(AttributeError, match=r"2 optimizers: see step\.optimizers"):
        step.optimizer  # noqa: B018 - the attribute is what is asked for
    assert [type(optimizer) for optimizer in step.optimizers] == [AdamW, SGD]


@pytest.mark.parametrize("build", _SETS.values(), ids=_SETS)
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_several_optimizers_resume_from_file(build: Callable[[Net], list[Optimizer]], precision: str) -> None:
    def loss_fn(model: nn.Module, batch: Any, carry: Any) -> Any:
        return mean_loss(model, (batch[0] + carry, batch[1])), carry * 0.5 + batch[0].mean()

    options = {"loss_fn": loss_fn, "precision": precision, "carry": torch.zeros(()), "max_norm": 0.5}
    data = [nonfinite(batch) if number in (0, 3, 6) else batch for number, batch in enumerate(batches(9))]
    check_resume(lambda: _step(build, **options), data, (0, 1, 4))


def test_states_of_other_optimizers_are_rejected() -> None:
    (batch,) = batches(1)
    others = [
        _step(_fused),
        _step(_on_the_host),
        _step(lambda model: _fused(model)[::-1]),
        make_step("adamw"),
    ]
    for other in others:
        other(batch)
    step = others[0]
    before = step.state_dict()
    optimizer_states = before["optimizer"]
    states = [other.state_dict() for other in others[1:]]
    for value in (
        optimizer_states[:1],
        optimizer_states * 2,
        optimizer_states[0],
        dict(enumerate(optimizer_states)),
        None,
    ):
        states.append(before | {"optimizer": value})
    for state in states:
        with pytest.raises(ValueError, match=r"state_dict|zip\(\)"):
            step.load_state_dict(state)
        assert equal_trees(step.state_dict(), before)
    with pytest.raises(ValueError, match="optimizer_type"):
        others[-1].load_state_dict(before)
