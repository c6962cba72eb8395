"""Captured updates: a change to what they depend on takes effect, without false alarms; clocks are held."""

import copy
import weakref
from collections.abc import Callable
from inspect import signature
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from support.examples import examples
from support.training.by_hand import ByHand
from support.training.cuda_graphs.graphs import Tape, captured_step, gpu_step, graphs_of, on_gpu
from support.training.kinds_of_run import Kind
from support.training.models import Net, batches, counting_loss, nonfinite, seeded
from support.training.steps import equal_trees, through_file, train
from torch import Tensor, nn

from plateau_jax import DataClock, StagedCurve
from torch_bridge import follow
from torch_bridge.training.cuda_graphs import Guards


class Parts(Net):
    """A net with buffers, and with modules in a list, of which the first one's mode matters."""

    def __init__(self) -> None:
        super().__init__()
        with seeded(1):
            self.more = nn.ModuleList([nn.LayerNorm(2), nn.Linear(2, 2)])
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("shift", torch.zeros(3))
        self.register_buffer("scale", None)

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls.add_(1)
        inputs = inputs if self.shift is None else inputs + self.shift
        inputs = inputs if self.scale is None else inputs * self.scale
        outputs = super().forward(inputs * 0.5 if self.more[0].training else inputs)
        return nn.Sequential(*self.more)(outputs)


# Changes between updates of a run. The captured update must notice these.
CHANGES: list[Callable[..., Any]] = [
    lambda model: model.eval(),
    lambda model: model.more[0].eval(),
    lambda model: model.first.weight.requires_grad_(False),
    lambda model: setattr(model.first, "bias", nn.Parameter(torch.ones_like(model.first.bias))),
    lambda model: setattr(model.first.bias, "data", torch.ones_like(model.first.bias)),
    lambda model: setattr(model, "shift", torch.ones_like(model.shift)),
    lambda model: setattr(model.shift, "data", torch.ones_like(model.shift)),
    lambda model: setattr(model, "shift", None),
    lambda model: setattr(model, "scale", torch.full_like(model.shift, 2.0)),
    lambda model: setattr(model, "last", copy.deepcopy(model.last)),
    lambda model: model.more.append(nn.Tanh()),
    lambda model: model.more.pop(1),
    lambda model: model.more.insert(0, model.more.pop(1)),
    lambda model: setattr(model.more[0], "bias", model.more[0].weight),
    lambda group: group.update(weight_decay=0.5),
    lambda group: group.update(maximize=True),
    lambda group: group.update(name="x"),
    lambda optimizer: optimizer.state.clear(),
    lambda step: step.load_state_dict(through_file(step.state_dict())),
    lambda optimizer: optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict())),
]
OF_ADAMW: list[Callable[..., Any]] = [
    lambda group: group.update(betas=(0.5, 0.9)),
    lambda optimizer: optimizer.state.popitem(),
    lambda moments: moments.update(exp_avg=moments["exp_avg"] * 2),
    lambda moments: setattr(moments["exp_avg"], "data", moments["exp_avg"] * 2),
    lambda moments: moments.update(exp_avg=moments["exp_avg_sq"], exp_avg_sq=moments["exp_avg"]),
]
# The graph sees these without being captured again.
HARMLESS: list[Callable[..., Any]] = [
    lambda group: group.update(lr=0.3),
    lambda group: group.update(lr=torch.tensor(0.3)),
    lambda step: step.set_peak(0.5),
    lambda step: step.reset_carry(),
    lambda model: model.shift.add_(1),
    lambda moments: moments["exp_avg"].mul_(2),
    lambda model: model.load_state_dict(through_file(model.state_dict())),
]


def apply(change: Callable[..., Any], step: Any) -> None:
    """Call a change with the objects that its parameters name."""
    objects = {
        "step": step,
        "model": step.model,
        "optimizer": step.optimizer,
        "group": step.optimizer.param_groups[0],
        "moments": next(iter(step.optimizer.state.values())),
    }
    with torch.no_grad():
        change(**{name: objects[name] for name in signature(change).parameters})


@pytest.mark.parametrize(
    ("name", "change"),
    [
        *(("adamw", change) for change in CHANGES + OF_ADAMW + HARMLESS),
        *(("momentum", change) for change in CHANGES),
    ],
)
def test_change_takes_effect(device: str, name: str, change: Callable[..., Any]) -> None:
    options: dict[str, Any] = {"loss_fn": counting_loss, "carry": torch.zeros(2)}
    captured = captured_step(device, name, Parts(), **options)
    eager, graphs = gpu_step(name, Parts(), device=device, **options), []
    for turn in range(2):
        data = batches(6, seed=turn)
        data[4] = nonfinite(data[4])
        for batch in on_gpu(data, device):
            assert equal_trees(captured(batch), eager(batch))
        (recorded,) = graphs_of(captured).captured.values()
        graphs.append(recorded.graph)
        if turn == 0:
            apply(change, captured)
            apply(change, eager)
    assert (graphs[0] is graphs[1]) == (change in HARMLESS)
    assert equal_trees(captured.state_dict(), eager.state_dict())


