"""`Checkpoints`."""

from pathlib import Path

from support.surface.limits import varied
from torch import nn

from torch_bridge import Checkpoints

model = nn.Linear(2, 1)
checkpoints = Checkpoints("run")

Checkpoints("run", keep=varied(3))  # 1 …, else ValueError
checkpoints.load(model=model)  # None
checkpoints.load_model(model)  # raises ValueError
checkpoints.save(10, model=model, wait=True)  # None
checkpoints.save(20, model=model, wait=True)  # None
checkpoints.save(0.5, model=model)  # raises TypeError
checkpoints.save(30)  # raises ValueError
checkpoints.save(30, model=None)  # raises TypeError
checkpoints.steps()  # list[int]
checkpoints.load(model=model)  # int
[checkpoints.load(model=model)]  # [20]
checkpoints.load(15, model=model)  # raises ValueError
checkpoints.load(0.5, model=model)  # raises TypeError
checkpoints.load(optimizer=model)  # raises ValueError
checkpoints.load(model={})  # raises ValueError
checkpoints.load_model(model, part="model")  # int
[checkpoints.load_model(model, part="model")]  # [20]
checkpoints.load_model(nn.Linear(3, 1), part="model")  # raises ValueError
checkpoints.merge([10, 20], [0.5, 0.5], into=model, part="model")  # None
checkpoints.merge([10, 20], [0.5, 1.5], into=model, part="model")  # raises ValueError
checkpoints.merge(10, [1.0], into=model, part="model")  # raises TypeError
Checkpoints("run/10")  # raises ValueError
Checkpoints("run/20/checkpoint.json")  # raises NotADirectoryError

# Damaged.
damaged = Path("run/20/checkpoint.json")
with damaged.open("w") as file:
    file.write("{}")

checkpoints.load(20, model=model)  # raises RuntimeError
checkpoints.load(model=model)  # int, warns UserWarning

# Of two parts.
checkpoints = Checkpoints("of two parts")
checkpoints.save(10, model=model, progress={"epoch": 1})  # None
checkpoints.load(model=model)  # int, warns CurveWarning
checkpoints.load(model=model, partial=True)  # int
