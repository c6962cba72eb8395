"""A training step rejects invalid input with one clear error, and changes nothing."""

import copy
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.curves.scaled import OF_UNIT_8, WRONG_UNIT, WRONG_UNITS
from support.training.models import Net, Recurrent, batches, carried_loss, mean_loss, pair_loss
from support.training.optimizers import make_optimizer
from support.training.steps import CURVE, make_step, state_kept_by_skips, train
from support.training.trees import equal_trees
from torch import nn
from torch.optim import SGD, AdamW

from plateau_jax import HoldUntilFlat, PlateauCurve
from torch_bridge import TrainStep, checkpoint_activations, distribute, evaluate, find_batch_size

_HOLD = HoldUntilFlat(3, limit=9)
_LINEAR = PlateauCurve(30, decay_shape="linear")
_LONG = list(range(10_000))


def _parts(model: Net) -> list[torch.optim.Optimizer]:
    return [AdamW(part.parameters()) for part in (model.first, model.last)]


class _LineSearch(torch.optim.Optimizer):
    def step(self, closure: Any) -> None:
        closure()


# (arguments, or a function of the model that returns them; error; message)
_ARGUMENTS: list[tuple[Any, type[Exception], str]] = [
    ({"precision": "tf32"}, ValueError, "precision = 'tf32'"),
    ({"on_nonfinite": "stop"}, ValueError, "on_nonfinite = 'stop'"),
    ({"max_norm": 0}, ValueError, "max_norm = 0"),
    ({"max_norm": float("nan")}, ValueError, "max_norm = nan"),
    ({"max_norm": True}, TypeError, "max_norm = True"),
    ({"loss_fn": None}, TypeError, "loss_fn = None must be callable"),
    ({"model": mean_loss}, TypeError, r"model = <function .* must be a torch\.nn\.Module"),
    (
        lambda model: {"model": torch.optim.Adam(model.parameters()), "optimizer": model},
        TypeError,
        r"model = Adam .* must be a torch\.nn\.Module; it comes first",
    ),
    ({"curve": lambda step: 0.1}, TypeError, "must be a Curve"),
    ({"curve": [CURVE, CURVE]}, ValueError, "2 curves; the optimizer has 1"),
    ({"hold": "wait"}, TypeError, "hold = 'wait' must be"),
    ({"hold": []}, ValueError, "no rule"),
    ({"hold": _HOLD, "curve": PlateauCurve(30)}, ValueError, "needs a flat part"),
    ({"hold": _HOLD, "unit": 3, "count": len}, ValueError, "unit = 3 with hold"),
    ({"initial_updates": -1}, ValueError, "initial_updates"),
    ({"initial_updates": 1.5}, TypeError, "initial_updates"),
    ({"initial_updates": 2**63 - 1}, ValueError, r"initial_updates = .* at most 2\*\*62"),
    ({"count": len}, TypeError, "needs unit="),
    ({"unit": 3}, TypeError, "needs count="),
    ({"unit": 3, "count": 4}, TypeError, "needs count="),
    ({"unit": 0, "count": len}, ValueError, "unit = 0 must lie in"),
    ({"unit": 2.0, "count": len}, TypeError, "unit = 2.0 must be an integer"),
    ({"unit": 2**62 + 1, "count": len}, ValueError, r"2\*\*62"),
    ({"unit": 3, "count": len, "initial_updates": 4}, ValueError, "with initial_updates = 4"),
    *(
        ({"curve": curve, "unit": unit, "count": unit and len}, ValueError, WRONG_UNIT)
        for curve in OF_UNIT_8
        for unit in WRONG_UNITS
    ),
    ({"cuda_graph": True}, ValueError, "cuda_graph=True .* CUDA"),
    *(
        ({"carry": carry}, TypeError, "carry")
        for carry in ((), [], {}, 3, 1.0, (torch.zeros(1), 2), "state", (None,))
    ),
    # Optimizers, and their learning rates.
    ({"optimizer": "adamw"}, TypeError, r"must be a torch\.optim\.Optimizer"),
    ({"optimizer": []}, ValueError, "optimizer is empty"),
    ({"optimizer": make_optimizer("adamw", Net())}, ValueError, "4 of the optimizer's 4 parameters are not"),
    (
        lambda model: {"optimizer": SGD([*model.parameters(), nn.Parameter(torch.ones(1))])},
        ValueError,
        "1 of the optimizer's 5 parameters are not the model's",
    ),
    (
        lambda model: {"optimizer": _LineSearch(model.parameters(), {"lr": 0.1})},
        TypeError,
        "LineSearch needs",
    ),
    (
        lambda model: {"optimizer": [_parts(model)[0], torch.optim.LBFGS(model.last.parameters())]},
        TypeError,
        "LBFGS needs a closure",
    ),
    (
        lambda model: {"optimizer": [AdamW(model.parameters()), _parts(model)[0]]},
        ValueError,
        "2 parameters are in .* or belong to several optimizers",
    ),
    (lambda model: {"optimizer": [_parts(model)[0], None]}, TypeError, r"must be a torch\.optim\.Optimizer"),
    (lambda model: {"optimizer": make_optimizer("adamw", model, lr=1e-39)}, ValueError, "learning rate"),
    (lambda model: {"optimizer": make_optimizer("adamw", model, lr=1e39)}, ValueError, "learning rate"),
    # The curves of several optimizers.
    *(
        (lambda model, curve=curve: {"optimizer": _parts(model), "curve": curve}, error, message)
        for curve, error, message in (
            ([CURVE], ValueError, "1 entries for 2 optimizers"),
            ([CURVE] * 3, ValueError, "3 entries for 2 optimizers"),
            ([CURVE, [CURVE, CURVE]], ValueError, "2 curves; the optimizer has 1"),
            ([CURVE, 0.1], TypeError, r"0\.1 must be a Curve"),
            ("xy", TypeError, "an entry for each optimizer"),
            (0.1, TypeError, "an entry for each optimizer"),
        )
    ),
    (
        lambda model: {"optimizer": _parts(model)[:1], "curve": [CURVE, CURVE]},
        ValueError,
        "2 entries for 1",
    ),
    (
        lambda model: {"optimizer": _parts(model), "curve": [CURVE, _LINEAR], "hold": _HOLD},
        ValueError,
        "the same curve",
    ),
    # Models that cannot be trained.
    (lambda model: {"model": model.half(), "precision": "fp16"}, ValueError, "fp16"),
    (lambda model: {"model": _inference_net()}, ValueError, r"made under torch\.inference_mode\(\)"),
    (lambda model: {"model": nn.Sequential(nn.LazyLinear(2))}, ValueError, "dummy batch"),
]


