"""The program of docs/troubleshooting/processes.md with DeepSpeed, on the CPU.

Needs `pip install deepspeed`, which no extra includes: it compiles C++ when it starts.
"""

import importlib.util

import pytest
from support.docs.pages import ROOT, sections
from support.programs import Program, rank_environments

from plateau_jax import PlateauCurve

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="no deepspeed"),
]

(CODE,) = (
    block.code
    for section in sections(ROOT / "docs" / "troubleshooting" / "processes.md")
    for block in section.blocks
    if "deepspeed.initialize" in block.code
)
LOOP, STEP = "for _ in range(20):\n", "    engine.step()"
SHOW = 'print("lr", optimizer.param_groups[0]["lr"])\n'


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_updates_have_the_learning_rates_of_the_curve(stage, tmp_path):
    code = CODE.replace('"stage": 2', f'"stage": {stage}')
    assert CODE.count('"stage": 2') == CODE.count(LOOP) == CODE.count(STEP) == 1
    trained = run(code.replace(STEP, f"    {SHOW}{STEP}"), tmp_path)
    curve = PlateauCurve(1_000, warmup_steps=100)
    assert trained == pytest.approx([1e-2 * curve(batch // 2) for batch in range(20)], rel=1e-6)
    beginning, _ = code.split(LOOP)
    load = f'engine.load_checkpoint("saved_deepspeed", tag="10")\n{SHOW}'
    assert run(beginning + load, tmp_path) == pytest.approx([1e-2 * curve(10)], rel=1e-6)


def run(code, folder):
    """Return the learning rates that the program prints."""
    file = folder / "program.py"
    file.write_text(code, encoding="utf-8")
    (variables,) = rank_environments(processes=1)
    status, output, errors = Program(
        file, folder=folder, environment=variables | {"DS_ACCELERATOR": "cpu"}
    ).finish()
    assert status == 0, errors
    return [float(line.split()[1]) for line in output.splitlines() if line.startswith("lr ")]
