"""A data loader whose state is a place in the sequence of global batches."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

# torchdata has its types in its source and no marker that says so.
from torchdata.stateful_dataloader import StatefulDataLoader  # pyright: ignore[reportMissingTypeStubs]

from torch_bridge.data.cut_batches import without_rows
from torch_bridge.data.global_batches import GlobalBatches, Place
from torch_bridge.distributed import processes
from torch_bridge.schedulers.resume import check_no_path


class ResumableLoader(StatefulDataLoader[Any]):
    """A StatefulDataLoader with another state: its arguments, and the place after the last batch handed out.

    torchdata's own state fits one number of workers and one rank alone, and it counts a batch as handed out
    that failed while it was loaded.
    """

    batch_sampler: GlobalBatches  # pyright: ignore[reportIncompatibleVariableOverride]  (torch's may be None)

    def __init__(
        self, dataset: Any, batches: GlobalBatches, made_with: Mapping[str, Any], **settings: Any
    ) -> None:
        super().__init__(
            dataset, batches.batch_size, None, batches.sampler, drop_last=batches.drop_last, **settings
        )
        # This replaces the one that torch has made; DataLoader refuses a plain assignment.
        object.__setattr__(self, "batch_sampler", batches)
        self._made_with = made_with
        self._place: Place | None = None
        self._newest: object = None  # the iteration that the place belongs to

    def __iter__(self) -> Iterator[Any]:  # pyright: ignore[reportIncompatibleMethodOverride]  (torch names its class)
        if self.batch_sampler.processes == 1 < processes.count():
            raise RuntimeError(
                f"the loader was built for one process, and there are {processes.count()} now: build it "
                "after the process group"
            )
        self._newest = this = object()
        with on_cpu():
            epoch = self.batch_sampler.open()
            self._place = self.batch_sampler.place(epoch)
            batches = super().__iter__()
        while True:
            if self._newest is not this:
                raise RuntimeError("this iteration was ended: another has begun, or a state was loaded")
            with on_cpu():
                try:
                    batch = next(batches)
                except StopIteration:
                    if epoch.drawn:  # the last batch, in which this rank has no samples
                        self._place, _ = epoch.drawn.popleft()
                    return
            self._place, has_samples = epoch.drawn.popleft()
            yield batch if has_samples else without_rows(batch)

    def state_dict(self) -> dict[str, Any]:
        if self._place is None:
            with on_cpu():
                self._place = self.batch_sampler.place(self.batch_sampler.open())
        return {"made_with": dict(self._made_with), "place": self._place}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        check_no_path(state_dict)
        saved = state_dict.get("made_with") if isinstance(state_dict, Mapping) else None
        if saved is None:
            raise ValueError("state_dict is not the state of a loader that make_loader built")
        changes = [
            f"{name} = {saved.get(name)!r} (now {value!r})"
            for name, value in self._made_with.items()
            if saved.get(name) != value
        ]
        if changes:
            raise ValueError(
                f"state_dict was saved by a loader with {', '.join(changes)}; this batch_size is that of all "
                "processes together, and make_loader takes that of one"
            )
        if "place" not in state_dict:
            raise ValueError(
                "state_dict was saved by make_loader of version 0.1, whose place was torchdata's"
            )
        # The sampler's generator takes its state on the CPU; torch.load may have put it elsewhere.
        place = pytree.tree_map_only(Tensor, Tensor.cpu, state_dict["place"])
        with on_cpu():
            self.batch_sampler.go_to(place)
        self._place, self._newest = place, None

    def _kept_place(self) -> Callable[[], None]:
        """What undoes a later `load_state_dict`: the iteration that is under way then goes on."""
        place, newest, put_back = self._place, self._newest, self.batch_sampler.kept()

        def undo() -> None:
            with on_cpu():
                put_back()
            self._place, self._newest = place, newest

        return undo


def on_cpu() -> AbstractContextManager[Any]:
    """Make tensors on the CPU where no device is given. It costs nothing where that is the default."""
    return nullcontext() if torch.get_default_device().type == "cpu" else torch.device("cpu")