def _inference_net() -> Net:
    with torch.inference_mode():
        return Net()


@pytest.mark.parametrize(("arguments", "error", "message"), _ARGUMENTS)
def test_invalid_arguments_are_rejected(arguments: Any, error: type[Exception], message: str) -> None:
    model = Net()
    given: dict[str, Any] = {"model": model, "loss_fn": mean_loss, "curve": CURVE}
    given |= arguments(model) if callable(arguments) else arguments
    if "optimizer" not in given:
        trained = given["model"] if isinstance(given["model"], nn.Module) else model
        given["optimizer"] = AdamW(trained.parameters(), lr=0.1)
    optimizers = given["optimizer"] if isinstance(given["optimizer"], list) else [given["optimizer"]]
    groups = [group for optimizer in optimizers for group in getattr(optimizer, "param_groups", [])]
    before = [dict(group) for group in groups]
    with pytest.raises(error, match=message):
        TrainStep(**given)
    assert groups == before, "nothing was done to the optimizers"


# (call, error, message)
_CALLS: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: make_step()(), TypeError, "batch"),  # type: ignore[call-arg]
    (lambda: make_step(applied=3), TypeError, r"TrainStep.__init__\(\) got an unexpected .* 'applied'"),
    (lambda: make_step().reset_carry(), ValueError, "without a carry"),
    *(
        (lambda path=path: make_step().load_state_dict(path), ValueError, "load the file first")
        for path in (Path("state.pt"), "state.pt")
    ),
    (
        lambda: evaluate(batches(1), Net(), mean_loss),  # type: ignore[call-overload]
        TypeError,
        r"^model = \[.* must be a torch\.nn\.Module; it comes first$",
    ),
    (lambda: evaluate(Net(), batches(1), _LONG), TypeError, "loss_fn"),  # type: ignore[call-overload]
    (lambda: evaluate(Net(), batches(1), mean_loss, carry=_LONG), TypeError, "carry"),
    (lambda: distribute(_LONG), TypeError, "^model = "),  # type: ignore[type-var]
    (lambda: checkpoint_activations(_LONG, nn.Linear), TypeError, "^model = "),  # type: ignore[type-var]
    (lambda: find_batch_size(_LONG, len, 8), TypeError, "is not callable"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("call", "error", "message"), _CALLS)
