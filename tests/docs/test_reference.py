"""What the docstrings of public names must have, and that the built pages show it."""

import doctest
import inspect
import re
import shlex
from pathlib import Path
from typing import get_overloads

import pdoc.doc
import pytest
from pdoc.__main__ import cli
from support.reference import NAMES, PACKAGES, entries, members, parameters

pytestmark = pytest.mark.slow

# Public names that compute no number, and why.
WITHOUT_EQUATION = {
    "a state, a record or a type of function: what computes it has the equation": (
        "plateau_jax.CurveArguments",
        "plateau_jax.ScaleByCurveState",
        "plateau_jax.Stage",
        "torch_bridge.CarriedLoss",
        "torch_bridge.CurveLRState",
        "torch_bridge.FollowerState",
        "torch_bridge.MeanLoss",
        "torch_bridge.StepResult",
        "torch_bridge.TrainStepState",
    ),
    "moves, keeps, draws or measures what others computed": (
        "plateau_jax.plot",
        "plateau_jax.stack",
        "torch_bridge.Checkpoints",
        "torch_bridge.MetricLog",
        "torch_bridge.cached_arrays",
        "torch_bridge.distribute",
        "torch_bridge.make_loader",
        "torch_bridge.prefetch",
        "torch_bridge.profile",
    ),
    "says something": ("plateau_jax.CurveWarning", "torch_bridge.is_main"),
}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The pages that CONTRIBUTING's command builds: the name of each element, and its HTML up to the next."""
    root, folder = Path(__file__).parents[2], tmp_path_factory.mktemp("reference")
    (command,) = re.findall(r"^pdoc (.*?)(?:  #.*)?$", (root / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        cli([*shlex.split(command), "--output-directory", str(folder)])
    found: dict[str, str] = {}
    for package in PACKAGES:
        html, _, _ = (folder / f"{package.__name__}.html").read_text().partition("</main>")
        _, *parts = re.split(r'<(?:section|div) id="([\w.]+)"(?: class="classattr")?>', html)
        found |= {f"{package.__name__}.{n}": body for n, body in zip(*[iter(parts)] * 2, strict=True)}
    return found


def test_every_public_name_has_an_example_that_runs() -> None:
    finder = doctest.DocTestFinder(recurse=False)
    missing = [n for n, found in NAMES.items() if not any(t.examples for t in finder.find(found.obj, n))]
    assert not missing, "\n".join(missing)


def test_every_member_says_what_it_is() -> None:
    missing = [
        name
        for name, member, docstring in members()
        # Python writes a docstring for each field of a NamedTuple.
        if not member.docstring.removeprefix("Alias for field number").strip(" 0123456789")
        and member.name != "__init__"
        and member.name not in entries(docstring, "Args", "Attributes")
    ]
    assert not missing, "\n".join(missing)


def test_every_parameter_is_described() -> None:
    missing = [
        f"{name}({parameter})"
        for name, member, docstring in members()
        for parameter in parameters(member)
        if parameter not in entries(docstring, "Args", "Attributes")
    ]
    assert not missing, "\n".join(missing)


def test_arrays_have_a_shape_and_a_dtype() -> None:
    """In the docstring for arguments and attributes; in `Returns`, if there is one, for results."""
    words = r"\b(shapes?|scalars?|dimensions)\b", r"\b(u?int\d+|float\d+|floating-point|dtypes?)\b"
    missing: list[str] = []
    for name, member, docstring in members():
        taken, given = getattr(member, "annotation_str", ""), ""
        if isinstance(member, pdoc.doc.Function):
            forms = map(inspect.signature, [member.obj, *get_overloads(member.obj)])
            taken, given = zip(*(str(form).rpartition("->")[::2] for form in forms), strict=True)
        returns = re.search(r"^Returns:\n((?:(?: .*)?\n)+)", docstring, re.MULTILINE)
        for types, text in ((taken, docstring), (given, returns[1] if returns else docstring)):
            is_array = re.search(r"\b(Tensor|Array|ndarray)\b", str(types))
            if is_array and not all(re.search(word, text) for word in words):
                missing.append(name)
    assert not missing, "\n".join(missing)


def test_what_computes_a_number_shows_its_equation(pages: dict[str, str]) -> None:
    without = {name for names in WITHOUT_EQUATION.values() for name in names}
    missing = {name for name in NAMES if "<pre><code>" not in pages[name]} ^ without
    assert not missing, "\n".join(sorted(missing))


def test_pages_show_every_member_with_its_docstring(pages: dict[str, str]) -> None:
    missing = [
        name
        for name, member, _ in members()
        if name not in pages or (member.docstring and '<div class="docstring">' not in pages[name])
    ]
    assert not missing, "\n".join(missing)


def test_no_markup_is_left_on_the_pages(pages: dict[str, str]) -> None:
    """Such as a list shown as text, a section that was not recognised, a lone star or quote."""
    left = []
    for name, body in pages.items():
        _, _, shown = body.partition('<div class="docstring">')
        # The text without examples and inline code; with equations.
        code = r"<pre><span.*?</pre>|(?<!<pre>)<code.*?</code>|<h6.*?</h6>|<[^>]+>"
        text = re.sub(code, "", shown, flags=re.DOTALL)
        # A parameter's own stars stay: **settings.
        wrong = re.compile(r"`|\*(?!\*?\w+:)|^ *- |^ *>|^[A-Z]\w+:$")
        left += [f"{name}: {line}" for line in text.splitlines() if wrong.search(line)]
    assert not left, "\n".join(left)
