"""Training steps over the small models, and the loop that they must match."""

import copy
import io
from collections.abc import Callable, Iterable, Sequence
from operator import call
from typing import Any, cast

import torch
from support.training.models import Batch, Net, mean_loss
from support.training.optimizers import make_optimizer
from support.trees import assert_equal_trees
from torch import nn

from plateau_jax import PlateauCurve
from torch_bridge import TrainStep

CURVE = PlateauCurve(40, warmup_steps=4, plateaus=[(20, 30)], min_lr_ratio=0.1, init_lr_ratio=0.5)


class CountingStep(TrainStep):
    """A step of programs that call it without `count`.

    Args:
        count: `count(batch)` returns how much data a micro-batch consumes.
        arguments, options: As `TrainStep` takes them.
    """

    def __init__(self, *arguments: Any, count: Callable[[Any], Any], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.count_of = count

    def __call__(self, *micro_batches: Any, **options: Any) -> Any:
        count = sum(map(self.count_of, micro_batches))
        return super().__call__(*micro_batches, count=count, **options)


def make_step(
    name: str = "adamw",
    model: nn.Module | None = None,
    loss_fn: Callable[..., Any] = mean_loss,
    curve: Any = CURVE,
    optimizer: Any = None,
    **options: Any,
) -> TrainStep:
    """Return a step, which counts its micro-batches if there is an option `count`."""
    if model is None:
        model = Net()
    if optimizer is None:
        optimizer = make_optimizer(name, model)
    if "count" in options:
        return CountingStep(model, optimizer, loss_fn, curve, **options)
    return TrainStep(model, optimizer, loss_fn, curve, **options)


def state_kept_by_skips(step: TrainStep) -> dict[str, Any]:
    """Return the state without learning rates, random numbers and the loss scale's counter."""
    state = cast("dict[str, Any]", step.state_dict())
    if state["loss_scale"]:
        state["loss_scale"] = state["loss_scale"][0]
    optimizer_states: list[Any] = state["optimizer"]
    if len(step.optimizers) == 1:
        optimizer_states = [state["optimizer"]]
    for optimizer_state in optimizer_states:
        for group in optimizer_state["param_groups"]:
            del group["lr"]
    del state["random"]
    return state


def check_resume(
    build: Callable[[], TrainStep],
    updates: Sequence[Any],
    stops: Iterable[int] = (5,),
    run: Callable[..., Any] = call,
) -> None:
    """Compare a run with one that new steps resume from a file at each of these updates.

    Every second load takes place in inference mode, with another default device. The states have
    the versions of the modules, as torch's have.

    Args:
        build: Returns a new step.
        updates: The arguments of each update.
        stops: The updates before which the run is interrupted.
        run: `run(step, update)` makes the update and returns its result.
    """
    seed = torch.default_generator.manual_seed  # torch.manual_seed records a traceback each time
    seed(1)
    step = build()
    states: dict[int, Any] = {}
    copies: dict[int, Any] = {}
    results: list[Any] = []
    for number in range(len(updates) + 1):
        if number in stops:
            states[number] = step.state_dict()
            copies[number] = copy.deepcopy(states[number])
            model_state: Any = step.model.state_dict()
            assert states[number]["model"]._metadata == model_state._metadata
        if number < len(updates):
            results.append(run(step, updates[number]))
    random_numbers = torch.rand(3)
    final_state = step.state_dict()

    seed(1)
    step = build()
    updates_made = 0
    is_in_inference_mode = True
    for stop in sorted(states):
        resumed_results = [run(step, update) for update in updates[updates_made:stop]]
        assert_equal_trees(resumed_results, results[updates_made:stop])
        state = states[stop]
        assert_equal_trees(state, copies[stop], "snapshot after later updates")
        assert_equal_trees(step.state_dict(), copies[stop])
        loaded = through_file(state)
        seed(99)
        step = build()
        updates_made = stop
        # Up to two updates, so that loading must overwrite something.
        for update in updates[2 : 2 + (stop + 1) % 3]:
            run(step, update)
        default_device = "cpu"
        if is_in_inference_mode:
            default_device = "meta"
        with torch.inference_mode(is_in_inference_mode), torch.device(default_device):
            step.load_state_dict(loaded)
        is_in_inference_mode = not is_in_inference_mode
        assert_equal_trees(step.state_dict(), copies[stop])
        assert_equal_trees(loaded, copies[stop], "loaded state")
    resumed_results = [run(step, update) for update in updates[updates_made:]]
    assert_equal_trees(resumed_results, results[updates_made:])
    assert_equal_trees(torch.rand(3), random_numbers)
    assert_equal_trees(step.state_dict(), final_state)


def train(step: TrainStep, updates: Iterable[Batch]) -> list[Any]:
    return [step(batch) for batch in updates]


def through_file(state: Any) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)
