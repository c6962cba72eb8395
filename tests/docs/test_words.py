"""The pages stay short enough to read: a limit on their words, and nothing that stands twice."""

from collections import Counter

from markdown_it import MarkdownIt
from support.docs.pages import PAGES, REFERENCE, ROOT

WRITTEN = [page for page in PAGES if page.parent != REFERENCE]
DOCUMENTS = [*WRITTEN, ROOT / "CONTRIBUTING.md", ROOT / "tests" / "README.md"]
TEXTS = [document.read_text(encoding="utf-8") for document in DOCUMENTS]

LIMIT = 41_000
"""Words of all documents but the reference, code included, as `wc -w` counts them."""

SHORT = 25
"""A paragraph, an item of a list or a cell of a table with at most this many words may recur."""


def test_pages_keep_to_their_limit():
    words = sum(len(text.split()) for text in TEXTS)
    assert words <= LIMIT


def test_no_paragraph_stands_twice():
    counts = Counter[str]()
    for text in TEXTS:
        for token in MarkdownIt().enable("table").parse(text):
            if token.type == "inline" and len(token.content.split()) > SHORT:
                counts[" ".join(token.content.split())] += 1
    assert [paragraph for paragraph, count in counts.items() if count > 1] == []
