"""docs/other_libraries.md: the program of each library uses the curve's learning rates, and resumes.

Each runs once without interruption, and once killed and started again. A program whose library is not
installed is skipped; `.[libraries]` installs some of them.
"""

import os
import re
import textwrap
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
from support.docs.pages import ROOT, sections
from support.programs import Program
from support.trainers import recorded

from plateau_jax import PlateauCurve

pytestmark = pytest.mark.slow

INTRODUCTION, *SECTIONS = sections(ROOT / "docs" / "other_libraries.md")
(SETUP,) = (block.code for block in INTRODUCTION.blocks)
PAGE = {section.heading: "".join(block.code for block in section.blocks) for section in SECTIONS}
UPDATES, PEAK, KILLED_AFTER = 120, 0.01, 70
CURVE = PlateauCurve(UPDATES, warmup_steps=12, plateaus=[(0, 60)])
EXPECTED = [CURVE.learning_rate(step, PEAK) for step in range(UPDATES)]

AROUND = {
    "CleanRL": """
from types import SimpleNamespace
args, saved = SimpleNamespace(learning_rate=PEAK), Path("iteration.txt")
for iteration in range(int(saved.read_text()) if saved.exists() else 1, UPDATES + 1):
    ...
    optimizer.step()
    saved.write_text(str(iteration + 1))
""",
    "sentence-transformers": """
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainingArguments
from sentence_transformers.losses import CoSENTLoss
from sentence_transformers.models import StaticEmbedding
from tokenizers import Tokenizer, models
from transformers.trainer_utils import get_last_checkpoint
words = {word: number for number, word in enumerate("abcd")}
tokenizer = Tokenizer(models.WordLevel(words, unk_token="a"))
model = SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=8)], device="cpu")
optimizer, loss = torch.optim.AdamW(model.parameters(), PEAK), CoSENTLoss(model)
pairs = [("abcd"[row % 4], "abcd"[row // 4 % 4], row % 3 / 2) for row in range(960)]
dataset = Dataset.from_list([dict(zip(["one", "two", "score"], pair)) for pair in pairs])
folder, options = Path("run"), {"save_strategy": "epoch", "report_to": [], "disable_tqdm": True}
arguments = SentenceTransformerTrainingArguments(
    str(folder), num_train_epochs=EPOCHS, per_device_train_batch_size=32, use_cpu=True, **options
)
...
trainer.train(resume_from_checkpoint=get_last_checkpoint(folder) if folder.exists() else None)
print("final weights", model[0].embedding.weight.tolist())
""",
    "diffusers": """
from accelerate import Accelerator
from diffusers import DDPMScheduler, UNet2DModel
from torch_bridge import lambda_lr
unet = UNet2DModel(
    sample_size=8, in_channels=1, out_channels=1, block_out_channels=(8,), norm_num_groups=4,
    layers_per_block=1, down_block_types=("DownBlock2D",), up_block_types=("UpBlock2D",), add_attention=False,
)
loader = torch.utils.data.DataLoader(inputs.reshape(-1, 1, 8, 1).expand(-1, 1, 8, 8), 32)
optimizer, noise_scheduler = torch.optim.AdamW(unet.parameters(), PEAK), DDPMScheduler()
accelerator = Accelerator()
...
saved = sorted(Path("saved").glob("*"))
if saved:
    accelerator.load_state(saved[-1])
for epoch in range(len(saved), EPOCHS):
    for images in loader:
        noise, times = torch.randn_like(images), torch.randint(0, 1000, (len(images),))
        noisy = noise_scheduler.add_noise(images, noise, times)
        loss = nn.functional.mse_loss(unet(noisy, times).sample, noise)
        accelerator.backward(loss)
        optimizer.step()
        lr_scheduler.step()
        optimizer.zero_grad()
    accelerator.save_state(f"saved/{epoch}")
print("final loss", loss.item())
""",
    "detectron2, fvcore": """
from itertools import chain, repeat
from detectron2.checkpoint import DetectionCheckpointer
from detectron2.engine import SimpleTrainer, hooks
from torch_bridge import lambda_lr
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = model
    def forward(self, batch):
        return {"loss": nn.functional.mse_loss(self.net(batch[0]), batch[1])}
net = Net()
trainer = SimpleTrainer(net, chain.from_iterable(repeat(loader)), optimizer)
Path("saved").mkdir(exist_ok=True)
checkpointer = DetectionCheckpointer(net, "saved", trainer=trainer)
...
checkpointer.resume_or_load("", resume=True)
trainer.train(trainer.iter + 1 if checkpointer.has_checkpoint() else 0, UPDATES)
print("final weights", model[0].weight.tolist())
""",
    "mmengine": """
import warnings
warnings.filterwarnings("ignore", "Environment variable TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD")  # torch's
from mmengine.model import BaseModel
from mmengine.optim import OptimWrapper
from mmengine.runner import Runner
...
class Net(BaseModel):
    def __init__(self):
        super().__init__()
        self.net = model
    def forward(self, inputs, targets, mode):
        return {"loss": nn.functional.mse_loss(self.net(inputs), targets)}
Runner(
    Net(), "saved", train_dataloader=loader, train_cfg={"by_epoch": True, "max_epochs": EPOCHS},
    optim_wrapper=OptimWrapper(optimizer), param_scheduler=CurveScheduler(optimizer, curve), resume=True,
    env_cfg={"mp_cfg": {"mp_start_method": "forkserver"}},
).train()
print("final weights", model[0].weight.tolist())
""",
    "torchvision's recipes": """
from torch_bridge import lambda_lr
...
saved, start_epoch = Path("checkpoint.pth"), 0
if saved.exists():
    checkpoint = torch.load(saved, map_location="cpu")
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    lr_scheduler.load_state_dict(checkpoint["lr_scheduler"])
    start_epoch = checkpoint["epoch"] + 1
for epoch in range(start_epoch, EPOCHS):
    for image, target in loader:
        loss = nn.functional.mse_loss(model(image), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    parts = {"model": model, "optimizer": optimizer, "lr_scheduler": lr_scheduler}
    torch.save({name: part.state_dict() for name, part in parts.items()} | {"epoch": epoch}, saved)
print("final loss", loss.item())
""",
    "ultralytics YOLO": """
import cv2
import numpy as np
for split in ("train", "val"):
    for kind in ("images", "labels"):
        Path(kind, split).mkdir(parents=True, exist_ok=True)
    for number in range(12):
        cv2.imwrite(f"images/{split}/{number}.png", np.full((32, 32, 3), 20 * number, np.uint8))
        Path(f"labels/{split}/{number}.txt").write_text("0 0.5 0.5 0.4 0.4")
folders = f"path: {Path().resolve()}, train: images/train, val: images/val"
Path("data.yaml").write_text(f"{{{folders}, names: [a]}}")
...
last = Path("run/weights/last.pt").resolve()
if last.exists():
    YOLO(last).train(resume=True, trainer=CurveTrainer)
else:
    YOLO("yolo11n.yaml").train(
        trainer=CurveTrainer, warmup_epochs=0, data="data.yaml", epochs=40, imgsz=32, batch=4, nbs=4,
        workers=0, device="cpu", plots=False, val=False, amp=False, optimizer="SGD", lr0=PEAK,
        project=str(last.parents[2]), name="run", exist_ok=True,
    )
""",
}
"""The reader's own program, with ... in place of the lines on the page; else the page has all of it."""


