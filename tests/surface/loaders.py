"""`make_loader` and `prefetch`."""

import os
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

from support.surface.limits import varied
from torch.utils.data import IterableDataset

from torch_bridge import make_loader, prefetch


class Stream(IterableDataset):
    """A dataset that only iterates."""

    def __iter__(self) -> Iterator[int]:
        """Yield ten samples."""
        return iter(range(10))


def workers_on(cores: int) -> int:
    """Return the number of workers by default."""
    with (
        patch.object(os, "sched_getaffinity", lambda process: range(cores), create=True),
        patch.object(os, "cpu_count", lambda: cores),
    ):
        return make_loader(range(10), 4).num_workers


def options_of(**options: Any) -> dict[str, Any]:
    """Return what a loader chooses itself, as it is in its state."""
    return make_loader(range(10), 4, num_workers=0, **options).state_dict()["made_with"]


loader = make_loader(range(10), 4, num_workers=0)

make_loader(range(10), 4, num_workers=0)  # DataLoader
make_loader(range(10), 4, num_workers=0).persistent_workers  # False
make_loader(range(10), 4, num_workers=1).persistent_workers  # True
make_loader(range(10), 4, num_workers=0).pin_memory  # False
make_loader(range(10), 4, sampler=[0])  # raises TypeError
make_loader(range(10), 4, device="abacus")  # raises RuntimeError
make_loader(range(2), 4)  # raises ValueError
make_loader(Stream(), 4)  # raises TypeError
make_loader(range(10), varied(4), num_workers=0)  # 1 … 10, else ValueError
make_loader(range(10), varied(4), num_workers=0, training=False)  # 1 …, else ValueError
make_loader(range(10), 4, num_workers=0, seed=varied(4))  # 0 … 4294967295, else ValueError
make_loader(range(10), 4, num_workers=varied(1))  # 0 …, else ValueError
[workers_on(cores) for cores in (1, 4, 64)]  # [0, 3, 8]
options_of(training=True)["shuffle"]  # True
options_of(training=True)["drop_last"]  # True
options_of(training=False)["shuffle"]  # False
options_of(training=False)["drop_last"]  # False
loader.load_state_dict(loader.state_dict())  # None
loader.load_state_dict({})  # raises ValueError

prefetch(loader, "cpu")  # prefetch
prefetch(loader, "meta")  # raises ValueError
prefetch(loader, "abacus")  # raises RuntimeError
prefetch([], "cpu").state_dict()  # raises TypeError
prefetch([], "cpu", depth=varied(2))  # 1 …, else ValueError
