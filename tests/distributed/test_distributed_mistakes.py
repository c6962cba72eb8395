"""Mistakes over several ranks: errors, layers without gradients, missing averages, losses of two kinds."""

from itertools import product

import numpy as np
import pytest
from support.distributed.mistakes import (
    all_kinds_of_losses,
    divided_by,
    errors_after_an_error,
    expected_after,
    rejected_under_ddp,
    unwrapped,
    updates_without_an_average,
    weights_after,
)
from support.distributed.processes import run

pytestmark = pytest.mark.slow


def test_step_rejects_calls_after_an_error() -> None:
    """Wherever the error came: other ranks may wait in a collective, and torch's wrappers are in mid-pass."""
    cases = list(product(("ddp", "fsdp"), ("forward", "backward", "optimizer")))
    for messages in run(errors_after_an_error, cases):
        for (message,) in messages:
            assert "restart the program from its last checkpoint" in message


@pytest.mark.parametrize(
    "case", ["skipped in the last micro-batch", "frozen after wrapping", "frozen while training"]
)
def test_update_without_ddps_average_is_rejected(case: str) -> None:
    for message, is_unchanged in run(rejected_under_ddp, case):
        assert "has not averaged the gradients" in message
        assert "find_unused_parameters=True" in message
        assert is_unchanged


@pytest.mark.parametrize("how", [("ddp",), ("fsdp",), ("fsdp", "all"), ("fsdp", "a part")], ids=" ".join)
def test_averaged_gradients_match_one_process(how: tuple[str, ...]) -> None:
    """Even if an earlier training loop has switched the averaging off."""
    for weights, expected in zip(run(weights_after, *how), run(expected_after), strict=True):
        for one, other in zip(weights, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)


def test_mixed_means_and_pairs_are_skipped_on_all_ranks() -> None:
    """Even if large sums could overflow, for which ranks with pairs communicate once more."""
    ways = [("ddp", "fp32"), ("fsdp", "fp32"), ("ddp", "fp16"), ("fsdp", "fp16")]
    ways += [("ddp by fp16", "fp32"), ("fsdp by fp16", "fp32")]
    cases = [(*way, first) for way in ways for first in ("", "mean", "pair")]
    for results in run(all_kinds_of_losses, cases):
        for case, (loss, *others) in zip(cases, results, strict=True):
            assert np.isnan(loss), case
            assert others == [0, 2, True], case


@pytest.mark.parametrize("is_compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("wrong", ["module", "closed over", "no_grad"])
def test_update_that_bypasses_ddp_is_rejected(wrong: str, is_compiled: bool) -> None:
    for message, is_unchanged in run(updates_without_an_average, wrong, is_compiled):
        assert "has not averaged the gradients: loss_fn did not call it" in message
        assert "model(inputs)" in message
        assert is_unchanged


@pytest.mark.parametrize("how", ["plain", "inner", "meant"])
def test_unwrapped_model_warns_unless_intended(how: str) -> None:
    for messages in run(unwrapped, how):
        if how == "meant":
            assert messages == []
        else:
            (warning,) = messages
            assert warning.startswith("CurveWarning")
            assert "mistakes.py" in warning
            assert "distribute(model, None)" in warning


@pytest.mark.parametrize("part", [False, True], ids=["the model", "a part"])
def test_gradient_divide_factor_is_rejected(part: bool) -> None:
    for plain, with_sums, *messages in run(divided_by, [None, 1.0, 2.0], part):
        np.testing.assert_allclose(plain[0], with_sums[0], rtol=0, atol=1e-7)
        assert all("averages over the 2 ranks" in message for message in messages)
        assert len(messages) == 4