@dataclass(frozen=True)
class Case:
    heading: str
    package: str
    environment: str = ""
    """A variable and its value."""
    recorded: int = 1
    """How often each learning rate is recorded: for two parameters, or for the updates of a rollout."""
    repeats_results: bool = True
    """Does the resumed run print the numbers of the uninterrupted one?"""

    @property
    def code(self) -> str:
        around = AROUND.get(self.heading, "...")
        ((indent,),) = [re.findall(r"^( *)\.\.\.$", around, re.MULTILINE)]
        return SETUP + around.replace(f"{indent}...", textwrap.indent(PAGE[self.heading], indent))


CASES = [
    Case("Keras 3", "keras", "KERAS_BACKEND=jax"),
    Case("Keras 3", "keras", "KERAS_BACKEND=torch"),
    Case("PyTorch Ignite", "ignite"),
    Case("skorch", "skorch"),
    Case("fastai", "fastai"),
    Case("Stable-Baselines3", "stable_baselines3", recorded=4, repeats_results=False),
    Case("CleanRL", "torch"),
    Case("NumPyro", "numpyro", recorded=2),
    Case("Ray Train", "ray"),
    Case("sentence-transformers", "sentence_transformers"),
    Case("diffusers", "diffusers"),
    Case("detectron2, fvcore", "detectron2"),
    Case("mmengine", "mmengine", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1"),
    Case("torchvision's recipes", "torch"),
    Case("ultralytics YOLO", "ultralytics", repeats_results=False),
]


def run(case: Case, folder: Path, *, code: str = "", killed_after: int = -1) -> tuple[list[float], str]:
    """Run a program; return the recorded learning rates, and the last line with results."""
    if find_spec(case.package) is None:
        pytest.skip(f"needs {case.package}")
    folder.mkdir(exist_ok=True)
    file, lrs = folder / "program.py", folder / "lrs.txt"
    arguments = str(lrs), str(killed_after)
    # Ray trains in a different process.
    record = f"from support.trainers.recorded import record; record{arguments}"
    code = (code or case.code).replace("def train(config):", f"def train(config):\n    {record}")
    file.write_text(code, encoding="utf-8")
    script = Path(recorded.__file__)
    variables = [f"PYTHONPATH={ROOT / 'tests'}{os.pathsep}{ROOT}", *case.environment.split()]
    environment = dict(variable.split("=") for variable in variables)
    program = Program(script, file, *arguments, folder=folder, environment=environment)
    status, output, errors = program.finish()
    assert (status == 0) == (killed_after < 0), errors
    used = [float.fromhex(line) for line in lrs.read_text(encoding="utf-8").splitlines()]
    return used, "".join(line for line in output.splitlines() if line.startswith("final "))


@pytest.mark.parametrize("case", CASES, ids=lambda case: " ".join([case.heading, *case.environment.split()]))
def test_program_uses_the_curve_and_resumes(case: Case, tmp_path: Path) -> None:
    expected = [lr for lr in EXPECTED for _ in range(case.recorded)]
    used, trained = run(case, tmp_path / "uninterrupted")
    assert used == expected
    killed_after = KILLED_AFTER * case.recorded
    used, _ = run(case, tmp_path / "resumed", killed_after=killed_after)
    assert used == expected[:killed_after]
    used, trained_later = run(case, tmp_path / "resumed")
    assert len(expected) - killed_after <= len(used) < len(expected)
    assert used == expected[-len(used) :]
    if case.repeats_results:
        assert trained_later == trained


FACTS = {
    "Keras with gradient accumulation": (
        Case("Keras 3", "keras", "KERAS_BACKEND=torch"),  # JAX computes every learning rate
        {"PEAK)), ": "PEAK), gradient_accumulation_steps=2), "},
        EXPECTED[1::2],
    ),
    "Ignite on ITERATION_COMPLETED": (
        Case("PyTorch Ignite", "ignite"),
        {"ITERATION_STARTED": "ITERATION_COMPLETED"},
        [EXPECTED[0], *EXPECTED[:-1]],
    ),
    "LRScheduler of skorch in partial_fit": (
        Case("skorch", "skorch"),
        {
            "import lambda_lr": "import CurveLR, lambda_lr\nfrom skorch.callbacks import LRScheduler",
            "[CurveScheduler(curve), ": "[LRScheduler(policy=CurveLR, curve=curve, step_every='batch'), ",
            "net.partial_fit": "net.partial_fit(inputs, targets, epochs=2)\nnet.partial_fit",
        },
        EXPECTED[:60] + EXPECTED[2:62],
    ),
}


@pytest.mark.parametrize("fact", FACTS)
def test_facts_of_the_page(fact: str, tmp_path: Path) -> None:
    case, changes, expected = FACTS[fact]
    code = case.code
    for old, new in changes.items():
        assert code.count(old) == 1
        code = code.replace(old, new)
    assert run(case, tmp_path, code=code)[0] == expected
