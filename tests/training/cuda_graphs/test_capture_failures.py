"""Failed captures and warm-ups: the original error is raised with a note, and the step stays usable."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.training.cuda_graphs.graphs import CPU, WARM_UPS, Sums, capture, graphs_for, without_cuda
from support.training.models import batches
from support.training.steps import make_step, state_kept_by_skips, train
from support.training.trees import equal_trees
from torch import Tensor

from torch_bridge.training.cuda_graphs.capture import GraphedUpdate


class _OfTheUser(Exception):
    pass


_ERRORS = [
    RuntimeError("operation not permitted when stream is capturing"),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
    NotImplementedError("no kernel for this"),
    _OfTheUser("mine"),
]
_PREVIOUS = "operation failed due to a previous error during capture"


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    kept = [torch.zeros(()), torch.zeros((), dtype=torch.int64)]
    without_cuda(monkeypatch, kept)
    return kept


def _failing_graphs(kept: list[Tensor], error: BaseException) -> tuple[GraphedUpdate, list[BaseException]]:
    """Return graphs whose captures raise the error while it is in the list."""
    sums, errors, runs = Sums(kept), [error], iter(range(100))

    def update(micro_batches: Any) -> tuple[Tensor, ...]:
        if next(runs) >= WARM_UPS and errors:
            raise errors[0]
        return sums(micro_batches)

    return graphs_for(update, sums), errors


def _batch() -> list[Any]:
    return [{"x": torch.ones(2)}]


def _warm_up(graphs: GraphedUpdate) -> None:
    for _ in range(WARM_UPS):
        graphs(_batch())


def _end_captures(monkeypatch: pytest.MonkeyPatch, end: Callable[[], None]) -> None:
    """Make every capture call `end` at its end."""

    @contextmanager
    def graph(graph: Any, **_: Any) -> Iterator[None]:
        try:
            yield
        finally:
            end()

    monkeypatch.setattr(torch.cuda, "graph", graph)


@pytest.mark.parametrize("ends_well", [True, False])
@pytest.mark.parametrize("error", _ERRORS, ids=lambda error: type(error).__name__)
def test_first_error_is_raised(
    kept: list[Tensor], monkeypatch: pytest.MonkeyPatch, error: Exception, ends_well: bool
) -> None:
    def end() -> None:
        if errors and not ends_well:
            raise RuntimeError(_PREVIOUS)

    graphs, errors = _failing_graphs(kept, error)
    _end_captures(monkeypatch, end)
    _warm_up(graphs)
    message = str(error)
    for _ in range(2):
        with pytest.raises(type(error)) as raised:
            graphs(_batch())
        assert raised.value is error
        assert str(error) == message
        assert "cuda_graph=False" in "".join(error.__notes__)
        assert error.__context__ is None
    errors.clear()
    graphs(_batch())
    assert len(graphs.captured) == 1


@pytest.mark.parametrize(
    ("version", "damaged"), [("2.11.0+cu130", True), ("2.13.0", False), ("2.15.1", False)]
)
def test_note_names_damage_by_torch(
    kept: list[Tensor], monkeypatch: pytest.MonkeyPatch, version: str, damaged: bool
) -> None:
    """The error is raised at the end of the capture."""

    def end() -> None:
        raise RuntimeError(_PREVIOUS)

    sums = Sums(kept)
    _end_captures(monkeypatch, end)
    monkeypatch.setattr(torch, "__version__", version)
    _warm_up(sums.graphs)
    with pytest.raises(RuntimeError, match="previous error") as raised:
        sums.graphs(_batch())
    assert "cuda_graph=False" in "".join(raised.value.__notes__)
    assert ("restart the process" in "".join(raised.value.__notes__)) == damaged


def test_keyboard_interrupt_is_raised(kept: list[Tensor]) -> None:
    graphs, errors = _failing_graphs(kept, KeyboardInterrupt())
    _warm_up(graphs)
    with pytest.raises(KeyboardInterrupt):
        graphs(_batch())
    errors.clear()
    graphs(_batch())
    assert (len(graphs.captured), kept[1].item()) == (1, WARM_UPS + 1)


def test_pool_of_failed_capture_is_not_reused(kept: list[Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor may still live in it: torch's allocator then rejects the pool."""
    pools = iter(range(100))
    used: list[int] = []

    @contextmanager
    def graph(graph: Any, *, pool: int, **_: Any) -> Iterator[None]:
        used.append(pool)
        yield

    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: next(pools))
    graphs, errors = _failing_graphs(kept, _ERRORS[0])
    _warm_up(graphs)
    with pytest.raises(RuntimeError):
        graphs(_batch())
    errors.clear()
    graphs(_batch())
    assert len(set(used)) == 2


@pytest.mark.parametrize("error", [_OfTheUser("mine"), KeyboardInterrupt()], ids=["error", "Ctrl-C"])
def test_streams_are_ordered_after_failed_warm_up(
    kept: list[Tensor], monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """The caller's stream waits for the work that the warm-up had queued."""
    waits: list[tuple[str, str]] = []

    def stream(name: str) -> Any:
        return SimpleNamespace(
            name=name, device=CPU, wait_stream=lambda other: waits.append((name, other.name))
        )

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: stream("side"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream("caller"))

    def update(micro_batches: Any) -> tuple[Tensor, ...]:
        raise error

    with pytest.raises(type(error)):
        graphs_for(update, Sums(kept))(_batch())
    assert waits == [("side", "caller"), ("caller", "side")]


def test_uncapturable_settings_change_nothing(kept: list[Tensor]) -> None:
    step, eager = make_step("sgd"), make_step("sgd")
    assert equal_trees(train(step, batches(2)), train(eager, batches(2)))
    capture(step)
    group = step.optimizer.param_groups[0]
    for name, other in (("fused", False), ("capturable", False), ("fused", False)):
        before = group.get(name, True)
        group[name] = other
        with pytest.raises(ValueError, match=f"cuda_graph=True needs .* {name}="):
            step(batches(1)[0])
        group[name] = before
        assert equal_trees(train(step, batches(1)), train(eager, batches(1)))


def test_failed_capture_leaves_no_partial_update(kept: list[Tensor]) -> None:
    """It fails while the optimizer steps, but a capture executes nothing."""

    def fail(*_: Any) -> None:
        raise _OfTheUser

    step, eager, (batch,) = make_step("sgd"), make_step("sgd"), batches(1)
    capture(step)
    assert equal_trees(train(step, [batch] * WARM_UPS), train(eager, [batch] * WARM_UPS))
    hook = step.optimizer.register_step_pre_hook(fail)
    with pytest.raises(_OfTheUser):
        step(batch)
    hook.remove()
    assert equal_trees(state_kept_by_skips(step), state_kept_by_skips(eager))
