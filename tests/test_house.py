"""The structure of the product's files: layers, import cycles, start-up, and awkward phrases."""

import ast
import re
from functools import cache
from graphlib import CycleError, TopologicalSorter

import pytest
from support.sources import PACKAGES, Import, Source, imports, prose, sources

# From the lowest to the highest: a file imports nothing from a layer above its own. Files in one line share
# a layer; within a folder that is listed as a whole, any file may import another.
_LAYERS = [
    # plateau_jax
    "plateau_jax.validation.checks",
    "plateau_jax.validation.curve_warning plateau_jax.validation.lazy_names",
    "plateau_jax.numerics.exact plateau_jax.numerics.arithmetic",
    "plateau_jax.numerics.shapes",
    "plateau_jax.numerics.levels",
    "plateau_jax.numerics.exact_segments",
    "plateau_jax.numerics.segments",
    "plateau_jax.numerics.powers",
    "plateau_jax.numerics.fixed_point",
    "plateau_jax.drawing.sampling plateau_jax.drawing.tables",
    "plateau_jax.drawing.notebook plateau_jax.drawing.axes",
    "plateau_jax.curves.serialization plateau_jax.curves.averaging_weights",
    "plateau_jax.curves.curve plateau_jax.curves.plateaus plateau_jax.curves.lengths",
    "plateau_jax.curves.derived_curves plateau_jax.curves.plateau_curve plateau_jax.curves.staged_curve",
    "plateau_jax.curves.scaled_curve plateau_jax.curves.several_curves plateau_jax.curves.saved_curves",
    "plateau_jax.schedule plateau_jax.batch_plan plateau_jax.plots",
    "plateau_jax.holds.rules plateau_jax.theory.curve_parts",
    "plateau_jax.theory.last_iterate plateau_jax.forecasts.lr_sums",
    "plateau_jax.forecasts.logged_lrs plateau_jax.forecasts.log_files",
    "plateau_jax.holds.decision plateau_jax.theory.comparison plateau_jax.forecasts.loss_comparison",
    "plateau_jax.forecasts.loss_law plateau_jax.forecasts.logs",
    "plateau_jax.forecasts.loss_run",
    "plateau_jax.forecasts.run_peaks",
    "plateau_jax.forecasts.logged_losses",
    "plateau_jax.forecasts.loss_checks",
    "plateau_jax.forecasts.loss_interval",
    "plateau_jax.forecasts.forecast_reasons",
    "plateau_jax.forecasts.loss_fit",
    "plateau_jax.forecasts.loss_fitting",
    "plateau_jax.forecasts.best_peaks",
    "plateau_jax.transformation plateau_jax.resume plateau_jax.option_parser",
    "plateau_jax.design.source plateau_jax.design.handles plateau_jax.design.questions",
    "plateau_jax.design.shape_choices",
    "plateau_jax.design.opened_logs",
    "plateau_jax.design.forecasts",
    "plateau_jax.design.answers",
    "plateau_jax.design.server",
    "plateau_jax.__main__",
    # torch_bridge
    "torch_bridge.curve_api",
    "torch_bridge.table torch_bridge.saved_states",
    "torch_bridge.schedulers",
    "torch_bridge.distributed",
    "torch_bridge.training.clock",
    "torch_bridge.training.optimizers",
    "torch_bridge.training.update",
    "torch_bridge.training.cuda_graphs",
    "torch_bridge.training.state",
    "torch_bridge.training.arguments torch_bridge.training.result",
    "torch_bridge.training.step",
    "torch_bridge.evaluation_sums",
    "torch_bridge.evaluation torch_bridge.metric_log torch_bridge.batch_size torch_bridge.profiling",
    "torch_bridge.checkpointing",
    "torch_bridge.data",
]

_REASON = re.compile(r"#.*\b(optional|start-?up|seconds?)\b")


def _assert_none(wrong: list[str]) -> None:
    assert not wrong, "\n".join(["", *wrong])


def _package(module: str) -> str:
    return module.partition(".")[0]


@cache
def _product_imports() -> list[tuple[Source, Import]]:
    """Return each import of one file of the product by another, also inside functions."""
    pairs = ((source, imported) for source in sources() for imported in imports(source))
    return [(source, imported) for source, imported in pairs if _package(imported.module) in PACKAGES]


