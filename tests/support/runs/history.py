"""What other processes do with the file of `check_resume_file`."""

import os
import signal
from pathlib import Path
from typing import Any
from unittest.mock import patch

from plateau_jax import check_resume_file


def end_in_the_write(path: Path, record: dict[str, Any], step: int) -> None:
    """Be killed when the new file is complete, but has not replaced the old one."""

    def kill(*arguments: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with patch.object(Path, "replace", kill):
        check_resume_file(path, record, step)
