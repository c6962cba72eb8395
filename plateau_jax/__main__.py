"""`python -m plateau_jax`: the process around `tools/command_line/main.py`."""

import signal
import sys
import warnings
from io import TextIOWrapper

from plateau_jax.tools.command_line.main import main


def _format_warning(message: Warning | str, *_: object, **__: object) -> str:
    """Format a warning without a source line: in a shell, there is none of the user's."""
    return f"python -m plateau_jax: warning: {message}\n"


if __name__ == "__main__":
    warnings.formatwarning = _format_warning
    if isinstance(sys.stdout, TextIOWrapper):
        # "?" in place of characters that its encoding lacks.
        sys.stdout.reconfigure(errors="replace")
    if hasattr(signal, "SIGPIPE"):  # not on Windows
        # In `… | head`, end silently like other commands, rather than with a BrokenPipeError.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
