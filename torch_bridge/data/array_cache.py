"""`cached_arrays`: arrays that are made once from a source, and mapped into memory ever after.

They are files in NumPy's own format, which any program reads, and filelock's lock decides who writes them.
Hugging Face datasets (Arrow) would give a table of its own kind, and bring pyarrow and pandas along.
"""

import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch_bridge.core import checks
from torch_bridge.data import cache_key
from torch_bridge.data import folder_of_arrays as arrays
from torch_bridge.data.folder_of_arrays import Array


def cached_arrays(
    build: Callable[..., Iterable[Mapping[str, Array]]],
    source: str | os.PathLike[str],
    directory: str | os.PathLike[str],
    *,
    version: str = "",
    **settings: Any,
) -> Mapping[str, Array]:
    """The arrays that `build(source, **settings)` yields, from files that are written once.

    `build` gives batches: dictionaries of arrays. The arrays of one name are joined along the first axis.
    Each batch is written when it comes, so that memory need not hold more than one. Later calls map the
    files into memory and don't call `build`.

    The files have a key, a digest of four things:

    - the source's bytes. Names and dates don't count. A folder counts as the contents of its files, in the
      order of their names, and of its folders.
    - the settings.
    - `version`.
    - the source text of `build`, as `inspect.getsource` gives it.

    **Nothing else counts**: not the functions that `build` calls, the variables of its module, the values
    that it closes over, or the object that a method belongs to. A decorator's code does not count, and a
    decorator without `functools.wraps` even hides the text of `build`: its own text counts instead. All
    lambdas on one line share that line. The text is read from the file at the call: an edit after the import
    counts although it does not run yet. When something that does not count changes what `build` gives,
    give another `version`, or pass it as a setting.

    Each call reads the source once, for the key. Many processes may ask at once: one builds, the others
    wait for it. Where `build` is killed or raises, the files that it began are never used, and are removed
    later. Files that are missing, of another size or with another header are built again (the rest of their
    bytes is not compared). To forget all cached arrays, delete the directory.

    Args:
        build: A function, defined with `def` in a file.
        source: A file or a folder. `build` gets it as it is given here.
        directory: Where the files are kept; it is made if there is none. It may not lie in the source.
        version: Names what `build` depends on beside its text, the source and the settings. `build` does
            not get it, so that none of its own arguments can have this name.
        **settings: Keyword arguments of `build`: plain JSON values. The order of the arguments does not
            count; the order within a dictionary does.

    Returns:
        A read-only mapping of read-only `numpy.memmap` arrays, in C order, with the names, the dtypes and
        the byte orders that `build` gave, of the shape (rows of all batches, …). The mapping is pickled, for
        a worker process, as no more than a path. An array in it would be pickled whole: hand on the mapping.
        `torch.from_numpy` warns of read-only arrays, but not of what an index array picks from them, which
        is a copy.

    Raises:
        TypeError: A setting that is no plain JSON value; a `version` that is no str; a `build` without a
            source text (a partial, a callable object, a function from `exec` or a prompt), or one that gives
            something else than dictionaries of arrays.
        ValueError: `build` gives no batch, or one without arrays; an array of no dimensions, or of a
            dtype that files of NumPy's format don't hold (objects, bfloat16); batches that differ in
            names, dtype or trailing shape. The directory lies in the source.
        FileNotFoundError, NotADirectoryError: There is no such source; the directory is a file.
        RuntimeError: The source changed while `build` ran.
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
    ...     cached_arrays(parse, table, f"{folder}/cache", scale=10)["numbers"]
    ...     cached_arrays(parse, table, f"{folder}/cache", scale=10)["numbers"]
    parsing
    memmap([10, 20, 30])
    memmap([10, 20, 30])
    """
    try:
        from filelock import FileLock, Timeout  # optional: only cached arrays and checkpoints need it
    except ModuleNotFoundError as error:
        raise checks.missing("cached_arrays", error, "torch") from None

    path, directory = Path(source), Path(directory).absolute()
    if path.is_dir() and directory.resolve().is_relative_to(path.resolve()):
        raise ValueError(f"directory = {str(directory)!r} lies in the source: it would change its key")
    if not isinstance(version, str):
        raise TypeError(f"version = {version!r} must be a str")
    plain, code = cache_key.of_settings(settings), cache_key.of_code(build)
    before = cache_key.of_source(path)
    key = cache_key.combine(before, plain, version, code)
    folder, partial = directory / key, directory / f"{key}.partial"
    if (found := arrays.find(folder)) is not None:
        return found
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise NotADirectoryError(f"directory = {str(directory)!r} is a file") from None
    for leftover in directory.glob(f"{'[0-9a-f]' * len(key)}.partial"):
        # A builder that was killed has left it, unless one holds its lock still.
        with suppress(Timeout), FileLock(leftover.with_suffix(".lock"), blocking=False):
            _remove(leftover)
    with FileLock(f"{folder}.lock"):
        if (found := arrays.find(folder)) is not None:
            return found
        try:
            _remove(partial)
            partial.mkdir()
            arrays.write(build(source, **settings), partial)
            if cache_key.of_source(path) != before:
                raise RuntimeError(f"source: {path} changed while build ran")
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
