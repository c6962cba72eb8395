"""A refusal prints no more than a line of a value, however long the value is."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.training.models import Net, batches, mean_loss
from support.training.optimizers import make_optimizer
from support.training.steps import make_step
from torch import nn

from torch_bridge import checkpoint_activations, distribute, evaluate, find_batch_size

_LONG = list(range(10_000))
_NAMES = dict.fromkeys(_LONG, 0.0)
_DEEP = nn.Sequential(*[nn.Linear(1, 1) for _ in range(500)])


def _step_with(**options: Any) -> Callable[[], Any]:
    return lambda: make_step(**options)


def _update_of(loss_fn: Callable[..., Any], **options: Any) -> Callable[[], Any]:
    return lambda: make_step(loss_fn=loss_fn, **options)(*batches(1))


_REFUSED: dict[str, Callable[[], Any]] = {
    "evaluate with swapped arguments": lambda: evaluate(batches(300), Net(), mean_loss),  # type: ignore[call-overload]
    "evaluate(loss_fn=)": lambda: evaluate(Net(), batches(1), batches(300)),  # type: ignore[call-overload]
    "evaluate(carry=)": lambda: evaluate(Net(), batches(1), mean_loss, carry=_LONG),
    "names of metrics": lambda: evaluate(Net(), batches(1), lambda *_: _NAMES),
    "model": _step_with(model=_LONG, optimizer=make_optimizer("adamw", Net())),
    "optimizer": _step_with(optimizer=_NAMES),
    "optimizers": _step_with(optimizer=[_DEEP]),
    "loss_fn": _step_with(loss_fn=_LONG),
    "curve": _step_with(curve=_LONG),
    "max_norm": _step_with(max_norm=_LONG),
    "on_nonfinite": _step_with(on_nonfinite=_LONG),
    "precision": _step_with(precision=_LONG),
    "carry": _step_with(carry=_LONG),
    "hold": _step_with(hold=_LONG),
    "unit": _step_with(unit=_LONG, count=len),
    "count": _step_with(unit=1, count=_LONG),
    "initial_updates": _step_with(initial_updates=_LONG),
    "a count": _update_of(mean_loss, unit=1, count=lambda batch: _LONG),
    "a loss": _update_of(lambda model, batch: _LONG),
    "a weight": _update_of(lambda model, batch: (mean_loss(model, batch), _LONG)),
    "an aux": _update_of(lambda model, batch: (mean_loss(model, batch), _LONG), has_aux=True),
    "a new carry": _update_of(
        lambda model, batch, carry: (mean_loss(model, batch), _LONG), carry=torch.ones(1)
    ),
    "set_peak": lambda: make_step().set_peak("1" * 10_000),  # type: ignore[arg-type]
    "distribute": lambda: distribute(_LONG),  # type: ignore[type-var]
    "checkpoint_activations": lambda: checkpoint_activations(_LONG, nn.Linear),  # type: ignore[type-var]
    "blocks": lambda: checkpoint_activations(_DEEP, [_LONG]),  # type: ignore[list-item]
    "find_batch_size": lambda: find_batch_size(_LONG, len, 8),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("call", _REFUSED.values(), ids=_REFUSED)
def test_refusal_is_a_line(call: Callable[[], Any]) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        call()
    message = str(caught.value)
    assert len(message) < 600, message
    assert "\n" not in message


def test_swapped_arguments_of_evaluate_get_the_call() -> None:
    with pytest.raises(TypeError, match=r"evaluate\(model, batches, loss_fn\)"):
        evaluate(batches(1), Net(), mean_loss)  # type: ignore[call-overload]
