"""States of training steps, besides the relations of `test_every_run.py`: what they load into."""

import copy
import itertools
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
from support.training.steps import CURVE, make_step, through_file, train
from support.trees import equal_trees
from torch import Tensor, nn

from torch_bridge import Checkpoints, DataClock, TrainStep, lambda_lr


def square_loss(model: nn.Module, batch: Tensor) -> Tensor:
    return model(batch).square().mean()


@pytest.mark.parametrize("name", ["adamw", "momentum", "plain adam", "rmsprop"])
def test_empty_optimizer_state_is_ignored(name: str) -> None:
    """`optimizer.state[parameter]` creates an empty one for a parameter without a gradient."""
    model = Net()
    (batch,) = batches(1)
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
    plain = nn.Conv2d(3, 4, 3)
    channels_last = copy.deepcopy(plain).to(memory_format=torch.channels_last)
    data = torch.randn(8, 2, 3, 5, 5)
    step = make_step(name, channels_last, square_loss)
    train(step, data[:4])
    optimizer = make_optimizer(name, plain)
    if separately:
        Checkpoints(tmp_path).save(4, model=channels_last, optimizer=step.optimizer)
        Checkpoints(tmp_path).load(model=plain, optimizer=optimizer)
    resumed = make_step(model=plain, optimizer=optimizer, loss_fn=square_loss, initial_updates=4)
    if not separately:
        resumed.load_state_dict(step.state_dict())
    assert equal_trees(resumed.state_dict(), step.state_dict())
    train(step, data[4:])
    train(resumed, data[4:])
    expected = channels_last.weight.contiguous()
    torch.testing.assert_close(plain.weight, expected, rtol=1e-5, atol=1e-6)


def foreign_step(model: nn.Module) -> TrainStep:
    return make_step(model=model, optimizer=Foreign(model.parameters()), loss_fn=square_loss)


def test_optimizer_of_other_library_keeps_memory_layout() -> None:
    """A tensor may have the parameter's shape by chance."""
    model = nn.Linear(3, 3)
    resumed_model = nn.Linear(3, 3)
    step = foreign_step(model)
    resumed = foreign_step(resumed_model)
    step(torch.ones(2, 3))
    state: Any = step.optimizer.state[model.weight]
    state["moment"] = state["moment"].T
    resumed.load_state_dict(step.state_dict())
    moment = resumed.optimizer.state[resumed_model.weight]["moment"]
    assert moment.stride() == (1, 3)
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
    step = KINDS["foreign"].build()
    resumed = KINDS["foreign"].build()
    uninterrupted = KINDS["foreign"].build()
    first = step.state_dict()
    data = batches(6)
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
    ("name", "implementation"),
    [
        ("adamw", {"fused": None}),
        ("adamw", {"fused": None, "foreach": True}),
        ("momentum", {"fused": None}),
    ],
)
@pytest.mark.parametrize("from_fused", [True, False])
def test_implementation_options_stay_the_optimizers(
    name: str, implementation: dict[str, Any], from_fused: bool
) -> None:
    """A state of a fused optimizer loads into a step with another implementation, and back."""
    fused = make_step(name)
    model = Net()
    optimizer = make_optimizer(name, model, **implementation)
    not_fused = make_step(model=model, optimizer=optimizer)
    saving = not_fused
    loading = fused
    if from_fused:
        saving = fused
        loading = not_fused
    group_before = dict(loading.optimizer.param_groups[0])
    data = batches(4)
    train(saving, data[:2])
    state: Any = through_file(saving.state_dict())
    state["optimizer"]["param_groups"][0]["capturable"] = True  # torch runs it only on a GPU
    loading.load_state_dict(state)
    for option in {"fused", "foreach", "capturable"} & group_before.keys():
        assert loading.optimizer.param_groups[0][option] == group_before[option]
    expected = train(saving, data[2:])
    torch.testing.assert_close(train(loading, data[2:]), expected, rtol=1e-5, atol=1e-5)


# A run changes from a step to a loop with a scheduler, or back, as docs/training_step.md says.

CLOCKS: dict[str, dict[str, Any]] = {
    "updates": {"curve": CURVE},
    "samples": {"curve": CURVE, "clock": DataClock(3, count=4)},
    "held": {"curve": HELD_CURVE, "clock": PATIENT},
}
POSITION = ["curve_step", "consumed", "hold", "records"]
"""The entries that the states of a scheduler and of a step have in common."""


