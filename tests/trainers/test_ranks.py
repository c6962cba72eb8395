"""The programs on the pages under torchrun."""

import re
from dataclasses import dataclass, field, replace
from textwrap import indent

import pytest
from support.docs.pages import program_named, section_named, without_losses
from support.programs import Program, rank_environments
from support.schedulers.runs import learning_rate
from trainers.runs import PAGE_CURVE, PAGE_PEAK, losses, program

from plateau_jax import StagedCurve

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class EndedRank:
    lines: list[str]
    """What it has printed."""
    warnings: str
    """What it has written to standard error."""

    def lines_with(self, text):
        return [line for line in self.lines if text in line]


def run_on_two_ranks(code, folder, status=0):
    """Run a program in torchrun's environment; return what each rank has printed."""
    file = folder / "program.py"
    file.write_text(code, encoding="utf-8")
    programs = []
    for variables in rank_environments():
        environment = {**variables, "ACCELERATE_USE_CPU": "true"}
        programs.append(Program(file, folder=folder, environment=environment))
    ended = [rank.finish() for rank in programs]
    ranks = []
    for exit_status, output, errors in ended:
        assert exit_status == status, ended
        ranks.append(EndedRank(output.splitlines(), errors))
    assert len(ranks) == 2
    return ranks


def assert_printed_lrs(lines, curve, steps_per_update=1):
    """Check the learning rates that the lines "update 20: loss 1.2345, lr 6.78e-03" show."""
    assert lines
    for line in lines:
        update, lr = re.fullmatch(r"update (\d+): .+, lr (\S+)", line).groups()
        step = steps_per_update * (int(update) - 1)
        assert lr == f"{learning_rate(PAGE_PEAK, curve, step):.2e}"


HALF = StagedCurve([(20, 1.0), (60,), (20, 0.0, "1-sqrt")])
DEVICES = "A program for one or several GPUs"


@dataclass(frozen=True)
class Interrupted:
    """A program of the pages that is interrupted, and resumes."""

    heading: str
    loop: str
    """How the line begins before which a KeyboardInterrupt is raised."""
    condition: str
    """When it is raised, in the names of the program."""
    saved_in: str
    """The folder of its checkpoints."""
    losses_before: int
    """The number of losses printed before the interrupt."""
    losses: int
    curve: StagedCurve | None
    """The curve of the learning rates that it prints, or None if it prints none."""
    changes: dict[str, str] = field(default_factory=dict)


FSDP = Interrupted(
    heading="DDP and FSDP2",
    loop="        batch =",
    condition="update == 120",
    saved_in="saved_ranks",
    losses_before=2,
    losses=5,
    curve=PAGE_CURVE,
)
DDP = replace(
    FSDP,
    changes={"    fully_shard(model)": "    model = nn.parallel.DistributedDataParallel(model)"},
)
ACCELERATE = Interrupted(
    heading="accelerate",
    loop="    with accelerator.acc",
    condition="update == 55",
    saved_in="saved_accelerate",
    losses_before=1,
    losses=2,
    curve=HALF,
)
ON_DEVICES = Interrupted(
    heading=DEVICES,
    loop="        for batch",
    condition="epoch == 3",
    saved_in="run_devices",
    losses_before=2,
    losses=4,
    curve=None,
)


def losses_on_two_ranks(code, folder, status=0):
    """Run a program, and return the lines of both ranks that have a loss."""
    first, second = run_on_two_ranks(code, folder, status)
    return first.lines_with("loss") + second.lines_with("loss")


@pytest.mark.parametrize(
    "case", [FSDP, DDP, ACCELERATE, ON_DEVICES], ids=["FSDP", "DDP", "accelerate", "devices"]
)
def test_program_resumes_under_torchrun(case, tmp_path):
    indent = " " * (len(case.loop) - len(case.loop.lstrip()))
    interrupt = f"{indent}if {case.condition}:\n{indent}    raise KeyboardInterrupt\n"
    with_interrupt = program(case.heading, {**case.changes, case.loop: interrupt + case.loop})
    unchanged = program(case.heading, case.changes)
    in_a_new_folder = program(case.heading, {**case.changes, case.saved_in: "saved_whole"})

    interrupted = losses_on_two_ranks(with_interrupt, tmp_path, status=1)
    resumed = losses_on_two_ranks(unchanged, tmp_path)
    uninterrupted = losses_on_two_ranks(in_a_new_folder, tmp_path)
    assert len(interrupted) == case.losses_before
    assert len(uninterrupted) == case.losses
    assert interrupted + resumed == uninterrupted
    first_loss, *_, last_loss = losses(uninterrupted)
    assert last_loss < first_loss
    if case is FSDP:
        shown = program_named(case.heading).shown
        assert without_losses(shown) == without_losses("\n".join([*uninterrupted, ""]))
    if case.curve:
        assert_printed_lrs(uninterrupted, case.curve)


