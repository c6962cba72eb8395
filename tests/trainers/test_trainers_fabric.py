"""Lightning Fabric under a curve, with the README's lines: accumulation, clipping, bf16, saved and loaded."""

import pytest
from lightning.fabric import Fabric
from support import trainers
from support.trainers import CURVE, PEAK, execute, rates, rates_used, same_weights
from torch.optim import AdamW
from torch.utils.data import DataLoader

from torch_bridge import lambda_lr

pytestmark = pytest.mark.slow

BUILD, STEP, SAVE, LOAD = trainers.readme("Fabric")
ACCUMULATION = 2


class Run:
    def __init__(self, path):
        fabric = Fabric(accelerator="cpu", devices=1, precision="bf16-mixed")
        model = trainers.net()
        model, optimizer = fabric.setup(model, AdamW(model.parameters(), PEAK))
        self.batches = fabric.setup_dataloaders(DataLoader(trainers.dataset(24 * 4), 4))
        self.names = {"fabric": fabric, "model": model, "optimizer": optimizer, "path": path}
        self.names |= {"curve": CURVE, "lambda_lr": lambda_lr}
        execute([BUILD], self.names)

    def train(self, first, last):
        """Make these updates, and return the rates that they used."""
        fabric, model, optimizer = (self.names[name] for name in ("fabric", "model", "optimizer"))
        with rates_used() as used:
            for number, batch in enumerate(self.batches):
                if not first <= number // ACCUMULATION < last:
                    continue
                whole = (number + 1) % ACCUMULATION == 0
                with fabric.no_backward_sync(model, enabled=not whole):
                    fabric.backward(trainers.loss_of(model, batch) / ACCUMULATION)
                if whole:
                    fabric.clip_gradients(model, optimizer, max_norm=0.5)
                    optimizer.step()
                    optimizer.zero_grad()
                    execute([STEP], self.names)
        return used


def test_resumed_it_is_as_uninterrupted(tmp_path):
    whole, interrupted, resumed = (Run(tmp_path / "saved.ckpt") for _ in range(3))
    assert whole.train(0, 12) == rates(CURVE, range(12))

    interrupted.train(0, 5)
    execute([SAVE], interrupted.names)
    execute([LOAD], resumed.names)
    assert resumed.train(5, 12) == rates(CURVE, range(5, 12))
    assert same_weights(resumed.names["model"], whole.names["model"])
