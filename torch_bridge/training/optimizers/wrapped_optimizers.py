"""What trainers wrap around an optimizer is taken off; Lightning's, which counts updates, is told of them."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch.optim import Optimizer

_TRAINERS = ("accelerate", "lightning", "lightning_fabric", "pytorch_lightning")


def unwrap(optimizer: Any) -> Any:
    """The optimizer that the wrappers of Lightning, Fabric and accelerate hold, or the optimizer itself.

    Only theirs: another optimizer with an attribute `optimizer` may do more with it, as Lookahead does.
    """
    *_, innermost = _layers(optimizer)
    return innermost


def with_wrappers(optimizers: Sequence[Any]) -> list[Any]:
    """The torch optimizers in these, and the wrappers of trainers around them."""
    return [layer for optimizer in optimizers for layer in _layers(optimizer)]


def _layers(optimizer: Any) -> Iterator[Any]:
    """The optimizer, what it wraps, and so on."""
    yield optimizer
    if any(kind.__module__.partition(".")[0] in _TRAINERS for kind in type(optimizer).__mro__):
        inner = getattr(optimizer, "optimizer", None)
        if isinstance(inner, Optimizer):
            yield from _layers(inner)


def lightning_counter(optimizers: Sequence[Any]) -> Callable[[], None] | None:
    """A function that counts an update in Lightning's Trainer; None where no Lightning is there.

    Under manual optimization `trainer.global_step` counts the calls of the wrapper's `step`, skipped updates
    too. An update of several optimizers counts once.

    Raises:
        ValueError: Lightning counts in another way than the releases that are known here.
    """
    wrappers = filter(_is_lightnings, with_wrappers(optimizers))
    wrapper = next(wrappers, None)
    if wrapper is None:
        return None
    if not (hasattr(wrapper, "_on_before_step") and hasattr(wrapper, "_on_after_step")):
        raise ValueError(
            "this release of Lightning counts updates in a way that is not known here: trainer.global_step "
            "would stay at 0, and max_steps would not end the run. Give TrainStep "
            "self.optimizers(use_pl_optimizer=False), and set self.trainer.should_stop = True after the last "
            "update"
        )

    def count() -> None:
        # Both after the update: the first one also starts a measurement in Lightning's profiler, which an
        # update that fails would never end. The Trainer sets both anew for every batch.
        wrapper._on_before_step()
        wrapper._on_after_step()

    return count


def _is_lightnings(wrapper: Any) -> bool:
    return any(kind.__name__ == "LightningOptimizer" for kind in type(wrapper).__mro__)
