"""What holds for every kind of training run: relations over the table in `kinds_of_run.py`."""

import copy
from collections.abc import Iterator
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, strategies as st
from support.examples import examples
from support.training.by_hand import ByHand
from support.training.cuda_graphs.graphs import Tape
from support.training.kind import Kind
from support.training.kinds_of_run import ENDING, KINDS, ON_DEVICE
from support.training.losses import count_samples, half_loss, weighted_loss, with_aux
from support.training.models import (
    Batch,
    Net,
    batches,
    device_pair_loss,
    mean_loss,
    nonfinite,
    pair_loss,
)
from support.training.optimizers import FUSED, OPTIMIZERS, OTHERS, by_layer, make_optimizer
from support.training.reads import reads_of
from support.training.steps import CURVE, check_resume, make_step, state_kept_by_skips, through_file
from support.trees import equal_trees
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


# A run equals the loop by hand.


def check_same(kind: Kind, values: Any, expected: Any) -> None:
    """Check that two trees are equal, or within the tolerance of the kind."""
    if kind.rtol == 0:
        assert equal_trees(values, expected)
        return
    leaves = pytree.tree_leaves(values)
    expected_leaves = pytree.tree_leaves(expected)
    for leaf, expected_leaf in zip(leaves, expected_leaves, strict=True):
        if isinstance(leaf, Tensor):
            torch.testing.assert_close(
                leaf.to(expected_leaf.dtype),
                expected_leaf,
                rtol=kind.rtol,
                atol=kind.rtol,
                equal_nan=True,
            )
        else:
            assert leaf == expected_leaf


def is_zero(optimizer_state: Any) -> bool:
    """Return True for the state of a parameter, or another entry, that holds zeros only."""
    tensors = [optimizer_state]
    if isinstance(optimizer_state, dict):
        tensors = list(optimizer_state.values())
    return all(not tensor.any() for tensor in tensors if isinstance(tensor, Tensor))


def nonzero_states(optimizer: Optimizer) -> list[Any]:
    """Return the states that are not zeros: a fused step that was skipped leaves zeros."""
    states = optimizer.state_dict()["state"]
    return [(key, state) for key, state in states.items() if not is_zero(state)]


def set_gradients_of_an_earlier_loop(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, torch.nan)


def check_equals_loop_by_hand(kind: Kind) -> None:
    updates = kind.updates(10, bad={0, 3, 4, 8})
    by_hand = ByHand(kind)
    with torch.random.fork_rng(devices=[]):
        expected = [by_hand.update(micro_batches) for micro_batches in updates]
        next_random_numbers = torch.rand(3)

    step = kind.build()
    attributes = [set(vars(optimizer)) for optimizer in step.optimizers]
    results: list[Any] = []
    for micro_batches in updates:
        set_gradients_of_an_earlier_loop(step.model)
        results.append(step(*micro_batches))
        assert all(parameter.grad is None for parameter in step.model.parameters())

    # Compared at the end: no later update may write into an earlier result.
    for result, update in zip(results, expected, strict=True):
        assert equal_trees(result.lr, update.lr)
        assert equal_trees(result.counters, update.counters)
        counts = [result.applied, result.skipped, result.curve_step, result.consumed]
        assert equal_trees(counts, list(update.counters))
        check_same(kind, result.loss, update.loss)
        check_same(kind, result.grad_norm, update.grad_norm)
        check_same(kind, result.aux, update.aux)
        assert not any(aux["outputs"].requires_grad for aux in result.aux)
        assert result.loss.dtype.itemsize >= 4
    check_same(kind, dict(step.model.state_dict()), dict(by_hand.model.state_dict()))
    state: Any = step.state_dict()
    assert [float(number) for number in state["loss_scale"] or []] == by_hand.loss_scale()
    check_same(kind, state["carry"], by_hand.carry_leaves())
    for optimizer, reference in zip(step.optimizers, by_hand.optimizers, strict=True):
        check_same(kind, nonzero_states(optimizer), nonzero_states(reference))
        check_same_options(optimizer, reference)
    assert [set(vars(optimizer)) for optimizer in step.optimizers] == attributes
    assert not torch.is_autocast_enabled("cpu")
    assert equal_trees(torch.rand(3), next_random_numbers), "more random numbers were drawn"


