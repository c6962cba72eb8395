"""Sphinx configuration of the site. Build it with `python -m sphinx -W docs build/site`."""

import os
import re
from importlib import import_module

import plateau_jax

project = "plateau-jax"
project_copyright = "The plateau-jax developers"
release = version = plateau_jax.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
exclude_patterns = ["pictures"]
default_role = "code"  # docstrings write `name`, as Markdown does
myst_heading_anchors = 3
nb_execution_mode = "off"  # the notebook is committed with its outputs
smartquotes = False  # it would turn the -- of an option into a dash

# Buttons for code, not for output and equations. They copy neither prompts nor the output of
# doctests.
copybutton_selector = ".highlight-python pre, .highlight-py pre, .highlight-sh pre, .doctest pre"
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
html_use_index = False  # reference/index.md lists all names, in order of use
html_css_files = ["site.css"]
html_js_files = [("search.js", {"defer": "defer"})]
html_static_path = ["static"]

add_module_names = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 70
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "special-members": "__call__"}
autodoc_class_signature = "mixed"
napoleon_numpy_docstring = False
napoleon_use_rtype = False  # a colon in Returns would split it into "Returns" and "Return type"
napoleon_custom_sections = [("Attributes", "params_style")]  # formatted like Args


def mark_equations(app, what, name, obj, options, lines):
    """Turn a docstring's equations, indented blocks after an empty line, into literal blocks."""
    # In reStructuredText such a block would be a quotation, set as prose.
    marked, before = [], ""
    for index, line in enumerate(lines):
        indent = len(line) - len(line.lstrip())
        margin = len(before) - len(before.lstrip())
        is_list = line.lstrip().startswith("- ")
        if line and not lines[index - 1] and before and indent >= margin + 4 and not is_list:
            marked += [" " * margin + ".. code-block:: text", ""]
            before = " " * indent + "."
        elif line:
            before = line
        marked.append(line)
    # napoleon reads the first line of an attribute, up to a colon, as its type: give it an empty
    # comment.
    lines[:] = ["..", "", *marked] if what in ("attribute", "property") else marked


def split_lines(app, what, name, obj, options, lines):
    """Split an entry of Raises, which napoleon joins into one line, so that a list stays a list."""
    lines[:] = "\n".join(lines).split("\n")


INTRODUCTION = """
```{include} ../README.md
:start-after: "# plateau-jax"
:end-before: "## In your trainer"
:relative-docs: docs/
:relative-images:
```
"""
"""What the first page of the site has in place of its link to the README."""

INHERITED_MEMBERS = {
    "plateau_jax.BatchPlan": "",
    "plateau_jax.Curve": "",
    "plateau_jax.DataClock": "",
    "plateau_jax.HoldBelow": "",
    "plateau_jax.HoldUntilFlat": "",
    "torch_bridge.lambda_lr": "LambdaLR",
    "torch_bridge.follow": "",
}
"""The classes whose inherited members the reference shows, up to a base class."""


def extend_for_site(app, name, source):
    """Turn a page that reads well on GitHub, without directives, into one of the site."""
    text = source[0].replace("](../examples/choosing_a_curve.ipynb)", "](choosing_a_curve)")
    text = text.replace("](../CHANGELOG.md)", "](changelog)")
    # CONTRIBUTING is not on the site.
    text = text.replace("[Contributing](../CONTRIBUTING.md)", "`CONTRIBUTING.md`")
    if name == "index":
        text = re.sub(r"^Learning-rate schedules .*$", INTRODUCTION, text, flags=re.MULTILINE)
    if name in ("index", "reference/index"):
        text = with_contents(text)
    signature = r"^.* \[Docstring\]\(.*\n\n    ([\w.]+).*\n(?:    .*\n)*"
    source[0] = re.sub(signature, docstring_of, text, flags=re.MULTILINE)


def with_contents(text):
    """Add a hidden table of contents: the pages that the items of each section link first."""
    for section in text.split("\n## "):
        heading, _, items = section.partition("\n")
        pages = re.findall(r"^- \[[^]]*\]\(([\w/]+?)(?:\.md)?\)", items, re.MULTILINE)
        if pages:
            listed = "\n".join(pages)
            text += (
                f"\n```{{toctree}}\n:hidden:\n:caption: {heading.strip('# ')}\n\n{listed}\n```\n"
            )
    return text


def docstring_of(entry):
    """Return the directive that shows the docstring of a name, in place of its signature."""
    full_name = entry[1]
    package, _, name = full_name.partition(".")
    value = getattr(import_module(package), name)
    kind = "function"
    if isinstance(value, type):
        kind = "exception" if issubclass(value, Warning) else "class"
    directive = f"```{{eval-rst}}\n.. auto{kind}:: {full_name}\n"
    if full_name in INHERITED_MEMBERS:
        directive += f"   :inherited-members: {INHERITED_MEMBERS[full_name]}\n"
    return directive + "```\n"


def setup(app):
    app.connect("autodoc-process-docstring", mark_equations, priority=400)  # before napoleon
    app.connect("autodoc-process-docstring", split_lines, priority=600)  # after napoleon
    app.connect("source-read", extend_for_site)
