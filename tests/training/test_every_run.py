"""What holds for every kind of training run: relations that run over the table in `kinds_of_run.py`."""

import copy
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, strategies as st
from support.examples import examples
from support.training.by_hand import ByHand
from support.training.cuda_graphs.graphs import Tape
from support.training.kinds_of_run import KINDS, ON_DEVICE, Kind, by_layer, half_loss, weighted_loss, with_aux
from support.training.models import Batch, Net, batches, device_pair_loss, mean_loss, nonfinite, pair_loss
from support.training.optimizers import FUSED, OPTIMIZERS, OTHERS, make_optimizer
from support.training.reads import reads_of
from support.training.steps import (
    CURVE,
    check_resume,
    equal_trees,
    make_step,
    state_kept_by_skips,
    through_file,
)
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from plateau_jax import DataClock, HoldBelow, PlateauCurve
from torch_bridge import MetricLog, TrainStep

# Runs may continue past the end of a curve; the warning has separate tests.
pytestmark = pytest.mark.filterwarnings("ignore:the curve has total_steps:plateau_jax.CurveWarning")

every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
on_device = pytest.mark.parametrize("kind", ON_DEVICE.values(), ids=ON_DEVICE)


def _are_same(kind: Kind, one: Any, other: Any) -> bool:
    if kind.rtol == 0:
        return equal_trees(one, other)
    pairs = zip(pytree.tree_leaves(one), pytree.tree_leaves(other), strict=True)
    return all(
        torch.allclose(value.to(expected.dtype), expected, rtol=kind.rtol, atol=kind.rtol, equal_nan=True)
        if isinstance(value, Tensor)
        else value == expected
        for value, expected in pairs
    )


def _states(optimizer: Any) -> list[Any]:
    """Return the states of the parameters that have one; a fused step that was skipped leaves zeros."""
    states = optimizer.state_dict()["state"]
    return [(key, state) for key, state in states.items() if any(map(torch.is_nonzero, _sums(state)))]


def _sums(state: Any) -> list[Tensor]:
    tensors = state.values() if isinstance(state, dict) else [state]
    return [value.abs().sum() for value in tensors if isinstance(value, Tensor)]


def check_equals_loop_by_hand(kind: Kind) -> None:
    updates, names = kind.updates(10, {0, 3, 4, 8}), {"lr", "params", "initial_lr"}
    by_hand = ByHand(kind)
    with torch.random.fork_rng(devices=[]):
        expected, end = [by_hand.update(micro_batches) for micro_batches in updates], torch.rand(3)
    step, results = kind.build(), []
    attributes = [set(vars(optimizer)) for optimizer in step.optimizers]
    for micro_batches in updates:
        for parameter in step.model.parameters():  # gradients of an earlier loop, which don't count
            parameter.grad = torch.full_like(parameter, torch.nan)
        results.append(step(*micro_batches))
        assert all(parameter.grad is None for parameter in step.model.parameters())
    # Compared at the end: no later update may write into an earlier result.
    for result, wanted in zip(results, expected, strict=True):
        assert equal_trees([result.lr, result.counters], list(wanted[2:4]))
        assert equal_trees(
            [result.applied, result.skipped, result.curve_step, result.consumed], list(wanted[3])
        )
        assert _are_same(kind, [result.loss, result.grad_norm], list(wanted[:2]))
        assert _are_same(kind, result.aux, wanted[4])
        assert not any(aux["outputs"].requires_grad for aux in result.aux)
        assert result.loss.dtype.itemsize >= 4
    assert _are_same(kind, dict(step.model.state_dict()), dict(by_hand.model.state_dict()))
    state: Any = step.state_dict()
    assert [float(number) for number in state["loss_scale"] or []] == by_hand.loss_scale()
    assert _are_same(kind, state["carry"], by_hand.carry_leaves())
    for optimizer, other, before in zip(step.optimizers, by_hand.optimizers, attributes, strict=True):
        assert _are_same(kind, _states(optimizer), _states(other))
        assert set(vars(optimizer)) == before
        for group, other_group in zip(optimizer.param_groups, other.param_groups, strict=True):
            assert all(group[name] == other_group[name] for name in group.keys() - names)
    assert not torch.is_autocast_enabled("cpu")
    assert equal_trees(torch.rand(3), end), "more random numbers were drawn"


