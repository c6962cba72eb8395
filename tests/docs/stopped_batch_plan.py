"""Run `batch_plan.py` up to the n-th time that it asks whether a Ctrl-C has come: then it has.

python stopped_batch_plan.py N ARGUMENTS...

The arrival of a real Ctrl-C depends on the speed of the machine.
"""

import itertools
import runpy
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def main() -> None:
    sys.path.insert(0, str(EXAMPLES))
    import train_gpt

    last_question = int(sys.argv.pop(1))
    questions = itertools.count(1)

    def stopped(stop: object, device: object) -> bool:
        return next(questions) == last_question

    train_gpt.stopped = stopped
    runpy.run_path(str(EXAMPLES / "batch_plan.py"), run_name="__main__")


if __name__ == "__main__":
    main()
