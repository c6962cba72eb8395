"""Write saved states and curves of this version.

`python -m support.golden.write [NAME …]`, in `tests/`, writes these programs and curves, by default
those that no version has. After a change of a format, name the programs whose states have it: their
files join the folder of this version. It never overwrites a file.
"""

import sys
from pathlib import Path

from support.distributed.processes import run
from support.golden.curves import CURVES, DESCRIPTIONS, describe_curve
from support.golden.files import FILES, version, write_json, write_state
from support.golden.programs import CASES


def missing_names() -> list[str]:
    """Return the names of the programs and curves that no version has."""
    written = {path.stem for path in FILES.glob("*/curves/*.json")}
    written.update(path.name for path in FILES.glob("*/states/*"))
    return [name for name in (*CURVES, *DESCRIPTIONS, *CASES) if name not in written]


def write(name: str, directory: Path) -> None:
    """Write the files of a program or a curve into the folder of a version.

    Raises:
        FileExistsError: This version has them.
    """
    if name not in CASES:
        folder = directory / "curves"
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / f"{name}.json", describe_curve(name))
        return
    folder = directory / "states" / name
    folder.mkdir(parents=True)
    if CASES[name].processes == 1:
        shown = write_state(name, folder)
    else:
        shown = run(write_state, name, folder, processes=CASES[name].processes)[0]
    write_json(folder / "continued.json", shown)


if __name__ == "__main__":
    for name in sys.argv[1:] or missing_names():
        write(name, FILES / version())
