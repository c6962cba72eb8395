"""One test for each private name of torch, NumPy and other libraries that the product uses.

The tests do not run the product, so a failure after an upgrade shows what changed in the library. The last
tests compare the names in `_shows` with those that occur in the product's files.
"""

import ast
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import safetensors.torch
import torch
from support import private_names, sources
from support.data.loaders import WORKERS
from support.distributed.processes import run
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn.utils import parametrizations, spectral_norm
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.optim.lr_scheduler import LambdaLR
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader

optim = torch.optim

_SHOWN: dict[str, Callable[..., None]] = {}
"""Each private name that the product uses, and the test that shows what it does."""


def _shows(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def mark(test: Callable[..., None]) -> Callable[..., None]:
        _SHOWN.update(dict.fromkeys(names, test))
        return test

    return mark


def _trained(build: Callable[..., optim.Optimizer], options: dict[str, Any]) -> tuple[Tensor, Any]:
    """Return a parameter and its fused optimizer after one update, with a gradient for the next."""
    parameter = nn.Parameter(torch.ones(3))
    optimizer = build([parameter], lr=torch.tensor(0.1), fused=True, **options)
    parameter.grad = torch.full((3,), 0.5)
    optimizer.step()
    return parameter, optimizer


@pytest.mark.parametrize(
    ("build", "options"),
    [(optim.Adam, {}), (optim.AdamW, {}), (optim.SGD, {"momentum": 0.9}), (optim.Adagrad, {})],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_fused_optimizers_skip_if_found_inf_is_one(build: Any, options: dict[str, Any]) -> None:
    parameter, optimizer = _trained(build, options)
    again, without = _trained(build, options)
    state = {name: value.clone() for name, value in optimizer.state[parameter].items()}
    before = parameter.detach().clone()
    optimizer.found_inf = torch.ones(())
    optimizer.step()
    assert torch.equal(parameter, before)
    assert all(torch.equal(optimizer.state[parameter][name], value) for name, value in state.items())

    optimizer.found_inf = torch.zeros(())
    optimizer.step()
    without.step()
    assert torch.equal(parameter, again)
    assert not torch.equal(parameter, before)


@_shows("_amp_update_scale_")
def test_amp_update_scale() -> None:
    """An overflow halves the scale; three updates in a row without one double it."""
    scale, good = torch.tensor(8.0), torch.tensor(0, dtype=torch.int32)
    for overflow, expected in ((0, (8, 1)), (1, (4, 0)), (0, (4, 1)), (0, (4, 2)), (0, (8, 0))):
        torch._amp_update_scale_(scale, good, torch.tensor(float(overflow)), 2.0, 0.5, 3)
        assert (int(scale), int(good)) == expected


@_shows("_foreach_norm", "_foreach_mul_", "_foreach_copy_")
def test_foreach() -> None:
    tensors = [torch.tensor([3.0, 4.0]), torch.tensor([[6.0], [8.0]])]
    norms = torch._foreach_norm(tensors, 2.0, dtype=torch.float64)
    assert [(float(norm), norm.dtype) for norm in norms] == [(5, torch.float64), (10, torch.float64)]
    torch._foreach_mul_(tensors, torch.tensor(2.0))
    assert [tensor.flatten().tolist() for tensor in tensors] == [[6, 8], [12, 16]]
    torch._foreach_copy_(tensors, [torch.zeros(2), torch.ones(2, 1)], non_blocking=True)
    assert [tensor.flatten().tolist() for tensor in tensors] == [[0, 0], [1, 1]]


@_shows("_pytree")
def test_pytree() -> None:
    tree = {"a": (torch.ones(2), 3), "b": [None]}
    leaves, structure = pytree.tree_flatten(tree)
    assert pytree.tree_unflatten(leaves, structure) == tree
    assert list(map(id, pytree.tree_leaves(tree))) == list(map(id, leaves))
    doubled = pytree.tree_map_only(Tensor, lambda leaf: leaf * 2, tree)
    assert doubled["a"][0].tolist() == [2, 2]
    assert (doubled["a"][1], doubled["b"]) == (3, [None])
    paths = [pytree.keystr(path) for path, _ in pytree.tree_leaves_with_path(tree)]
    assert paths == ["['a'][0]", "['a'][1]", "['b'][0]"]


@_shows("_is_view")
def test_is_view_distinguishes_views_from_results() -> None:
    parameter = nn.Parameter(torch.ones(2))
    assert parameter[0]._is_view()
    assert parameter[0].view(1)._is_view()
    assert not parameter.sum()._is_view()


@_shows("_indices", "_values")
def test_sparse_tensors_expose_indices_and_values() -> None:
    sparse = torch.eye(2).to_sparse().coalesce()
    sparse._values().mul_(3)
    assert sparse.to_dense().tolist() == [[3, 0], [0, 3]]
    assert sparse._indices().tolist() == [[0, 1], [0, 1]]


@_shows("_SpectralNorm", "_forward_pre_hooks")
def test_spectral_norm_is_a_module_or_a_hook() -> None:
    """Both change buffers in a forward pass."""
    parametrized, hooked = parametrizations.spectral_norm(nn.Linear(3, 3)), spectral_norm(nn.Linear(3, 3))
    assert any(isinstance(module, parametrizations._SpectralNorm) for module in parametrized.modules())
    assert [type(hook) for hook in hooked._forward_pre_hooks.values()] == [SpectralNorm]
    for module in (parametrized, hooked):
        before = [buffer._version for buffer in module.buffers()]
        module(torch.ones(1, 3))
        assert [buffer._version for buffer in module.buffers()] != before


@_shows("_parameters", "_buffers", "_modules")
def test_modules_keep_their_parts_in_dictionaries() -> None:
    module = nn.BatchNorm1d(2)
    assert module._parameters.keys() == {"weight", "bias"}
    assert module._buffers["running_mean"] is module.running_mean
    assert nn.Sequential(module)._modules == {"0": module}


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=WORKERS)])
def test_loader_draws_from_its_batch_sampler_attribute(workers: int) -> None:
    loader = DataLoader(list(range(6)), 2, num_workers=workers)
    batches = [[5], [0, 1, 2]]
    object.__setattr__(loader, "batch_sampler", batches)
    assert (len(loader), loader.batch_size) == (2, 2)
    for _ in range(2):
        assert [batch.tolist() for batch in loader] == batches


