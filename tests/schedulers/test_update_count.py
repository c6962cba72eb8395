"""Arguments of `count_updates`; `data/test_loader` counts the updates of real loaders."""

import numpy as np
import pytest
import torch
from support.curves.requirements import AN_INTEGER, at_least
from support.raises import raises
from torch.utils.data import DataLoader, IterableDataset

from torch_bridge import count_updates


@pytest.mark.parametrize("loader", [3.0, "100"])
@raises(TypeError)
def test_loader_without_a_length(loader):
    count_updates(loader, 1)


@pytest.mark.parametrize("batches", [np.zeros((7, 3)), torch.zeros(7, 3), torch.tensor(7)])
def test_batches_in_an_array(batches):
    """What has a length is counted by it; an array without dimensions is a number."""
    assert count_updates(batches, 2) == 14


class Stream(IterableDataset[int]):
    def __iter__(self):
        return iter(range(10))


@pytest.mark.parametrize("loader", [Stream(), DataLoader(Stream())])
@raises(TypeError, "pass the number of batches instead of the loader")
def test_loader_of_a_stream(loader):
    count_updates(loader, 1)


@pytest.mark.parametrize("loader", [0, []])
@raises(ValueError, "batches = ", at_least(1))
def test_loader_without_batches(loader):
    count_updates(loader, 2)


@raises(ValueError, f"epochs = 0 {at_least(1)}")
def test_epochs_below_one():
    count_updates(10, 0)


@raises(TypeError, f"accumulation = 8.0 {AN_INTEGER}")
def test_accumulation_of_a_wrong_type():
    count_updates(10, 2, accumulation=8.0)
