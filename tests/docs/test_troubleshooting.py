"""docs/troubleshooting: the messages and faults of other libraries are those of the installed versions."""

import pickle
import re
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from accelerate.scheduler import AcceleratedScheduler
from support.docs.pages import ROOT
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LambdaLR,
    LinearLR,
    LRScheduler,
    OneCycleLR,
    SequentialLR,
)

pytestmark = pytest.mark.slow


def weights() -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.ones(2))]


def advance(optimizer: Optimizer, scheduler: LRScheduler, updates: int) -> list[float]:
    """Make updates, and return the learning rate of each."""
    lrs: list[float] = []
    for _ in range(updates):
        lrs.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return lrs


def sequence(optimizer: Optimizer) -> SequentialLR:
    return SequentialLR(optimizer, [LinearLR(optimizer, 0.1), CosineAnnealingLR(optimizer, 10)], [5])


def half(step: int) -> float:
    return 0.5**step


def heading_with(words: str) -> str:
    """Return the heading with these words, as text."""
    pages = sorted((ROOT / "docs" / "troubleshooting").glob("*.md"))
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    (heading,) = re.findall(rf"^## (.*{re.escape(words)}.*)$", text, re.MULTILINE)
    return heading


def test_message_of_the_epoch_parameter() -> None:
    optimizer = SGD(weights(), lr=1.0)
    scheduler = CosineAnnealingLR(optimizer, 10)
    optimizer.step()
    with pytest.warns(UserWarning, match=re.escape(heading_with("The epoch parameter"))):
        scheduler.step(1)


def test_sequential_lr_no_longer_passes_an_epoch() -> None:
    optimizer = SGD(weights(), lr=1.0)
    advance(optimizer, sequence(optimizer), 8)  # warnings are errors


def test_message_after_an_update_that_fp16_skips() -> None:
    (weight,) = weights()
    optimizer = SGD([weight], lr=1.0)
    scheduler = CosineAnnealingLR(optimizer, 10)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(weight.sum() * torch.inf).backward()
    scaler.step(optimizer)
    scaler.update()
    message = heading_with("Detected call").partition(" (fp16")[0]
    with pytest.warns(UserWarning, match=re.escape(message)):
        scheduler.step()


def test_sequential_lr_resumes_at_another_learning_rate() -> None:
    optimizer = SGD(weights(), lr=1.0)
    scheduler = sequence(optimizer)
    advance(optimizer, scheduler, 7)
    resumed = SGD(weights(), lr=1.0)
    resumed.load_state_dict(optimizer.state_dict())
    other = sequence(resumed)
    other.load_state_dict(scheduler.state_dict())
    assert max(advance(resumed, other, 3)) < 0.2 * min(advance(optimizer, scheduler, 3))


def test_cosine_annealing_loads_its_old_length() -> None:
    state = CosineAnnealingLR(SGD(weights(), lr=1.0), 100).state_dict()
    longer = CosineAnnealingLR(SGD(weights(), lr=1.0), 200)
    longer.load_state_dict(state)
    assert longer.T_max == 100


def test_message_of_an_added_group() -> None:
    optimizer = SGD(weights(), lr=1.0)
    scheduler = LambdaLR(optimizer, half)
    optimizer.add_param_group({"params": weights()})
    optimizer.step()
    page = (ROOT / "docs" / "troubleshooting" / "learning_rate.md").read_text(encoding="utf-8")
    with pytest.raises(ValueError, match="zip") as caught:
        scheduler.step()
    assert f"`ValueError: {caught.value}`" in page


def test_one_cycle_lr_raises_past_its_end() -> None:
    optimizer = SGD(weights(), lr=1.0)
    scheduler = OneCycleLR(optimizer, 1.0, 1001)
    advance(optimizer, scheduler, 1001)
    with pytest.raises(ValueError, match="Tried to step") as caught:
        scheduler.step()
    assert f"`ValueError: {caught.value}`" in heading_with("Tried to step")


def test_lambda_schedulers_cannot_be_pickled() -> None:
    scheduler = LambdaLR(SGD(weights(), lr=1.0), lambda step: 0.5**step)
    assert "pickle local object" in heading_with("<lambda>")
    with pytest.raises((AttributeError, pickle.PicklingError), match="local object"):
        pickle.dumps(scheduler)
    pickle.dumps(scheduler.state_dict())


def test_dcp_drops_initial_lr(tmp_path: Path) -> None:
    def states(model: torch.nn.Module, optimizer: Optimizer) -> dict[str, object]:
        return {"optimizer": get_optimizer_state_dict(model, optimizer)}

    model = torch.nn.Linear(2, 1)
    optimizer = SGD(model.parameters(), lr=1.0)
    advance(optimizer, LambdaLR(optimizer, half), 3)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        dcp.save(states(model, optimizer), checkpoint_id=tmp_path, no_dist=True)
        loaded = SGD(model.parameters(), lr=1.0)
        state = states(model, loaded)
        dcp.load(state, checkpoint_id=tmp_path, no_dist=True)
    set_optimizer_state_dict(model, loaded, state["optimizer"])
    assert loaded.param_groups[0]["lr"] == 0.125
    message = re.findall(r'"(.+)…"', heading_with("KeyError"))[0]
    with pytest.raises(KeyError, match=re.escape(message)):
        LambdaLR(loaded, half, last_epoch=2)


def test_accelerate_steps_once_per_process(monkeypatch: pytest.MonkeyPatch) -> None:
    class FourProcesses:
        num_processes = 4

    monkeypatch.setattr("accelerate.scheduler.AcceleratorState", FourProcesses)
    optimizer = SGD(weights(), lr=1.0)
    scheduler = LambdaLR(optimizer, half)
    prepared = AcceleratedScheduler(scheduler, [])
    optimizer.step()
    prepared.step()
    assert scheduler.last_epoch == 4
