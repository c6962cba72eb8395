"""Interrupts at a chosen line of the product or of torch."""

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import torch_bridge
from plateau_jax import runs

_PRODUCT = (str(Path(torch_bridge.__file__).parent), str(Path(runs.__file__).parent))


class Stop(BaseException):
    """Stands in for KeyboardInterrupt, which would end the test run if it escaped."""


class InterruptAtLine:
    """Counts the lines that run inside it, and raises `Stop` at one of them.

    Args:
        stop_at: The number of this line, from 1.
        *traced: Files or folders whose lines count, in addition to those of `torch_bridge`
            and `plateau_jax.runs`.
    """

    def __init__(self, stop_at: int | None = None, *traced: str) -> None:
        self.count = 0
        self.stop_at = stop_at
        self.traced = (*_PRODUCT, *traced)

    def __enter__(self) -> "InterruptAtLine":
        self.before = sys.gettrace()
        sys.settrace(self.enter)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self.before)
        torch.set_grad_enabled(True)  # torch may have been interrupted before doing so

    def enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename.startswith(self.traced):
            return self.line
        return None

    def line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self.count += 1
            if self.count == self.stop_at:
                raise Stop
        return self.line