def test_graph_reads_the_tensor_of_a_group_that_shared_one(device: str) -> None:
    """It is a new tensor once the peaks differ, so it is captured anew."""

    def build(model: Any) -> Any:
        groups = [{"params": model.first.parameters()}, {"params": model.last.parameters()}]
        return torch.optim.Adam(groups, lr=torch.tensor(0.1), fused=True, capturable=True)

    captured = captured_step(device, optimizers=build)
    eager = gpu_step(device=device, optimizers=build)
    first, last = captured.optimizer.param_groups
    assert first["lr"] is last["lr"]
    for peaks in ([0.1, 0.1], [0.05, 0.2]):
        for step in (captured, eager):
            step.set_peak(peaks)
        for batch in on_gpu(batches(6), device):
            result = captured(batch)
            assert equal_trees(result, eager(batch))
            assert [group["lr"].item() for group in (first, last)] == result.lr.tolist()
        assert len(graphs_of(captured).captured) == 1
    assert first["lr"] is not last["lr"]
    assert equal_trees(captured.state_dict(), eager.state_dict())


def test_guards_run_no_operator() -> None:
    """Neither on a tensor in a list of settings, which a comparison by value would read."""
    step = gpu_step(device="cpu")
    train(step, batches(1))
    betas = step.optimizer.param_groups[0]["betas"] = [0.9, torch.tensor(0.99)]
    changes = [(0, 0.5), (1, torch.tensor(0.99))]
    guards = Guards(step.model, step.optimizers)
    with Tape() as tape:
        for index, value in changes:
            assert not guards.failed()
            betas[index] = value
            assert guards.failed()
            guards.record()
    assert not tape.operators


def test_recorded_tensor_of_a_setting_is_kept() -> None:
    """So no new tensor gets its `id`."""
    step = gpu_step(device="cpu")
    betas = step.optimizer.param_groups[0]["betas"] = [0.9, torch.tensor(0.99)]
    recorded = weakref.ref(betas[1])
    guards = Guards(step.model, step.optimizers)
    betas[1] = torch.tensor(0.99)
    assert guards.failed()
    assert recorded() is not None


def test_followed_settings_match_hand_written_loop(device: str) -> None:
    """Each change is noticed; a graph is captured once the values have been constant for some updates."""
    options: dict[str, Any] = {"lr": 0.01, "weight_decay": 0.5, "fused": True, "capturable": True}

    def build(model: nn.Module) -> Any:
        return torch.optim.AdamW(model.parameters(), **options)

    step = captured_step(device, optimizers=build)
    by_hand = ByHand(Kind(build, model=lambda: Net().to(device)))
    stairs = StagedCurve([(4,), (4, 0.5), (8,), (0, 0.25), (8,)], start=1.0)
    constant = StagedCurve([(30,)], start=0.5)
    followers = [
        follow(step.optimizer, "weight_decay", stairs), follow(step.optimizer, ("betas", 0), constant)
    ]  # fmt: skip
    recorded = []
    for number, batch in enumerate(on_gpu(batches(26), device)):
        step(batch)
        recorded.append(len(graphs_of(step).captured))
        for follower in followers:
            follower.step()
        betas = 0.9 * constant(number), 0.999
        by_hand.groups[0].update(weight_decay=0.5 * stairs(number), betas=betas)
        by_hand.update([batch])
    assert equal_trees(step.model.state_dict(), by_hand.model.state_dict())
    assert recorded == [0] * 3 + [1] * 2 + [0] * 6 + [1] * 5 + [0] * 3 + [1] * 7


@examples(20)
@given(
    st.lists(st.integers(0, 2**40), min_size=8, max_size=12), st.sampled_from([int, torch.tensor])
)
def test_new_count_needs_no_capture(device: str, counts: list[int], form: Any) -> None:
    """Nor does a count of the other form; a replay reads what was written before it."""
    step = captured_step(device, clock=DataClock(3))
    consumed = 0
    for count, batch in zip(counts, on_gpu(batches(len(counts)), device), strict=True):
        given_count = form(count)
        on_device = given_count.to(device) if isinstance(given_count, torch.Tensor) else given_count
        result = step(batch, count=on_device if count % 2 else count)
        assert int(result.curve_step) == consumed // 3
        consumed += count
        assert int(result.consumed) == consumed
    assert len(graphs_of(step).captured) == 1
