"""States of training steps: what they load into, besides the kinds of runs in `test_every_run.py`."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from support.clocks.holds import CURVE as HELD_CURVE, PATIENT
from support.examples import examples
from support.training.kinds_of_run import KINDS
from support.training.models import Net, batches, mean_loss, seeded
from support.training.optimizers import Foreign, make_optimizer
from support.training.steps import CURVE, equal_trees, make_step, through_file, train
from torch import Tensor, nn

from torch_bridge import Checkpoints, DataClock, TrainStep, lambda_lr


def _square_loss(model: nn.Module, batch: Tensor) -> Tensor:
    return model(batch).square().mean()


@pytest.mark.parametrize("name", ["adamw", "momentum", "plain adam", "rmsprop"])
def test_empty_optimizer_state_is_ignored(name: str) -> None:
    """`optimizer.state[parameter]` creates an empty one for a parameter that never had a gradient."""
    model, (batch,) = Net(), batches(1)
    model.last.bias.requires_grad_(False)
    step = make_step(name, model)
    step(batch)
    assert step.optimizer.state[model.last.bias] == {}
    step.load_state_dict(step.state_dict())
    model.last.bias.requires_grad_(True)
    assert step(batch).applied == 2


@pytest.mark.parametrize("name", ["adamw", "momentum", "adagrad", "plain adam"])
@pytest.mark.parametrize("separately", [False, True])
def test_state_loads_into_other_memory_format(name: str, separately: bool, tmp_path: Path) -> None:
    """As the state of a step, or of a model and its optimizer."""
    strided = nn.Conv2d(3, 4, 3)
    plain, data = copy.deepcopy(strided), torch.randn(8, 2, 3, 5, 5)
    strided.to(memory_format=torch.channels_last)
    step, optimizer = make_step(name, strided, _square_loss), make_optimizer(name, plain)
    train(step, data[:4])
    if separately:
        Checkpoints(tmp_path).save(4, model=strided, optimizer=step.optimizer)
        Checkpoints(tmp_path).load(model=plain, optimizer=optimizer)
    other = make_step(model=plain, optimizer=optimizer, loss_fn=_square_loss, initial_updates=4)
    if not separately:
        other.load_state_dict(step.state_dict())
    assert equal_trees(other.state_dict(), step.state_dict())
    train(step, data[4:])
    train(other, data[4:])
    torch.testing.assert_close(plain.weight, strided.weight.contiguous(), rtol=1e-5, atol=1e-6)


def test_optimizer_of_other_library_keeps_memory_layout() -> None:
    """A tensor may have the parameter's shape by chance."""
    models = nn.Linear(3, 3), nn.Linear(3, 3)
    step, resumed = (
        make_step(model=model, optimizer=Foreign(model.parameters()), loss_fn=_square_loss)
        for model in models
    )
    step(torch.ones(2, 3))
    state: Any = step.optimizer.state[models[0].weight]
    state["moment"] = state["moment"].T
    resumed.load_state_dict(step.state_dict())
    assert resumed.optimizer.state[models[1].weight]["moment"].stride() == (1, 3)
    assert equal_trees(resumed.state_dict(), step.state_dict())


# Options of the groups.


def test_option_that_the_state_lacks_keeps_its_value() -> None:
    model = Net()
    groups = [{"params": model.parameters(), "depth": 3}]
    step = make_step(model=model, optimizer=torch.optim.AdamW(groups, lr=0.01, fused=True))
    step.load_state_dict(make_step().state_dict())
    assert step.optimizer.param_groups[0]["depth"] == 3


def test_groups_of_foreign_optimizer_may_have_other_options() -> None:
    """The state has exactly the saved ones, and those of a later version their values here."""
    step, resumed, uninterrupted = (KINDS["foreign"].build() for _ in range(3))
    first, data = step.state_dict(), batches(6)
    results = train(uninterrupted, data)
    train(step, data[:3])
    state: Any = through_file(step.state_dict())
    del state["optimizer"]["param_groups"][0]["decay"]
    resumed.load_state_dict(state)
    assert equal_trees(train(resumed, data[3:]), results[3:])
    assert equal_trees(resumed.state_dict(), uninterrupted.state_dict())
    resumed.load_state_dict(first)
    assert "updates" not in resumed.optimizer.param_groups[0]
    assert equal_trees(resumed.state_dict(), first)


