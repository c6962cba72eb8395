"""States name their parameters: no parameter gets the moments of another one."""

from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, strategies as st
from support.examples import examples
from support.training.models import seeded
from support.training.steps import make_step
from support.training.trees import equal_trees, through_file
from torch import nn

from torch_bridge import TrainStep

Layout = list[list[list[str]]]
"""By optimizer and group, the names of the parameters."""

_NAMES = [f"{layer}.{kind}" for layer in range(4) for kind in ("weight", "bias")]


def _loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).square().mean()


def _step(layout: Layout, prefix: str | None = None) -> TrainStep:
    """Return a step over groups of this layout, which have `param_names` if there is a prefix."""
    with seeded(0):
        model = nn.Sequential(*(nn.Linear(3, 3) for _ in range(4)))
    optimizers: list[Any] = []
    for groups in layout:
        described: list[dict[str, Any]] = []
        for names in groups:
            parameters = [model.get_parameter(name) for name in names]
            named = [(f"{prefix}{name}", one) for name, one in zip(names, parameters, strict=True)]
            described.append({"params": parameters if prefix is None else named})
        optimizers.append(torch.optim.AdamW(described, lr=0.01))
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
    kind = draw(st.sampled_from(["same", "names", "sorted in groups", "groups", "optimizers"]))
    if kind == "names":
        return layout, split(draw(st.permutations(names)))
    if kind == "sorted in groups":
        return layout, [[sorted(group) for group in groups] for groups in layout]
    if kind == "groups":
        return layout, [groups[::-1] for groups in layout]
    return layout, layout[::-1] if kind == "optimizers" else layout


def _first_difference(one: Layout, other: Layout) -> tuple[str, str] | None:
    """Return the first names that differ in layouts of equal sizes."""
    flat = [[name for groups in layout for group in groups for name in group] for layout in (one, other)]
    return next((pair for pair in zip(*flat, strict=True) if pair[0] != pair[1]), None)


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
    else:
        sizes = [[[len(group) for group in groups] for groups in layout] for layout in layouts]
        pair = _first_difference(*layouts)
        wrappers = r"(module\.)?(_orig_mod\.)?"
        names = f"is {wrappers}%s in the state and {wrappers}%s here"
        match = names % pair if sizes[0] == sizes[1] and pair else "group"
        with pytest.raises(ValueError, match=match):
            loading.load_state_dict(state, strict=False)
        assert equal_trees(loading.state_dict(), before)


def test_names_are_looked_up_once() -> None:
    step = _step([[[name] for name in _NAMES]])
    with patch.object(
        nn.Module, "named_parameters", autospec=True, side_effect=nn.Module.named_parameters
    ) as call:
        step.state_dict()
    assert call.call_count == 1


def test_tied_parameter_has_one_name_in_any_order() -> None:
    """Modules in a different order, and an optimizer over the same parameters."""
    steps: list[TrainStep] = []
    for names in (("a", "b"), ("b", "a")):
        with seeded(0):
            layer = nn.Linear(3, 3)
        model: Any = nn.Sequential()
        for name in names:
            model.add_module(name, nn.Linear(3, 3, bias=False))
            model.get_submodule(name).weight = layer.weight
        optimizer = torch.optim.AdamW([layer.weight])
        steps.append(make_step(model=model, optimizer=optimizer, loss_fn=_loss))
    steps[0](torch.ones(2, 3))
    steps[1].load_state_dict(steps[0].state_dict())
    assert steps[1].state_dict()["parameters"] == [["a.weight"]]
