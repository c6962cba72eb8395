"""Shows that a package index can show the README that a wheel carries.

    python .ci/check_description.py WHEEL

The index's own renderer makes HTML of it: every picture and link there has a whole address, and
every block of code is that of the README.
"""

import re
import sys
from email import message_from_bytes
from pathlib import Path
from zipfile import ZipFile

from readme_renderer import markdown

with ZipFile(sys.argv[1]) as wheel:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    description = message_from_bytes(wheel.read(name)).get_payload(decode=True).decode()

WHOLE = re.compile(r'(?:href|src)="(?:https?:|#)')
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
tags = re.findall(r"<(?:a|img)\b[^>]*>", markdown.render(description))
lost = [tag for tag in tags if not WHOLE.search(tag)]
changed = [code for code in FENCE.findall(readme) if code not in description]
for wrong in lost + changed:
    print(wrong)
if lost or changed:
    sys.exit("A package index would not show what is printed above.")
