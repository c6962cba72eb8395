"""A state as tensors and a structure round-trips exactly, in files like torch's (DCP), and over ranks."""

import json
import math
from collections import Counter, OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, strategies as st
from safetensors import safe_open
from safetensors.torch import load_file
from support.checkpointing import moment_checks, rank_checks, world_sizes
from support.checkpointing.checkpoints import Part, Rejecting, same_bits
from support.checkpointing.wrapped_tensors import Quantizing, Wrapped, quantized
from support.distributed.processes import run, run_checks
from support.examples import examples
from support.training.models import Net, batches, mean_loss
from support.training.optimizers import Foreign
from support.training.steps import check_resume, make_step
from torch import Tensor, nn
from torch.distributed import checkpoint as dcp
from torch.optim import Optimizer

from torch_bridge import Checkpoints, TrainStep
from torch_bridge.checkpointing.states import read_structure, split_state

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")


_DTYPES = (
    *(torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    *(torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz),
    *(torch.float8_e8m0fnu, torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.complex32, torch.complex64, torch.complex128),
)


@st.composite
def _tensors(draw: st.DrawFn) -> Tensor:
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    values = torch.arange(math.prod(shape), dtype=torch.float32).view(shape)
    tensor = values.to(draw(st.sampled_from(_DTYPES)))
    if shape and draw(st.booleans()):
        tensor = tensor.movedim(0, -1)
    if tensor.is_contiguous():
        # A contiguous tensor may have any stride along a dimension of size 1; the usual one is restored.
        tensor = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor)
    requires_grad = (tensor.is_floating_point() or tensor.is_complex()) and draw(st.booleans())
    is_parameter = draw(st.booleans())
    return nn.Parameter(tensor, requires_grad) if is_parameter else tensor.requires_grad_(requires_grad)


_texts = st.text() | st.text(st.characters(categories=["Cs", "Cc", "L"]))  # also halves of surrogate pairs
_keys = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | _texts | st.binary(),
    lambda keys: st.tuples(keys, keys),
    max_leaves=3,
)
_contexts = st.recursive(
    _keys | st.sampled_from([torch.bfloat16, torch.Size([2, 3]), torch.device("cpu")]),
    lambda contexts: st.lists(contexts) | st.tuples(contexts) | st.dictionaries(st.text(), contexts),
    max_leaves=5,
)


@st.composite
def _wrapped(draw: st.DrawFn, inner: Any) -> Wrapped:
    """A tensor of a class of which torch knows only how to take it apart and to rebuild it."""
    names = st.sampled_from(["codes", "scale", "qmap"])
    dtype = draw(st.sampled_from([torch.float32, torch.bfloat16, torch.int8]))
    shape = draw(st.sampled_from([(), (2,), (3, 0), (4, 2)]))
    inner_tensors = draw(st.dictionaries(names, inner, max_size=3))
    wrapped = Wrapped(inner_tensors, draw(_contexts), shape, dtype)
    return wrapped.requires_grad_(dtype.is_floating_point and draw(st.booleans()))


_inner_tensors = _tensors().map(lambda tensor: tensor.detach())
# Gradients are those of the outer tensor, so the inner ones need none.
_inner_wrapped = _wrapped(_inner_tensors).map(Tensor.detach)
_wrapped_tensors = _wrapped(_inner_tensors | _wrapped(_inner_tensors | _inner_wrapped).map(Tensor.detach))

_texts_of_numpy = st.text(st.characters(codec="utf-8")).map(np.str_) | st.binary().map(np.bytes_)
_units = st.sampled_from(["generic", "Y", "D", "25s", "ns", "as"])
_times_of_numpy = st.builds(np.timedelta64, st.integers(-9, 9), _units) | st.builds(
    np.datetime64, st.integers(-9, 9), _units.filter(lambda unit: unit != "generic")
)
_numbers_of_numpy = st.builds(
    lambda code, number: np.dtype(code).type(number),
    st.sampled_from("?bhilqBHILQefdgFDG"),
    st.integers(0, 99),
)
_scalars_of_numpy = _texts_of_numpy | _times_of_numpy | _numbers_of_numpy

