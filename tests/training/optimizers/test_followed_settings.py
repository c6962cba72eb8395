"""Each update of a training step uses the settings that followers have written."""

from typing import Any

import pytest
import torch
from support.clocks.holds import CURVE as STAGES
from support.schedulers.runs import learning_rate
from support.training.models import Net, batches, mean_loss, nonfinite
from support.training.steps import CURVE, make_step, through_file
from support.trees import equal_trees

from torch_bridge import follow


def step_with_followers(fused: bool) -> list[Any]:
    """Return a training step, and followers of its weight decay and of a beta."""
    model = Net()
    step = make_step(model=model, optimizer=adamw(model, fused), curve=STAGES)
    decay = follow(step.optimizer, "weight_decay", CURVE)
    return [step, decay, follow(step.optimizer, ("betas", 0), CURVE)]


def adamw(model: Net, fused: bool) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.5, fused=fused)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("loading_order", [(0, 2, 1), (2, 1, 0)])
def test_training_step_uses_followed_values(fused: bool, loading_order: tuple[int, ...]) -> None:
    """Each update uses the value that is in the group when it is made, also after a resume."""
    model = Net()
    optimizer = adamw(model, fused)
    (group,) = optimizer.param_groups
    parts = step_with_followers(fused)
    applied = 0
    for number, batch in enumerate(batches(20)):
        if number == 8:
            states = through_file([part.state_dict() for part in parts])
            parts = step_with_followers(fused)
            for index in loading_order:
                parts[index].load_state_dict(states[index])
        is_skipped = number in (0, 7, 8, 15)
        if is_skipped:
            batch = nonfinite(batch)
        step, *followers = parts
        step(batch)
        for follower in followers:
            follower.step()
        if is_skipped:
            continue
        lr = learning_rate(0.01, STAGES, applied)
        if fused:
            group["lr"] = torch.tensor(lr, dtype=torch.float32)
        else:
            group["lr"] = lr
        group["weight_decay"] = 0.5 * CURVE(number)
        group["betas"] = (learning_rate(0.9, CURVE, number), 0.999)
        model.zero_grad()
        mean_loss(model, batch).backward()
        optimizer.step()
        applied += 1
    assert equal_trees(parts[0].model.state_dict(), model.state_dict())
