"""`cached_arrays`: what comes back, when it is built again, and what is refused."""

import functools
import inspect
import os
import pickle
import runpy
import shutil
import tempfile
import tracemalloc
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples

from torch_bridge import cached_arrays

DTYPES = st.sampled_from(
    [
        *(
            "?",
            "u1",
            "<i2",
            ">i4",
            "<f2",
            "<f4",
            ">f8",
            "<c16",
            "<U3",
            ">U2",
            "S5",
            "V3",
            "<M8[ns]",
            ">m8[s]",
        ),
        [("a", "<i4"), ("b", ">f8", (2,))],
    ]
)


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "source.txt"
    path.write_text("some bytes")
    return path


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "new" / "cache"


class Counted:
    """A build function and how often it was called."""

    def __init__(self):
        self.calls = calls = []

        def build(source, **settings):
            calls.append(settings)
            yield {"x": np.arange(6).reshape(3, 2), "y": np.array(["a", "bc", ""])}

        self.build = build


@pytest.fixture
def counted():
    return Counted()


def define(folder, text, name="build"):
    """The function of this name that a file with this text defines."""
    path = folder / f"module{len(list(folder.glob('module*.py')))}.py"
    path.write_text(text)
    return runpy.run_path(str(path))[name]


def remains(cache):
    """What lies in a directory beside lock files."""
    return [path for path in cache.rglob("*") if path.suffix != ".lock"]


@st.composite
def batches(draw):
    """Batches that fit together: one to three arrays each, with any number of rows, in any memory layout."""
    kinds = [
        (np.dtype(draw(DTYPES)), tuple(draw(st.lists(st.integers(0, 3), max_size=2))))
        for _ in range(draw(st.integers(1, 3)))
    ]
    names = draw(st.lists(st.text(max_size=5), min_size=len(kinds), max_size=len(kinds), unique=True))
    drawn = []
    for _ in range(draw(st.integers(1, 4))):
        batch = {}
        for name, (dtype, trailing) in zip(names, kinds, strict=True):
            shape = draw(st.integers(0, 4)), *trailing
            size = int(np.prod(shape)) * dtype.itemsize
            array = np.ndarray(shape, dtype, draw(st.binary(min_size=size, max_size=size)))
            layout = draw(st.sampled_from([np.array, np.asfortranarray, lambda one: one[::-1]]))
            batch[name] = layout(array)
        order = draw(st.permutations(names))
        drawn.append({name: batch[name] for name in order})
    return drawn


@examples(30)
@given(batches(), st.booleans())
def test_batches_are_joined_along_the_first_axis(drawn, as_list):
    def build(source):
        return drawn if as_list else (batch for batch in drawn)

    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "source")
        source.touch()
        for _ in range(2):  # built, then found
            found = cached_arrays(build, source, Path(folder, "cache"))
            assert list(found) == list(drawn[0])
            for name, array in found.items():
                expected = np.concatenate([batch[name] for batch in drawn])
                # NumPy joins in the machine's own byte order.
                expected = expected.astype(drawn[0][name].dtype, copy=False)
                assert isinstance(array, np.memmap)
                assert (array.dtype, array.shape) == (expected.dtype, expected.shape)
                assert array.flags.c_contiguous
                assert array.tobytes() == expected.tobytes()


def test_the_mapping_and_its_arrays_are_read_only(source, cache, counted):
    found = cached_arrays(counted.build, source, cache)
    assert isinstance(found, Mapping)
    assert len(found) == 2
    assert repr(found) == "cached_arrays('x': int64[3, 2], 'y': <U2[3])"
    with pytest.raises(TypeError, match="item assignment"):
        found["x"] = np.zeros(1)
    for array in found.values():
        with pytest.raises(ValueError, match="read-only"):
            array[...] = array
        with pytest.raises(ValueError, match="WRITEABLE"):
            array.setflags(write=True)
    picked = torch.from_numpy(found["x"][[2, 0]])
    picked += 1
    assert found["x"].tolist() == [[0, 1], [2, 3], [4, 5]]