class LoopRun:
    """A training loop with a scheduler."""

    def __init__(self, name: str, clock: str) -> None:
        self.model = Net()
        options: dict[str, Any] = {}
        if name == "adamw":
            options["lr"] = torch.tensor(0.01)
        self.optimizer: Any = make_optimizer(name, self.model, **options)
        self.options = CLOCKS[clock]
        self.is_held = clock == "held"
        self.part: Any = None
        """The scheduler, or the step."""

    def build(self, updates: int = 0) -> None:
        """Build the scheduler after this number of updates."""
        self.part = lambda_lr(self.optimizer, **self.options, last_epoch=updates - 1)

    def update(self, batch: Any) -> None:
        self.optimizer.zero_grad()
        loss = mean_loss(self.model, batch)
        loss.backward()
        self.optimizer.step()
        if self.is_held:
            self.part.step(loss.detach())
        else:
            self.part.step()

    def train(self, data: list[Any]) -> None:
        for batch in data:
            self.update(batch)

    def save(self) -> Any:
        model = self.model.state_dict()
        return self.part.state_dict(), model, self.optimizer.state_dict()


class BatchRun(LoopRun):
    """A training loop with a step."""

    def build(self, updates: int = 0) -> None:
        options = self.options | {"initial_updates": updates}
        self.part = make_step(model=self.model, optimizer=self.optimizer, **options)

    def update(self, batch: Any) -> None:
        self.part(batch)

    def save(self) -> Any:
        state = self.part.state_dict()
        return state, state["model"], state["optimizer"]


@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize("name", ["adamw", "foreach adamw", "plain momentum"])
@pytest.mark.parametrize(
    ("before", "after", "updates_key", "message"),
    [
        (LoopRun, BatchRun, "last_epoch", r"it is the state of a scheduler\."),
        (BatchRun, LoopRun, "applied", r"it is the state of a TrainStep\."),
    ],
)
def test_run_changes_between_step_and_scheduler(
    before: type[LoopRun],
    after: type[LoopRun],
    updates_key: str,
    message: str,
    clock: str,
    name: str,
) -> None:
    data = batches(16)
    uninterrupted = after(name, clock)
    uninterrupted.build()
    uninterrupted.train(data)
    first = before(name, clock)
    first.build()
    first.train(data[:9])
    saved, model_state, optimizer_state = copy.deepcopy(first.save())

    rejecting = after(name, clock)
    rejecting.build()
    with pytest.raises(ValueError, match=message):
        rejecting.part.load_state_dict(saved)

    resumed = after(name, clock)
    resumed.model.load_state_dict(model_state)
    resumed.optimizer.load_state_dict(optimizer_state)
    if clock == "updates":
        resumed.build(saved[updates_key])
    else:
        resumed.build()
        state = resumed.part.state_dict()
        for key in ("applied", "last_epoch"):
            if key in state:
                state[key] = saved[updates_key]
        state.update({entry: saved[entry] for entry in POSITION})
        resumed.part.load_state_dict(state)
    resumed.train(data[9:])
    assert equal_trees(resumed.model.state_dict(), uninterrupted.model.state_dict())


# States name their parameters: no parameter gets the moments of another one.

Layout = list[list[list[str]]]
"""By optimizer and group, the names of the parameters."""

NAMES = [
    "0.weight",
    "0.bias",
    "1.weight",
    "1.bias",
    "2.weight",
    "2.bias",
    "3.weight",
    "3.bias",
]


def step_of(layout: Layout, prefix: str | None = None) -> TrainStep:
    """Return a step over groups of this layout, with `param_names` if there is a prefix."""
    with seeded(0):
        model = nn.Sequential(*(nn.Linear(3, 3) for _ in range(4)))

    def group_of(names: list[str]) -> dict[str, Any]:
        params: list[Any] = [model.get_parameter(name) for name in names]
        if prefix is not None:
            prefixed_names = [f"{prefix}{name}" for name in names]
            params = list(zip(prefixed_names, params, strict=True))
        return {"params": params}

    optimizers: list[Any] = []
    for groups in layout:
        optimizers.append(torch.optim.AdamW(list(map(group_of, groups)), lr=0.01))
    return make_step(model=model, optimizer=optimizers, loss_fn=square_loss)


