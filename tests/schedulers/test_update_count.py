"""Arguments of `count_updates`; `data/test_loader` counts the updates of real loaders."""

import numpy as np
import pytest
import torch
from support.curves.requirements import AN_INTEGER, at_least
from support.raises import raises
from torch.utils.data import DataLoader, IterableDataset

from torch_bridge import count_updates


@pytest.mark.parametrize("batches", [np.zeros((7, 3)), torch.zeros(7, 3), torch.tensor(7)])
def test_batches_in_an_array(batches):
    """What has a length is counted by it; an array without dimensions is a number."""
    assert count_updates(batches, 2) == 14


class Stream(IterableDataset[int]):
    def __iter__(self):
        return iter(range(10))


def test_wrong_call():
    for loader in (3.0, "100", b"100", Stream(), DataLoader(Stream())):
        with raises(TypeError, "the number of batches = ", AN_INTEGER):
            count_updates(loader, 1)
    for loader in (0, []):
        with raises(ValueError, "batches = ", at_least(1)):
            count_updates(loader, 2)
    with raises(ValueError, f"epochs = 0 {at_least(1)}"):
        count_updates(10, 0)
    with raises(TypeError, f"accumulation = 8.0 {AN_INTEGER}"):
        count_updates(10, 2, accumulation=8.0)