@_shows("_C", "_DisableFuncTorch")
def test_disable_functorch_makes_ordinary_tensors() -> None:
    made: list[Tensor] = []

    def function(x: Tensor) -> Tensor:
        made.append(torch.from_numpy(numbers).to(torch.int64))
        with torch._C._DisableFuncTorch():
            made.append(torch.from_numpy(numbers).to(torch.int64))
        return x

    numbers = np.arange(3, dtype=np.int32)
    torch.func.functionalize(function)(torch.ones(1))
    assert [torch._is_functional_tensor(tensor) for tensor in made] == [True, False]


def _scheduler(kind: type[LambdaLR] = LambdaLR) -> LambdaLR:
    optimizer = optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)
    return kind(optimizer, lambda step: 1 / (1 + step))


@_shows("_wrapped_by_lr_sched", "_get_lr_called_within_step", "_opt_called", "_step_count")
def test_scheduler_marks_and_counts_steps() -> None:
    assert not hasattr(optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0).step, "_wrapped_by_lr_sched")
    scheduler = _scheduler()
    optimizer = scheduler.optimizer
    assert hasattr(optimizer.step, "_wrapped_by_lr_sched")
    assert "_get_lr_called_within_step" in scheduler.state_dict()
    assert not hasattr(optimizer, "_opt_called")
    optimizer.step()
    assert optimizer._opt_called is True
    scheduler.step()
    assert (scheduler._step_count, scheduler.last_epoch) == (2, 1)
    assert optimizer.param_groups[0]["initial_lr"] == scheduler.base_lrs[0] == 1.0


@_shows("_optimizer_step_post_hooks")
@pytest.mark.slow
def test_only_the_inner_optimizer_has_step_hooks() -> None:
    from accelerate import Accelerator

    inner = optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)
    assert "_optimizer_step_post_hooks" in vars(inner)
    wrapped = Accelerator(cpu=True).prepare(inner)
    assert isinstance(wrapped, optim.Optimizer)
    assert "_optimizer_step_post_hooks" not in vars(wrapped)
    assert wrapped.optimizer is inner


@_shows("_update_lr", "_last_lr")
def test_scheduler_steps_through_update_lr() -> None:
    epochs: list[int | None] = []

    class Recording(LambdaLR):
        def _update_lr(self, epoch: int | None = None) -> None:
            epochs.append(epoch)
            self._last_lr: list[Any] = []

    scheduler = _scheduler(Recording)
    scheduler.optimizer.step()
    scheduler.step()
    with pytest.warns(UserWarning, match="epoch parameter"):
        scheduler.step(5)
    assert epochs == [None, None, 5]


@_shows("_FabricModule", "_strategy")
@pytest.mark.slow
def test_fabric_module_has_its_precision() -> None:
    from lightning_fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1, precision="bf16-mixed")
    module = nn.Linear(2, 1)
    model, optimizer = fabric.setup(module, optim.SGD(module.parameters(), lr=1.0))
    assert "_FabricModule" in {kind.__name__ for kind in type(model).__mro__}
    precision = model._strategy.precision
    assert callable(next(kind for kind in type(precision).__mro__ if kind.__name__ == "Precision").backward)
    assert isinstance(optimizer.optimizer, optim.SGD)


