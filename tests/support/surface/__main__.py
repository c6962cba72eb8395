"""`python -m support.surface`, in `tests/`, writes the public surface into `surface.txt`."""

from support.surface.sections import write

if __name__ == "__main__":
    write()
