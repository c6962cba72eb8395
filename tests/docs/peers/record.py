"""Record the learning rates of other libraries' schedulers again, with their own code.

In `tests/`, in the environment of the tests: `python -m docs.peers.record`.

The first line of `learning_rates.jsonl` has the version or the commit of each library. Each other
line has an original, as a row of the pages names it, and its cases. A case has values for the names
of the row, and the multiplier of each update with 12 digits. If they are needed, it has the samples
or tokens of each update (`counts`), the numbers of the updates, otherwise 0, 1, 2, …, and the error
that the original raises then. In a new case, leave out `levels`.

The levels of the other libraries come from their own code at the commit, in the order of their own
training loop. `git log -p -- "tests/*/peers"` shows the programs.

To add a row:

1. Write it on `docs/other_schedulers.md`, where the columns are explained, with the version or the
   commit of a new library under its heading. `Requires` is a condition in Python. The curve must
   also be right without a warmup, a plateau or a decay, or the row requires `warmup >= 1`.
2. Add a line to `learning_rates.jsonl`, with cases that cover all corners: the shortest warmup,
   plateau and decay that the row allows, and a run of one update.
3. Record the levels. For torch, transformers and optax, run this program. For any other library,
   run its own code at the cited commit, and show the program in the commit message.

If you run this program with other versions, `git diff` shows the rows that have aged.
"""

import json
import math
from collections.abc import Iterator
from importlib.metadata import version
from itertools import count, islice
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import optax  # pyright: ignore[reportMissingTypeStubs]
import transformers.optimization
from torch import ones
from torch.nn import Parameter
from torch.optim import SGD, lr_scheduler

RECORD = Path(__file__).with_name("learning_rates.jsonl")
INSTALLED = {"torch": lr_scheduler, "transformers": transformers.optimization, "optax": optax}
"""The module that has the schedulers of a library."""


def read_record() -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Return the source of each library, and the originals with their cases."""
    sources, *lines = map(json.loads, RECORD.read_text("utf-8").splitlines())
    return sources, lines


def levels(library: str, original: str, settings: dict[str, Any]) -> Iterator[float]:
    """Yield the multiplier of each update, also past the end."""
    names = vars(INSTALLED[library]) | vars(math) | settings
    if library == "optax":
        schedule = eval(original, names)
        for update in count():
            yield float(schedule(jnp.int32(update))) / settings["peak"]

    optimizer = SGD([Parameter(ones(1))], settings["peak"], momentum=0.9)
    call = original.removeprefix("momentum of ")
    scheduler = eval(call, names | {"optimizer": optimizer})
    while True:
        (group,) = optimizer.param_groups
        yield group["lr"] / settings["peak"] if call == original else group["momentum"]
        optimizer.step()
        scheduler.step()


def record(case: dict[str, Any], levels: Iterator[float]) -> None:
    """Write the levels of the updates into a case, up to an error of the original."""
    assert "updates" not in case, "every update is recorded, and not only some"
    length = len(case.pop("levels", range(36))) + (case.pop("raises", None) is not None)
    case["levels"] = []
    try:
        for level in islice(levels, length):
            # 12 digits are more than the tests compare, and fewer than differ between two machines.
            case["levels"].append(float(f"{level:.12g}"))
    except (AssertionError, ValueError) as raised:
        if not case["levels"]:
            raise
        case["raises"] = type(raised).__name__


def main() -> None:
    sources, lines = read_record()
    for line in lines:
        library, original = line["library"], line["original"]
        if library not in INSTALLED:
            continue
        sources[library] = f"{library}=={version(library).partition('+')[0]}"
        for case in line["cases"]:
            record(case, levels(library, original, case["settings"]))
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in (sources, *lines))
    RECORD.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