@_shows("_on_before_step", "_on_after_step")
@pytest.mark.slow
@pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec, LeafSpec\)` is deprecated:FutureWarning")
def test_lightning_counts_steps_by_two_callbacks() -> None:
    import lightning

    counts: list[int] = []

    class Module(lightning.LightningModule):
        automatic_optimization = False

        def configure_optimizers(self) -> Any:
            return optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)

        def training_step(self, batch: Any, batch_idx: int) -> None:
            optimizer: Any = self.optimizers()
            optimizer._on_before_step()
            counts.append(self.trainer.global_step)
            optimizer._on_after_step()
            counts.append(self.trainer.global_step)

    options: Any = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = lightning.Trainer(accelerator="cpu", max_epochs=1, enable_model_summary=False, **options)
    trainer.fit(Module(), train_dataloaders=[0, 1])
    assert counts == [0, 1, 1, 2]


@_shows("_neg_view")
def test_negative_view_shares_memory() -> None:
    tensor = torch.tensor([1.0, -2.0])
    view = torch._neg_view(tensor)
    assert (view.is_neg(), view.tolist()) == (True, [-1, 2])
    assert view.data_ptr() == tensor.data_ptr()


@_shows("_metadata")
def test_state_of_a_module_has_submodule_versions() -> None:
    module = nn.Sequential(nn.BatchNorm1d(2))
    state: Any = module.state_dict()
    assert state._metadata == {"": {"version": 1}, "0": {"version": 2}}
    del state["0.num_batches_tracked"]  # version 1 of BatchNorm did not have it
    with pytest.raises(RuntimeError, match="num_batches_tracked"):
        module.load_state_dict(state)
    state._metadata = {"0": {"version": 1}}
    module.load_state_dict(state)


@_shows("_extra_state")
def test_extra_state_of_a_module_has_a_separate_key() -> None:
    class Extra(nn.Module):
        def get_extra_state(self) -> int:
            return 3

    assert nn.Sequential(Extra()).state_dict() == {"0._extra_state": 3}


@_shows("_orig_mod")
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_compiled_module_holds_the_original() -> None:
    module = nn.Linear(1, 1)
    assert torch.compile(module)._orig_mod is module


@_shows("_checkpoint_wrapped_module", "_modules")
def test_activation_checkpointing_keeps_parameter_names() -> None:
    module: Any = nn.Sequential(checkpoint_wrapper(nn.Linear(1, 1)))
    assert list(module.state_dict()) == ["0.weight", "0.bias"]
    assert list(module._modules) == ["0"]
    assert list(module[0]._modules) == ["_checkpoint_wrapped_module"]


@_shows("_get_default_store")
@pytest.mark.slow
def test_ranks_share_the_default_store() -> None:
    assert run(private_names.share_a_value, processes=2) == ["1", "0"]


@_shows("__jax_array__")
@pytest.mark.slow
def test_nnx_params_convert_to_jax_arrays() -> None:
    import jax.numpy as jnp
    from flax import nnx

    array = jnp.ones(2)
    variable = nnx.Param(array)
    assert variable.__jax_array__() is array
    assert jnp.add(variable, 1).tolist() == [2, 2]


@_shows("_local_tensor", "_utils")
@pytest.mark.slow
def test_dtensors_hold_their_local_tensors() -> None:
    run(private_names.check_dtensors, processes=1)


@_shows("_get_fsdp_state", *private_names.FSDP)
@pytest.mark.slow
def test_sharded_modules_hold_their_fsdp_state() -> None:
    run(private_names.check_fsdp, processes=1)


@_shows(*private_names.DDP)
@pytest.mark.slow
def test_ddp_exposes_what_it_averages() -> None:
    run(private_names.check_ddp, processes=1)


@_shows("__metadata__")
def test_safetensors_reserves_its_metadata_key() -> None:
    data = safetensors.torch.save({"__metadata__": torch.ones(2)})
    with pytest.raises(safetensors.SafetensorError):
        safetensors.torch.load(data)


# Part of an error message of a CUDA library, not a Python name.
_TEXTS = {"_STATUS_ALLOC_FAILED"}


def test_each_private_name_has_a_test() -> None:
    missing = {name: places for name, places in sources.private_names().items() if name not in _SHOWN}
    assert missing.keys() == _TEXTS, "\n".join(
        f"{name} needs a test with @_shows: {', '.join(places)}" for name, places in missing.items()
    )
    text = "\n".join(line for source in sources.sources() for line in source.lines)
    unused = [name for name in _SHOWN if not re.search(rf"\b{name}\b", text)]
    assert unused == [], "shown, and no longer used"


def test_private_names_are_found_in_every_position(tmp_path: Path) -> None:
    uses = [
        "x._hidden",
        "getattr(x, '_hidden')",
        "vars(x)['_hidden']",
        "x._hidden = 3",
        "call(_hidden=3)",
        "from torch._hidden import name",
        "from torch.more import _hidden as name",
        "import torch._hidden.more",
        "class C:\n    _hidden: int\n    def f(self): self._hidden = 3",
    ]
    ours = [
        "class C:\n    def _hidden(self): ...\nC()._hidden",
        "class C:\n    def f(self): self._hidden = 3\nC()._hidden",
        "def f(_hidden): ...\nf(_hidden=3)",
        "from plateau_jax import _hidden",
        "'a sentence with _hidden in it'",
        "x.hidden",
    ]
    for text in [*uses, *ours]:
        path = tmp_path / "file.py"
        source = sources.Source(path, "plateau_jax.file", ast.parse(text), text.splitlines())
        with patch.object(sources, "sources", lambda source=source: [source]):
            names = sources.private_names()
        assert set(names) == ({"_hidden"} if text in uses else set()), text
