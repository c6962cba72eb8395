"""States that a training step rejects: of another run, of another object, or damaged."""

from functools import partial

import pytest
import torch
from support.raises import raises
from support.training.models import Net, batches, counting_loss
from support.training.steps import make_step, train
from support.trees import assert_equal_trees
from torch.optim import SGD
from train_step.kinds_of_run import KINDS

from plateau_jax import CurveWarning, PlateauCurve


def check_rejected(step, state, part, **options):
    with raises(ValueError, part, unchanged=[step]):
        step.load_state_dict(state, **options)


# States of different runs. `clocks/test_states` has those of other curves and clocks.


def with_carry(size):
    return partial(make_step, loss_fn=counting_loss, carry=torch.zeros(size))


@pytest.mark.parametrize(
    ("build", "build_other", "part"),
    [
        (make_step, KINDS["adamw, bf16"].build, "precision = "),
        (make_step, KINDS["sgd"].build, "optimizer_type = "),
        (make_step, KINDS["groups"].build, "different parameter groups"),
        (
            KINDS["plain adam"].build,
            KINDS["Adam in bfloat16"].build,
            "a different model: first.weight:",
        ),
        (with_carry(1), with_carry(3), "a different carry: 0: "),
    ],
)
def test_neither_of_two_runs_loads_the_state_of_the_other(build, build_other, part):
    step = build()
    other = build_other()
    (batch,) = batches(1)
    train(step, [batch, batch])
    train(other, [batch, batch])
    check_rejected(step, other.state_dict(), part)
    step(batch)
    check_rejected(other, step.state_dict(), part)
    other(batch)


# Damaged states.


@pytest.mark.parametrize(
    ("keys", "value", "part"),
    [
        (["peak_was_set"], "no", "peak_was_set"),
        (["applied"], 2**62 + 1, "applied"),
        (["skipped"], -1, "skipped"),
        (["parameters"], [["first.weight"]], "parameter 1 is missing in the state"),
        (["model", "first.weight"], [1.0], "first.weight: list in the state, torch.float32 of"),
        (["optimizer", "param_groups"], [], "state of AdamW with groups of [4] parameters"),
        (
            ["optimizer", "state", 1, "exp_avg"],
            torch.zeros(7),
            "exp_avg of parameter 1 has the shape (7,), and the parameter (8,)",
        ),
        (["optimizer", "state", "0"], {}, "must have integers as keys, not text"),
        (["optimizer", "state", "3"], {}, "must have integers as keys, not text"),
    ],
)
def test_wrong_value_in_a_state(keys, value, part):
    """The step then makes the next update."""
    build = KINDS["adamw"].build
    step = build()
    reference = build()
    saving = build()
    train(saving, batches(3, seed=1))
    (batch,) = batches(1)
    assert_equal_trees(step(batch), reference(batch))
    state = saving.state_dict()
    *outer_keys, last_key = keys
    entries = state
    for key in outer_keys:
        entries = entries[key]
    entries[last_key] = value
    for strict in (True, False):
        check_rejected(step, state, part, strict=strict)
    assert_equal_trees(step(batch), reference(batch))


def test_step_asks_for_a_state_if_torch_rejects_one():
    step = make_step()
    before = step.state_dict()
    with raises(RuntimeError, "Missing key(s)"):
        step.load_state_dict({**before, "model": {}})
    with raises(RuntimeError, "load a checkpoint"):
        step(*batches(1))
    step.load_state_dict(before)
    assert_equal_trees(step.state_dict(), before)


def test_dampening_that_fused_sgd_rejects():
    """The step makes no update until a state without it is loaded."""
    model = Net()
    plain = SGD(model.parameters(), lr=0.1, momentum=0.9, dampening=0.5, fused=False)
    saved = make_step(model=model, optimizer=plain).state_dict()
    step = make_step("momentum")
    state = step.state_dict()
    with raises(ValueError, "fused=False for SGD with dampening"):
        step.load_state_dict(saved)
    with raises(RuntimeError, "load a checkpoint"):
        step(*batches(1))
    step.load_state_dict(state)
    train(step, batches(1))


def test_load_warns_of_a_peak_set_before_the_first_update():
    saved = make_step()
    train(saved, batches(3))
    step = make_step()
    step.set_peak(0.5)
    with pytest.warns(
        CurveWarning, match=r"saved with a peak of 0\.01.*, now 0\.5.* call train_step\.set_peak"
    ):
        step.load_state_dict(saved.state_dict())
    train(step, batches(1))
    step.set_peak(0.5)
    step.load_state_dict(saved.state_dict())  # back to before the change
    assert_equal_trees(step.state_dict(), saved.state_dict())


def test_strict_that_is_text():
    step = make_step()
    with raises(TypeError, "strict = 'no' must be a bool", unchanged=[step]):
        step.load_state_dict(step.state_dict(), strict="no")
    with raises(TypeError, "strict = 'no' must be a bool"):
        make_step(strict="no")


def test_strict_of_a_step_is_the_default_of_loads():
    saved = make_step()
    train(saved, batches(3))
    step = make_step(curve=PlateauCurve(9), strict=False)
    message = "has a different curve: .* differ from step 0 on"
    with pytest.warns(CurveWarning, match=message):
        step.load_state_dict(saved.state_dict())
    assert step.state_dict()["applied"] == 3