def check_same_options(optimizer: Optimizer, reference: Optimizer) -> None:
    """Check the options of the groups, except the learning rate."""
    groups = zip(optimizer.param_groups, reference.param_groups, strict=True)
    for group, reference_group in groups:
        for name in group.keys() - {"lr", "params", "initial_lr"}:
            assert group[name] == reference_group[name]


@every_kind
def test_run_equals_loop_by_hand(kind: Kind) -> None:
    check_equals_loop_by_hand(kind)


@pytest.fixture
def float64_by_default() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.mark.usefixtures("float64_by_default")
@pytest.mark.parametrize(
    "name", ["adamw", "held", "momentum, fp16", "rmsprop, bf16", "device weights, fp16"]
)
def test_default_dtype_concerns_only_model_and_data(name: str) -> None:
    check_equals_loop_by_hand(KINDS[name])


# A resumed run equals an uninterrupted one.


def update(step: TrainStep, micro_batches: Any) -> Any:
    return step(*micro_batches)


@every_kind
def test_resumed_run_equals_uninterrupted_run(kind: Kind) -> None:
    check_resume(kind.build, kind.updates(7, bad={0, 3, 4}), stops=(0, 5), run=update)


# Advice changes nothing.


def trained(kind: Kind, *, advise: bool) -> tuple[list[Any], Any]:
    """Return the results of updates past a copy of the counters, and then the state."""
    step = kind.build(advise=advise)
    with torch.random.fork_rng(devices=[]):
        results = [tuple(step(*batch)) for batch in kind.updates(18, bad={0, 3})]
        return results, step.state_dict()


@every_kind
def test_run_without_advice_has_the_same_bits(kind: Kind) -> None:
    assert equal_trees(trained(kind, advise=False), trained(kind, advise=True))


# The groups show the learning rates.


def groups_of(step: TrainStep) -> list[dict[str, Any]]:
    groups: list[dict[str, Any]] = []
    for optimizer in step.optimizers:
        groups += optimizer.param_groups
    return groups


def replace_groups(optimizer: Optimizer) -> None:
    """Give the optimizer new groups with the same parameters, as its own load does."""
    parameters: dict[int, Any] = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameters[id(parameter)] = parameter
    optimizer.param_groups = copy.deepcopy(optimizer.param_groups, parameters)


@every_kind
def test_groups_hold_the_learning_rates_of_each_update(kind: Kind) -> None:
    """Of a skipped one too, and after a load. A group's tensor, or its first clone, stays in it."""
    step = kind.build()
    tensors = [group["lr"] for group in groups_of(step)]
    peaks = [group["initial_lr"] for group in groups_of(step)]
    for number, micro_batches in enumerate(kind.updates(9, bad={0, 3, 6})):
        if number in (2, 5):
            step.load_state_dict(through_file(step.state_dict()))
        if number in (4, 5):
            for optimizer in step.optimizers:
                replace_groups(optimizer)
        if number == 7:
            step.set_peak([peak / 2 for peak in peaks])
        result = step(*micro_batches)
        lrs = [group["lr"] for group in groups_of(step)]
        assert list(map(float, lrs)) == result.lr.tolist()
        for lr, tensor in zip(lrs, tensors, strict=True):
            if isinstance(tensor, Tensor):
                assert lr is tensor
            else:
                assert type(lr) is float


# Bad updates and errors change nothing.


def without_skipped_parts(state: dict[str, Any]) -> dict[str, Any]:
    """Leave out what a forward pass changes, and the zeros that torch's fused kernels create."""
    model = {name: value for name, value in state["model"].items() if "norm." not in name}
    model.pop("_extra_state", None)
    optimizer_states = state["optimizer"]
    if isinstance(optimizer_states, dict):
        optimizer_states = [optimizer_states]
    for optimizer_state in optimizer_states:
        for key, values in list(optimizer_state["state"].items()):
            if is_zero(values):
                del optimizer_state["state"][key]
    return state | {"model": model}


