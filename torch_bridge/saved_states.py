"""Errors from a state that is malformed, or that is not a state at all."""

from collections.abc import Generator
from contextlib import contextmanager
from os import PathLike
from typing import Any

from torch_bridge.curve_api import checks


@contextmanager
def reading_state_of(owner: str, state_dict: Any) -> Generator[None]:
    """Turn errors from a malformed state into a ValueError that says it is not the state of `owner`."""
    if isinstance(state_dict, str | bytes | PathLike):
        raise ValueError(
            f"state_dict = {checks.short_repr(state_dict)} is a path, not a state: load the file first, "
            "load_state_dict(torch.load(path, weights_only=True)). Checkpoints(directory).load(...) loads "
            "what Checkpoints saved"
        )
    try:
        yield
    except ValueError:
        raise
    except KeyError as error:
        advice = f"it has no {error}"
        # The most likely mistake, so the message says more than which entry is missing.
        if error.args == ("last_epoch",) and "applied" in state_dict:
            advice = (
                "it is the state of a TrainStep. Load its 'model' and 'optimizer', then build lambda_lr("
                "optimizer, curve, last_epoch=state['applied'] - 1); with unit= or hold=, see "
                "docs/training_step.md, From a TrainStep to a scheduler"
            )
        raise ValueError(f"state_dict is not the state of {owner}: {advice}") from None
    except Exception as error:  # a wrong type can raise anything: a tensor in place of a number, for example
        raise ValueError(f"state_dict is not the state of {owner}: {error}") from None
