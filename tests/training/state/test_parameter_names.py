"""States name their parameters: no parameter gets the moments of another one."""

from typing import Any

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