def split(names: list[str], sizes: list[list[int]]) -> Layout:
    """Return a layout with groups of these sizes."""
    remaining = iter(names)
    layout: Layout = []
    for group_sizes in sizes:
        layout.append([list(itertools.islice(remaining, size)) for size in group_sizes])
    return layout


SIZES = [[[8]], [[4, 4]], [[1, 7]], [[2, 2], [4]], [[4], [4]], [[3, 1], [3, 1]]]


@st.composite
def pairs_of_layouts(draw: st.DrawFn) -> tuple[Layout, Layout]:
    """Draw a layout, and the same one or one in a different order."""
    names = draw(st.permutations(NAMES))
    sizes = draw(st.sampled_from(SIZES))
    layout = split(names, sizes)
    permuted_names = draw(st.permutations(names))
    change = draw(st.sampled_from(["none", "names", "sorted groups", "groups", "optimizers"]))
    if change == "names":
        return layout, split(permuted_names, sizes)
    if change == "sorted groups":
        return layout, [list(map(sorted, groups)) for groups in layout]
    if change == "groups":
        return layout, [groups[::-1] for groups in layout]
    if change == "optimizers":
        return layout, layout[::-1]
    return layout, layout


def sizes_of(layout: Layout) -> list[list[int]]:
    return [list(map(len, groups)) for groups in layout]


def names_in(layout: Layout) -> list[str]:
    groups = itertools.chain.from_iterable(layout)
    return list(itertools.chain.from_iterable(groups))


prefixes = st.sampled_from([None, "", "module.", "_orig_mod.", "module._orig_mod."])


def difference_of(saved: Layout, current: Layout) -> str:
    """Return a pattern for what the error says about two layouts."""
    if sizes_of(saved) != sizes_of(current):
        return "group"
    wrappers = r"(module\.)?(_orig_mod\.)?"
    for saved_name, name in zip(names_in(saved), names_in(current), strict=True):
        if saved_name != name:
            return f"is {wrappers}{saved_name} in the state and {wrappers}{name} here"
    raise AssertionError("the layouts are equal")


@examples(60)
@given(layouts=pairs_of_layouts(), saved_prefix=prefixes, prefix=prefixes)
def test_other_order_of_parameters_is_rejected(
    layouts: tuple[Layout, Layout], saved_prefix: str | None, prefix: str | None
) -> None:
    saved_layout, layout = layouts
    saving = step_of(saved_layout, saved_prefix)
    loading = step_of(layout, prefix)
    batch = torch.ones(2, 3)
    saving(batch)
    state: Any = through_file(saving.state_dict())
    if saved_layout == layout:
        loading.load_state_dict(state)
        saving(batch)
        loading(batch)
        assert equal_trees(loading.state_dict()["model"], saving.state_dict()["model"])
        return
    before = loading.state_dict()
    with pytest.raises(ValueError, match=difference_of(saved_layout, layout)):
        loading.load_state_dict(state, strict=False)
    assert equal_trees(loading.state_dict(), before)


@pytest.mark.parametrize("prefix", [None, "", "_orig_mod."])
def test_optimizer_keeps_its_own_names_of_parameters(prefix: str | None) -> None:
    """The state is from a model wrapped in DDP."""
    layout = split(NAMES, [[8]])
    saving = step_of(layout, "module.")
    saving(torch.ones(2, 3))
    loading = step_of(layout, prefix)
    (optimizer,) = loading.optimizers
    names = optimizer.param_groups[0].get("param_names")
    loading.load_state_dict(saving.state_dict())
    assert optimizer.param_groups[0].get("param_names") == names


def step_with_tied_layers(*names: str) -> TrainStep:
    """Return a step over layers of these names that share a weight."""
    with seeded(0):
        layer = nn.Linear(3, 3, bias=False)
    model = nn.Sequential()
    for name in names:
        model.add_module(name, nn.Linear(3, 3, bias=False))
        model.get_submodule(name).weight = layer.weight
    optimizer = torch.optim.AdamW([layer.weight])
    return make_step(model=model, optimizer=optimizer, loss_fn=square_loss)


def test_tied_parameter_has_one_name_in_any_order() -> None:
    """Modules in a different order, and an optimizer over the same parameters."""
    saving = step_with_tied_layers("a", "b")
    loading = step_with_tied_layers("b", "a")
    saving(torch.ones(2, 3))
    loading.load_state_dict(saving.state_dict())
    assert loading.state_dict()["parameters"] == [["a.weight"]]
