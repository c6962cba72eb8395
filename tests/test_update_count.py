"""`count_updates` compared with a loop."""

import numpy as np
import torch
from hypothesis import given, strategies as st
from torch.utils.data import DataLoader

from torch_bridge import count_updates


@given(st.integers(1, 40), st.integers(1, 5), st.integers(1, 9), st.booleans(), st.integers(1, 7))
def test_count_updates_equals_updates_of_a_loop(
    samples: int, size: int, accumulation: int, drop_last: bool, epochs: int
) -> None:
    loader = DataLoader(range(samples), batch_size=size, drop_last=drop_last)
    updates = 0
    for _ in range(epochs):
        waiting = 0
        for _ in loader:
            waiting += 1
            if waiting == accumulation:
                updates, waiting = updates + 1, 0
        updates += waiting > 0
    if not updates:
        return  # an error, which test_errors has
    batches = len(loader)
    for argument in (loader, batches, np.int32(batches), torch.tensor(batches), [0] * batches):
        result = count_updates(argument, epochs, accumulation=accumulation)
        assert (result, type(result)) == (updates, int)
