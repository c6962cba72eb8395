"""The README's Python runs from top to bottom, as one program."""

import re
from pathlib import Path

import pytest
from support.readme import README


def test_blocks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the blocks save files here
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    namespace: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(README), "exec"), namespace)


def test_commands_exist() -> None:
    text = README.read_text(encoding="utf-8")
    for script in re.findall(r"python (examples/\w+\.py)", text):
        assert (README.parent / script).is_file()
    for picture in re.findall(r"!\[.*?\]\((.*?)\)", text):
        assert (README.parent / picture).is_file()
