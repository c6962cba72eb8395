"""Wrapped models: in a group of one process, wrapping changes nothing; unsupported wrapping is rejected."""

import pytest
from support.distributed.processes import run
from support.distributed.wrapped_models import (
    MODELS,
    cases_with_other_bits,
    compiled_models,
    graphs_rejected,
    not_averaged,
    optimizers_run,
    rejections,
)
from support.training.models import Net
from support.training.optimizers import FUSED, OPTIMIZERS

pytestmark = pytest.mark.slow


def test_wrapped_model_has_bits_of_plain_model() -> None:
    assert run(cases_with_other_bits, processes=1) == [[]]


def test_unsupported_wrapping_is_rejected() -> None:
    (messages,) = run(rejections, processes=1)
    parts = {
        "a part in DDP": "DistributedDataParallel",
        "all sharded, in another module": "FSDPModule",
        "sharded in part": "a part of it",
        "a part left out": "sharded in part",
        "a part that DDP ignores": "does not average",
        "a part that was frozen for DDP": "does not average",
        "a part that is new to DDP": "does not average",
        "a DTensor": "DTensors",
        "two meshes": "several meshes",
    }
    assert messages.keys() == MODELS.keys() == parts.keys()
    for name, part in parts.items():
        assert part in messages[name]


def test_calls_without_average_are_rejected() -> None:
    ((inside, unfrozen),) = run(not_averaged, processes=1)
    assert "no_sync" in inside
    assert "does not average" in unfrozen


def test_cuda_graph_rejects_wrapped_model() -> None:
    message = "cuda_graph=True needs a model that is not wrapped for several ranks"
    assert run(graphs_rejected, processes=1) == [[message] * 2]


def test_optimizers_on_sharded_parameters() -> None:
    names = [*FUSED, *(name for name in OPTIMIZERS if name not in FUSED)]
    (messages,) = run(optimizers_run, names, processes=1)
    rejected = {"sgd", "momentum", "nesterov", "adagrad", "adafactor", "rprop", "muon"}
    assert {name for name in names if "torch cannot run" in messages[name]} == rejected
    assert {name for name in names if not messages[name]} == set(names) - rejected


def test_compiled_wrappers_keep_plain_names() -> None:
    names = set(Net().state_dict())
    assert run(compiled_models, processes=1) == [[names, names]]
