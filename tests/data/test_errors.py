"""Wrong arguments and states of loaders and of `prefetch`: each is named, and no loader has changed."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from support.damage import damage
from support.data.loaders import build, epoch, process, saved_after
from support.errors import check_error, each_row
from support.examples import examples
from torch.utils.data import IterableDataset

from torch_bridge import make_loader, prefetch
from torch_bridge.data import prefetching

SAMPLES, NUMBERS = range(8), torch.arange(1000.0)
unsupported = prefetching._dense_parts


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


def on_rank(rank: int, ranks: int, samples: Any, batch_size: int = 4, **options: Any) -> Any:
    with process(rank, ranks):
        return make_loader(samples, batch_size, num_workers=0, **options)


def first_batch(loader: Any, ranks: int) -> Any:
    with process(0, ranks):
        return next(iter(loader))


def state(samples: Any = SAMPLES, batch_size: int = 4, **options: Any) -> Any:
    return make_loader(samples, batch_size, num_workers=0, **options).state_dict()


def made_with_sampler() -> Any:
    saved = state(range(9))
    return saved | {"made_with": saved["made_with"] | {"sampler": [0.5] * 9999}}


def ragged(**layout: Any) -> Any:
    return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], **layout)


OTHER = "saved by a loader with"
ERRORS: list[Any] = [
    (lambda: make_loader(Stream(), 4), TypeError, "dataset = ", "Stream", "must have a length"),
    (lambda: make_loader(iter(SAMPLES), 4), TypeError, "dataset = ", "must have a length"),
    (lambda: make_loader([], 4), ValueError, "0 samples give no batch"),
    (lambda: make_loader(range(3), 4), ValueError, "3 samples", "batch_size = 4", "drop_last = True"),
    (lambda: make_loader(SAMPLES, 0), ValueError, "batch_size = 0", "at least 1"),
    (lambda: make_loader(SAMPLES, 2.0), TypeError, "batch_size = 2.0", "integer"),
    (lambda: make_loader(SAMPLES, 4, num_workers=-1), ValueError, "num_workers = -1", "at least 0"),
    (lambda: make_loader(SAMPLES, 4, seed=-1), ValueError, "seed = -1", "lie in 0 …"),
    (lambda: make_loader(SAMPLES, 4, seed=2**32), ValueError, "seed = 4294967296", "2**32 - 1"),
    (lambda: make_loader(SAMPLES, 4, sampler=SAMPLES), TypeError, "sampler = range(0, 8)",
     "cannot be passed"),
    (lambda: make_loader(SAMPLES, 4, batch_sampler=[]), TypeError, "batch_sampler = []", "cannot be passed"),
    (lambda: make_loader(SAMPLES, 4, generator=None), TypeError, "generator = None", "cannot be passed"),
    (lambda: make_loader(SAMPLES, 4, in_order=False), TypeError, "in_order = False", "order"),
    (lambda: make_loader(SAMPLES, 4, num_workers=0, prefetch_factor=2), ValueError, "num_workers"),
    (lambda: make_loader(SAMPLES, 4, nonsense=1), TypeError, "nonsense"),
    # Long values are cut.
    (lambda: make_loader(SAMPLES, 4, sampler=NUMBERS), TypeError, "sampler = tensor"),
    # Several ranks.
    (lambda: on_rank(0, 2, range(7)), ValueError, "7 samples", "batch_size = 4", "2 processes"),
    (lambda: on_rank(0, 2, range(9), drop_last=False), ValueError, "9 samples leave 1 for 2",
     "drop_last = True"),
    (lambda: on_rank(1, 3, range(24)).load_state_dict(on_rank(0, 2, range(24)).state_dict()), ValueError,
     "batch_size = 8 (now 12)", "of all processes"),
    (lambda loader: first_batch(loader, 2), RuntimeError, "built for one process", "there are 2 now"),
    # States.
    (lambda loader: loader.load_state_dict(state(range(9))), ValueError, OTHER, "samples = 9 (now 8)"),
    (lambda loader: loader.load_state_dict(state(batch_size=2)), ValueError, OTHER, "batch_size = 2 (now 4)"),
    (lambda loader: loader.load_state_dict(state(seed=1)), ValueError, OTHER, "seed = 1 (now 0)"),
    (lambda loader: loader.load_state_dict(state(shuffle=False)), ValueError, OTHER,
     "shuffle = False (now True)"),
    (lambda loader: loader.load_state_dict(state(training=False)), ValueError, OTHER,
     "drop_last = False (now True)"),
    (lambda loader: loader.load_state_dict(made_with_sampler()), ValueError, "sampler = [0.5, ",
     "(now None)"),
    (lambda loader: loader.load_state_dict("loader.pt"), ValueError, "'loader.pt' is a path",
     "load the file first"),
    (lambda loader: prefetch(loader, "cpu").load_state_dict({"epoch": 1}), ValueError,
     "not the state of a loader"),
    (lambda loader: loader.load_state_dict({"made_with": state()["made_with"]}), ValueError,
     "not the state of a loader"),
    (lambda loader: loader.load_state_dict(state() | {"batch": -1}), ValueError, "batch = -1"),
    (lambda loader: loader.load_state_dict(state() | {"batch": 2}), ValueError, "batch = 2"),
    # Prefetching.
    (lambda: prefetch([NUMBERS] * 10, "cpu").state_dict(), TypeError, "has no state_dict"),
    (lambda: prefetch([], "cpu", depth=0), ValueError, "depth = 0", "at least 1"),
    (lambda: prefetch([], "meta"), ValueError, "device = 'meta'", "available CUDA device"),
    (lambda: prefetch(iter([]), "cpu").load_state_dict({}), TypeError, "has no state_dict"),
    (lambda: len(prefetch(iter([]), "cpu")), TypeError, "has no len"),
    (lambda: unsupported(ragged()), TypeError, "a Tensor of layout"),
    (lambda: unsupported(ragged(layout=torch.jagged)), TypeError, "a NestedTensor of layout torch.jagged"),
    (lambda: unsupported(torch.quantize_per_tensor(NUMBERS, 0.1, 0, torch.qint8)), TypeError, "torch.qint8"),
    (lambda: unsupported(NUMBERS.to_mkldnn()), TypeError, "a Tensor of layout torch._mkldnn"),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*quantized tensor creation functions:UserWarning")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage:UserWarning")
@each_row(ERRORS)
def test_errors(row: Any) -> None:
    loader, untouched = (make_loader(SAMPLES, 4, num_workers=0) for _ in range(2))
    message = str(check_error(row, loader=loader))
    assert len(message) < 400
    assert "\n" not in message
    assert epoch(loader) == epoch(untouched)


@pytest.mark.parametrize("depth", [0, 2])
@examples(200)
@given(data=st.data())
def test_damaged_state_changes_nothing(depth: int, data: st.DataObject) -> None:
    ours = {"dataset": SAMPLES, "batch_size": 2, "num_workers": 0}
    feed, untouched = build(ours, depth), build(ours, depth)
    for loader in (feed, untouched):
        next(iter(loader))
    holder = damage(data, [saved_after(build(ours), data.draw(st.integers(0, 9)))])
    try:
        feed.load_state_dict(holder[0])
    except ValueError:
        assert feed.state_dict() == untouched.state_dict()
        assert epoch(feed) == epoch(untouched)
    else:  # the damage may give another sound state, or one with an unknown entry
        loaded = feed.state_dict()
        assert loaded == {name: holder[0][name] for name in loaded}