_leaves = (
    _keys
    | st.floats()
    | st.just("$")
    | st.integers(-(2**70), 2**70)
    | _tensors()
    | st.sampled_from([*_DTYPES, torch.device("cpu"), torch.device("cuda", 1), torch.Size([2, 0])])
    | st.sampled_from(["<f8", ">i2", "?", "<U3", "<M8[s]", "<c8"]).map(lambda kind: np.zeros((2, 1), kind))
    | _wrapped_tensors
    | _scalars_of_numpy
    | st.sampled_from([np.float64(0.1), np.float32(math.nan), np.datetime64("NaT"), np.bool_(True)])
    | st.sampled_from([np.zeros((0, 3)), np.arange(6).reshape(2, 3)[:, ::2], np.array(1.5)])
    | st.sets(st.integers() | st.text())
    | st.frozensets(st.integers())
)
_states = st.recursive(
    _leaves,
    lambda states: (
        st.lists(states)
        | st.tuples(states, states)
        | st.dictionaries(_keys | st.sampled_from(["$", "a", "a.b", "b"]), states)
        | st.dictionaries(_texts, states).map(OrderedDict)
        | st.dictionaries(st.text(), st.integers()).map(Counter)
    ),
    max_leaves=20,
)


@examples(60)
@given(_states)
@example({"\ud800": torch.ones(2)})
@example([np.str_("a\0"), np.str_("\0\0"), np.str_(""), np.bytes_(b"a\0"), np.bytes_(b"\0"), np.bytes_(b"")])
@example([np.longlong(3), np.ulonglong(3), np.longdouble("0.1"), np.str_("\ud800")])
@example({"a.b": torch.zeros(1), "a": {"b": torch.ones(1)}})  # equal paths
@example(torch.ones(2, requires_grad=True))
@example(nn.Parameter(torch.ones(2)))
@example(nn.Sequential(nn.BatchNorm1d(2)).state_dict())  # with the versions of modules
def test_state_round_trips(tmp_path_factory: pytest.TempPathFactory, state: Any) -> None:
    """Torch's default device changes nothing."""
    checkpoints, part = Checkpoints(tmp_path_factory.mktemp("state")), Part()
    with torch.device("meta"):
        checkpoints.save(1, part=Part(state))
        checkpoints.load(part=part)
    assert same_bits(part.state, state)


def test_loads_may_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in two threads: the end of one must not end what the other needs, more than torch's safe list."""
    state = {"a": frozenset({b"", 1})}
    content = split_state("part", state, torch.clone).structure_bytes()
    load, results = torch.load, list[Any]()

    def load_after_another(*arguments: Any, **settings: Any) -> Any:
        monkeypatch.setattr(torch, "load", load)
        results.append(read_structure("part", content))
        return load(*arguments, **settings)

    monkeypatch.setattr(torch, "load", load_after_another)
    results.append(read_structure("part", content))
    assert results == [state, state]


def test_wrapped_tensor_is_copied_at_save(tmp_path: Path) -> None:
    """Its own copy to the CPU shares its memory, which the next update changes."""
    moments = [quantized(torch.arange(12.0).view(4, 3)), quantized(torch.ones(4, 3))]
    expected = [quantized(torch.arange(12.0).view(4, 3)), quantized(torch.ones(4, 3))]
    checkpoints, part = Checkpoints(tmp_path), Part()
    checkpoints.save(1, part=Part({"first": moments[0], "again": moments[0], "second": moments[1]}))
    for moment in moments:
        for tensor in moment.tensors.values():
            tensor.zero_()
    checkpoints.load(part=part)
    assert same_bits(part.state, {"first": expected[0], "again": expected[0], "second": expected[1]})


