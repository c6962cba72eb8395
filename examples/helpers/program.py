"""Helpers of the examples: checks of their arguments, checkpoints, and a clean end on Ctrl-C.

Examples import this module first, before packages that take seconds to import. From then on, Ctrl-C
ends the program with one line, and a missing package is reported with the command that installs it.
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
    """Let Ctrl-C end the program at once from now on, because there is nothing to save."""
    signal.signal(signal.SIGINT, _leave)


def stop_between_updates(*signals: signal.Signals) -> threading.Event:
    """Return an event that Ctrl-C or a signal sets. A second signal ends the program at once."""
    stop = threading.Event()

    def request_stop(number, _):
        stop.set()
        signal.signal(number, _leave)

    for number in (signal.SIGINT, *signals):
        signal.signal(number, request_stop)
    return stop


def parse_with_checkpoint(parser: ArgumentParser):
    """Parse the arguments; with --resume, also return the checkpoint with its defaults."""
    import torch  # takes seconds, and some examples use only JAX

    default = Path(sys.argv[0]).with_suffix(".pt").name
    parser.add_argument("--checkpoint", type=Path, default=Path(default), metavar="FILE")
    parser.add_argument(
        "--resume", action="store_true", help="continue from the checkpoint that Ctrl-C saved"
    )
    args, saved = parser.parse_args(), None
    if args.resume:
        if not args.checkpoint.exists():
            parser.error(f"--resume: there is no checkpoint {args.checkpoint}")
        saved = torch.load(args.checkpoint, map_location="cpu")
        parser.set_defaults(**saved["settings"])
        args = parser.parse_args()
    return args, saved


def save_and_exit(args: Namespace, done: int, **states: object) -> None:
    """Save a training run that was stopped after `done` updates, and end the program."""
    import torch  # likewise

    args.checkpoint.parent.mkdir(parents=True, exist_ok=True)
    partial = args.checkpoint.with_suffix(".partial")
    # torch.load accepts plain values only, so paths are saved as text.
    settings = {
        name: str(value) if isinstance(value, Path) else value for name, value in vars(args).items()
    }
    torch.save({"settings": settings, "done": done, **states}, partial)
    os.replace(partial, args.checkpoint)
    print(f"stopped after update {done}; {args.checkpoint} resumes with --resume")
    sys.exit(130)


def forever(loader):
    """Yield the batches of epoch after epoch."""
    while True:
        yield from loader


def check_positive(parser: ArgumentParser, args: Namespace, *names: str) -> None:
    """Reject options below 1."""
    if min(getattr(args, name) for name in names) < 1:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in names)
        parser.error(f"{options} must be at least 1")


def with_resume_hint(error: Exception, options: str) -> str:
    """Return the error; if the checkpoint has another curve, add which options to leave out."""
    hint = (
        f"; without {options}, --resume continues as planned"
        if "differ from step" in str(error)
        else ""
    )
    return f"{error}{hint}"


def check_writable(parser: ArgumentParser, option: str, path: Path) -> None:
    """Reject a file or folder that cannot be written, before training rather than after it."""
    nearest = next(place for place in (path, *path.absolute().parents) if place.exists())
    try:
        if path.is_file():
            path.open("ab").close()
        else:
            tempfile.TemporaryFile(dir=nearest).close()
    except OSError as error:
        parser.error(f"{option} {path} can't be written: {error.strerror}")


def check_picture(parser: ArgumentParser, file: Path) -> None:
    """Reject a picture that cannot be written, or whose suffix is not a known format."""
    import matplotlib.pyplot as plt  # takes a second, and only pictures need it

    if file.suffix[1:] not in plt.Figure().canvas.get_supported_filetypes():
        parser.error(
            f"--output {file} must end in .png, or in another format that matplotlib writes"
        )
    check_writable(parser, "--output", file)


def save_picture(figure, file: Path) -> None:
    """Write a matplotlib figure, creating its folder."""
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=150)


def check_device(parser: ArgumentParser, device: str) -> None:
    """Reject a device that torch does not know or does not have."""
    import torch  # takes seconds, and some examples use only JAX

    try:
        torch.empty(0, device=device)
    except (AssertionError, RuntimeError) as error:
        parser.error(f"--device {device}: {str(error).splitlines()[0]}")


def _leave(*_: object) -> None:
    with contextlib.suppress(RuntimeError):  # the signal interrupted a write
        sys.stdout.flush()
    os.write(1, b"\nstopped\n")
    os._exit(130)  # an exception could be swallowed by a package that is being imported


def _report_error(kind, error, traceback) -> None:
    if issubclass(kind, ImportError):
        missing = f"needs {error.name}" if issubclass(kind, ModuleNotFoundError) else error
        print(f"{Path(sys.argv[0]).name}: {missing}; pip install -e '.[examples]'", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, traceback)


# Minutes and GB of memory with the defaults, measured on one core of a shared machine.
_COSTS = {
    "batch_plan.py": (1.9, 0.5),
    "branch_cooldowns.py": (0.6, 0.8),
    "sweep.py": (0.4, 0.5),
    "train_bloom.py": (0.8, 0.7),
    "first_run.py": (0.3, 0.8),
    "train_flax.py": (0.5, 0.6),
    "train_gpt.py": (0.8, 0.4),
    "train_lstm.py": (0.2, 0.4),
}


def _print_cost() -> None:
    name = Path(sys.argv[0]).name
    if name in _COSTS and os.environ.get("RANK", "0") == "0":
        minutes, memory = _COSTS[name]
        print(
            f"{name}: {minutes:g} min and {memory:g} GB of memory on one CPU core, with its "
            "defaults",
            file=sys.stderr,
        )


# Only if an example is the program, not if a benchmark or a test imports one.
if Path(sys.argv[0]).resolve().parent == Path(__file__).resolve().parents[1]:
    leave_on_ctrl_c()
    sys.excepthook = _report_error
    _print_cost()
