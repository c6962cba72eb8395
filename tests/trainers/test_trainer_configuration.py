"""docs/trainer_configuration.md: the curve of a file in transformers' Trainer, and in TRL's.

TRL needs `pip install trl`, which no extra includes; without it, the test of its trainer is skipped.
"""

import sys
from importlib.util import find_spec

import pytest
from support.docs.pages import ROOT, sections
from support.trainers import trainers
from support.trainers.trainers import PEAK, expected_lrs, record_lrs, same_weights
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    set_seed,
)

from plateau_jax import StagedCurve

pytestmark = pytest.mark.slow

FILES = {
    block.file or "curve.yaml": block.code
    for section in sections(ROOT / "docs" / "trainer_configuration.md")
    for block in section.blocks
    if block.file or block.code.startswith("# curve.yaml")
}
UPDATES, SAVED = 20, 8
CURVE = StagedCurve([("5%", 1.0), ("rest",), ("20%", 0.0, "1-sqrt")], total_steps=UPDATES)
SETTINGS = {
    "use_cpu": True,
    "bf16": False,
    "max_steps": UPDATES,
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "learning_rate": PEAK,
    "warmup_steps": 3,  # without effect
    "save_steps": SAVED,
    "report_to": [],
    "disable_tqdm": True,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = trainers.net()

    def forward(self, inputs, labels):
        return {"loss": trainers.loss_of(self.net, (inputs, labels))}


def plain(folder):
    dataset = [{"inputs": inputs, "labels": labels} for inputs, labels in trainers.dataset(24)]
    return Trainer(Net(), TrainingArguments(str(folder), **SETTINGS), train_dataset=dataset)


def sft(folder):
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    words = ["<pad>", "<eos>", "<unk>", "a", "b", "c"]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
    set_seed(0)
    sizes = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(words), eos_token_id=1, pad_token_id=0, **sizes))
    return SFTTrainer(
        model,
        args=SFTConfig(str(folder), **SETTINGS),
        train_dataset=Dataset.from_list([{"text": f"{word} a b"} for word in 8 * words[3:]]),
        processing_class=PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special),
    )


@pytest.mark.filterwarnings(
    "ignore:`gradient_checkpointing.* is deprecated:FutureWarning"
)  # TRL 1.16 sets it
@pytest.mark.parametrize("build", [plain, sft], ids=["transformers", "TRL"])
def test_trainer_uses_the_curve_of_the_file(build, tmp_path, monkeypatch):
    if build is sft and find_spec("trl") is None:
        pytest.skip("needs trl: pip install trl")
    for name in ("curve.yaml", "curve_file.py", "curve_trainer.py"):
        (tmp_path / name).write_text(FILES[name], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(Trainer, "create_scheduler", Trainer.create_scheduler)  # undone after the test
    for name in ("curve_file", "curve_trainer"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    __import__("curve_trainer")

    uninterrupted = build(tmp_path / "run")
    with record_lrs() as used:
        uninterrupted.train()
    groups = len(uninterrupted.optimizer.param_groups)
    assert used == expected_lrs(CURVE, range(UPDATES), groups=groups)
    resumed = build(tmp_path / "resumed")
    with record_lrs() as used:
        resumed.train(resume_from_checkpoint=str(tmp_path / "run" / f"checkpoint-{SAVED}"))
    assert used == expected_lrs(CURVE, range(SAVED, UPDATES), groups=groups)
    assert same_weights(resumed.model, uninterrupted.model)
