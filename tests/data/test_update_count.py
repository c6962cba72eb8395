"""Arguments of `count_updates`; `test_loader` counts the updates of real loaders."""

import pytest
from support.wrong import wrong

from torch_bridge import count_updates


@pytest.mark.parametrize("loader", [3.0, True, "100"])
@wrong(TypeError)
def test_loader_without_a_length(loader):
    count_updates(loader, 1)


@pytest.mark.parametrize("loader", [0, -1, []])
@wrong(ValueError, "batches = ", "must be at least 1")
def test_loader_without_batches(loader):
    count_updates(loader, 2)


@pytest.mark.parametrize("value", [0, -1])
@wrong(ValueError, "epochs = {value} must be at least 1")
def test_epochs_below_one(value):
    count_updates(10, value)


@pytest.mark.parametrize("value", [True, 8.0, "8", None])
@wrong(TypeError, "accumulation = {value}", "integer")
def test_accumulation_of_a_wrong_type(value):
    count_updates(10, 2, accumulation=value)
