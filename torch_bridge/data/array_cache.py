"""Arrays that are made once from their source and mapped in ever after.

Files in NumPy's own format under filelock's lock: what comes back are plain arrays that any program reads,
where Hugging Face datasets (Arrow) would bring its own table, and pyarrow and pandas with it.
"""

import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch_bridge.core import checks
from torch_bridge.data import folder_of_arrays as arrays
from torch_bridge.data import identity
from torch_bridge.data.folder_of_arrays import Array


def prepared(
    build: Callable[..., Iterable[Mapping[str, Array]]],
    source: str | os.PathLike[str],
    directory: str | os.PathLike[str],
    **settings: Any,
) -> Mapping[str, Array]:
    """The arrays that `build(source, **settings)` yields, from files that are written once.

    `build` gives batches: dictionaries of arrays, which are joined along the first axis, name by name.
    Each is written as it comes, so that no more than a batch need be in memory. Later calls map the files
    in and don't call `build`.

    They are kept under a key of the source's bytes, the settings and the source text of `build`, with what
    Python compiled it to: a file that was edited since says nothing of what runs. Dates and names don't
    count: of a folder it is the contents of its files, in the order of their names, and which of them lie
    together in a folder. What else `build` depends on does not count either: the
    functions that it calls, values that it closes over or finds in its module, a name that it reads
    something from. Give those as settings. Each call reads the source once, for the key.

    Many processes may ask at once: one builds, the others wait for it. A builder that is killed, or
    raises, leaves nothing that would be taken for whole. Files that are missing, of another size or with
    another header are built again (the rest of their bytes is not compared). To forget all that was
    prepared, delete the directory.

    Args:
        build: A function with a source text. What it closes over may be functions like it, as a
            decorator's is; their texts count too.
        source: A file or a folder, handed to `build` as it is.
        directory: Where the files are kept; it is made if there is none. It may not lie in the source.
        **settings: Keyword arguments of `build`: plain JSON values. The arguments' order does not
            count; that of a dictionary among them does.

    Returns:
        A read-only mapping of read-only `numpy.memmap` arrays, in C order, under the names and with the
        dtypes and byte orders of `build`, of the shape (rows of all batches, …). Pickled, as for a
        worker process, it is the path alone: hand on the mapping, not the arrays in it, which are pickled
        whole. `torch.from_numpy` warns of read-only arrays; what an index array picks is a copy, and is not.

    Raises:
        TypeError: A setting that is no plain JSON value, a `build` without a source text that says what
            it is (a partial, a method, a callable object, a function typed at a prompt, one of two lambdas
            on a line), or a `build` that gives something else than dictionaries of arrays.
        ValueError: `build` gives no batch, or one without arrays; an array of no dimensions, or of a
            dtype that files of NumPy's format don't hold (objects, bfloat16); batches that differ in
            names, dtype or trailing shape. The directory lies in the source.
        FileNotFoundError, NotADirectoryError: There is no such source; the directory is a file.
        RuntimeError: The source changed while it was prepared.
        Whatever `build` raises. Nothing is kept then.

    >>> import tempfile
    >>> import numpy as np
    >>> def parse(source, scale):
    ...     print("parsing")
    ...     for number in source.read_text().split():
    ...         yield {"numbers": np.array([scale * int(number)])}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     table = Path(folder, "table.txt")
    ...     _ = table.write_text("1 2 3")
    ...     prepared(parse, table, f"{folder}/prepared", scale=10)["numbers"]
    ...     prepared(parse, table, f"{folder}/prepared", scale=10)["numbers"]
    parsing
    memmap([10, 20, 30])
    memmap([10, 20, 30])
    """
    try:
        from filelock import FileLock, Timeout
    except ModuleNotFoundError as error:
        raise checks.missing("prepared", error, "torch") from None

    path, directory = Path(source), Path(directory).absolute()
    if path.is_dir() and directory.resolve().is_relative_to(path.resolve()):
        raise ValueError(f"directory = {str(directory)!r} lies in the source: it would change its key")
    plain, code = identity.of_settings(settings), identity.of_code(build)
    before = identity.of_source(path)
    key = identity.combine(before, plain, code)
    folder, partial = directory / key, directory / f"{key}.partial"
    if (found := arrays.find(folder)) is not None:
        return found
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise NotADirectoryError(f"directory = {str(directory)!r} is a file") from None
    for leftover in directory.glob(f"{'[0-9a-f]' * len(key)}.partial"):
        # Of a builder that was killed, unless it still holds its lock.
        with suppress(Timeout), FileLock(leftover.with_suffix(".lock"), blocking=False):
            _remove(leftover)
    with FileLock(f"{folder}.lock"):
        if (found := arrays.find(folder)) is not None:
            return found
        try:
            _remove(partial)
            partial.mkdir()
            arrays.write(build(source, **settings), partial)
            if identity.of_source(path) != before:
                raise RuntimeError(f"source: {path} changed while it was prepared")
            _remove(folder)
            partial.rename(folder)
        except BaseException:
            _remove(partial)
            raise
        return arrays.reopen(folder)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