@every_kind
def test_bad_update_changes_only_its_counter(kind: Kind) -> None:
    step = kind.build(on_nonfinite="raise")
    if kind.loss_fn is half_loss:
        step(*kind.updates(1)[0])  # even a bad update fixes the divisor of the sums
    shown_losses = {torch.nan: "nan", torch.inf: "(inf|nan)", -torch.inf: "(-?inf|nan)"}
    for micro_batches in kind.updates(2):
        before = without_skipped_parts(state_kept_by_skips(step))
        for value, shown in shown_losses.items():
            before["skipped"] += 1
            number = before["applied"] + before["skipped"]
            (bad_micro_batches,) = kind.updates(1, bad=[0], values=[value], seed=1)
            with pytest.raises(FloatingPointError, match=rf"update {number} .* loss is {shown}"):
                step(*bad_micro_batches)
            assert equal_trees(without_skipped_parts(state_kept_by_skips(step)), before)
        step(*micro_batches)


class FailingLoss:
    """A loss function that raises an error in the last of several micro-batches, if told to."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.num_calls = 0
        self.is_failing = False

    def __call__(self, *arguments: Any) -> Any:
        outputs = self.kind.loss_fn(*arguments)
        self.num_calls += 1
        if self.is_failing and self.num_calls % self.kind.accumulation == 0:
            raise KeyError("of the loss")
        return outputs


@every_kind
def test_error_of_loss_changes_nothing(kind: Kind) -> None:
    """Also after the backward passes of the other micro-batches."""
    loss_fn = FailingLoss(kind)
    step = kind.build(loss_fn)
    for micro_batches in kind.updates(3):
        before = without_skipped_parts(step.state_dict() | {"random": None})
        loss_fn.is_failing = True
        with pytest.raises(KeyError, match="of the loss"):
            step(*micro_batches)
        after = without_skipped_parts(step.state_dict() | {"random": None})
        assert equal_trees(after, before)
        assert all(parameter.grad is None for parameter in step.model.parameters())
        loss_fn.is_failing = False
        step(*micro_batches)


# Reads of the device.


@on_device
def test_updates_read_nothing_from_the_device(kind: Kind) -> None:
    """Neither does the first, a bad one, one past a copy of the counters, nor one after a load."""
    step = kind.build()
    log = MetricLog(every=100)
    bad = {5, 6}
    if kind.accumulation > 1:
        bad = {0, 5}
    updates = kind.updates(18, bad)

    def train(updates: Any) -> None:
        for micro_batches in updates:
            log(step(*micro_batches))

    host_memory = [step._clock.host_counters]
    expected_reads = 0
    if kind.loss_fn in (device_pair_loss, weighted_loss, half_loss):
        # A weight may be in host memory on a CPU, and the first one above 1 is read.
        expected_reads = 1
    assert reads_of(lambda: train(updates[:17]), host_memory) == expected_reads
    for optimizer in step.optimizers:
        optimizer.load_state_dict(optimizer.state_dict())
    assert reads_of(lambda: train(updates[17:]), host_memory) == 0


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize(
    "options", [{}, {"clock": KINDS["held"].options["clock"]}], ids=["plain", "held"]
)
def test_host_stepper_adds_one_read(name: str, options: dict[str, Any]) -> None:
    (batch,) = batches(1)
    model = Net()
    optimizer = make_optimizer(name, model)

    def update_by_hand() -> None:
        mean_loss(model, batch).backward()
        optimizer.step()

    update_by_hand()
    step = make_step(name, curve=KINDS["held"].curve, max_norm=0.1, **options)
    step(batch)
    assert reads_of(lambda: step(batch)) == reads_of(update_by_hand) + 1
    assert reads_of(lambda: step(nonfinite(batch))) == 1


# Graphs and compilers.

KINDS_THAT_DRAW = {"mixed", "mixed, momentum", "dropout"}
"""Their dropout draws random numbers, which a replay on a CPU does not repeat."""


@pytest.mark.parametrize("name", [name for name in ON_DEVICE if name not in KINDS_THAT_DRAW])
def test_replayed_update_equals_eager(name: str) -> None:
    """An update is recorded, and replayed with the numbers of others, some of them bad."""
    kind = ON_DEVICE[name]
    recorded = kind.build()
    eager = kind.build()
    first, second, *rest = kind.updates(8, bad={4, 6})
    for step in (recorded, eager):
        step(*first)
    inputs = [tuple(tensor.clone() for tensor in batch) for batch in second]
    with Tape() as tape:
        result = recorded(*inputs)
    assert equal_trees(tuple(result), tuple(eager(*second)))
    for micro_batches in rest:
        for static, batch in zip(inputs, micro_batches, strict=True):
            torch._foreach_copy_(list(static), list(batch))
        tape.replay()
        assert equal_trees(tuple(result), tuple(eager(*micro_batches)))
    assert equal_trees(recorded.state_dict(), eager.state_dict())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_loss_fn_compiles_once() -> None:
    """No update recompiles. The backend is a fast one that generates no C++."""
    quick = partial(torch.compile, backend="aot_eager")
    eager = make_step("adamw", max_norm=1.0)
    with patch.object(torch, "compile", quick):
        compiled = make_step("adamw", max_norm=1.0, compile=True)
        first, *rest = batches(45)
        graphs_before = counters["stats"]["unique_graphs"]
        compiled(first)
        eager(first)
        graphs = counters["stats"]["unique_graphs"]
        assert graphs > graphs_before
        for batch in rest:
            torch.testing.assert_close(compiled(batch), eager(batch), rtol=1e-5, atol=1e-7)
            compiled(nonfinite(batch))
            eager(nonfinite(batch))
    assert counters["stats"]["unique_graphs"] == graphs
    assert compiled.state_dict()["applied"] == 45 > CURVE.total_steps
    parameters = dict(compiled.model.named_parameters())
    expected = dict(eager.model.named_parameters())
    torch.testing.assert_close(parameters, expected, rtol=1e-5, atol=1e-6)


# Random programs of a training step equal a loop by hand, bit for bit, with any options.

FLAT = PlateauCurve(200, plateaus=[(20, 30)], min_lr_ratio=0.1)
CLOCKS: dict[str, dict[str, Any]] = {
    "updates": {},
    "samples": {"clock": DataClock(8), "count": count_samples},
    "held": {"clock": HoldBelow([(2.0, 2), (0.9, 3)], every=2)},
}


def with_carry(loss_fn: Any) -> Any:
    def carried(model: nn.Module, batch: Batch, carry: torch.Tensor) -> Any:
        inputs, targets = batch
        mean_outputs = model(inputs).detach().float().mean(0)
        return loss_fn(model, (inputs, targets + carry)), carry / 2 + mean_outputs

    return carried


@st.composite
def kinds(draw: st.DrawFn) -> Kind:
    all_but_muon = [name for name in OPTIMIZERS if name != "muon"]
    names = st.sampled_from(list(FUSED)) | st.sampled_from(all_but_muon)
    loss_fn = draw(st.sampled_from([mean_loss, pair_loss, device_pair_loss]))
    clock = draw(st.sampled_from(list(CLOCKS)))
    curves = [ENDING, FLAT]  # programs continue past the end
    if clock == "held":
        curves = [FLAT]
    options: dict[str, Any] = {
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
    optimizers = by_layer(*draw(st.lists(names, min_size=1, max_size=2)))
    curve = [draw(st.sampled_from(curves)), draw(st.sampled_from(curves))]
    return Kind(optimizers, loss_fn, curve=curve, **options)


def micro_batches_of(number: int, sizes: list[int], event: str) -> list[Batch]:
    micro_batches: list[Batch] = []
    for size in sizes:
        micro_batches += batches(1, size, seed=10 * number + size)
    if event == "bad":
        micro_batches[-1] = nonfinite(micro_batches[-1])
    elif event == "overflow":
        micro_batches = [(inputs, targets * 1000) for inputs, targets in micro_batches]
    return micro_batches


@examples(40)
@given(kind=kinds(), data=st.data())
def test_programs_equal_loop_by_hand(kind: Kind, data: st.DataObject) -> None:
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
            by_hand.peaks = [1 / (number + index + 3) for index in range(len(by_hand.peaks))]
            step.set_peak(by_hand.peaks)
        elif event == "reset" and "carry" in kind.options:
            step.reset_carry()
            by_hand.carry = kind.options["carry"]
        assert equal_trees(tuple(step(*micro_batches)), by_hand.update(micro_batches))
        assert equal_trees(step.model.state_dict(), by_hand.model.state_dict())
        assert equal_trees(step.state_dict()["carry"], by_hand.carry_leaves())
    loss_scale = step.state_dict()["loss_scale"] or []
    assert list(map(float, loss_scale)) == by_hand.loss_scale()
    if by_hand.applied:  # a first update that a fused kernel skips leaves zeros as its state
        for optimizer, reference in zip(step.optimizers, by_hand.optimizers, strict=True):
            expected_states = reference.state_dict()["state"]
            assert equal_trees(optimizer.state_dict()["state"], expected_states)