def _layer(module: str) -> int | None:
    """The number of a module's layer; None for a package, whose `__init__` only has a docstring."""
    for number, names in enumerate(_LAYERS):
        if any(f"{module}.".startswith(f"{name}.") for name in names.split()):
            return number
    return None


def test_no_import_cycles() -> None:
    graph: dict[str, set[str]] = {}
    for source, imported in _product_imports():
        graph.setdefault(source.module, set()).add(imported.module)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" is imported by ".join(error.args[1]))


def test_no_imports_from_higher_layers() -> None:
    wrong: list[str] = []
    for source, imported in _product_imports():
        layer, other_layer = _layer(source.module), _layer(imported.module)
        if layer is not None and other_layer is not None and other_layer > layer:
            wrong.append(f"{source.place(imported.node)} imports {imported.module}")
    _assert_none(wrong)


def test_every_file_has_a_layer() -> None:
    _assert_none(
        [
            source.module
            for source in sources()
            if source.path.name != "__init__.py" and _layer(source.module) is None
        ]
    )


def test_torch_bridge_imports_plateau_jax_in_one_file() -> None:
    """And `plateau_jax` never imports `torch_bridge`."""
    _assert_none(
        [
            f"{source.place(imported.node)} imports {imported.module}"
            for source, imported in _product_imports()
            if _package(imported.module) != _package(source.module)
            and source.module != "torch_bridge.curve_api"
        ]
    )


def test_no_file_imports_its_package() -> None:
    """The package's `__init__` imports its files on demand. `__main__.py` may import the package."""
    _assert_none(
        [
            source.place(imported.node)
            for source, imported in _product_imports()
            if imported.module == _package(source.module) and source.path.name != "__main__.py"
        ]
    )


def _is_explained(source: Source, node: ast.Import | ast.ImportFrom) -> bool:
    """Return True if a comment explains the import: on it, above it, or above a block of imports."""
    lines = source.lines[node.lineno - 1 : node.end_lineno]
    for line in reversed(source.lines[: node.lineno - 1]):
        if not line.strip().startswith(("#", "from ", "import ")):
            break
        if line.strip().startswith("#"):
            lines.append(line)
    return any(_REASON.search(line) for line in lines)


def test_imports_inside_functions_have_a_reason() -> None:
    wrong = [
        f"{source.place(imported.node)} imports {imported.module}"
        for source in sources()
        for imported in imports(source)
        if imported.in_function and not _is_explained(source, imported.node)
    ]
    hint = ["each needs a comment: which optional dependency, or how much start-up time, it avoids"]
    _assert_none(wrong and hint + wrong)


def test_init_of_a_subpackage_is_a_docstring() -> None:
    """Otherwise importing one of its files would import others."""
    _assert_none(
        [
            source.module
            for source in sources()
            if source.path.name == "__init__.py"
            and source.module not in PACKAGES
            and not (len(source.tree.body) == 1 and ast.get_docstring(source.tree))
        ]
    )


_AWKWARD = {
    r"^(What|Whether)\b": 5,  # a definition without a verb: "Return …", or a noun
    r"\bis no\b(?! (longer|more))": 3,  # "is not a"
    r"\bso many\b": 0,  # "n"
    r"\bof (its|their|one's) own\b": 0,  # "separate", or nothing
    r"\bbeside\b": 5,  # "next to", "besides", "alongside"
    r"\ba training\b(?! (step|run|loop|update|set|job|program|script))": 3,  # "a training run"
}
"""Phrases that read like a translation, and how often docstrings and comments may have them."""


def test_awkward_phrases_are_rare() -> None:
    places: dict[str, list[str]] = {pattern: [] for pattern in _AWKWARD}
    for source in sources():
        for line, text in prose(source):
            for pattern in _AWKWARD:
                if matches := re.findall(pattern, text):
                    place = f"{pattern} in {source.path}:{line}: {text.strip().splitlines()[0]}"
                    places[pattern] += [place] * len(matches)
    _assert_none(
        [place for pattern in places if len(places[pattern]) > _AWKWARD[pattern] for place in places[pattern]]
    )
