"""A folder of arrays: written batch by batch, and mapped into memory if it is whole."""

import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.lib import format as npy

from torch_bridge.checkpointing import files

_CONTENTS = "contents"  # a file with each array's name, its file's size and header, after a digest of these

Array = np.ndarray[Any, Any]


class _Arrays(Mapping[str, Array]):
    """The arrays in a folder."""

    def __init__(self, folder: Path, arrays: dict[str, Array]) -> None:
        self._folder, self._arrays = folder, arrays

    def __getitem__(self, name: str) -> Array:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __repr__(self) -> str:
        arrays = (f"{name!r}: {array.dtype}{list(array.shape)}" for name, array in self.items())
        return f"cached_arrays({', '.join(arrays)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return reopen, (self._folder,)


def reopen(folder: Path) -> Mapping[str, Array]:
    """The arrays in a folder that was whole before."""
    if (found := find(folder)) is None:
        raise FileNotFoundError(f"{folder}: the arrays that were cached there are gone, or no longer whole")
    return found


def find(folder: Path) -> Mapping[str, Array] | None:
    """The arrays in a folder, or None where the folder is not as it was written."""
    arrays: dict[str, Array] = {}
    try:
        rows = json.loads(files.read_with_digest(folder / _CONTENTS))
        for number, (name, size, header) in enumerate(rows):
            path = folder / f"{number}.npy"
            with path.open("rb") as file:
                found = os.fstat(file.fileno()).st_size, file.read(len(header)).decode("latin-1")
            if found != (size, header):
                return None
            arrays[name] = npy.open_memmap(path, mode="r", max_header_size=len(header))
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, files.DamagedError):
        return None
    return _Arrays(folder, arrays)


def write(batches: object, folder: Path) -> None:
    """Fill an empty folder with the arrays of the batches, joined along the first axis."""
    if not isinstance(batches, Iterable) or isinstance(batches, Mapping):
        raise TypeError(f"build gave {_kind(batches)}, not an iterable of dictionaries of arrays")
    with ExitStack() as stack:
        columns: dict[str, _Column] = {}
        for number, batch in enumerate(cast("Iterable[object]", batches)):
            label = f"batch {number} of build"
            arrays = _checked(label, batch)
            if number == 0:
                for name, array in arrays.items():
                    file = stack.enter_context((folder / f"{len(columns)}.npy").open("wb"))
                    columns[name] = _Column(f"{label}: {name!r}", file, array)
            if arrays.keys() != columns.keys():
                raise ValueError(f"{label} has arrays {sorted(arrays)}, batch 0 {sorted(columns)}")
            for name, array in arrays.items():
                columns[name].append(f"{label}: {name!r}", array)
        if not columns:
            raise ValueError("build gave no batch")
        rows = [(name, *column.finish()) for name, column in columns.items()]
    files.write_with_digest(folder / _CONTENTS, json.dumps(rows).encode())


def _checked(label: str, batch: object) -> dict[str, Array]:
    if not isinstance(batch, Mapping):
        raise TypeError(f"{label} is {_kind(batch)}, not a dictionary of arrays")
    if not batch:
        raise ValueError(f"{label} has no arrays")
    arrays: dict[str, Array] = {}
    for name, array in cast("Mapping[object, object]", batch).items():
        if not isinstance(name, str):
            raise TypeError(f"{label}: the name {name!r} must be a str")
        if not isinstance(array, np.ndarray) or isinstance(array, np.ma.MaskedArray):
            raise TypeError(f"{label}: {name!r} is {_kind(array)}, not a NumPy array")
        arrays[name] = cast("Array", array)
    return arrays


class _Column:
    """The file of the arrays of one name: rows are appended, and the header is written last."""

    def __init__(self, label: str, file: BinaryIO, first: Array) -> None:
        if first.ndim == 0:
            raise ValueError(f"{label} has no dimension to join along")
        if not _is_storable(first.dtype):
            raise ValueError(f"{label} has dtype {first.dtype}, which a file of NumPy's format does not hold")
        self._file, self._dtype, self._trailing = file, first.dtype, first.shape[1:]
        self._rows = 0
        # It keeps the place of the last header: NumPy makes all as long, with room for any number of rows.
        file.write(self._header())

    def append(self, label: str, array: Array) -> None:
        if array.ndim == 0 or (array.dtype, array.shape[1:]) != (self._dtype, self._trailing):
            raise ValueError(
                f"{label} has dtype {array.dtype} and shape {array.shape}; "
                f"that of batch 0 has dtype {self._dtype}, and rows of shape {self._trailing}"
            )
        np.ascontiguousarray(array).tofile(self._file)
        self._rows += len(array)

    def finish(self) -> tuple[int, str]:
        """Put the file on the disk, and return its size and its header."""
        header = self._header()
        size = self._file.tell()
        self._file.seek(0)
        self._file.write(header)
        files.sync_file(self._file)
        return size, header.decode("latin-1")

    def _header(self) -> bytes:
        header = io.BytesIO()
        shape = (self._rows, *self._trailing)
        described = {"descr": npy.dtype_to_descr(self._dtype), "fortran_order": False, "shape": shape}
        npy.write_array_header_2_0(header, described)
        return header.getvalue()


def _is_storable(dtype: np.dtype[Any]) -> bool:
    """Whether a file gives this dtype back: it would give bfloat16 back as two bytes without a meaning."""
    try:
        return not dtype.hasobject and npy.descr_to_dtype(npy.dtype_to_descr(dtype)) == dtype
    except ValueError:  # fields that overlap
        return False


def _kind(value: Any) -> str:
    return f"a {type(value).__name__}"