def test_later_calls_build_nothing_and_write_nothing(source, cache, counted):
    for lock in (True, False):
        found = cached_arrays(counted.build, str(source), str(cache), a=1, b={"c": [None, "d"], "e": 2.5})
        assert found["x"].sum() == 15
        assert bool(list(cache.glob("*.lock"))) is lock
        for path in cache.glob("*.lock"):
            path.unlink()
    cached_arrays(counted.build, source, cache, b={"c": [None, "d"], "e": 2.5}, a=1)
    assert counted.calls == [{"a": 1, "b": {"c": [None, "d"], "e": 2.5}}]


def test_every_setting_has_arrays_of_its_own(source, cache, counted):
    values = [
        1,
        1.0,
        True,
        "1",
        [1],
        [[1]],
        {"1": 1},
        None,
        0,
        -0.0,
        0.0,
        False,
        "",
        [],
        {},
        10**400,
        "\ud800",
        {"1": 1, "2": 2},
        {"2": 2, "1": 1},
    ]
    values = [{}, *({"a": value} for value in values), {"b": 1}, {"a": 1, "b": 1}]
    for _ in range(2):
        for one in values:
            cached_arrays(counted.build, source, cache, **one)
    assert [repr(one) for one in counted.calls] == [repr(one) for one in values]


