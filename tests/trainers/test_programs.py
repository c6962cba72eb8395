"""The training programs on the pages: their learning rates; resumed equals uninterrupted."""

import math
import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from textwrap import indent
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from support.docs.pages import PAGES, ROOT, program_named, programs, sections
from support.jax.jax_cases import assert_equal_bits, product
from support.jax.jax_trainers import (
    assert_rejected_if_longer,
    assert_resumed as assert_jax_resumed,
    watched,
)
from support.schedulers.runs import learning_rate
from support.trainers.trainers import (
    FOLDER_WARNING,
    LIGHTNING_WARNING,
    PAGE_CURVE,
    PAGE_PEAK,
    expected_lrs,
    import_from_pages,
    record_lrs,
    run_and_resume,
    same_weights,
    train,
)
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from transformers import Trainer

from plateau_jax import Curve, PlateauCurve, StagedCurve
from torch_bridge import lambda_lr

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings(LIGHTNING_WARNING, FOLDER_WARNING),
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"),
]


@pytest.fixture(autouse=True)
def use_cpu(monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")


LATER = PlateauCurve(160, warmup_steps=20, plateaus=[(0, 60)], init_lr_ratio=0.1)
FROM_A_START = replace(PAGE_CURVE, init_lr_ratio=0.05)
OF_PAGE = expected_lrs(PAGE_CURVE, range(200), PAGE_PEAK)
WARMUP_OF_BACKBONE = PlateauCurve(1000, warmup_steps=20)
"""Its first 20 steps are those after the backbone has joined."""
OF_BACKBONE = [
    *([0.0] * 60),
    *(learning_rate(1e-3, WARMUP_OF_BACKBONE, step) for step in range(20)),
    *(learning_rate(1e-3, PAGE_CURVE, step) for step in range(80, 200)),
]

PLAIN = "Plain PyTorch"
# The learning rates of each update, by the heading of a program.
TORCH = {
    PLAIN: OF_PAGE,
    "accelerate": OF_PAGE,
    "Lightning Fabric": OF_PAGE,
    "PyTorch Lightning": OF_PAGE,
    "PyTorch Lightning, with a backbone that joins later": [
        [*lrs, of_backbone] for lrs, of_backbone in zip(OF_PAGE, OF_BACKBONE, strict=True)
    ],
    "Hugging Face Trainer": expected_lrs(PAGE_CURVE, range(200), PAGE_PEAK, groups=2),
}


@contextmanager
def record_compiled_lrs() -> Generator[list[list[float]]]:
    """Record the learning rates of each compiled step, which must not be compiled again.

    A hook of the optimizer would be compiled too.
    """
    torch._dynamo.reset()
    zero_grad, used = Optimizer.zero_grad, []

    def recorded(optimizer):
        used.append([group["lr"].item() for group in optimizer.param_groups])
        zero_grad(optimizer)

    with (
        patch.object(Optimizer, "zero_grad", recorded),
        torch._dynamo.config.patch(error_on_recompile=True),
    ):
        yield used


def assert_resumes(heading, folder, expected, record=record_lrs, changes=MappingProxyType({})):
    (uninterrupted, used), (resumed, used_later) = run_and_resume(heading, folder, record, changes)
    assert used == expected
    assert used_later == used[len(used) // 2 :]
    assert same_weights(resumed.names["model"], uninterrupted.names["model"])


@pytest.mark.parametrize("heading", TORCH)
def test_torch_program_resumes(heading, tmp_path):
    assert_resumes(heading, tmp_path, TORCH[heading])


BUILDS_SCHEDULER = "scheduler = lambda_lr(optimizer, curve)  # the optimizer's lr is the peak\n"
BUILDS_BOTH = f"optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)\n{BUILDS_SCHEDULER}"


def replacement_lines(heading):
    """Return the lines that a section gives to replace lines of the page's first program."""
    (lines,) = (
        block.code
        for section in sections(ROOT / "docs" / "pytorch.md")
        for block in section.blocks
        if section.heading == heading
    )
    return lines


def test_sequence_of_schedulers_resumes(tmp_path):
    changes = {
        BUILDS_SCHEDULER: replacement_lines("Plain PyTorch, combined with torch's schedulers")
    }
    constant = [[0.1 * float(np.float32(PAGE_PEAK))]] * 40
    expected = [*constant, *expected_lrs(LATER, range(160), PAGE_PEAK)]
    assert_resumes(PLAIN, tmp_path, expected, changes=changes)


def test_compiled_optimizer_resumes(tmp_path):
    changes = {
        BUILDS_BOTH: replacement_lines("A compiled optimizer"),
        "optimizer.step()": "compiled_step()",
    }
    expected = np.float32(expected_lrs(FROM_A_START, range(200), PAGE_PEAK)).tolist()
    assert_resumes(PLAIN, tmp_path, expected, record_compiled_lrs, changes)


AFTER_A_WARMUP = "Plain PyTorch, a warmup before ReduceLROnPlateau"


def test_plateau_takes_over_from_the_warmup(tmp_path):
    (uninterrupted, used), (resumed, used_later) = run_and_resume(
        AFTER_A_WARMUP, tmp_path, record_lrs
    )
    assert used[:20] == expected_lrs(StagedCurve([(20, 1.0)]), range(20), PAGE_PEAK)
    assert used[20:] == sorted(used[20:], reverse=True)
    halvings = {math.log2(float(np.float32(PAGE_PEAK)) / lr) for (lr,) in used[20:]}
    assert halvings == set(range(len(halvings)))
    assert len(halvings) >= 3
    assert used_later == used[100:]
    assert same_weights(resumed.names["model"], uninterrupted.names["model"])


LIGHTNING = "PyTorch Lightning"
(IN_TURN,) = [
    block.code
    for section in sections(ROOT / "docs" / "lightning.md")
    for block in section.blocks
    if section.heading == LIGHTNING and block.language == "py"
]
"""The method of a module that steps a warmup and `ReduceLROnPlateau` in turn."""
TWO_SCHEDULERS = """\
        warmup = lambda_lr(optimizer, StagedCurve([(WARMUP, 1.0)]))
        plateau = ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
        return [optimizer], [
            {"scheduler": warmup, "interval": "step"},
            {"scheduler": plateau, "interval": "step", "frequency": 32, "monitor": "same"},
        ]
"""


def test_plateau_takes_over_in_lightning(tmp_path):
    """The monitored number never falls: each 32 updates but the first halve the learning rate."""
    returned = re.search(r" +return {\n.+?\n        }\n", program_named(LIGHTNING).code, re.DOTALL)[
        0
    ]
    changes = {
        "from pathlib": (
            "from torch.optim.lr_scheduler import ReduceLROnPlateau\n"
            "from torch_bridge import StagedCurve\n"
            "WARMUP = 20\nfrom pathlib"
        ),
        ", self.lr_schedulers().get_last_lr()[0]": ', self.optimizers().param_groups[0]["lr"]',
        "        return loss\n": '        self.log("same", 1.0)\n        return loss\n',
        returned: TWO_SCHEDULERS + indent(IN_TURN, "    "),
    }
    (_, used), (_, used_later) = run_and_resume(LIGHTNING, tmp_path, record_lrs, changes)
    assert used[:20] == expected_lrs(StagedCurve([(20, 1.0)]), range(20), PAGE_PEAK)
    peak = float(np.float32(PAGE_PEAK))
    assert used[20:] == [[peak / 2 ** max(update // 32 - 1, 0)] for update in range(20, 200)]
    assert used_later == used[100:]


PEAK_OF_DECAY = 0.2
RISING = StagedCurve([(200, 1.0, "cosine")], start=0.1)
CHAINED = """\
ChainedScheduler([lambda_lr(optimizer, curve), follow(optimizer, "weight_decay", rising)])\
"""
"""One scheduler for the learning rate and the weight decay, as the pages on trainers have it."""
IMPORTS = """\
from torch.optim.lr_scheduler import ChainedScheduler
from torch_bridge import StagedCurve, follow

rising = StagedCurve([(200, 1.0, "cosine")], start=0.1)
"""
IN_TRAINERS = {
    "accelerate": {
        "from pathlib": f"{IMPORTS}from pathlib",
        "lr=1e-2)": f"lr=1e-2, weight_decay={PEAK_OF_DECAY})",
        "= lambda_lr(optimizer, curve)": f"= {CHAINED}",
    },
    "Lightning Fabric": {
        "from pathlib": f"{IMPORTS}from pathlib",
        "lr=1e-2)": f"lr=1e-2, weight_decay={PEAK_OF_DECAY})",
        "= lambda_lr(optimizer, curve)": f"= {CHAINED}",
    },
    "PyTorch Lightning": {
        "from pathlib": f"{IMPORTS}from pathlib",
        "lr=1e-2)": f"lr=1e-2, weight_decay={PEAK_OF_DECAY})",
        "lambda_lr(optimizer, curve)": CHAINED,
    },
    "Hugging Face Trainer": {
        "from pathlib": f"{IMPORTS}from pathlib",
        "learning_rate=1e-2,": f"learning_rate=1e-2,\n    weight_decay={PEAK_OF_DECAY},",
        "lambda_lr(optimizer or self.optimizer, curve)": CHAINED.replace(
            "optimizer,", "self.optimizer,"
        ),
    },
}
"""By heading: what schedules the weight decay too."""


@contextmanager
def record_lrs_and_decays() -> Generator[list[list[tuple[float, float]]]]:
    """Record the learning rate and the weight decay of each group at every update."""
    used: list[list[tuple[float, float]]] = []

    def note(optimizer: Optimizer, *_: object) -> None:
        used.append([(group["lr"], group["weight_decay"]) for group in optimizer.param_groups])

    handle = register_optimizer_step_pre_hook(note)
    try:
        yield used
    finally:
        handle.remove()


@pytest.mark.parametrize("heading", IN_TRAINERS)
def test_trainer_schedules_the_weight_decay_too(heading, tmp_path):
    changes = IN_TRAINERS[heading]
    (uninterrupted, used), (resumed, used_later) = run_and_resume(
        heading, tmp_path, record_lrs_and_decays, changes
    )
    expected = []
    for update, (lr,) in enumerate(OF_PAGE):
        groups = [(lr, learning_rate(PEAK_OF_DECAY, RISING, update))]
        if heading == "Hugging Face Trainer":
            groups.append((lr, 0.0))  # biases have no weight decay
        expected.append(groups)
    assert used == expected
    assert used_later == expected[100:]
    assert same_weights(resumed.names["model"], uninterrupted.names["model"])


@pytest.mark.parametrize("page", ["lightning.md", "hugging_face.md"])
def test_page_has_the_chained_scheduler(page):
    assert f"`{CHAINED}`" in (ROOT / "docs" / page).read_text(encoding="utf-8")


BUILD = "trainer = CurveTrainer(model, arguments, train_dataset=dataset)"
(WITHOUT_SUBCLASS,) = re.findall(
    r"`(Trainer\(model, .+?)`", "".join(page.read_text(encoding="utf-8") for page in PAGES)
)
OF_TRAINER = PlateauCurve(136, warmup_steps=3, plateaus=[(20, 30)], min_lr_ratio=0.1)
ADAMW = "torch.optim.AdamW(model.parameters(), 1e-2)"
TRAINERS = {
    "optimizers": (
        f"optimizer, curve = {ADAMW}, {OF_TRAINER}\ntrainer = {WITHOUT_SUBCLASS}",
        *(OF_TRAINER, 1),
    ),
    "file": (
        f"import curve_trainer\n{BUILD.replace('Curve', '')}",
        *(StagedCurve([("5%", 1.0), ("rest",), ("20%", 0.0, "1-sqrt")], total_steps=136), 2),
    ),
}
"""More ways to give Hugging Face's Trainer a curve; the curve, and the number of groups."""


@pytest.mark.parametrize(("build", "curve", "groups"), TRAINERS.values(), ids=TRAINERS)
def test_trainer_resumes_in_mid_epoch(build, curve, groups, tmp_path, monkeypatch):
    """An epoch has 33 updates of three batches, and one of one; `warmup_steps` has no effect."""
    import_from_pages(tmp_path, monkeypatch, "curve.yaml", "curve_file.py", "curve_trainer.py")
    monkeypatch.setattr(
        Trainer, "create_scheduler", Trainer.create_scheduler
    )  # undone after the test
    changes = {
        BUILD: build,
        "gradient_accumulation_steps=2": "gradient_accumulation_steps=3, warmup_steps=3",
        "save_steps=50": "save_steps=40",
    }
    with record_lrs() as used:
        in_full = changes | {"saved_transformers": "saved_whole"}
        uninterrupted = train("Hugging Face Trainer", tmp_path, changes=in_full).names["trainer"]
    train("Hugging Face Trainer", tmp_path, changes=changes, interrupt_after=4)
    with record_lrs() as used_later:
        resumed = train("Hugging Face Trainer", tmp_path, changes=changes).names["trainer"]
    assert used == expected_lrs(curve, range(136), PAGE_PEAK, groups)
    logged = [
        entry["learning_rate"]
        for entry in uninterrupted.state.log_history
        if "learning_rate" in entry
    ]
    assert logged == [lrs[0] for lrs in used[19::20]]
    assert used_later == used[40:]
    assert same_weights(resumed.model, uninterrupted.model)


def test_skipped_fp16_update_does_not_move_the_curve(tmp_path):
    """With a gradient scaler, since fp16 itself needs a GPU."""
    build = "accelerator = Accelerator(gradient_accumulation_steps=MICRO_BATCHES)\n"
    backward = "accelerator.backward(loss)"
    changes = {
        build: f"{build}accelerator.scaler = torch.amp.GradScaler('cpu')\n",
        backward: "accelerator.backward(loss * torch.inf if update == 2 else loss)",
    }
    with record_lrs() as used:
        train("accelerate", tmp_path, changes=changes, interrupt_after=1)
    assert used == expected_lrs(PAGE_CURVE, range(19), PAGE_PEAK)


RESUMES = [program.heading for program in programs() if program.resumes]
COUNTING_TOKENS = [heading for heading in RESUMES if heading.endswith(", counting tokens")]


@contextmanager
def record_lrs_and_rows() -> Generator[tuple[list[list[float]], list[Tensor]]]:
    """Record the learning rates, and the rows that the first layer gets of each micro-batch."""
    rows: list[Tensor] = []

    def note(module: nn.Module, inputs: tuple[Tensor]) -> None:
        if isinstance(module, nn.Linear) and module.in_features == 8:
            rows.append(inputs[0].detach().clone())

    handle = register_module_forward_pre_hook(note)
    try:
        with record_lrs() as used:
            yield used, rows
    finally:
        handle.remove()


@pytest.mark.parametrize("heading", COUNTING_TOKENS)
def test_program_on_a_clock_of_tokens_resumes(heading, tmp_path):
    (uninterrupted, (used, batches)), (resumed, (used_later, _)) = run_and_resume(
        heading, tmp_path, record_lrs_and_rows
    )
    names = uninterrupted.names
    tokens_of = {
        row.numpy().tobytes(): int(count)
        for row, count in zip(names["rows"], names["tokens"], strict=True)
    }
    micro_batches = [sum(tokens_of[row.numpy().tobytes()] for row in batch) for batch in batches]
    assert (len(used), len(micro_batches)) == (200, 400)
    consumed = 0
    for update, lrs in enumerate(used):
        assert set(lrs) == {learning_rate(PAGE_PEAK, names["curve"], consumed // 1024)}
        consumed += sum(micro_batches[2 * update : 2 * update + 2])
    assert consumed == int(names["tokens"].sum())
    assert used_later == used[100:]
    assert same_weights(resumed.names["model"], names["model"])
    assert torch.equal(resumed.names["rows"], names["rows"])


HOOK_OF_LIGHTNING = """\
    def lr_scheduler_step(self, scheduler, metric):
        scheduler.step(count=int(self.trainer.strategy.reduce(self.tokens, reduce_op="sum")))
        self.tokens = 0
"""
OTHER_CLOCKS = {
    "always the same count": (
        {"clock=DataClock(UNIT)": "clock=DataClock(UNIT, count=5000)", HOOK_OF_LIGHTNING: ""},
        lambda update: 5000 * update // 1024,
    ),
    "a hold rule": (
        {
            "import DataClock": "import HoldBelow",
            "clock=DataClock(UNIT)": "clock=HoldBelow(1000.0, 50)",
            "        return loss\n": "        self.loss = loss.item()\n        return loss\n",
            HOOK_OF_LIGHTNING: (
                "    def lr_scheduler_step(self, scheduler, metric):\n"
                "        scheduler.step(self.loss)\n"
            ),
        },
        lambda update: max(update - 50, 0),
    ),
}
"""Changes to Lightning's program on its page, and the curve's step at each update."""


@pytest.mark.parametrize(("changes", "step_at"), OTHER_CLOCKS.values(), ids=OTHER_CLOCKS)
def test_program_with_another_clock(changes, step_at, tmp_path):
    with record_lrs() as used:
        names = train("PyTorch Lightning, counting tokens", tmp_path, changes=changes).names
    assert len(used) == 200
    for update, lrs in enumerate(used):
        assert set(lrs) == {learning_rate(PAGE_PEAK, names["curve"], step_at(update))}


# By heading: the state of a program, from its variables, and the update at which it resumes.
JAX = {
    # The checkpoint after 200 micro-batches, one of which was skipped, lies between two updates.
    "optax: MultiSteps and apply_if_finite": (
        lambda names: (names["params"], names["opt_state"]),
        99,
    ),
    "flax nnx": (
        lambda names: nnx.to_pure_dict(nnx.state((names["model"], names["optimizer"]))),
        100,
    ),
    "flax linen": (
        lambda names: (names["state"].params, names["state"].opt_state, names["state"].step),
        100,
    ),
    "orbax": (lambda names: names["state"], 100),
}

TRAIN_STATE = "flax linen: `count=` and `value=` for the optimizer"


@pytest.mark.parametrize("heading", JAX)
def test_jax_program_resumes(heading, tmp_path):
    names = assert_jax_resumed(heading, tmp_path, *JAX[heading])
    assert "apply_if_finite" not in heading or int(names["opt_state"].total_notfinite) == 1


def test_train_state_that_passes_counts_resumes(tmp_path):
    (uninterrupted, _), (resumed, _) = run_and_resume(TRAIN_STATE, tmp_path, nullcontext)
    names, state = uninterrupted.names, uninterrupted.names["state"]
    consumed = [int(names["read_batch"](update)[1].sum()) for update in range(1, 201)]
    _, of_curve = state.opt_state
    unit = names["CLOCK"].unit
    assert (of_curve.curve_step, of_curve.rest) == divmod(sum(consumed), unit)
    last = np.array(sum(consumed[:-1]) // unit)
    assert_equal_bits(of_curve.learning_rate, product(PAGE_CURVE, PAGE_PEAK, last))
    for part in ("params", "opt_state", "step"):
        jax.tree.map(
            np.testing.assert_array_equal,
            getattr(resumed.names["state"], part),
            getattr(state, part),
        )
    assert_rejected_if_longer(TRAIN_STATE, tmp_path, "curve")


def test_averaged_weights_resume(tmp_path):
    heading, ramp = "optax: weight averaging", StagedCurve([(50, 1.0)])
    (uninterrupted, given), (resumed, given_later) = run_and_resume(heading, tmp_path, watched)
    for record, counts in ((given, range(200)), (given_later, range(100, 200))):
        record.assert_given(PAGE_CURVE, PAGE_PEAK, counts)
        record.assert_given(ramp, 0.95, counts)
    jax.tree.map(
        np.testing.assert_array_equal, resumed.names["state"], uninterrupted.names["state"]
    )
    assert_rejected_if_longer(heading, tmp_path, "curve")

    # The average by its definition, starting from the initial weights, which are 0.
    params, _, opt_state = uninterrupted.names["state"]
    params = jax.tree.map(jnp.zeros_like, params)
    state, expected = (params, params, jax.tree.map(jnp.zeros_like, opt_state)), 0.0
    for count in range(12):
        inputs = np.random.default_rng(count).normal(size=(256, 8)).astype(np.float32)
        state, _ = uninterrupted.names["train"](*state, inputs, count)
        decay = float(product(ramp, 0.95, np.array([count]))[0])
        expected = decay * expected + (1 - decay) * np.asarray(state[0])
        np.testing.assert_allclose(state[1], expected, rtol=1e-5)


GROWING = "optax: a growing batch under MultiSteps"


@dataclass(frozen=True)
class GrowingUpdate:
    """An update of a run whose batch grows."""

    batch: int
    lr: float
    next_step: int
    """The step of the curve that gives the next update's learning rate."""


def growing_batch(consumed: int) -> int:
    """The batch plan of the program, long-hand."""
    if consumed < 6_400:
        return 64
    if consumed < 19_200:
        return 128
    return 256


def updates_in_optax(names: dict[str, Any]) -> Iterator[GrowingUpdate]:
    """Repeat a run with the program's `train`; the learning rates do not depend on the inputs."""
    params, micro_batch = jnp.zeros(8), names["MICRO_BATCH"]
    state, batch = names["tx"].init(params), 0
    for _ in range(names["SAMPLES"] // micro_batch):
        params, state, _ = names["train"](params, state, jnp.ones((micro_batch, 8)))
        batch += micro_batch
        if state.mini_step == 0:
            of_curve = state.inner_opt_state[-1]
            yield GrowingUpdate(batch, float(of_curve.learning_rate), int(of_curve.curve_step))
            batch = 0


def updates_in_torch(scaled: Curve, peak: float, samples: int) -> Iterator[GrowingUpdate]:
    """Train under the same curve in PyTorch."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(8))], lr=peak)
    scheduler = lambda_lr(optimizer, scaled)
    while scheduler.consumed < samples:
        batch, (lr,) = growing_batch(scheduler.consumed), scheduler.get_last_lr()
        optimizer.step()
        scheduler.step(count=batch)
        yield GrowingUpdate(batch, lr, scheduler.curve_step)


def test_growing_batch_matches_torch(tmp_path):
    """Update by update: the batches, the steps of the curve and the bits of the learning rates."""
    (uninterrupted, _), (resumed, _) = run_and_resume(GROWING, tmp_path, nullcontext)
    names = uninterrupted.names
    in_optax = list(updates_in_optax(names))
    assert in_optax == list(updates_in_torch(names["scaled"], names["PEAK"], names["SAMPLES"]))
    assert {update.batch for update in in_optax} == {64, 128, 256}
    assert int(names["opt_state"].gradient_step) == len(in_optax) == 250

    for name in ("params", "opt_state"):
        jax.tree.map(np.testing.assert_array_equal, resumed.names[name], names[name])
    with pytest.raises(ValueError, match=r"^the run cannot resume at step \d+: it was saved with "):
        train(GROWING, tmp_path / "interrupted", changes={"warmup_steps=50": "warmup_steps=60"})


def test_each_program_that_resumes_is_in_a_table():
    elsewhere = [
        TRAIN_STATE,
        "optax: weight averaging",
        GROWING,
        AFTER_A_WARMUP,
        "DDP and FSDP2",
    ]  # the last in test_ranks.py
    tested = [*TORCH, *COUNTING_TOKENS, *JAX, *elsewhere]
    assert sorted(RESUMES) == sorted(tested)