@pytest.mark.parametrize(
    ("name", "other"),
    [("adamw", {"fused": None}), ("adamw", {"fused": None, "foreach": True}), ("momentum", {"fused": None})],
)
@pytest.mark.parametrize("from_fused", [True, False])
def test_implementation_options_stay_the_optimizers(
    name: str, other: dict[str, Any], from_fused: bool
) -> None:
    """A state of a fused optimizer loads into a step with another implementation, and vice versa."""
    options = [{}, other] if from_fused else [other, {}]
    models, data = [Net(), Net()], batches(4)
    saved, loading = (
        make_step(model=model, optimizer=make_optimizer(name, model, **more))
        for model, more in zip(models, options, strict=True)
    )
    group = dict(loading.optimizer.param_groups[0])
    train(saved, data[:2])
    state: Any = through_file(saved.state_dict())
    state["optimizer"]["param_groups"][0]["capturable"] = True  # torch runs it only on a GPU
    loading.load_state_dict(state)
    for option in {"fused", "foreach", "capturable"} & group.keys():
        assert loading.optimizer.param_groups[0][option] == group[option]
    torch.testing.assert_close(train(loading, data[2:]), train(saved, data[2:]), rtol=1e-5, atol=1e-5)


# A run changes from a `TrainStep` to a loop with a scheduler, or back, as docs/training_step.md says.

_DATA = batches(16)
_CLOCKS: dict[str, tuple[Any, Any]] = {
    "updates": (CURVE, None),
    "samples": (CURVE, DataClock(3, count=4)),
    "held": (HELD_CURVE, PATIENT),
}


def _train(model: Any, optimizer: Any, driver: Any, data: Any) -> None:
    for batch in data:
        if isinstance(driver, TrainStep):
            driver(batch)
            continue
        optimizer.zero_grad()
        loss = mean_loss(model, batch)
        loss.backward()
        optimizer.step()
        driver.step(loss.detach()) if driver.state_dict()["hold"] else driver.step()


@pytest.mark.parametrize("clock", _CLOCKS)
@pytest.mark.parametrize("name", ["adamw", "foreach adamw", "plain momentum"])
@pytest.mark.parametrize("to_step", [False, True])
def test_run_continues_in_the_other_loop(clock: str, name: str, to_step: bool) -> None:
    curve, moved_by = _CLOCKS[clock]

    def build(is_step: bool, loaded: Any = None, **more: Any) -> list[Any]:
        model = Net()
        optimizer = make_optimizer(name, model, **({"lr": torch.tensor(0.01)} if name == "adamw" else {}))
        for part, state in zip((model, optimizer), copy.deepcopy(loaded or ()), strict=False):
            part.load_state_dict(state)
        if is_step:
            step = make_step(model=model, optimizer=optimizer, curve=curve, clock=moved_by, **more)
            return [model, optimizer, step]
        return [model, optimizer, lambda_lr(optimizer, curve, clock=moved_by, **more)]

    uninterrupted, first = build(to_step), build(not to_step)
    _train(*uninterrupted, _DATA)
    _train(*first, _DATA[:9])
    *states, saved = (part.state_dict() for part in first)
    if not to_step:
        states = saved["model"], saved["optimizer"]
    with pytest.raises(ValueError, match=r"it is the state of a (scheduler|TrainStep)\."):
        build(to_step)[2].load_state_dict(saved)
    if clock == "updates" and to_step:
        resumed = build(True, states, initial_updates=saved["last_epoch"])
    elif clock == "updates":
        resumed = build(False, states, last_epoch=saved["applied"] - 1)
    else:
        resumed = build(to_step, states)
        entries = {entry: saved[entry] for entry in ("curve_step", "consumed", "hold", "records")}
        entries |= {"applied": saved["last_epoch"]} if to_step else {"last_epoch": saved["applied"]}
        resumed[2].load_state_dict(resumed[2].state_dict() | entries)
    _train(*resumed, _DATA[9:])
    assert equal_trees(resumed[0].state_dict(), uninterrupted[0].state_dict())


# States name their parameters: no parameter gets the moments of another one.