def test_step_with_wrapped_moments_resumes(tmp_path: Path) -> None:
    """From a checkpoint, and from a state, which an update does not change."""

    def build() -> TrainStep:
        model = Net()
        return make_step(model=model, optimizer=Quantizing(model.parameters()))

    step, resumed, from_state = build(), build(), build()
    for batch in batches(3):
        step(batch)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(3, step=step)
    state = step.state_dict()
    step(*batches(1, seed=9))
    checkpoints.load(step=resumed)
    from_state.load_state_dict(state)
    assert same_bits(from_state.state_dict()["optimizer"], resumed.state_dict()["optimizer"])
    for continued in (resumed, from_state):
        continued(*batches(1, seed=9))
        assert same_bits(continued.state_dict(), step.state_dict())


@pytest.mark.parametrize("is_tied", [True, False])
def test_tied_tensors_are_written_once(tmp_path: Path, is_tied: bool) -> None:
    """Both names refer to it. Tensors with equal values that are not tied are each written."""
    weight = torch.arange(1000.0)
    state = {"a": weight, "b": weight if is_tied else weight.clone(), "part of it": weight[:500]}
    square = torch.arange(9.0).view(3, 3)
    state |= {"square": square, "transposed": square.t()}  # the same memory in a different order
    checkpoints, part = Checkpoints(tmp_path), Part()
    checkpoints.save(1, part=Part(state), wait=True)
    stored = load_file(tmp_path / "1" / "rank-0.safetensors")
    size = sum(tensor.nbytes for name, tensor in stored.items() if name.startswith("part."))
    assert size == 4000 * (1 if is_tied else 2) + 2000 + 36 * 2
    assert checkpoints.load(part=part) == 1
    assert same_bits(part.state, state)


def test_tied_weights_of_step_are_written_once(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    step, untrained = make_step(model=model), make_step(model=nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)))
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, step=step, wait=True)
    tensors = load_file(tmp_path / "1" / "rank-0.safetensors")
    names = sorted(key for key in tensors if key.startswith("step.model."))
    assert names == ["step.model.0.bias", "step.model.0.weight", "step.model.1.bias"]
    checkpoints.load_model(untrained.model)
    assert torch.equal(untrained.model[1].weight, model[0].weight)


def _places(path: Path) -> Any:
    with safe_open(path, "pt") as file:
        return json.loads(file.metadata()["DCP_SHARDING_INFO"])


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated:UserWarning")  # DCP's writer in torch 2.9
def test_files_are_those_of_dcp(tmp_path: Path) -> None:
    """The same keys and values. DCP's writer says in the same form where a tensor lies in the whole one."""
    state = {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor(7), "empty": torch.empty(0, 2)}
    Checkpoints(tmp_path).save(1, part=Part(state), wait=True)
    ours = tmp_path / "1" / "rank-0.safetensors"
    tensors = load_file(ours)
    writer = dcp.HuggingFaceStorageWriter(str(tmp_path / "dcp"), save_distributed=True)
    dcp.save(tensors, storage_writer=writer, no_dist=True)
    (theirs,) = (tmp_path / "dcp").glob("*.safetensors")
    assert _places(ours) == _places(theirs)
    by_dcp = load_file(theirs)
    assert tensors.keys() == by_dcp.keys()
    assert all(torch.equal(tensors[name], by_dcp[name]) for name in tensors)


# Optimizers as parts: the same bits, whatever their dtypes and options, or an error.

_BATCHES = [(inputs.bfloat16(), targets.bfloat16()) for inputs, targets in batches(9)]


def _train(model: nn.Module, optimizer: Optimizer, updates: list[Any]) -> None:
    for batch in updates:
        optimizer.zero_grad()
        mean_loss(model, batch).backward()
        optimizer.step()


