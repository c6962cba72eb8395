"""What a program has written into a folder, and how it differs from what another version wrote."""

import io
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load_file  # pyright: ignore[reportUnknownVariableType]  (typed in part)
from support.golden.files import read_json
from torch import Tensor

DEFAULTS: dict[str, Any] = {"peak_value": None, "clock": None}
"""What an absent entry means, by its name: one of these may be absent on either side."""

RANDOM_STATES = "random-states"
"""Part of the names of tensors that only later versions write, and earlier ones ignore."""

# Other processors and other versions of torch may round differently (a fused multiply-add, the
# order of a sum), by a float32 ulp of 6e-8 in each of some operations in 12 updates. Losses and
# weights are around 1; a weight that cancels to nearly 0 keeps their absolute error.
RTOL = 1e-5
ATOL = 1e-6

_RESULTS_OF_TORCH = ".loss", ".grad_norm"
"""The ends of the paths of such numbers that are not tensors."""


def read_saved(folder: Path) -> dict[str, Any]:
    """Return the content of all files of a state, by their path."""
    saved: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.suffix == ".pt":
            saved[name] = torch.load(path, weights_only=True)
        elif path.suffix == ".safetensors":
            saved[name] = _read_tensors(path)
        elif path.name == "checkpoint.json":
            saved[name] = _without_digests(read_json(path))
        elif path.name == "state.json":
            saved[name] = read_json(path)
    return saved


def _read_tensors(path: Path) -> dict[str, Any]:
    """Return the tensors of a checkpoint's file by name, and the structures that some contain."""
    values: dict[str, Any] = {}
    for name, tensor in load_file(path).items():
        values[name] = tensor
        if name.endswith("/structure"):
            content = io.BytesIO(tensor.numpy().tobytes())
            values[name] = torch.load(content, weights_only=True)
    return values


def _without_digests(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return a manifest without the digests, in which the last bit of a weight counts."""
    return {**manifest, "files": sorted(manifest["files"]), "sha256": ""}


def differences(written: Any, recorded: Any, path: str = "") -> Iterator[str]:
    """Yield each difference between two saved values that no default explains."""
    if isinstance(written, dict) and isinstance(recorded, dict):
        entries = cast("dict[str, Any]", written)
        yield from _differing_entries(entries, cast("dict[str, Any]", recorded), path)
    elif isinstance(written, list | tuple) and isinstance(recorded, list | tuple):
        items = cast("list[Any]", written)
        recorded_items = cast("list[Any]", recorded)
        if len(items) != len(recorded_items):
            yield f"{path}: {len(items)} items, recorded {len(recorded_items)}"
            return
        for index, pair in enumerate(zip(items, recorded_items, strict=True)):
            yield from differences(*pair, f"{path}[{index}]")
    elif not _are_close(written, recorded, path):
        yield f"{path}: {written!r}, recorded {recorded!r}"


def _differing_entries(
    written: dict[str, Any], recorded: dict[str, Any], path: str
) -> Iterator[str]:
    for name in {**recorded, **written}:
        entry = f"{path}.{name}"
        if name in written and name in recorded:
            yield from differences(written[name], recorded[name], entry)
            continue
        value = {**recorded, **written}[name]
        is_default = name in DEFAULTS and value == DEFAULTS[name]
        is_later = name in written and RANDOM_STATES in name
        # Each version of torch has its own options of optimizers.
        if not is_default and not is_later and ".param_groups[" not in path:
            side = "written"
            if name in recorded:
                side = "recorded"
            yield f"{entry} = {value!r} is only {side}"


def _are_close(written: Any, recorded: Any, path: str) -> bool:
    """Return True for equal values, and for nearly equal results of torch's arithmetic."""
    if isinstance(written, Tensor) and isinstance(recorded, Tensor):
        if written.dtype != recorded.dtype or written.shape != recorded.shape:
            return False
        # The random numbers depend on what the process has drawn before. A tensor of a structure
        # stands for one with a name.
        if ".random." in path or written.is_meta:
            return True
        return torch.allclose(written, recorded, rtol=RTOL, atol=ATOL)
    if path.endswith(_RESULTS_OF_TORCH):
        return math.isclose(written, recorded, rel_tol=RTOL, abs_tol=ATOL)
    return type(written) is type(recorded) and written == recorded
