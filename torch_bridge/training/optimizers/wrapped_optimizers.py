"""Unwrap the optimizers of trainers, and notify Lightning's Trainer of updates."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch.optim import Optimizer

_TRAINERS = ("accelerate", "lightning", "lightning_fabric", "pytorch_lightning")


def unwrap(optimizer: Any) -> Any:
    """Return the optimizer inside the wrappers of Lightning, Fabric and accelerate, or the optimizer itself.

    Other wrappers stay: an optimizer with an attribute `optimizer` may add to its step, as Lookahead does.
    """
    *_, innermost = _layers(optimizer)
    return innermost


def with_wrappers(optimizers: Sequence[Any]) -> list[Any]:
    """Return the torch optimizers in these, and the trainers' wrappers around them."""
    return [layer for optimizer in optimizers for layer in _layers(optimizer)]


def _layers(optimizer: Any) -> Iterator[Any]:
    """Yield the optimizer, then the one that it wraps, and so on."""
    yield optimizer
    if any(kind.__module__.partition(".")[0] in _TRAINERS for kind in type(optimizer).__mro__):
        inner = getattr(optimizer, "optimizer", None)
        if isinstance(inner, Optimizer):
            yield from _layers(inner)


def lightning_counter(optimizers: Sequence[Any]) -> Callable[[], None] | None:
    """Return a function that counts an update in Lightning's Trainer; None without a Lightning optimizer.

    Under manual optimization `trainer.global_step` counts the calls of the wrapper's `step`, skipped updates
    included. An update of several optimizers counts once.

    Raises:
        ValueError: This release of Lightning counts updates in an unknown way.
    """
    wrappers = filter(_is_lightning_optimizer, with_wrappers(optimizers))
    wrapper = next(wrappers, None)
    if wrapper is None:
        return None
    if not (hasattr(wrapper, "_on_before_step") and hasattr(wrapper, "_on_after_step")):
        raise ValueError(
            "this release of Lightning counts updates in an unknown way: trainer.global_step would stay at "
            "0, and max_steps would not end the run. Give TrainStep self.optimizers(use_pl_optimizer=False), "
            "and set self.trainer.should_stop = True after the last update"
        )

    def count_update() -> None:
        # Both run after the update. The first one starts a measurement in Lightning's profiler, too, which an
        # update that fails would never end. Looked up at each call: the Trainer sets both for every batch.
        wrapper._on_before_step()
        wrapper._on_after_step()

    return count_update


def _is_lightning_optimizer(wrapper: Any) -> bool:
    return any(kind.__name__ == "LightningOptimizer" for kind in type(wrapper).__mro__)