def _check_part(directory: Path, kind: Callable[[Any], Optimizer]) -> None:
    """Compare a bf16 run with two that resume from a checkpoint, and with one that restores its state."""

    def trained(updates: list[Any]) -> tuple[nn.Module, Optimizer]:
        model = Net().bfloat16()
        optimizer = kind(model.parameters())
        _train(model, optimizer, updates)
        return model, optimizer

    uninterrupted, saved, fresh, used = (trained(_BATCHES[:count]) for count in (9, 6, 0, 2))
    checkpoints = Checkpoints(directory)
    checkpoints.save(6, model=saved[0], optimizer=saved[1], rejecting=Rejecting(1))
    for model, optimizer in (fresh, used):
        checkpoints.load(model=model, optimizer=optimizer)
    with pytest.raises(KeyError):
        checkpoints.load(model=saved[0], optimizer=saved[1], rejecting=Rejecting(2))
    for resumed in (fresh, used, saved):
        _train(*resumed, _BATCHES[6:])
        for one, other in zip(resumed, uninterrupted, strict=True):
            assert same_bits(one.state_dict(), other.state_dict())


@pytest.mark.parametrize("kind", [Foreign, torch.optim.NAdam, torch.optim.ASGD, torch.optim.AdamW])
def test_optimizer_keeps_dtypes_of_its_state(tmp_path: Path, kind: Any) -> None:
    """torch casts them to the dtype of the parameters when it loads them."""
    _check_part(tmp_path, lambda parameters: kind(parameters, lr=0.01))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        *("adabelief", "adan", "adopt", "ademamix", "came", "lamb", "lion", "madgrad", "prodigy", "tiger"),
        *("ranger21", "sara", "schedulefreeadamw", "soap", "spam", "stableadamw"),
    ],
)
def test_optimizers_of_other_library_resume(tmp_path: Path, name: str) -> None:
    import pytorch_optimizer

    kind = pytorch_optimizer.load_optimizer(name)
    options = {"num_iterations": 40} if name == "ranger21" else {}
    _check_part(tmp_path, lambda parameters: kind(parameters, lr=0.01, **options))

    def build() -> Any:
        model = Net()
        return make_step(model=model, optimizer=kind(model.parameters(), lr=0.01, **options))

    check_resume(build, batches(9), (1, 5))


@pytest.mark.parametrize(("saving", "loading"), [("", "module."), ("module.", "")])
def test_optimizer_may_name_a_wrapped_model(tmp_path: Path, saving: str, loading: str) -> None:
    def build(prefix: str) -> Optimizer:
        model = Net()
        optimizer = torch.optim.AdamW([(prefix + name, one) for name, one in model.named_parameters()])
        _train(model, optimizer, batches(1))
        return optimizer

    saved, loaded = build(saving), build(loading)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, optimizer=saved)
    checkpoints.load(optimizer=loaded)
    assert same_bits(loaded.state_dict()["state"], saved.state_dict()["state"])


# Several ranks.


@pytest.mark.slow
def test_states_and_checkpoints_on_two_ranks(tmp_path: Path) -> None:
    run_checks([rank_checks], tmp_path)
    part = Part()
    with pytest.warns(UserWarning, match=r"in part, part\.own are dropped"):
        Checkpoints(tmp_path / rank_checks.check_each_rank_gets_own_values_back.__name__).load(part=part)
    assert part.state["own"].tolist() == [0, 0, 0]


@pytest.mark.slow
def test_moments_and_schedulers_on_two_ranks(tmp_path: Path) -> None:
    run_checks([moment_checks], tmp_path)


@pytest.mark.slow
def test_loads_and_merges_under_other_world_size(tmp_path: Path) -> None:
    """From every wrapper to every other, with optimizers that have not stepped yet; to the bit."""
    for function in (world_sizes.save_all, world_sizes.load_all):
        function(tmp_path)
        run(function, tmp_path, processes=2)
        run(function, tmp_path, processes=4)
    run(world_sizes.load_all, tmp_path, processes=3)
