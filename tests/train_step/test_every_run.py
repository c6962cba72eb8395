"""What holds for every kind of training run: relations over the table in `kinds_of_run.py`."""

import copy
import itertools

import pytest
import torch
from support.training.by_hand import ByHand
from support.training.cuda_graphs.graphs import Tape
from support.training.steps import check_resume, state_kept_by_skips, through_file
from support.trees import assert_equal_trees
from torch import Tensor
from torch.utils import _pytree as pytree
from train_step.kinds_of_run import KINDS, ON_DEVICE

every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def check_no_gradients(model):
    for parameter in model.parameters():
        assert parameter.grad is None


# A run equals the loop by hand.


def check_same(kind, values, expected):
    """Check that two trees are equal, or within the tolerance of the kind."""
    if kind.rtol == 0:
        assert_equal_trees(values, expected)
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


def is_zero(optimizer_state):
    """Return True for the state of a parameter, or another entry, that holds zeros only."""
    values = [optimizer_state]
    if isinstance(optimizer_state, dict):
        values = list(optimizer_state.values())
    return not any(isinstance(value, Tensor) and value.any() for value in values)


def nonzero_states(optimizer):
    """Return the states that are not zeros: a fused step that was skipped leaves zeros."""
    states = optimizer.state_dict()["state"]
    return [(key, state) for key, state in states.items() if not is_zero(state)]


def set_gradients_of_an_earlier_loop(model):
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, torch.nan)


def attributes_of_optimizers(step):
    return [set(vars(optimizer)) for optimizer in step.optimizers]


def check_equals_loop_by_hand(kind):
    updates = kind.updates(10, bad={0, 3, 4, 8})
    by_hand = ByHand(kind)
    with torch.random.fork_rng(devices=[]):
        expected = [by_hand.update(micro_batches) for micro_batches in updates]
        next_random_numbers = torch.rand(3)

    step = kind.build()
    attributes = attributes_of_optimizers(step)
    results = []
    for micro_batches in updates:
        set_gradients_of_an_earlier_loop(step.model)
        results.append(step(*micro_batches))
        check_no_gradients(step.model)

    # Compared at the end: no later update may write into an earlier result.
    for result, update in zip(results, expected, strict=True):
        assert_equal_trees(result.lr, update.lr)
        assert_equal_trees(result.counters, update.counters)
        counts = [result.applied, result.skipped, result.curve_step, result.consumed]
        expected_counts = list(update.counters)
        assert_equal_trees(counts, expected_counts)
        check_same(kind, result.loss, update.loss)
        check_same(kind, result.grad_norm, update.grad_norm)
        check_same(kind, result.aux, update.aux)
        assert not any(aux["outputs"].requires_grad for aux in result.aux)
        assert result.loss.dtype.itemsize >= 4
    weights = dict(step.model.state_dict())
    expected_weights = dict(by_hand.model.state_dict())
    check_same(kind, weights, expected_weights)
    state = step.state_dict()
    loss_scale = [float(number) for number in state["loss_scale"] or []]
    assert loss_scale == by_hand.loss_scale()
    check_same(kind, state["carry"], by_hand.carry_leaves())
    for optimizer, reference in zip(step.optimizers, by_hand.optimizers, strict=True):
        states = nonzero_states(optimizer)
        expected_states = nonzero_states(reference)
        check_same(kind, states, expected_states)
        check_same_options(optimizer, reference)
    assert attributes_of_optimizers(step) == attributes
    assert not torch.is_autocast_enabled("cpu")
    assert_equal_trees(torch.rand(3), next_random_numbers, "random numbers")


def check_same_options(optimizer, reference):
    """Check the options of the groups, except the learning rate."""
    groups = zip(optimizer.param_groups, reference.param_groups, strict=True)
    for group, reference_group in groups:
        for name in group.keys() - {"lr", "params", "initial_lr"}:
            assert group[name] == reference_group[name]


@every_kind
def test_run_equals_loop_by_hand(kind):
    check_equals_loop_by_hand(kind)


@pytest.mark.usefixtures("float64_by_default")
@pytest.mark.parametrize(
    "name", ["adamw", "held", "momentum, fp16", "rmsprop, bf16", "device weights, fp16"]
)
def test_default_dtype_concerns_only_model_and_data(name):
    check_equals_loop_by_hand(KINDS[name])


# A resumed run equals an uninterrupted one.


def update(step, micro_batches):
    return step(*micro_batches)


@every_kind
def test_resumed_run_equals_uninterrupted_run(kind):
    check_resume(kind.build, kind.updates(7, bad={0, 3, 4}), stops=(0, 5), run=update)


# The groups show the learning rates.


