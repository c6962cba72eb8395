"""The benchmark of speed options runs and prints a ratio for each option."""

import re

import pytest
from support.programs import EXAMPLES, run

SCRIPT = EXAMPLES / "benchmarks" / "speedups.py"


@pytest.mark.slow
def test_benchmark_prints_ratio_for_every_option(tmp_path):
    sizes = "--rounds", "1", "--calls", "1", "--rows", "4", "--samples", "8", "--layers", "1"
    printed = run(SCRIPT, *sizes, folder=tmp_path)
    ratios = dict(re.findall(r"^ *(\S.*?)  +\d\S* +([\d.]+)$", printed, re.MULTILINE))
    for option in (
        'precision="bf16"',
        'precision="fp16"',
        "compile=True",
        'compile=True, precision="bf16"',
        "AdamW(foreach=True)",
        "AdamW(fused=False)",
        "the loss is read at each update",
        "four micro-batches of a quarter",
        "checkpoint_activations",
        "num_workers=1",
        "num_workers=2",
    ):
        assert float(ratios[option]) > 0
    assert list(tmp_path.iterdir()) == []
