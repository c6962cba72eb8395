"""Failed captures and warm-ups: the error has a note, and the step stays usable."""

import itertools
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from support.training.cuda_graphs import graphs
from support.training.kind import Kind
from support.training.models import Net, batches, mean_loss
from support.training.steps import train
from support.trees import assert_equal_trees
from train_step.cuda_graphs import aborted_captures

TESTS = Path(__file__).parents[2]
PREVIOUS = "operation failed due to a previous error during capture"
BATCH = [{"x": torch.ones(2)}]


class OfTheUser(Exception):
    pass


class FailingSums(graphs.Sums):
    """Sums whose captures raise an error while there is one."""

    error = None

    def __call__(self, micro_batches):
        if self.error is not None:
            raise self.error
        return super().__call__(micro_batches)


@pytest.mark.parametrize("ends_well", [True, False])
def test_error_of_capture_has_a_note(without_cuda, monkeypatch, ends_well):
    """The next capture uses a new pool: torch rejects one in which a tensor still lives."""
    pools = iter(range(9))
    used_pools = []

    @contextmanager
    def capture(graph, *, pool, **_):
        try:
            yield
        finally:
            used_pools.append(pool)
            if sums.error is not None and not ends_well:
                raise RuntimeError(PREVIOUS)

    monkeypatch.setattr(torch.cuda, "graph", capture)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: next(pools))
    sums = FailingSums()
    for _ in range(graphs.WARM_UPS):
        sums.graphs(BATCH)
    sums.error = OfTheUser("mine")
    for _ in range(2):
        with pytest.raises((OfTheUser, RuntimeError)) as raised:
            sums.graphs(BATCH)
        assert sums.error in (raised.value, raised.value.__context__)
        assert "cuda_graph=False" in "".join(raised.value.__notes__)
    sums.error = None
    sums.graphs(BATCH)
    assert len(sums.graphs.captured) == 1
    assert used_pools == [0, 1, 2]


class RecordedStream:
    """Records for which stream this one waits."""

    device = graphs.CPU

    def __init__(self, name, events):
        self.name = name
        self.events = events

    def wait_stream(self, other):
        self.events.append(f"{self.name} waits for {other.name}")


def test_streams_are_ordered_around_interrupted_warm_up(without_cuda, monkeypatch):
    """The caller's stream waits for the work that the warm-up has queued."""
    events = []
    side = RecordedStream("side", events)
    caller = RecordedStream("caller", events)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: side)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: caller)

    def update(micro_batches):
        events.append("update")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        graphs.graphs_for(update)(BATCH)
    assert events == ["side waits for caller", "update", "caller waits for side"]


class Keeping(Net):
    """Keeps its last result, and with it some memory of a capture."""

    def forward(self, inputs):
        self.last_output = super().forward(inputs)
        return self.last_output


@pytest.mark.parametrize("at", [1, graphs.WARM_UPS, graphs.WARM_UPS + 1])
@pytest.mark.parametrize("kind", [OfTheUser, KeyboardInterrupt])
def test_step_continues_after_error_of_loss(device, kind, at):
    """In a warm-up as in the capture."""
    error = kind("mine")
    data = batches(9, device=device)
    calls = itertools.count(1)

    def failing(model, batch):
        loss = mean_loss(model, batch)
        if next(calls) == at:
            raise error
        return loss

    captured = Kind(loss_fn=failing, model=Keeping).build(device=device, cuda_graph=True)
    eager = Kind(model=Keeping).build(device=device)
    assert_equal_trees(train(captured, data[: at - 1]), train(eager, data[: at - 1]))
    with pytest.raises(kind) as raised:
        captured(data[0])
    assert raised.value is error
    assert len(getattr(error, "__notes__", [])) == (at > graphs.WARM_UPS and kind is OfTheUser)
    assert all(parameter.grad is None for parameter in captured.model.parameters())
    if device == "cuda":
        assert torch.cuda.current_stream() == torch.cuda.default_stream()
    assert_equal_trees(train(captured, data[at - 1 :]), train(eager, data[at - 1 :]))
    assert len(graphs.graphs_of(captured).captured) == 1
    assert_equal_trees(captured.state_dict(), eager.state_dict())


def test_failed_capture_leaves_no_partial_update(device):
    """It fails while the optimizer steps, but a capture executes nothing."""

    def fail(*_):
        raise OfTheUser

    captured = Kind().build(device=device, cuda_graph=True)
    eager = Kind().build(device=device)
    data = batches(9, device=device)
    assert_equal_trees(
        train(captured, data[: graphs.WARM_UPS]), train(eager, data[: graphs.WARM_UPS])
    )
    hook = captured.optimizer.register_step_pre_hook(fail)
    with pytest.raises(OfTheUser):
        captured(data[0])
    hook.remove()
    assert_equal_trees(
        train(captured, data[graphs.WARM_UPS :]), train(eager, data[graphs.WARM_UPS :])
    )
    assert_equal_trees(captured.state_dict(), eager.state_dict())


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("program", "parts"),
    [
        (
            "read_during_capture",
            ["not permitted when stream is capturing", "must not read the device"],
        ),
        ("keep_a_loss", ["stream", "computed outside of the step"]),
    ],
)
def test_capture_aborted_by_cuda_is_explained(program, parts):
    """In a separate process, since torch before 2.13 leaves it damaged."""
    command = [sys.executable, "-m", aborted_captures.__name__, program]
    process = subprocess.run(command, cwd=TESTS, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    for part in parts:
        assert part in process.stdout