def test_invalid_calls_are_rejected(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def _loss_and_aux(model: nn.Module, batch: Any) -> Any:
    loss = mean_loss(model, batch)
    return loss, {"loss": loss}


_KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "loss": (mean_loss, {}),
    "aux": (_loss_and_aux, {"has_aux": True}),
    "carry": (carried_loss, {"carry": Recurrent().initial()}),
    "count": (lambda batch: 5, {"unit": 3}),
}
# (kind of value, what replaces it, error, message)
_VALUES: list[tuple[str, Callable[[Any], Any], type[Exception], str]] = [
    ("loss", lambda loss: None, TypeError, "loss_fn returned"),
    ("loss", lambda loss: loss.expand(3), ValueError, "loss_fn returned"),
    ("loss", lambda loss: (loss, -1), ValueError, "loss_fn returned"),
    ("loss", lambda loss: loss.detach(), ValueError, "the loss has no gradient with respect to any"),
    ("loss", lambda loss: (loss, loss * 2), ValueError, r"a pair is \(sum, weight\).*has_aux=True"),
    ("loss", lambda loss: {}["missing"], KeyError, "missing"),
    ("aux", lambda value: value[0], TypeError, "loss_fn returned"),
    ("aux", lambda value: (value[0], {"n": 3}), TypeError, "loss_fn returned"),
    ("aux", lambda value: (value[0], 1, 2), TypeError, "loss_fn returned"),
    ("aux", lambda value: (None, value[0]), TypeError, "loss_fn returned"),
    *(
        ("carry", lambda value, change=change: (value[0], change(*value[1])), ValueError, "carry")
        for change in (
            lambda h, c: (h[:, :2], c),
            lambda h, c: [h, c],
            lambda h, c: (h, c, c),
            lambda h, c: (h, 1.0),
            lambda h, c: (h, c.to("meta")),
            lambda h, c: None,
        )
    ),
    ("carry", lambda value: value[0], TypeError, r"must return \(loss, carry\)"),
    ("count", lambda count: 2.0, TypeError, "must be an integer"),
    ("count", lambda count: True, TypeError, "must be an integer"),
    ("count", lambda count: -1, ValueError, "must be at least 0"),
    ("count", lambda count: 2**62, ValueError, r"less than 2\*\*62"),
    ("count", lambda count: torch.tensor(5.0), TypeError, "torch.float32; it must be of integers"),
    ("count", lambda count: torch.tensor(True), TypeError, "torch.bool; it must be of integers"),
    ("count", lambda count: torch.tensor([5]), ValueError, r"shape \(1,\); it must be a scalar"),
    ("count", lambda count: 1 // 0, ZeroDivisionError, "by zero"),
]


@pytest.mark.parametrize(("kind", "wrong", "error", "message"), _VALUES)
@pytest.mark.parametrize("pieces", [1, 3])
def test_invalid_value_changes_nothing(
    kind: str, wrong: Any, error: type[Exception], message: str, pieces: int
) -> None:
    function, options = _KINDS[kind]
    name = "count" if kind == "count" else "loss_fn"
    data = batches(pieces, time=3 if kind == "carry" else None)
    is_wrong = False

    def replaced(*arguments: Any) -> Any:
        is_last = any(argument is data[-1] for argument in arguments)
        value = function(*arguments)
        return wrong(value) if is_wrong and is_last else value

    step, reference = (
        make_step(model=Recurrent() if kind == "carry" else None, **options | {name: chosen})
        for chosen in (replaced, function)
    )
    assert equal_trees(step(*data), reference(*data))
    before, is_wrong = state_kept_by_skips(step), True
    for _ in range(2):
        with pytest.raises(error, match=message):
            step(*data)
        assert equal_trees(state_kept_by_skips(step), before)
        assert all(parameter.grad is None for parameter in step.model.parameters())
    is_wrong = False
    assert equal_trees(step(*data), reference(*data))
    assert equal_trees(state_kept_by_skips(step), state_kept_by_skips(reference))


def test_zero_total_weight_is_rejected() -> None:
    (batch,) = batches(1)
    empty = batch[0][:0], batch[1][:0]
    step = make_step(loss_fn=pair_loss)
    before = state_kept_by_skips(step)
    for pieces in ((empty,), (empty, empty, empty)):
        with pytest.raises(ValueError, match=r"weight .* is zero"):
            step(*pieces)
    assert equal_trees(state_kept_by_skips(step), before)


def test_numpy_numbers_are_accepted() -> None:
    data = batches(5)
    for norm in (np.float32(0.25), np.float64(0.25)):
        step, plain = make_step(max_norm=norm), make_step(max_norm=0.25)
        assert equal_trees(train(step, data), train(plain, data))


def test_lazy_model_trains_after_a_dummy_batch() -> None:
    lazy, (batch,) = nn.Sequential(nn.LazyLinear(2)), batches(1)
    lazy(batch[0])
    assert make_step(model=lazy)(batch).applied == 1


def _saved(value: Any) -> None:
    torch.save(value, io.BytesIO())


@pytest.mark.parametrize("name", ["adamw", "rmsprop"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda optimizer, more: optimizer.param_groups[0]["params"].append(more), "different parameters"),
        (lambda optimizer, more: optimizer.param_groups[0]["params"].pop(), "different parameters"),
        (lambda optimizer, more: optimizer.param_groups[0].update(params=[more]), "different parameters"),
        (lambda optimizer, more: optimizer.add_param_group({"params": more}), "different groups"),
    ],
    ids=["a parameter more", "a parameter less", "another list", "a group more"],
)
def test_changed_parameters_are_rejected(name: str, change: Any, message: str) -> None:
    step, (batch,) = make_step(name), batches(1)
    step(batch)
    before, params = state_kept_by_skips(step), list(step.optimizer.param_groups[0]["params"])
    change(step.optimizer, nn.Parameter(torch.ones(1)))
    for _ in range(2):
        with pytest.raises(ValueError, match=f"{message}.* the step was built for"):
            step(batch)
    del step.optimizer.param_groups[1:]
    step.optimizer.param_groups[0]["params"] = params
    assert equal_trees(state_kept_by_skips(step), before)
    assert step(batch).applied == 2


def test_loss_without_gradient_is_rejected() -> None:
    (batch,) = batches(1)
    for loss_fn in (mean_loss, pair_loss):
        step, reference = make_step(loss_fn=loss_fn), make_step(loss_fn=loss_fn)
        for mode in (torch.no_grad, torch.inference_mode):
            with mode(), pytest.raises(ValueError, match="the loss has no gradient with respect to any"):
                step(batch)
        assert equal_trees(step(batch), reference(batch))


@pytest.mark.parametrize("name", ["adamw", "plain adam"])
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps, _saved])
def test_copying_a_step_is_rejected(name: str, copied: Callable[[Any], Any]) -> None:
    step, reference = make_step(name), make_step(name)
    for holder in (step, [step], {"step": step}):
        if copied is copy.copy and holder is not step:
            continue
        with pytest.raises(TypeError, match="can't be copied or pickled: build another one"):
            copied(holder)
    (batch,) = batches(1)
    assert equal_trees(step(batch), reference(batch))
