"""Failed captures and warm-ups: the original error is raised with a note, and the step stays usable."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.training.cuda_graphs.gpu import gpu_step
from support.training.cuda_graphs.graphs import CPU, WARM_UPS, Sums, capture, graphs_for, without_cuda
from support.training.models import batches
from support.training.steps import state_kept_by_skips, train
from support.training.trees import equal_trees
from torch import Tensor

PREVIOUS = "operation failed due to a previous error during capture"
BATCH = [{"x": torch.ones(2)}]


class OfTheUser(Exception):
    pass


@pytest.fixture(autouse=True)
def _without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    without_cuda(monkeypatch)


class Failing(Sums):
    """Sums whose captures raise the error while it is in a list."""

    def __init__(self, *errors: BaseException) -> None:
        super().__init__()
        self.errors, self.calls = [*errors], 0
        for _ in range(WARM_UPS):
            self.graphs(BATCH)

    def __call__(self, micro_batches: Any) -> tuple[Tensor, ...]:
        self.calls += 1
        if self.calls > WARM_UPS and self.errors:
            raise self.errors[0]
        return super().__call__(micro_batches)

    def check_captures_again(self) -> None:
        self.errors.clear()
        assert self.graphs(BATCH)[1] == WARM_UPS + 1
        assert len(self.graphs.captured) == 1


@pytest.fixture
def at_end_of_capture(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Any], None]], None]:
    """Replace captures by nothing but a call with their pool at the end."""

    def replace(end: Callable[[Any], None]) -> None:
        @contextmanager
        def graph(graph: Any, *, pool: Any, **_: Any) -> Iterator[None]:
            try:
                yield
            finally:
                end(pool)

        monkeypatch.setattr(torch.cuda, "graph", graph)

    return replace


def _abort(pool: Any) -> None:
    raise RuntimeError(PREVIOUS)


@pytest.mark.parametrize("ends_well", [True, False])
@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("operation not permitted when stream is capturing"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        OfTheUser("mine"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_first_error_is_raised(error: Exception, ends_well: bool, at_end_of_capture: Any) -> None:
    sums, message = Failing(error), str(error)
    at_end_of_capture(lambda pool: None if ends_well or not sums.errors else _abort(pool))
    for _ in range(2):
        with pytest.raises(type(error)) as raised:
            sums.graphs(BATCH)
        assert raised.value is error
        assert str(error) == message
        assert "cuda_graph=False" in "".join(error.__notes__)
        assert error.__context__ is None
    sums.errors.clear()
    sums.graphs(BATCH)
    assert len(sums.graphs.captured) == 1


@pytest.mark.parametrize(("version", "is_damaged"), [("2.11.0+cu130", True), ("2.13.0", False)])
def test_note_names_damage_by_torch(
    version: str, is_damaged: bool, at_end_of_capture: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is raised at the end of the capture."""
    sums = Failing()
    at_end_of_capture(_abort)
    monkeypatch.setattr(torch, "__version__", version)
    with pytest.raises(RuntimeError, match="previous error") as raised:
        sums.graphs(BATCH)
    notes = "".join(raised.value.__notes__)
    assert "cuda_graph=False" in notes
    assert ("restart the process" in notes) == is_damaged


def test_keyboard_interrupt_is_raised() -> None:
    sums = Failing(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        sums.graphs(BATCH)
    sums.check_captures_again()


def test_pool_of_failed_capture_is_not_reused(
    at_end_of_capture: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tensor may still live in it: torch's allocator then rejects the pool."""
    pools, used = iter(range(100)), list[int]()
    at_end_of_capture(used.append)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: next(pools))
    sums = Failing(RuntimeError("no"))
    with pytest.raises(RuntimeError):
        sums.graphs(BATCH)
    sums.errors.clear()
    sums.graphs(BATCH)
    sums.graphs([*BATCH, *BATCH] * 2)
    assert len(used) == len(set(used)) == 2


@pytest.mark.parametrize("error", [None, OfTheUser("mine"), KeyboardInterrupt()], ids=repr)
def test_streams_are_ordered_around_warm_up(
    error: BaseException | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller's stream waits for the work that the warm-up has queued, even if it fails."""
    events: list[tuple[str, str]] = []

    def stream(name: str) -> Any:
        return SimpleNamespace(
            name=name, device=CPU, wait_stream=lambda other: events.append((name, other.name))
        )

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: stream("side"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream("caller"))

    def update(micro_batches: Any) -> tuple[Tensor, ...]:
        events.append(("the", "update"))
        if error is not None:
            raise error
        return ()

    graphs = graphs_for(update)
    if error is None:
        graphs(BATCH)
    else:
        with pytest.raises(type(error)):
            graphs(BATCH)
    assert events == [("side", "caller"), ("the", "update"), ("caller", "side")]


def test_failed_capture_leaves_no_partial_update() -> None:
    """It fails while the optimizer steps, but a capture executes nothing."""

    def fail(*_: Any) -> None:
        raise OfTheUser

    captured, eager, (batch,) = capture(gpu_step(device="cpu")), gpu_step(device="cpu"), batches(1)
    assert equal_trees(train(captured, [batch] * WARM_UPS), train(eager, [batch] * WARM_UPS))
    hook = captured.optimizer.register_step_pre_hook(fail)
    with pytest.raises(OfTheUser):
        captured(batch)
    hook.remove()
    assert equal_trees(state_kept_by_skips(captured), state_kept_by_skips(eager))
    assert equal_trees(train(captured, [batch] * 3), train(eager, [batch] * 3))