Layout = list[list[list[str]]]
"""By optimizer and group, the names of the parameters."""

_NAMES = [f"{layer}.{kind}" for layer in range(4) for kind in ("weight", "bias")]


def _loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).square().mean()


def _step(layout: Layout, prefix: str | None = None) -> TrainStep:
    """Return a step over groups of this layout, which have `param_names` if there is a prefix."""
    with seeded(0):
        model = nn.Sequential(*(nn.Linear(3, 3) for _ in range(4)))

    def parameters(names: list[str]) -> list[Any]:
        if prefix is None:
            return [model.get_parameter(name) for name in names]
        return [(f"{prefix}{name}", model.get_parameter(name)) for name in names]

    optimizers = [
        torch.optim.AdamW([{"params": parameters(names)} for names in groups], lr=0.01) for groups in layout
    ]
    return make_step(model=model, optimizer=optimizers, loss_fn=_loss)


@st.composite
def _layouts(draw: st.DrawFn) -> tuple[Layout, Layout]:
    """Draw a layout, and the same one or one with names, groups or optimizers in a different order."""
    names = draw(st.permutations(_NAMES))
    sizes = draw(st.sampled_from([[[8]], [[4, 4]], [[1, 7]], [[2, 2], [4]], [[4], [4]], [[3, 1], [3, 1]]]))

    def split(names: list[str]) -> Layout:
        rest = iter(names)
        return [[[next(rest) for _ in range(size)] for size in groups] for groups in sizes]

    layout = split(names)
    others = {
        "same": layout,
        "names": split(draw(st.permutations(names))),
        "sorted in groups": [[sorted(group) for group in groups] for groups in layout],
        "groups": [groups[::-1] for groups in layout],
        "optimizers": layout[::-1],
    }
    return layout, others[draw(st.sampled_from(list(others)))]


def _sizes(layout: Layout) -> list[list[int]]:
    return [[len(group) for group in groups] for groups in layout]


_PREFIXES = st.sampled_from([None, "", "module.", "_orig_mod.", "module._orig_mod."])


@examples(60)
@given(layouts=_layouts(), prefixes=st.tuples(_PREFIXES, _PREFIXES))
def test_other_order_of_parameters_is_rejected(
    layouts: tuple[Layout, Layout], prefixes: tuple[str | None, str | None]
) -> None:
    saving, loading = (_step(layout, prefix) for layout, prefix in zip(layouts, prefixes, strict=True))
    batch = torch.ones(2, 3)
    saving(batch)
    state: Any = through_file(saving.state_dict())
    before = loading.state_dict()
    if layouts[0] == layouts[1]:
        loading.load_state_dict(state)
        saving(batch), loading(batch)
        named = [group.pop("param_names", None) for group in loading.optimizers[0].param_groups]
        assert (None in named) == (prefixes[1] is None)
        assert equal_trees(loading.state_dict()["model"], saving.state_dict()["model"])
        return
    match = "group"
    if _sizes(layouts[0]) == _sizes(layouts[1]):
        flat = [[name for groups in layout for group in groups for name in group] for layout in layouts]
        saved_name, name = next(pair for pair in zip(*flat, strict=True) if pair[0] != pair[1])
        wrappers = r"(module\.)?(_orig_mod\.)?"
        match = f"is {wrappers}{saved_name} in the state and {wrappers}{name} here"
    with pytest.raises(ValueError, match=match):
        loading.load_state_dict(state, strict=False)
    assert equal_trees(loading.state_dict(), before)


def test_tied_parameter_has_one_name_in_any_order() -> None:
    """Modules in a different order, and an optimizer over the same parameters."""
    steps: list[TrainStep] = []
    for names in (("a", "b"), ("b", "a")):
        with seeded(0):
            layer = nn.Linear(3, 3, bias=False)
        model = nn.Sequential()
        for name in names:
            model.add_module(name, nn.Linear(3, 3, bias=False))
            model.get_submodule(name).weight = layer.weight
        steps.append(make_step(model=model, optimizer=torch.optim.AdamW([layer.weight]), loss_fn=_loss))
    steps[0](torch.ones(2, 3))
    steps[1].load_state_dict(steps[0].state_dict())
    assert steps[1].state_dict()["parameters"] == [["a.weight"]]
