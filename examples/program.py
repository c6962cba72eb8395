"""What the examples share: where they may write, and how they end on Ctrl-C or without a package.

An example imports it first, before what takes long to import: from then on a Ctrl-C ends it with one line,
and a missing package with the command that installs it.
"""

import contextlib
import os
import signal
import sys
import tempfile
import threading
from argparse import ArgumentParser, Namespace
from pathlib import Path


def leave_on_ctrl_c() -> None:
    """From now on a Ctrl-C ends the program at once: nothing has to be saved."""
    signal.signal(signal.SIGINT, _leave)


def stop_between_updates(*signals: signal.Signals) -> threading.Event:
    """An event that a Ctrl-C, or another signal, sets. A second one ends the program at once."""
    stop = threading.Event()

    def stop_soon(number, _):
        stop.set()
        signal.signal(number, _leave)

    for each in (signal.SIGINT, *signals):
        signal.signal(each, stop_soon)
    return stop


def parse_with_checkpoint(parser: ArgumentParser):
    """The arguments and, with --resume, the checkpoint, whose settings are the defaults; else None."""
    import torch  # seconds of start-up; some examples are in JAX alone

    default = Path(sys.argv[0]).with_suffix(".pt").name
    parser.add_argument("--checkpoint", type=Path, default=Path(default), metavar="FILE")
    parser.add_argument("--resume", action="store_true", help="continue from the checkpoint of a Ctrl-C")
    args, saved = parser.parse_args(), None
    if args.resume:
        if not args.checkpoint.exists():
            parser.error(f"--resume: there is no checkpoint {args.checkpoint}")
        saved = torch.load(args.checkpoint, map_location="cpu")
        parser.set_defaults(**saved["settings"])
        args = parser.parse_args()
    return args, saved


def save_and_exit(args: Namespace, done: int, **states: object) -> None:
    """Write the checkpoint of a training that was stopped after so many updates, and end the program."""
    import torch  # the same

    args.checkpoint.parent.mkdir(parents=True, exist_ok=True)
    partial = args.checkpoint.with_suffix(".partial")
    # Paths as text: torch loads plain values alone.
    settings = {name: str(value) if isinstance(value, Path) else value for name, value in vars(args).items()}
    torch.save({"settings": settings, "done": done, **states}, partial)
    os.replace(partial, args.checkpoint)
    print(f"stopped after update {done}; {args.checkpoint} goes on with --resume")
    sys.exit(130)


def forever(loader):
    """The batches of one epoch after the other."""
    while True:
        yield from loader


def check_positive(parser: ArgumentParser, args: Namespace, *names: str) -> None:
    """Refuse options below 1."""
    if min(getattr(args, name) for name in names) < 1:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in names)
        parser.error(f"{options} must be at least 1")


def with_way_out(error: Exception, options: str) -> str:
    """The error; if a checkpoint is of another curve, also the options that --resume works without."""
    way_out = f"; without {options}, --resume goes on as planned" if "saved under" in str(error) else ""
    return f"{error}{way_out}"


def check_writable(parser: ArgumentParser, option: str, path: Path) -> None:
    """Refuse a file or a folder that could not be written, before the training and not after it."""
    nearest = next(each for each in (path, *path.absolute().parents) if each.exists())
    try:
        if path.is_file():
            path.open("ab").close()
        else:
            tempfile.TemporaryFile(dir=nearest).close()
    except OSError as error:
        parser.error(f"{option} {path} can't be written: {error.strerror}")


def check_picture(parser: ArgumentParser, file: Path) -> None:
    """The same for a picture, whose name says its format."""
    import matplotlib.pyplot as plt  # seconds of start-up, that only pictures need

    if file.suffix[1:] not in plt.Figure().canvas.get_supported_filetypes():
        parser.error(f"--output {file} must end in .png, or another format of matplotlib's")
    check_writable(parser, "--output", file)


def save_picture(figure, file: Path) -> None:
    """Write a matplotlib figure, and its folder."""
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=150)


def check_device(parser: ArgumentParser, device: str) -> None:
    """Refuse a device that torch does not know or does not have."""
    import torch  # seconds of start-up; some examples are in JAX alone

    try:
        torch.empty(0, device=device)
    except (AssertionError, RuntimeError) as error:
        parser.error(f"--device {device}: {str(error).splitlines()[0]}")


def _leave(*_: object) -> None:
    with contextlib.suppress(RuntimeError):  # It came in the middle of a write.
        sys.stdout.flush()
    os.write(1, b"\nstopped\n")
    os._exit(130)  # not by an exception, which the import of a package may swallow


def _explain(kind, error, traceback) -> None:
    if issubclass(kind, ImportError):
        missing = f"needs {error.name}" if issubclass(kind, ModuleNotFoundError) else error
        print(f"{Path(sys.argv[0]).name}: {missing}; pip install -e '.[examples]'", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, traceback)


# Measured with the defaults, pinned to one core of a shared machine: minutes, GB of memory.
_COSTS = {
    "batch_plan.py": (1.9, 0.5),
    "branch_cooldowns.py": (0.9, 0.8),
    "sweep.py": (0.4, 0.5),
    "train_bloom.py": (0.8, 0.7),
    "train_digits.py": (0.4, 0.7),
    "train_flax.py": (0.5, 0.6),
    "train_gpt.py": (0.8, 0.4),
    "train_lstm.py": (0.2, 0.4),
}


def _say_cost() -> None:
    name = Path(sys.argv[0]).name
    if name in _COSTS and os.environ.get("RANK", "0") == "0":
        minutes, memory = _COSTS[name]
        print(
            f"{name}: {minutes:g} min and {memory:g} GB of memory on one CPU core, with its defaults",
            file=sys.stderr,
        )


# Not where a benchmark or a test imports an example.
if Path(sys.argv[0]).resolve().parent == Path(__file__).resolve().parent:
    leave_on_ctrl_c()
    sys.excepthook = _explain
    _say_cost()