@every_kind
def test_run_equals_loop_by_hand(kind: Kind) -> None:
    check_equals_loop_by_hand(kind)


@pytest.mark.parametrize("name", ["adamw", "held", "momentum, fp16", "rmsprop, bf16", "device weights, fp16"])
def test_default_dtype_concerns_only_model_and_data(name: str) -> None:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        check_equals_loop_by_hand(KINDS[name])
    finally:
        torch.set_default_dtype(before)


def _run(step: TrainStep, micro_batches: Any) -> Any:
    return step(*micro_batches)


@every_kind
def test_resumed_run_equals_uninterrupted_run(kind: Kind) -> None:
    check_resume(kind.build, kind.updates(7, {0, 3, 4}), (0, 5), _run)


def _memo_of(optimizer: Optimizer) -> dict[int, Any]:
    """Return the memo with which a deepcopy of the groups keeps their parameters."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return {id(parameter): parameter for parameter in parameters}


@every_kind
def test_groups_hold_the_learning_rates_of_each_update(kind: Kind) -> None:
    """Of a skipped one too, and after a load. A tensor that a group had, or its first clone, stays in it."""
    step = kind.build()
    groups = [group for optimizer in step.optimizers for group in optimizer.param_groups]
    tensors = [group["lr"] for group in groups]
    peaks = [group["initial_lr"] for group in groups]
    for number, micro_batches in enumerate(kind.updates(9, {0, 3, 6})):
        if number in (2, 5):
            step.load_state_dict(through_file(step.state_dict()))
        if number in (4, 5):
            for optimizer in step.optimizers:  # new groups, as an optimizer's own load creates them
                optimizer.param_groups = copy.deepcopy(optimizer.param_groups, _memo_of(optimizer))
        if number == 7:
            step.set_peak([peak / 2 for peak in peaks])
        result = step(*micro_batches)
        groups = [group for optimizer in step.optimizers for group in optimizer.param_groups]
        assert [float(group["lr"]) for group in groups] == result.lr.tolist()
        for group, tensor in zip(groups, tensors, strict=True):
            if isinstance(tensor, Tensor):
                assert group["lr"] is tensor
            else:
                assert type(group["lr"]) is float


def _kept(state: dict[str, Any]) -> dict[str, Any]:
    """Leave out what a forward pass changes, and what torch's fused kernels create in a skipped update."""
    model = {name: value for name, value in state["model"].items() if "norm." not in name}
    model.pop("_extra_state", None)
    optimizers = state["optimizer"] if isinstance(state["optimizer"], list) else [state["optimizer"]]
    for optimizer in optimizers:
        for number, values in list(optimizer["state"].items()):
            if not any(map(torch.is_nonzero, _sums(values))):
                del optimizer["state"][number]
    return state | {"model": model}


@every_kind
def test_bad_update_changes_only_its_counter(kind: Kind) -> None:
    step = kind.build(on_nonfinite="raise")
    if kind.loss_fn is half_loss:
        step(*kind.updates(1)[0])  # even a bad update fixes the divisor of the sums
    for micro_batches in kind.updates(2):
        before = _kept(state_kept_by_skips(step))
        for value, shown in ((torch.nan, "nan"), (torch.inf, "(inf|nan)"), (-torch.inf, "(-?inf|nan)")):
            before["skipped"] += 1
            number = before["applied"] + before["skipped"]
            with pytest.raises(FloatingPointError, match=rf"update {number} .* loss is {shown}"):
                step(*kind.updates(1, [0], [value], seed=1)[0])
            assert equal_trees(_kept(state_kept_by_skips(step)), before)
        step(*micro_batches)


@every_kind
def test_error_of_loss_changes_nothing(kind: Kind) -> None:
    """Also in the last of several micro-batches, after the backward passes of the others."""
    calls, is_failing = 0, False

    def failing(*arguments: Any) -> Any:
        nonlocal calls
        value, calls = kind.loss_fn(*arguments), calls + 1
        if is_failing and calls % kind.pieces == 0:
            raise KeyError("of the loss")
        return value

    step = kind.build(failing)
    for micro_batches in kind.updates(3):
        before, is_failing = _kept(step.state_dict() | {"random": None}), True
        with pytest.raises(KeyError, match="of the loss"):
            step(*micro_batches)
        assert equal_trees(_kept(step.state_dict() | {"random": None}), before)
        assert all(parameter.grad is None for parameter in step.model.parameters())
        is_failing = False
        step(*micro_batches)