TOKENS = "Count tokens under DDP with gradient accumulation"


def test_tokens_under_ddp_are_those_of_one_process(tmp_path):
    """Interrupted and resumed on two ranks, it prints the lines of the page, which one printed."""
    loop = "        tokens = sum("
    interrupt = "        if num_updates == 55:\n            raise KeyboardInterrupt\n"
    with_interrupt = program(TOKENS, {loop: interrupt + loop})
    interrupted, _ = run_on_two_ranks(with_interrupt, tmp_path, status=1)
    resumed, _ = run_on_two_ranks(program(TOKENS), tmp_path)
    printed = interrupted.lines_with("tokens") + resumed.lines_with("tokens")
    assert printed == program_named(TOKENS).shown.splitlines()
    finished, _ = run_on_two_ranks(program(TOKENS), tmp_path)
    assert finished.lines_with("tokens") == []


BUILD = "scheduler = lambda_lr(optimizer, curve)"
PREPARED = {BUILD: "scheduler = accelerator.prepare(lambda_lr(optimizer, curve))"}
ADVICE = "clock=DataClock(accelerator.num_processes, count=1)"
COUNTING_PROCESSES = {
    "import StagedCurve": "import DataClock, StagedCurve",
    BUILD: f"scheduler = accelerator.prepare(lambda_lr(optimizer, curve, {ADVICE}))",
}


def test_prepared_scheduler_steps_per_process_and_warns(tmp_path):
    ranks = run_on_two_ranks(program("accelerate", PREPARED), tmp_path)
    assert_printed_lrs(ranks[0].lines_with("loss"), HALF, steps_per_update=2)
    for rank in ranks:
        assert re.search(r"accelerate.\w+\.py:\d+: CurveWarning: ", rank.warnings)
        assert f"build the scheduler with {ADVICE}" in rank.warnings


SPLIT_BATCHES = {
    "import Accelerator": "import Accelerator, DataLoaderConfiguration",
    "Accelerator(": "Accelerator(dataloader_config=DataLoaderConfiguration(split_batches=True), ",
}
STEPPED_ALONE = {"steps=MICRO_BATCHES": "steps=MICRO_BATCHES, step_scheduler_with_optimizer=False"}


@pytest.mark.parametrize(
    ("changes", "curve"),
    [
        (COUNTING_PROCESSES, HALF),
        # Each process has half of each batch, so the run has as many updates as on one.
        (PREPARED | SPLIT_BATCHES, PAGE_CURVE),
        (PREPARED | STEPPED_ALONE, HALF),
        (PREPARED | SPLIT_BATCHES | STEPPED_ALONE, PAGE_CURVE),
    ],
    ids=["default", "split_batches", "stepped alone", "both"],
)
def test_prepared_scheduler_moves_one_step_per_update(changes, curve, tmp_path):
    """In each case of the page's table, with its line."""
    ranks = run_on_two_ranks(program("accelerate", changes), tmp_path)
    assert_printed_lrs(ranks[0].lines_with("loss"), curve)
    for rank in ranks:
        assert "CurveWarning" not in rank.warnings


RULE = "HoldUntilFlat(patience=1, every=2, limit=50)"


def test_rule_has_the_same_losses_on_all_ranks(tmp_path):
    """The page takes the mean; the losses of the ranks differ."""
    (mean_loss,) = section_named("Hold a plateau until the loss is flat").code_in("py")
    code = program(
        "DDP and FSDP2",
        {
            **DDP.changes,
            "import Checkpoints": "import Checkpoints, HoldUntilFlat",
            BUILD: f"scheduler = lambda_lr(optimizer, curve, clock={RULE})",
            "        scheduler.step()\n": indent(
                mean_loss + 'print("hold", scheduler.state_dict()["hold"])\n', " " * 8
            ),
        },
    )
    first, second = [rank.lines_with("hold") for rank in run_on_two_ranks(code, tmp_path)]
    assert first == second
    assert len(set(first)) > 1


def test_growing_batch_is_split_between_ranks(tmp_path):
    """Two processes make the updates of one, with the same number of samples."""
    code = program("Grow the batch in the Hugging Face Trainer")
    printed_by_one = re.findall(r"^ *print\(.*\)  # (.+)$", code, re.MULTILINE)
    for rank in run_on_two_ranks(code, tmp_path):
        for line in printed_by_one:
            assert line in rank.lines