def groups_of(step):
    return [group for optimizer in step.optimizers for group in optimizer.param_groups]


def replace_groups(optimizer):
    """Give the optimizer new groups with the same parameters, as its own load does."""
    parameters = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameters[id(parameter)] = parameter
    optimizer.param_groups = copy.deepcopy(optimizer.param_groups, parameters)


@every_kind
def test_groups_hold_the_learning_rates_of_each_update(kind):
    """Of a skipped one too, after a load, and if the program has written a number.

    A group's tensor, or its first clone, stays in it.
    """
    step = kind.build()
    tensors = [group["lr"] for group in groups_of(step)]
    peaks = [group["initial_lr"] for group in groups_of(step)]
    for number, micro_batches in enumerate(kind.updates(9, bad={0, 3, 6})):
        if number in (2, 5):
            saved = through_file(step.state_dict())
            step.load_state_dict(saved)
        if number in (4, 5):
            for optimizer in step.optimizers:
                replace_groups(optimizer)
        if number == 7:
            step.set_peak([peak / 2 for peak in peaks])
        if number == 8:
            for group in groups_of(step):
                group["lr"] = 0.5
        lrs_before = [float(group["lr"]) for group in groups_of(step)]
        result = step(*micro_batches)
        if number in (2, 5):
            assert lrs_before == result.lr.tolist(), "the load has written them"
        lrs = [group["lr"] for group in groups_of(step)]
        assert list(map(float, lrs)) == result.lr.tolist()
        for lr, tensor in zip(lrs, tensors, strict=True):
            if isinstance(tensor, Tensor):
                assert lr is tensor
            else:
                assert type(lr) is float


# Bad updates and errors change nothing.


def without_skipped_parts(state):
    """Leave out what a forward pass changes, and the zeros that torch's fused kernels create."""
    model = {name: value for name, value in state["model"].items() if "norm." not in name}
    model.pop("_extra_state", None)
    optimizers = state["optimizer"]
    if isinstance(optimizers, dict):
        optimizers = [optimizers]
    for optimizer in optimizers:
        states = optimizer["state"]
        for key in list(states):
            if is_zero(states[key]):
                del states[key]
    return state | {"model": model}


@every_kind
def test_bad_update_changes_only_its_counter(kind):
    step = kind.build(on_nonfinite="raise")
    shown_losses = {torch.nan: "nan", torch.inf: "(inf|nan)", -torch.inf: "(-?inf|nan)"}
    for micro_batches in kind.updates(2):
        before = without_skipped_parts(state_kept_by_skips(step))
        for value, shown in shown_losses.items():
            before["skipped"] += 1
            number = before["applied"] + before["skipped"]
            message = rf"update {number} .* loss is {shown}"
            (bad_micro_batches,) = kind.updates(1, bad=[0], values=[value], seed=1)
            with pytest.raises(FloatingPointError, match=message):
                step(*bad_micro_batches)
            after = without_skipped_parts(state_kept_by_skips(step))
            assert_equal_trees(after, before)
        step(*micro_batches)


@every_kind
def test_error_of_loss_changes_nothing(kind):
    """Also after the backward passes of the other micro-batches."""
    calls = itertools.count(1)
    is_failing = False

    def loss_fn(*arguments):
        outputs = kind.loss_fn(*arguments)
        is_last = next(calls) % kind.accumulation == 0
        if is_failing and is_last:
            raise KeyError("of the loss")
        return outputs

    step = kind.build(loss_fn)
    for micro_batches in kind.updates(3):
        before = without_skipped_parts(step.state_dict() | {"random": None})
        is_failing = True
        with pytest.raises(KeyError, match="of the loss"):
            step(*micro_batches)
        after = without_skipped_parts(step.state_dict() | {"random": None})
        assert_equal_trees(after, before)
        check_no_gradients(step.model)
        is_failing = False
        step(*micro_batches)


# Graphs and compilers.

KINDS_THAT_DRAW = {"mixed", "mixed, momentum", "dropout"}
"""Their dropout draws random numbers, which a replay on a CPU does not repeat."""
REPLAYED = [name for name in ON_DEVICE if name not in KINDS_THAT_DRAW]


@pytest.mark.parametrize("name", REPLAYED)
def test_replayed_update_equals_eager(name):
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
    expected = eager(*second)
    assert_equal_trees(tuple(result), tuple(expected))
    for micro_batches in rest:
        for static, batch in zip(inputs, micro_batches, strict=True):
            for memory, value in zip(static, batch, strict=True):
                memory.copy_(value)
        tape.replay()
        expected = eager(*micro_batches)
        assert_equal_trees(tuple(result), tuple(expected))
    assert_equal_trees(recorded.state_dict(), eager.state_dict())
