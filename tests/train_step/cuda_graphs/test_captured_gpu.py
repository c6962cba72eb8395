"""Captured updates on a GPU have the bits of eager ones and wait for nothing, with every option."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from support.training.by_hand import ByHand
from support.training.cuda_graphs.graphs import graphs_of, no_waiting
from support.training.kind import Kind
from support.training.models import Net, batches, mean_loss, nonfinite
from support.trees import assert_equal_trees
from torch import Tensor
from torch.torch_version import TorchVersion
from torch.utils import _pytree as pytree
from train_step.kinds_of_run import ON_DEVICE

from torch_bridge import DataClock, evaluate, prefetch

pytestmark = [
    pytest.mark.gpu,
    # Runs may continue past the end of a curve; the warning has separate tests.
    pytest.mark.filterwarnings("ignore:the curve has total_steps:plateau_jax.CurveWarning"),
]


# Runs that must be the same with and without CUDA graphs: by the same actions, with any options.

SHORT = 4
LONG = 6

Batch = tuple[Tensor, Tensor]


def unchanged(batch):
    return batch


@dataclass
class CapturedCase:
    kind: Kind
    form: Callable[[Batch], Any] = unchanged
    """Returns a batch in another form."""


class CapturedRun:
    def __init__(self, case, *, captured):
        torch.cuda.synchronize()
        torch.manual_seed(0)
        self.case = case
        self.is_captured = captured
        self.number = 0
        options = {"max_norm": 0.5, "cuda_graph": captured} | case.kind.options
        self.step = case.kind.build(device="cuda", **options)
        self.state = None
        self.save()
        self.evaluations = []
        self.updates = []
        """Each result, with the peaks at that time. No later replay may write into a result."""

    def next_micro_batches(self, rows=SHORT, *, is_bad=False):
        """Return those of the next update; of sequences, `rows` is the length."""
        self.number += 1
        kind = self.case.kind
        shape = {"rows": rows}
        if kind.time is not None:
            shape = {"time": rows}
        data = batches(kind.accumulation, seed=self.number, device="cuda", **shape)
        if is_bad:
            data[-1] = nonfinite(data[-1])
        return list(map(self.case.form, data))

    def update(self, micro_batches):
        peaks = []
        for optimizer in self.step.optimizers:
            peaks += [group["initial_lr"] for group in optimizer.param_groups]
        self.updates.append((self.step(*micro_batches), peaks))

    def four_updates(self, rows):
        for _ in range(4):
            self.update(self.next_micro_batches(rows))

    def skipped_update(self, rows=SHORT):
        self.update(self.next_micro_batches(rows, is_bad=True))

    def save(self):
        self.state = copy.deepcopy(self.step.state_dict())

    def check_lrs(self):
        by_hand = ByHand(self.case.kind)
        for result, peaks in self.updates:
            by_hand.peaks = peaks
            expected = by_hand.lrs_at(int(result.curve_step))
            assert result.lr.tolist() == expected

    def outcome(self):
        """Return all that the run has computed."""
        results = []
        for result, _ in self.updates:
            aux = list(result.aux)
            requires_grad = [leaf.requires_grad for leaf in pytree.tree_leaves(aux)]
            results.append([tuple(result), result.consumed, aux, requires_grad])
        return [results, self.evaluations, self.step.state_dict()]


# Actions between or around updates.


def evaluation(run):
    model = run.step.model
    if isinstance(model, Net) and model.first.weight.dtype == torch.float32:
        run.evaluations.append(evaluate(model, batches(3, device="cuda"), mean_loss))


def reset_carry(run):
    if "carry" in run.case.kind.options:
        run.step.reset_carry()


def new_peak(run):
    captured = {}
    if run.is_captured:
        captured = dict(graphs_of(run.step).captured)
    run.step.set_peak(0.05 / (run.number + 1))
    if run.is_captured:
        assert graphs_of(run.step).captured == captured, "captured anew for a peak"


def updates_without_waiting(run):
    if run.is_captured:  # for short and for long batches: a capture would wait
        assert len(graphs_of(run.step).captured) == 2
    data = [run.next_micro_batches(is_bad=number % 3 == 1) for number in range(6)]
    with no_waiting():
        for micro_batches in data:
            run.update(micro_batches)


def program(run):
    """Actions that no option forbids; in the end both lengths are steady since the last load."""
    run.skipped_update()
    run.four_updates(SHORT)
    new_peak(run)
    run.four_updates(SHORT)
    run.save()
    run.four_updates(LONG)
    run.step.load_state_dict(run.state)
    run.four_updates(SHORT)
    run.four_updates(LONG)
    run.skipped_update()
    run.skipped_update(LONG)
    new_peak(run)
    evaluation(run)
    reset_carry(run)
    updates_without_waiting(run)


def compare_with_eager(case, action):
    outcomes = []
    for captured in (True, False):
        run = CapturedRun(case, captured=captured)
        torch.cuda.synchronize()
        torch.manual_seed(0)
        action(run)
        run.check_lrs()
        outcomes.append(run.outcome())
    assert_equal_trees(outcomes[0], outcomes[1])


# The kinds of runs, besides those of `kinds_of_run`.


def aux_by_length(model, batch):
    inputs, _ = batch
    loss = mean_loss(model, batch)
    if len(inputs) == SHORT:
        return loss, {"few": loss}
    return loss, [loss, loss * 2]


def widely_weighted(model, batch):
    """Return a loss weight computed on the device, whose size varies widely."""
    inputs, targets = batch
    total = (model(inputs).float() - targets).square().sum()
    weight = (inputs.square().sum() * 100).nan_to_num(1.0)
    return total * weight, weight * targets.numel()


def penalized(model, batch):
    """Compute a loss with a penalty on the gradient of the batch."""
    inputs, _ = batch
    inputs.requires_grad_()
    (slopes,) = torch.autograd.grad(model(inputs).sum(), inputs, create_graph=True)
    return mean_loss(model, batch) + slopes.square().sum()


def writing_to_batch(model, batch):
    inputs, targets = batch
    inputs.mul_(model.get_parameter("last.bias").sum())
    return mean_loss(model, (inputs, targets))


def that_requires_grad(batch):
    inputs, targets = batch
    return inputs.requires_grad_(), targets


def four_on_the_host(batch):
    return torch.tensor(4)


HAS_FUSED_ADAGRAD = TorchVersion(torch.__version__) >= "2.13"
"""Before, it did not take CUDA tensors."""

CASES = {}
for name, kind in ON_DEVICE.items():
    if HAS_FUSED_ADAGRAD or not name.startswith("adagrad"):
        CASES[name] = CapturedCase(kind)
CASES["pair on the device"] = CapturedCase(Kind(loss_fn=widely_weighted, accumulation=2))
CASES["aux by length"] = CapturedCase(Kind(loss_fn=aux_by_length, accumulation=2, has_aux=True))
CASES["count on the host"] = CapturedCase(Kind(clock=DataClock(3), count=four_on_the_host))
CASES["penalized, batches that require gradients"] = CapturedCase(
    Kind(loss_fn=penalized), form=that_requires_grad
)
CASES["a batch that is written to"] = CapturedCase(Kind(loss_fn=writing_to_batch, accumulation=2))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_every_kind_of_run_matches_eager(case):
    compare_with_eager(case, program)


def test_captured_runs_on_any_stream():
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        compare_with_eager(CapturedCase(Kind(accumulation=2)), program)
    torch.cuda.synchronize()


@pytest.mark.parametrize("loss_fn", [mean_loss, widely_weighted])
def test_prefetched_batches_match_eager(loss_fn):
    data = [*batches(8), *batches(4, rows=7), *batches(8, seed=1)]

    def train(run):
        if not run.is_captured:
            for inputs, targets in data:
                run.update([(inputs.cuda(), targets.cuda())])
            return
        for batch in prefetch(data, "cuda"):
            run.update([batch])
        assert graphs_of(run.step).captured

    compare_with_eager(CapturedCase(Kind(loss_fn=loss_fn, precision="fp16")), train)


# Layouts of a batch: inputs of shape (4, 3) and targets of shape (4, 2).


def transposed(wide, tall):
    return wide[:3].t()[:4], tall[:4, :2]


def misaligned(wide, tall):
    return wide.view(-1)[1:13].view(4, 3), tall.view(-1)[3:11].view(4, 2)


@pytest.mark.parametrize("layout", [transposed, misaligned])
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")
def test_compiled_and_captured_matches_eager(layout):
    torch.compiler.reset()
    both = Kind().build(device="cuda", compile=True, cuda_graph=True)
    eager = Kind().build(device="cuda")
    for number in range(8):
        ((_, targets),) = batches(1, seed=number, device="cuda")
        values = targets.flatten()
        wide = torch.outer(values[:6], values[:6])
        tall = torch.outer(values[:8], values[:3])
        batch = layout(wide, tall)
        torch.testing.assert_close(both(batch), eager(batch), rtol=1e-5, atol=1e-6)
    assert len(graphs_of(both).captured) == 1


# Learning rates.


@pytest.mark.parametrize("cuda_graph", [False, True])
def test_lrs_match_on_lagging_device(cuda_graph):
    """The host sets a peak while the device is several updates behind."""
    step = Kind().build(device="cuda", cuda_graph=cuda_graph)
    by_hand = ByHand(Kind())
    (good,) = batches(1, device="cuda")
    bad = nonfinite(good)
    applied = 0
    results = []
    expected = []
    for number in range(60):
        if number % 7 == 3:
            torch.cuda._sleep(2_000_000)
        if number in (33, 34):
            by_hand.peaks = [1 / number]
            step.set_peak(by_hand.peaks)
        expected += by_hand.lrs_at(applied)
        if number % 3 == 0:
            results.append(step(bad))
        else:
            results.append(step(good))
            applied += 1
    assert [result.lr.item() for result in results] == expected
