"""Run the programs of all pages twice in this folder: `python -m support.docs.environments [ABSENT …]`.

Readers may have JAX alone or PyTorch alone. Blocks that need an absent package are left out, and the others
must run without them. A second run finds the files of the first, and those of other programs.
"""

import ast
import contextlib
import io
import runpy
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from support.docs.pages import Program, assert_printed, programs

from plateau_jax import CurveWarning

COMPARISONS = {"pytorch_and_jax"}
"""Pages that compare JAX with PyTorch, and need both."""


def runnable_code(program: Program) -> str:
    """Return a program without the blocks that need an absent package; "" if its introduction does."""
    introduction = runnable_blocks(program.introduction)
    if len(introduction) < len(program.introduction):
        return ""
    blocks = runnable_blocks(program.introduction + program.blocks)
    return "\n".join(blocks) if len(blocks) > len(introduction) else ""


def runnable_blocks(blocks: Sequence[str]) -> list[str]:
    """Leave out each block that imports an absent package, or uses what another block imports from it."""
    absent, runnable = set[str](), list[str]()
    for block in blocks:
        nodes = list(ast.walk(ast.parse(block)))
        missing = {name for node in nodes for name in missing_names(node)}
        absent |= missing
        if not missing and absent.isdisjoint(node.id for node in nodes if isinstance(node, ast.Name)):
            runnable.append(block)
    return runnable


def missing_names(node: ast.AST) -> Iterator[str]:
    """Yield the names that an import statement cannot bind for want of a package."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        before = f"from {node.module} " if isinstance(node, ast.ImportFrom) else ""
        for alias in node.names:
            try:
                exec(f"{before}import {alias.name}", {})
            except ModuleNotFoundError:
                yield alias.asname or alias.name.partition(".")[0]


def run(code: str) -> None:
    """Run a program, and check what it prints. Our warnings are errors; `test_pages` checks the others."""
    output, file = io.StringIO(), Path("program.py")
    file.write_text(code, encoding="utf-8")
    with contextlib.redirect_stdout(output), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", CurveWarning)
        runpy.run_path(str(file), run_name="__main__")
    assert_printed(code, output.getvalue())


def run_all(absent: Sequence[str]) -> int:
    """Print the errors of the programs, and return how many there are."""
    for name in absent:
        # Importing the package then raises ModuleNotFoundError.
        sys.modules[name] = None  # pyright: ignore[reportArgumentType]
    errors = 0
    for program in programs():
        if absent and program.page.stem in COMPARISONS:
            continue
        code = runnable_code(program)
        for number in (1, 2) if code else ():
            try:
                run(code)
            except Exception:
                print(f"{program.name}, run {number}: {traceback.format_exc()}")
                errors += 1
    return errors


if __name__ == "__main__":
    sys.exit(run_all(sys.argv[1:]) > 0)