_WEIGHTS_ON_DEVICE = device_pair_loss, weighted_loss, half_loss


@on_device
def test_updates_read_nothing_from_the_device(kind: Kind) -> None:
    """Not the first one either, good or bad, nor those past a copy of the counters, nor one after a load."""
    step, log = kind.build(), MetricLog(every=100)
    updates = kind.updates(18, {0, 5} if kind.pieces > 1 else {5, 6})

    def train(updates: Any) -> None:
        for micro_batches in updates:
            log(step(*micro_batches))

    host_memory = [step._clock._host_counters]
    # A weight may be in host memory on a CPU, and the first one above 1 is read.
    assert reads_of(lambda: train(updates[:17]), host_memory) == (kind.loss_fn in _WEIGHTS_ON_DEVICE)
    for optimizer in step.optimizers:
        optimizer.load_state_dict(optimizer.state_dict())
    assert reads_of(lambda: train(updates[17:]), host_memory) == 0


@pytest.mark.parametrize("name", [name for name in OTHERS if name in KINDS])
@pytest.mark.parametrize("options", [{}, {"clock": KINDS["held"].options["clock"]}], ids=["plain", "held"])
def test_host_stepper_adds_one_read(name: str, options: dict[str, Any]) -> None:
    (batch,), model = batches(1), Net()
    optimizer = make_optimizer(name, model)

    def by_hand() -> None:
        mean_loss(model, batch).backward()
        optimizer.step()

    by_hand()
    curve = KINDS["held"].curve
    step = make_step(name, curve=curve, max_norm=0.1, **options)
    step(batch)
    assert reads_of(lambda: step(batch)) == reads_of(by_hand) + 1
    assert reads_of(lambda: step(nonfinite(batch))) == 1


_DRAWING = "mixed", "mixed, momentum", "dropout"


@pytest.mark.parametrize("name", [name for name in ON_DEVICE if name not in _DRAWING])
def test_replayed_update_equals_eager(name: str) -> None:
    """An update is recorded, and replayed with the numbers of others, some of them bad."""
    kind = ON_DEVICE[name]
    recorded, eager, updates = kind.build(), kind.build(), kind.updates(8, {4, 6})
    for step in (recorded, eager):
        step(*updates[0])
    inputs = [tuple(tensor.clone() for tensor in batch) for batch in updates[1]]
    with Tape() as tape:
        results = recorded(*inputs)
    assert equal_trees(tuple(results), tuple(eager(*updates[1])))
    for micro_batches in updates[2:]:
        for static, batch in zip(inputs, micro_batches, strict=True):
            torch._foreach_copy_(list(static), list(batch))
        tape.replay()
        assert equal_trees(tuple(results), tuple(eager(*micro_batches)))
    assert equal_trees(recorded.state_dict(), eager.state_dict())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_loss_fn_compiles_once() -> None:
    """No update recompiles. The backend is a fast one that generates no C++."""
    quick = partial(torch.compile, backend="aot_eager")
    with patch.object(torch, "compile", quick):
        compiled, eager = (make_step("adamw", max_norm=1.0, compile=flag) for flag in (True, False))
        first, *rest = batches(45)
        before = counters["stats"]["unique_graphs"]
        compiled(first), eager(first)
        graphs = counters["stats"]["unique_graphs"]
        assert graphs > before
        for batch in rest:
            torch.testing.assert_close(compiled(batch), eager(batch), rtol=1e-5, atol=1e-7)
            compiled(nonfinite(batch)), eager(nonfinite(batch))
    assert counters["stats"]["unique_graphs"] == graphs
    assert compiled.state_dict()["applied"] == 45 > CURVE.total_steps
    states = (dict(step.model.named_parameters()) for step in (compiled, eager))
    torch.testing.assert_close(*states, rtol=1e-5, atol=1e-6)


# Random programs of a training step equal a loop by hand, bit for bit, whatever options they combine.

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
