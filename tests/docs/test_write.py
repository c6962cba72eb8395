"""The command that writes what programs print into the pages."""

from pathlib import Path

import pytest
from support.docs.write import rewrite

pytestmark = pytest.mark.slow

PAGE = """# A page

```python
n = 2
```

## First

This continues the first program:

```python
print("table", n)
print(n + 1)  # 3
```

```text
{first}
```

```sh
echo done
```

```text
{second}
```

## Without output

```python
raise SystemExit("this section is not run")
```
"""


def test_outdated_output_is_replaced(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE.format(first="an old table", second=""), encoding="utf-8")
    rewrite(page)
    expected = PAGE.format(first="table 2", second="done")
    assert page.read_text(encoding="utf-8") == expected
    rewrite(page)
    assert page.read_text(encoding="utf-8") == expected