@pytest.mark.parametrize(
    "value",
    [
        *((1, 2), {1: 2}, {1, 2}, b"bytes", float("nan"), float("inf"), 1j, Path("path"), object()),
        *(np.float64(0.5), np.int64(1), np.zeros(2), [1, [2, (3,)]], {"a": {"b": range(2)}}, torch.ones(1)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_setting_that_is_no_plain_json_is_refused_by_name(source, cache, counted, value):
    with pytest.raises(TypeError, match=r"^second = .* must be a plain JSON value"):
        cached_arrays(counted.build, source, cache, first=1, second=value)
    assert counted.calls == []
    assert not cache.exists()


def test_a_setting_that_holds_itself_is_refused_by_name(source, cache, counted):
    loop = []
    loop.append(loop)
    with pytest.raises(TypeError, match=r"^loop = "):
        cached_arrays(counted.build, source, cache, loop=loop)


def write_tree(folder, files):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


TREE = {"a.txt": b"one", "b.txt": b"two", "in/c.txt": b"three", "in/d.txt": b"four", "on/e.txt": b""}


@pytest.mark.parametrize(
    "files",
    [
        TREE | {"a.txt": b"onE"},
        TREE | {"a.txt": b"two", "b.txt": b"one"},
        TREE | {"a.txt": b"onet", "b.txt": b"wo"},
        TREE | {"on/f.txt": b""},
        {name: content for name, content in TREE.items() if name != "on/e.txt"},
        {"a.txt": b"one", "b.txt": b"two", "in/c.txt": b"three", "on/d.txt": b"four", "on/e.txt": b""},
        {Path(name).name: content for name, content in TREE.items()},
        {"a.txt": b"onetwothreefour"},
        {},
    ],
    ids=[
        "a byte",
        "swapped",
        "moved over",
        "one more",
        "one less",
        "another folder",
        "flat",
        "joined",
        "empty",
    ],
)
def test_the_contents_of_a_folder_count(tmp_path, cache, counted, files):
    cached_arrays(counted.build, write_tree(tmp_path / "tree", TREE), cache)
    (tmp_path / "other").mkdir()
    cached_arrays(counted.build, write_tree(tmp_path / "other", files), cache)
    assert len(counted.calls) == 2


def test_dates_and_names_do_not_count(tmp_path, source, cache, counted):
    cached_arrays(counted.build, source, cache)
    os.utime(source, (1, 1))
    cached_arrays(counted.build, source, cache)
    cached_arrays(counted.build, source.rename(tmp_path / "renamed.csv"), cache)
    assert len(counted.calls) == 1

    tree = write_tree(tmp_path / "tree", TREE)
    cached_arrays(counted.build, tree, cache)
    os.utime(tree / "a.txt", (1, 1))
    (tree / "a.txt").chmod(0o600)
    cached_arrays(counted.build, tree.rename(tmp_path / "renamed"), cache)
    renamed = {"0": b"one", "1": b"two", "2/3": b"three", "2/4": b"four", "5/6": b""}
    cached_arrays(counted.build, write_tree(tmp_path / "again", dict(reversed(renamed.items()))), cache)
    assert len(counted.calls) == 2


def test_a_file_is_not_the_folder_that_holds_it(tmp_path, cache, counted):
    tree = write_tree(tmp_path / "tree", {"a.txt": b"one"})
    cached_arrays(counted.build, tree, cache)
    cached_arrays(counted.build, tree / "a.txt", cache)
    assert len(counted.calls) == 2


TEXT = """
import functools
import numpy as np

def twice(function):
    def wrapper(source):
        for batch in function(source):
            yield {name: 2 * array for name, array in batch.items()}
    return wrapper

def thrice(function):
    @functools.wraps(function)
    def wrapper(source):
        for batch in function(source):
            yield {name: 3 * array for name, array in batch.items()}
    return wrapper

def plain(source):
    yield {"x": np.arange(3)}

@twice
def decorated(source):
    yield {"x": np.arange(4)}

@thrice
def decorated_too(source):
    yield {"x": np.arange(5)}

doubled, tripled = twice(plain), thrice(plain)
short = lambda source: [{"x": np.arange(6)}]
first, second = lambda source: [{"x": np.arange(7)}], lambda source: [{"x": np.arange(8)}]

class Rows:
    def __init__(self, count):
        self.count = count

    def method(self, source):
        return [{"x": np.arange(self.count)}]

nine, ten = Rows(9).method, Rows(10).method
"""
NAMES = [
    "plain",
    "decorated",
    "decorated_too",
    "doubled",
    "tripled",
    "short",
    "first",
    "second",
    "nine",
    "ten",
]


@examples(30)
@given(
    st.lists(st.tuples(st.sampled_from(NAMES), st.booleans(), st.sampled_from(["", "1", "2"])), max_size=9)
)
def test_arrays_belong_to_a_source_text_and_a_version(asked):
    """Two that `inspect` gives the same text for share their arrays, wherever they stand in a file."""
    with tempfile.TemporaryDirectory() as name:
        folder, built = Path(name), {}
        (source := folder / "source").touch()
        for build, is_further_down, version in asked:
            build = define(folder, "\n\n# further down\n" * is_further_down + TEXT, build)
            expected = np.concatenate([batch["x"] for batch in build(source)]).tolist()
            expected = built.setdefault((inspect.getsource(build), version), expected)
            found = cached_arrays(build, source, folder / "cache", version=version)
            assert found["x"].tolist() == expected


def test_an_edited_text_has_arrays_of_its_own(tmp_path, source, cache):
    for rows in (3, 4):
        build = define(tmp_path, TEXT.replace("arange(3)", f"arange({rows})"), "plain")
        assert len(cached_arrays(build, source, cache)["x"]) == rows


@pytest.mark.parametrize("version", [None, 1, b"1", ["1"]])
def test_a_version_is_a_str(source, cache, counted, version):
    with pytest.raises(TypeError, match=r"^version = .* must be a str"):
        cached_arrays(counted.build, source, cache, version=version)
    assert not cache.exists()


def test_functions_that_torch_decorates_have_arrays_of_their_own(source, cache):
    @torch.no_grad()
    def ones(source):
        return [{"x": torch.ones(2).numpy()}]

    @torch.no_grad()
    def zeros(source):
        return [{"x": torch.zeros(2).numpy()}]

    assert cached_arrays(ones, source, cache)["x"].tolist() == [1, 1]
    assert cached_arrays(zeros, source, cache)["x"].tolist() == [0, 0]


def test_a_function_may_call_itself_and_others(source, cache):
    def halves(rows):
        yield {"x": np.zeros(rows)}
        if rows > 1:
            yield from halves(rows // 2)

    def build(source):
        yield from halves(4)
        if False:
            never_set = None
            yield never_set

    assert cached_arrays(build, source, cache)["x"].shape == (7,)


class Callable:
    def __call__(self, source):
        return [{"x": np.zeros(1)}]


def without_a_file():
    scope = {}
    exec("def build(source): return []", scope)
    return scope["build"]


@pytest.mark.parametrize(
    "build",
    [
        functools.partial(without_a_file),
        functools.update_wrapper(functools.partial(without_a_file), without_a_file),
        Callable(),
        without_a_file(),
        np.frombuffer,
        dict,
        None,
        "build",
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_build_without_a_source_text_is_refused(source, cache, build):
    with pytest.raises(TypeError, match=r"^build = .* has no source text: define it with def, in a file"):
        cached_arrays(build, source, cache)
    assert not cache.exists()


ROWS = np.zeros((2, 3), np.float32)
MISFITS = {
    "no batch": ([], ValueError, "build gave no batch"),
    "no arrays": ([{}], ValueError, "batch 0 of build has no arrays"),
    "None": (None, TypeError, "build gave a NoneType"),
    "a dictionary": ({"x": ROWS}, TypeError, "build gave a dict, not an iterable"),
    "no dictionary": ([ROWS], TypeError, "batch 0 of build is a ndarray, not a dictionary"),
    "a list": ([{"x": [1, 2]}], TypeError, "batch 0 of build: 'x' is a list, not a NumPy array"),
    "a tensor": ([{"x": torch.ones(2)}], TypeError, "'x' is a Tensor"),
    "masked": ([{"x": np.ma.masked_equal([1, 2], 2)}], TypeError, "'x' is a MaskedArray"),
    "a number for a name": ([{1: ROWS}], TypeError, "the name 1 must be a str"),
    "no dimensions": ([{"x": np.array(1.0)}], ValueError, "'x' has no dimension to join along"),
    "a scalar": ([{"x": np.float32(1)}], TypeError, "'x' is a float32"),
    "objects": ([{"x": np.array([None, "a"])}], ValueError, "'x' has dtype object"),
    "objects in fields": ([{"x": np.zeros(2, [("a", "O")])}], ValueError, "'x' has dtype .*'O'"),
    "strings of any length": (
        [{"x": np.array(["a"], np.dtypes.StringDType())}],
        ValueError,
        "'x' has dtype Str",
    ),
    "fields that overlap": (
        [{"x": np.zeros(2, {"names": ["a", "b"], "formats": ["i4", "i4"], "offsets": [0, 2]})}],
        ValueError,
        "which a file of NumPy's format does not hold",
    ),
    "a name less": (
        [{"x": ROWS, "y": ROWS}, {"x": ROWS}],
        ValueError,
        r"batch 1 .* \['x'\], batch 0 \['x', 'y'\]",
    ),
    "a name more": (
        [{"x": ROWS}, {"x": ROWS, "y": ROWS}],
        ValueError,
        r"batch 1 .* \['x', 'y'\], batch 0 \['x'\]",
    ),
    "another dtype": ([{"x": ROWS}, {"x": ROWS.astype("f8")}], ValueError, "batch 1 .*float64"),
    "another byte order": ([{"x": ROWS}, {"x": ROWS.astype(">f4")}], ValueError, "batch 1 .*>f4"),
    "another unit": (
        [{"x": np.zeros(1, "M8[s]")}, {"x": np.zeros(1, "M8[D]")}],
        ValueError,
        r"batch 1 .* dtype datetime64\[D\] and shape \(1,\); that of batch 0 has dtype datetime64\[s\]",
    ),
    "wider rows": (
        [{"x": ROWS}, {"x": ROWS[:, :2]}],
        ValueError,
        r"batch 1 .*\(2, 2\).* rows of shape \(3,\)",
    ),
    "flat rows": ([{"x": ROWS}, {"x": ROWS.ravel()}], ValueError, "batch 1"),
    "no dimensions later": (
        [{"x": ROWS}, {"x": np.array(1.0)}],
        ValueError,
        "batch 1",
    ),
    "no dictionary later": ([{"x": ROWS}, None], TypeError, "batch 1 of build is a NoneType"),
}


@pytest.mark.parametrize(("given", "error", "message"), MISFITS.values(), ids=MISFITS)
def test_batches_that_are_refused(source, cache, given, error, message):
    def build(source):
        return given

    with pytest.raises(error, match=message):
        cached_arrays(build, source, cache)
    assert remains(cache) == []


def test_bfloat16_is_refused(source, cache):
    dtype = pytest.importorskip("ml_dtypes").bfloat16

    def build(source):
        yield {"x": np.zeros(2, dtype)}

    with pytest.raises(ValueError, match="'x' has dtype bfloat16"):
        cached_arrays(build, source, cache)


@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_error_of_build_leaves_nothing(source, cache, error):
    fails = True

    def build(source):
        yield {"x": ROWS}
        if fails:
            raise error("mine")
        yield {"x": ROWS}

    with pytest.raises(error, match="mine"):
        cached_arrays(build, source, cache)
    assert remains(cache) == []
    fails = False
    assert cached_arrays(build, source, cache)["x"].shape == (4, 3)


def _remove(path):
    path.unlink()


def _cut(path):
    path.write_bytes(path.read_bytes()[:-1])


def _lengthen(path):
    path.write_bytes(path.read_bytes() + b"\n")


def _empty(path):
    path.write_bytes(b"")


def _damage(path):
    content = bytearray(path.read_bytes())
    content[0] ^= 1
    path.write_bytes(content)


def _retype(path):
    path.write_bytes(path.read_bytes().replace(b"<", b">").replace(b"'", b'"').replace(b"a", b"b"))


def _replace_by_a_folder(path):
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    "breaking", [_remove, _cut, _lengthen, _empty, _damage, _retype, _replace_by_a_folder]
)
def test_what_is_broken_is_built_again(source, cache, counted, breaking):
    whole = cached_arrays(counted.build, source, cache)
    expected = {name: array.tolist() for name, array in whole.items()}
    files = [path for path in remains(cache) if path.is_file()]
    assert len(files) == 3
    for path in files:
        before = len(counted.calls)
        breaking(path)
        for _ in range(2):
            found = cached_arrays(counted.build, source, cache)
            assert {name: array.tolist() for name, array in found.items()} == expected
        assert len(counted.calls) == before + 1


def test_a_file_in_the_place_of_the_folder_is_replaced(source, cache, counted):
    cached_arrays(counted.build, source, cache)
    (folder,) = (path for path in remains(cache) if path.is_dir())
    shutil.rmtree(folder)
    folder.write_text("not a folder")
    assert cached_arrays(counted.build, source, cache)["x"].shape == (3, 2)


def test_a_source_that_is_not_there(tmp_path, cache, counted):
    with pytest.raises(FileNotFoundError, match=r"there is no .*missing"):
        cached_arrays(counted.build, tmp_path / "missing", cache)
    assert not cache.exists()


def test_a_source_that_is_neither_file_nor_folder(tmp_path, cache, counted):
    tree = write_tree(tmp_path / "tree", TREE)
    os.mkfifo(tree / "pipe")
    for path in (tree, tree / "pipe"):
        with pytest.raises(ValueError, match="pipe is neither a file nor a folder"):
            cached_arrays(counted.build, path, cache)


@pytest.mark.parametrize("links", [{"link": ""}, {"in/one": "in", "in/two": "", "on": "in"}])
def test_a_folder_that_links_to_itself(tmp_path, cache, counted, links):
    """Two such links in one folder give more paths than could ever be read."""
    tree = write_tree(tmp_path / "tree", {"a": b"one", "in/b": b"two"})
    for name, to in links.items():
        (tree / name).symlink_to(tree / to)
    with pytest.raises(ValueError, match=r"is a link to .*, a folder that it lies in: remove the link"):
        cached_arrays(counted.build, tree, cache)
    assert not cache.exists()


def test_a_folder_that_is_there_twice(tmp_path, cache, counted):
    """By a link beside it: it counts twice, and no path is without end."""
    tree = write_tree(tmp_path / "tree", {"in/b": b"two"})
    copy = write_tree(tmp_path / "copy", {"in/b": b"two", "on/b": b"two"})
    (tree / "on").symlink_to(tree / "in")
    for each in (tree, copy):
        cached_arrays(counted.build, each, cache)
    assert len(counted.calls) == 1


def test_links_are_followed(tmp_path, source, cache, counted):
    link = tmp_path / "link"
    link.symlink_to(source)
    cached_arrays(counted.build, source, cache)
    cached_arrays(counted.build, link, cache)
    assert len(counted.calls) == 1
    source.write_text("others")
    cached_arrays(counted.build, link, cache)
    assert len(counted.calls) == 2


@pytest.mark.parametrize("inside", ["", "deeper/cache"])
def test_a_directory_in_the_source_is_refused(tmp_path, counted, inside):
    tree = write_tree(tmp_path / "tree", TREE)
    (tmp_path / "link").symlink_to(tree)
    with pytest.raises(ValueError, match="lies in the source"):
        cached_arrays(counted.build, tree, tmp_path / "link" / inside)
    assert sorted(path.name for path in tree.iterdir()) == ["a.txt", "b.txt", "in", "on"]


@pytest.mark.parametrize("inside", ["", "cache"])
def test_a_directory_that_is_a_file(tmp_path, source, counted, inside):
    with pytest.raises(NotADirectoryError, match=r"source\.txt"):
        cached_arrays(counted.build, source, source / inside)
    assert source.read_text() == "some bytes"


def test_a_source_that_changes_meanwhile(source, cache):
    def build(path):
        source.write_text("other bytes")
        yield {"x": ROWS}

    with pytest.raises(RuntimeError, match=r"source\.txt changed while build ran"):
        cached_arrays(build, source, cache)
    assert remains(cache) == []
    assert cached_arrays(build, source, cache)["x"].shape == (2, 3)


def test_a_build_may_cache_what_it_needs(source, cache, counted):
    def build(source):
        (cache / f"{'0' * 64}.partial").mkdir()
        inner = cached_arrays(counted.build, source, cache)
        yield {"x": inner["x"] * 2}

    assert cached_arrays(build, source, cache)["x"].sum() == 30
    assert not list(
        cache.glob("*.partial")
    )  # such as a killed builder leaves; the outer one's was left alone


def test_other_files_in_the_directory_are_left_alone(source, cache, counted):
    cache.mkdir(parents=True)
    (cache / "mine.partial").mkdir()
    (cache / "mine.txt").touch()
    cached_arrays(counted.build, source, cache)
    assert {"mine.partial", "mine.txt"} < {path.name for path in cache.iterdir()}


def test_no_more_than_a_batch_is_in_memory(source, cache):
    def build(source):
        for number in range(32):
            yield {"x": np.full(1 << 17, number, np.float64)}

    cached_arrays(build, source, cache / "first")  # imports
    tracemalloc.start()
    try:
        found = cached_arrays(build, source, cache / "second")
        total = found["x"][:: 1 << 17].sum()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert total == sum(range(32))
    assert peak < 4 * 8 * (1 << 17)  # of 32 batches


def test_the_mapping_is_pickled_as_a_path(source, cache):
    def build(source):
        yield {"x": np.arange(100_000)}

    found = cached_arrays(build, source, cache)
    saved = pickle.dumps(found)
    assert len(saved) < 1000
    again = pickle.loads(saved)
    assert isinstance(again["x"], np.memmap)
    assert np.array_equal(again["x"], found["x"])
    shutil.rmtree(cache)
    assert found["x"][-1] == 99_999  # mapped in, whatever becomes of the name
    with pytest.raises(FileNotFoundError, match="are gone, or no longer whole"):
        pickle.loads(saved)


def test_its_signature():
    parameters = inspect.signature(cached_arrays).parameters
    assert list(parameters) == ["build", "source", "directory", "version", "settings"]
