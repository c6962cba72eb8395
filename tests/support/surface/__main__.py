"""`python -m support.surface`, in `tests/`, writes `surface.txt` and the comments in `surface/`."""

from support.surface.programs import PROGRAMS, with_outcomes
from support.surface.sections import write

if __name__ == "__main__":
    write()
    for program in PROGRAMS:
        program.write_text(with_outcomes(program), encoding="utf-8")
