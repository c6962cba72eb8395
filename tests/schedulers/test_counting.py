"""`count_updates` against loops that make the updates one by one."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterableDataset

from plateau_jax import PlateauCurve
from torch_bridge import count_updates


@given(st.integers(1, 40), st.integers(1, 5), st.integers(1, 9), st.booleans(), st.integers(1, 7))
def test_it_is_the_number_of_updates_that_are_made(samples, size, accumulation, drop_last, epochs):
    loader = DataLoader(range(samples), batch_size=size, drop_last=drop_last)
    updates = 0
    for _ in range(epochs):
        waiting = 0
        for _ in range(samples // size if drop_last else sum(1 for _ in range(0, samples, size))):
            waiting += 1
            if waiting == accumulation:
                updates, waiting = updates + 1, 0
        updates += waiting > 0
    if not updates:
        with pytest.raises(ValueError, match="the number of batches = 0 must be at least 1"):
            count_updates(loader, epochs, accumulation=accumulation)
        return
    batches = len(loader)
    for each in (loader, batches, np.int32(batches), torch.tensor(batches), [0] * batches):
        found = count_updates(each, epochs, accumulation=accumulation)
        assert (found, type(found)) == (updates, int)
    assert PlateauCurve(updates).total_steps == updates


class _Endless(IterableDataset):
    def __iter__(self):
        return iter(int, 1)


class _Refuses:
    def __len__(self):
        raise NotImplementedError


@pytest.mark.parametrize(
    "loader",
    [DataLoader(_Endless()), iter([1]), _Refuses(), 3.0, True, None, "10"],
    ids=lambda value: type(value).__name__,
)
def test_what_has_no_length_is_told_what_to_give(loader):
    with pytest.raises(TypeError, match=r"^loader = .* has no length: give the number of batches"):
        count_updates(loader, 1)


@pytest.mark.parametrize("value", [0, -1])
@pytest.mark.parametrize("name", ["batches", "epochs", "accumulation"])
def test_every_number_is_at_least_one(name, value):
    numbers = {"batches": 10, "epochs": 2, "accumulation": 3, name: value}
    with pytest.raises(ValueError, match=f"{name} = {value} must be at least 1"):
        count_updates(numbers["batches"], numbers["epochs"], accumulation=numbers["accumulation"])


@pytest.mark.parametrize("value", [2.0, "2", True, None])
def test_every_number_is_an_integer(value):
    with pytest.raises(TypeError, match=r"epochs = .* must be an integer"):
        count_updates(10, value)
    with pytest.raises(TypeError, match=r"accumulation = .* must be an integer"):
        count_updates(10, 2, accumulation=value)
