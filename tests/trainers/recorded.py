"""Run a program, and write the learning rate of each update: `recorded.py PROGRAM FILE [UPDATES]`.

The process ends before the update with this number, as if it were killed. Warnings are errors,
except those that Python does not show by default.
"""

import os
import runpy
import sys
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import jax
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

Note = Callable[[Any], None]


def noted(function: Callable[..., Any], note: Note) -> Callable[..., Any]:
    """Return the function, noting each result, also at every run of a compiled program."""

    def call(*arguments: Any) -> Any:
        lr = function(*arguments)
        if isinstance(lr, jax.Array):
            jax.debug.callback(note, lr)
        else:
            note(lr)
        return lr

    return call


def record_keras(note: Note) -> None:
    keras_optimizer = import_module("keras").optimizers.Optimizer
    used = keras_optimizer.learning_rate
    keras_optimizer.learning_rate = used.getter(noted(used.fget, note))


def record_mlx(note: Note) -> None:
    mlx_optimizer = import_module("mlx.optimizers").Optimizer
    update = mlx_optimizer.update

    def noted_update(optimizer: Any, *arguments: Any) -> None:
        update(optimizer, *arguments)
        note(optimizer.learning_rate.item())

    mlx_optimizer.update = noted_update


RECORDERS = {
    "keras": record_keras,
    "mlx": record_mlx,
}
"""By library, if its optimizers are not torch's."""


def record(file: str, stop_before: str = "-1", code: str = "") -> None:
    """Write the learning rates of this process's updates to a file."""
    used = Path(file).open("w", encoding="utf-8", buffering=1)  # noqa: SIM115 -- open until the process ends
    updates_left = int(stop_before)

    def note(lr: Any) -> None:
        nonlocal updates_left
        if updates_left == 0:
            os._exit(130)
        updates_left -= 1
        used.write(f"{float(lr).hex()}\n")

    def note_groups(optimizer: Optimizer, *_: Any) -> None:
        (lr,) = {float(group["lr"]) for group in optimizer.param_groups}
        note(lr)

    register_optimizer_step_pre_hook(note_groups)
    for package, record_package in RECORDERS.items():
        if f"import {package}\n" in code or f"from {package}." in code:
            record_package(note)


def main(program: str, *arguments: str) -> None:
    record(*arguments, code=Path(program).read_text(encoding="utf-8"))
    warnings.simplefilter("error")
    for hidden in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
        warnings.simplefilter("ignore", hidden)
    runpy.run_path(program, run_name="__main__")
    jax.effects_barrier()


if __name__ == "__main__":
    main(*sys.argv[1:])
