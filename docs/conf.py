"""Sphinx configuration of the site. Build it with `python -m sphinx -W docs build/site`."""

import os
import re

import plateau_jax

project = "plateau-jax"
project_copyright = "The plateau-jax developers"
release = version = plateau_jax.__version__

extensions = [
    "myst_nb",
    "sphinx_copybutton",
]
exclude_patterns = ["pictures"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # the notebook is committed with its outputs
smartquotes = False  # it would turn the -- of an option into a dash

# Buttons for code, not for output and equations. They copy neither prompts nor the output of
# examples.
copybutton_selector = ", ".join(
    f".highlight-{language} pre" for language in ("python", "py", "pycon", "sh")
)
copybutton_exclude = ".linenos, .gp, .go"

html_theme = "furo"
repository = "https://address.example/plateau-jax"
if repository.startswith("https://github.com/"):  # .ci/first_publication fills in the address
    html_theme_options = {
        "source_repository": repository,
        "source_branch": "main",
        "source_directory": "docs/",
    }
pygments_dark_style = "a11y-dark"  # the default style underlines module names, like links
html_title = "plateau-jax"
# Search engines prefer this version's pages.
html_baseurl = os.environ.get("READTHEDOCS_CANONICAL_URL", "")
html_copy_source = False
html_use_index = False  # the pages have no entries for it
html_css_files = ["site.css"]
html_js_files = [("search.js", {"defer": "defer"})]
html_static_path = ["static"]

INTRODUCTION = """
```{include} ../README.md
:start-after: "# plateau-jax"
:end-before: "## In your trainer"
:relative-docs: docs/
:relative-images:
```
"""
"""What the first page of the site has in place of its link to the README."""


def extend_for_site(app, name, source):
    """Turn a page that reads well on GitHub, without directives, into one of the site."""
    text = source[0].replace("](../examples/choosing_a_curve.ipynb)", "](choosing_a_curve)")
    text = text.replace("](../CHANGELOG.md)", "](changelog)")
    # These two are not on the site.
    text = text.replace("[Contributing](../CONTRIBUTING.md)", "`CONTRIBUTING.md`")
    text = text.replace("[Examples](../examples/README.md)", "`examples/README.md`: examples")
    if name == "index":
        text = re.sub(r"^Learning-rate schedules .*$", INTRODUCTION, text, flags=re.MULTILINE)
    if name in ("index", "reference/index"):
        text = with_contents(text)
    source[0] = text


def with_contents(text):
    """Add a hidden table of contents: the pages that the items of each section link first."""
    for section in text.split("\n## "):
        heading, _, items = section.partition("\n")
        pages = re.findall(r"^- \[[^]]*\]\(([\w/]+?)(?:\.md)?\)", items, re.MULTILINE)
        if pages:
            listed = "\n".join(pages)
            text += (
                f"\n```{{toctree}}\n:hidden:\n:caption: {heading.strip('# `')}\n\n{listed}\n```\n"
            )
    return text


def setup(app):
    app.connect("source-read", extend_for_site)
