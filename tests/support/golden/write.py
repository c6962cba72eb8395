"""Write saved states, curves and digests of tables of this version.

`python -m support.golden.write [NAME …]`, in `tests/`, writes the files of these programs, curves
and tables, by default those that no version has. After a change of a format, name the programs
whose states have it: their files join the folder of this version. It never overwrites a file.
"""

import sys
from pathlib import Path

from support.distributed.processes import run
from support.golden.curves import CURVES, DESCRIPTIONS, describe_curve
from support.golden.files import FILES, add_digests, write_json, write_state
from support.golden.programs import CASES
from support.golden.tables import TABLES, describe_tables

from plateau_jax.version import VERSION


def missing_names() -> list[str]:
    """Return the names of the programs, curves and tables that no version has."""
    written = {path.stem for path in FILES.glob("*/curves/*.json")}
    written.update(path.stem for path in FILES.glob("*/tables/*.json"))
    written.update(path.name for path in FILES.glob("*/states/*"))
    names = (*CURVES, *DESCRIPTIONS, *TABLES, *CASES)
    return [name for name in names if name not in written]


def write(name: str, directory: Path) -> None:
    """Write the files of a program, a curve or tables into the folder of a version.

    Raises:
        FileExistsError: This version has them.
    """
    if name in TABLES:
        write_json(_file_in(directory / "tables", name), describe_tables(name))
        return
    if name not in CASES:
        write_json(_file_in(directory / "curves", name), describe_curve(name))
        return
    folder = directory / "states" / name
    folder.mkdir(parents=True)
    if CASES[name].processes == 1:
        shown = write_state(name, folder)
    else:
        shown = run(write_state, name, folder, processes=CASES[name].processes)[0]
    write_json(folder / "continued.json", shown)


def _file_in(folder: Path, name: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{name}.json"


if __name__ == "__main__":
    names = sys.argv[1:] or missing_names()
    directory = FILES / VERSION
    for name in names:
        write(name, directory)
    if names:
        add_digests(directory)
