"""Programs that train in other libraries, save, and resume when they are started again.

Each contains the lines of its section on `docs/other_libraries.md`.
"""

SET_UP = """\
from pathlib import Path

import torch
from plateau_jax import StagedCurve
from torch import nn

UPDATES, EPOCHS, PEAK = 120, 4, 0.01
curve = StagedCurve.wsd(UPDATES, warmup_steps=12, decay_steps="20%")
torch.manual_seed(0)
inputs = torch.randn(960, 8)
targets = inputs.sin().sum(1, keepdim=True)
dataset = torch.utils.data.TensorDataset(inputs, targets)
loader = torch.utils.data.DataLoader(dataset, 32)  # 30 batches
model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), PEAK)
"""
"""Stands in front of each program: data, a model, a curve."""

MLX = """\
import mlx.core as mx
import mlx.nn
from mlx.optimizers import AdamW
from mlx.utils import tree_flatten, tree_unflatten

table = mx.array(curve.learning_rate(range(UPDATES + 1), PEAK))


def schedule(step):
    return table[mx.minimum(step, UPDATES)]  # past the end, the last one


def mean_loss(net, batch, target):
    return mlx.nn.losses.mse_loss(net(batch), target)


mx.random.seed(0)
net = mlx.nn.Sequential(mlx.nn.Linear(8, 32), mlx.nn.Tanh(), mlx.nn.Linear(32, 1))
adam = AdamW(schedule)
weights, state = Path("net.safetensors"), Path("adam.safetensors")
if state.exists():
    net.load_weights(str(weights))
    adam.state = tree_unflatten(list(mx.load(str(state)).items()))
loss_and_gradients = mlx.nn.value_and_grad(net, mean_loss)
data = mx.array(inputs.numpy()), mx.array(targets.numpy())
batches = list(zip(*(array.reshape(30, 32, -1) for array in data)))
while adam.step < UPDATES:
    for batch, target in batches:
        loss, gradients = loss_and_gradients(net, batch, target)
        adam.update(net, gradients)
        mx.eval(net.parameters(), adam.state)
    net.save_weights(str(weights))
    mx.save_safetensors(str(state), dict(tree_flatten(adam.state)))
print("final loss", mean_loss(net, *data).item())
"""

PYTORCH_IGNITE = """\
from ignite.engine import Events, create_supervised_trainer
from ignite.handlers import Checkpoint, DiskSaver, LRScheduler
from torch_bridge import lambda_lr

trainer = create_supervised_trainer(model, optimizer, nn.MSELoss())
scheduler = LRScheduler(lambda_lr(optimizer, curve))
trainer.add_event_handler(Events.ITERATION_STARTED, scheduler)
parts = {"trainer": trainer, "model": model, "optimizer": optimizer, "scheduler": scheduler}
disk = DiskSaver("saved_ignite", require_empty=False)
trainer.add_event_handler(Events.EPOCH_COMPLETED, Checkpoint(parts, disk))
saved = list(Path("saved_ignite").glob("*.pt"))
if saved:
    Checkpoint.load_objects(parts, saved[0])
if trainer.state.epoch < EPOCHS:  # otherwise Ignite would train again
    print("final loss", trainer.run(loader, max_epochs=EPOCHS).output)
"""

SKORCH = """\
from skorch import NeuralNetRegressor
from skorch.callbacks import Callback, Checkpoint
from torch_bridge import lambda_lr


class SkorchCurve(Callback):
    def __init__(self, curve):
        self.curve = curve

    def on_train_begin(self, net, **_):
        updates = sum(net.history[:, "train_batch_count"]) if net.history else 0
        self.scheduler_ = lambda_lr(net.optimizer_, self.curve, last_epoch=updates - 1)

    def on_batch_end(self, net, training, **_):
        if training:
            self.scheduler_.step()


checkpoint = Checkpoint(monitor=None, dirname="saved_skorch")
net = NeuralNetRegressor(
    model,
    optimizer=torch.optim.AdamW,
    lr=PEAK,
    batch_size=32,
    train_split=None,
    callbacks=[SkorchCurve(curve), checkpoint],
    verbose=0,
).initialize()
if Path("saved_skorch/history.json").exists():
    net.load_params(checkpoint=checkpoint)
net.partial_fit(inputs, targets, epochs=EPOCHS - len(net.history))
print("final loss", net.history[-1, "train_loss"])
"""

STABLE_BASELINES3 = """\
import gymnasium
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import CheckpointCallback

ROLLOUTS, STEPS = UPDATES, 32


def learning_rate(progress_remaining):
    return curve.learning_rate(round((1 - progress_remaining) * ROLLOUTS) - 1, PEAK)


environment = gymnasium.make("CartPole-v1")
saved = sorted(Path("saved_sb3").glob("*.zip"), key=lambda file: int(file.stem.split("_")[2]))
if saved:
    agent = PPO.load(saved[-1], environment)
else:
    agent = PPO("MlpPolicy", environment, learning_rate, n_steps=STEPS, batch_size=16, n_epochs=2)
agent.learn(
    ROLLOUTS * STEPS - agent.num_timesteps,
    callback=CheckpointCallback(30 * STEPS, "saved_sb3"),
    reset_num_timesteps=False,
)
"""

PROGRAMS = {
    "MLX": MLX,
    "PyTorch Ignite": PYTORCH_IGNITE,
    "skorch": SKORCH,
    "Stable-Baselines3": STABLE_BASELINES3,
}
"""By the name of the library on the page."""
