"""A step of a torch optimizer is broken off at any line: nothing has moved, or the next update is refused."""

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from support.training import FUSED, batches, same, step_of, train

from torch_bridge import TrainStep

pytestmark = pytest.mark.slow

_TORCH = str(Path(torch.optim.__file__).parent)


class _Stop(BaseException):
    """As KeyboardInterrupt, which would end all tests if it got out."""


class _Lines:
    """Counts the lines of torch.optim that run while it is entered, and raises at one of them."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.count, self._stop_at = 0, stop_at

    def __enter__(self) -> "_Lines":
        self._before = sys.gettrace()
        sys.settrace(self._enter)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)
        torch.set_grad_enabled(True)  # where torch was kept from doing so itself

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self._line if frame.f_code.co_filename.startswith(_TORCH) else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self.count += 1
            if self.count == self._stop_at:
                raise _Stop
        return self._line


def _weights_and_count(step: TrainStep) -> list[Any]:
    state = step.state_dict()
    return [state["model"], state["applied"]]


@pytest.mark.parametrize("name", [*FUSED, "plain adam", "plain momentum"])
@pytest.mark.parametrize("updates", [0, 2])
def test_nothing_has_moved_or_the_next_update_is_refused(name: str, updates: int) -> None:
    data = batches(3)

    def trained() -> TrainStep:
        step = step_of(name)
        train(step, data[:updates])
        return step

    step = trained()
    before = _weights_and_count(step)
    with _Lines() as lines:
        step(data[2])
    assert lines.count > 0
    for number in range(1, lines.count + 1):
        step = trained()
        with pytest.raises(_Stop), _Lines(stop_at=number):
            step(data[2])
        if step._drivers.is_torn:
            with pytest.raises(RuntimeError, match="an update was interrupted"):
                step(data[2])
        else:
            assert same(_weights_and_count(step), before), f"at line {number}"
