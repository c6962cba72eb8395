"""`python -m support.surface`, in `tests/`, writes `surface.txt`."""

from support.surface.sections import write

if __name__ == "__main__":
    write()
