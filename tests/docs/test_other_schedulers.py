"""The curve of each row gives the recorded learning rates of the original scheduler.

A learning rate here has three roundings to float32: of the peak, of the multiplier and of their
product. Originals that use optax or `jax.numpy` compute in float32, with errors of up to 4·2⁻²⁴ of
the peak; the others compute in float64.
"""

import numpy as np
import pytest
from docs.peers.record import read_record
from docs.recorded_rows import ALL_ROWS, CASES, PAGE, ROWS
from support.docs.pages import sections
from support.schedulers.runs import lrs_of, optimizer_with

from torch_bridge import DataClock, lambda_lr

pytestmark = [
    pytest.mark.slow,
    # The scheduler goes before the optimizer where OLMo-core's does, as the page says.
    pytest.mark.filterwarnings("ignore:Detected call of .lr_scheduler.step:UserWarning"),
]

SOURCES, LINES = read_record()

ROUNDED = 3 * 2.0**-24
IN_FLOAT32 = ("optax", "MaxText", "levanter")


def levels_of_curve(case, curve):
    """Return the multiplier of each update, or the value of an option that follows the curve."""
    if "highest_value" in case.row.definitions:
        return curve.learning_rate(case.steps, case.names()["highest_value"])
    if case.counts is not None:
        return levels_of_scheduler(case, curve)
    return curve.learning_rate(case.steps, case.peak) / case.peak


def levels_of_scheduler(case, curve):
    """Step in the order of the page."""
    optimizer = optimizer_with([case.peak])
    lrs = []
    if case.counts_before_an_update:
        scheduler = lambda_lr(optimizer, curve, clock=DataClock(case.settings["length"]))
        for count in case.counts:
            scheduler.step(count=count)
            lrs += lrs_of(optimizer)
            optimizer.step()
    else:
        scheduler = lambda_lr(optimizer, curve, clock=DataClock(1))
        for count in case.counts:
            lrs += lrs_of(optimizer)
            optimizer.step()
            scheduler.step(count=count)
    return np.array(lrs) / case.peak


def error_of(case):
    """Return the error of an original that computes in float32."""
    if case.library not in IN_FLOAT32:
        return 0.0
    settings = case.settings
    roundings = 4
    # optax rounds the base of an exponential or a power first, which multiplies the error.
    if "exponential" in case.original:
        roundings += settings["total"] / settings["period"]
    if "polynomial" in case.original:
        roundings += settings["power"]
    return roundings * 2.0**-24


def assert_recorded(case):
    assert case.is_allowed(), "the row excludes these arguments"
    curve = case.curve()
    computed = levels_of_curve(case, curve)
    recorded = np.array(case.levels)
    end = curve.total_steps
    past_end = case.row.past_end or "stays at its last level"
    claim = f"the curve has {end} steps; past the end, the original {past_end}"
    if case.row.past_end:
        if case.raises == "ValueError":
            # The last update of OneCycleLR, which raises after it, is at the curve's last level.
            end += 1
        is_compared = case.steps < end
        computed = computed[is_compared]
        recorded = recorded[is_compared]
    tolerance = error_of(case) + 2.0**-40
    np.testing.assert_allclose(computed, recorded, rtol=ROUNDED, atol=tolerance, err_msg=claim)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_curves_give_the_recorded_learning_rates(case):
    assert_recorded(case)


def differs_past_the_end(case):
    """Return whether the original does not stay at the last level of the curve."""
    if case.raises:
        return True
    curve = case.curve()
    final_level = levels_of_curve(case, curve)[-1]
    past_end = np.array(case.levels)[case.steps >= curve.total_steps]
    return bool((np.abs(past_end - final_level) > 1e-6).any())


@pytest.mark.parametrize(
    "row", [row for row in ALL_ROWS if row.past_end], ids=lambda row: row.original
)
def test_originals_differ_past_the_end_if_the_row_says_so(row):
    """Without such a note, the curve is compared past the end too."""
    cases = [case for case in CASES if case.row is row]
    assert any(differs_past_the_end(case) for case in cases), "all stay at the last level"


def test_record_has_every_row_and_nothing_else():
    """A change of a call calls for a new record too."""
    recorded = {(line["library"], line["original"]) for line in LINES if line["cases"]}
    assert recorded == ROWS.keys()
    assert {line["library"] for line in LINES} <= SOURCES.keys()


@pytest.mark.parametrize("library", sorted({library for library, _ in ROWS}))
def test_page_cites_the_source_of_the_record(library):
    source = SOURCES[library]
    introduction, *rest = sections(PAGE)
    (section,) = [section for section in rest if section.heading == library]
    sentences = introduction.sentences + section.sentences
    if "@" in source:
        commit = source.partition("@")[2]
        assert f"commit {commit[:7]}" in sentences
    else:
        release = source.partition("==")[2].removesuffix(".0")
        assert f"{library} {release}" in sentences
