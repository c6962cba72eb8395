"""States name their parameters: no parameter gets the moments of another one."""

import itertools

import pytest
import torch
from hypothesis import given, strategies as st
from support.examples import examples
from support.training.models import seeded, square_loss
from support.training.steps import make_step, through_file
from support.trees import assert_equal_trees
from torch import nn

NAMES = [f"{layer}.{kind}" for layer in range(4) for kind in ("weight", "bias")]


def step_of(layout, prefix=None):
    """Return a step over groups of this layout, with `param_names` if there is a prefix."""
    with seeded(0):
        model = nn.Sequential(*(nn.Linear(3, 3) for _ in range(4)))

    def group_of(names):
        params = [model.get_parameter(name) for name in names]
        if prefix is not None:
            prefixed_names = [f"{prefix}{name}" for name in names]
            params = list(zip(prefixed_names, params, strict=True))
        return {"params": params}

    optimizers = [torch.optim.AdamW(list(map(group_of, groups)), lr=0.01) for groups in layout]
    return make_step(model=model, optimizer=optimizers, loss_fn=square_loss)


def split(names, sizes):
    """Return a layout with groups of these sizes."""
    remaining = iter(names)
    return [
        [list(itertools.islice(remaining, size)) for size in group_sizes] for group_sizes in sizes
    ]


SIZES = [[[8]], [[4, 4]], [[1, 7]], [[2, 2], [4]], [[4], [4]], [[3, 1], [3, 1]]]


@st.composite
def pairs_of_layouts(draw):
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


def sizes_of(layout):
    return [list(map(len, groups)) for groups in layout]


def names_in(layout):
    groups = itertools.chain.from_iterable(layout)
    return list(itertools.chain.from_iterable(groups))


prefixes = st.sampled_from([None, "", "module.", "_orig_mod.", "module._orig_mod."])


def difference_of(saved, current):
    """Return a pattern for what the error says about two layouts."""
    if sizes_of(saved) != sizes_of(current):
        return "group"
    wrappers = r"(module\.)?(_orig_mod\.)?"
    for saved_name, name in zip(names_in(saved), names_in(current), strict=True):
        if saved_name != name:
            return f"is {wrappers}{saved_name} in the state and {wrappers}{name} here"
    raise AssertionError("the layouts are equal")


def param_names_of(step):
    """Return the names that torch keeps for `named_parameters()`, of each group."""
    groups = itertools.chain.from_iterable(optimizer.param_groups for optimizer in step.optimizers)
    return [group.get("param_names") for group in groups]


@examples(60)
@given(layouts=pairs_of_layouts(), saved_prefix=prefixes, prefix=prefixes)
def test_other_order_of_parameters_is_rejected(layouts, saved_prefix, prefix):
    saved_layout, layout = layouts
    saving = step_of(saved_layout, saved_prefix)
    loading = step_of(layout, prefix)
    batch = torch.ones(2, 3)
    saving(batch)
    state = through_file(saving.state_dict())
    if saved_layout == layout:
        names = param_names_of(loading)
        loading.load_state_dict(state)
        assert param_names_of(loading) == names
        saving(batch)
        loading(batch)
        assert_equal_trees(loading.state_dict()["model"], saving.state_dict()["model"])
        return
    before = loading.state_dict()
    with pytest.raises(ValueError, match=difference_of(saved_layout, layout)):
        loading.load_state_dict(state, strict=False)
    assert_equal_trees(loading.state_dict(), before)


def step_with_tied_layers(*names):
    """Return a step over layers of these names that share a weight."""
    with seeded(0):
        layer = nn.Linear(3, 3, bias=False)
    model = nn.Sequential()
    for name in names:
        model.add_module(name, nn.Linear(3, 3, bias=False))
        model.get_submodule(name).weight = layer.weight
    optimizer = torch.optim.AdamW([layer.weight])
    return make_step(model=model, optimizer=optimizer, loss_fn=square_loss)


def test_tied_parameter_has_one_name_in_any_order():
    """Modules in a different order, and an optimizer over the same parameters."""
    saving = step_with_tied_layers("a", "b")
    loading = step_with_tied_layers("b", "a")
    saving(torch.ones(2, 3))
    loading.load_state_dict(saving.state_dict())
    assert loading.state_dict()["parameters"] == [["a.weight"]]
