"""axe, an accessibility checker, finds nothing to object to in any state of the page."""

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect
from support.design.page import COSINE, at_both_sizes, wait_until_settled

pytestmark = pytest.mark.slow

STEPS = np.arange(200, 10_001, 200)


@at_both_sizes
def test_axe_finds_no_violation_in_any_state(page):
    def check(state):
        wait_until_settled(page)
        violations = Axe().run(page).response["violations"]
        assert [(violation["id"], violation["nodes"]) for violation in violations] == [], state

    check("start")
    page.get_by_label("Warmup steps").fill("20000")
    check("an invalid field")
    page.get_by_label("Warmup steps").fill("500")
    page.get_by_role("button", name="+ Cooldown").click()
    page.get_by_role("button", name="+ Continuation").last.click()
    page.get_by_role("button", name="+ in steps").first.click()
    check("derived curves")
    for name in ("Open…", "Open a log…"):
        page.get_by_role("button", name=name).click()
        expect(page.get_by_role("dialog")).to_be_visible()
        check(name)
        page.keyboard.press("Escape")
    page.get_by_role("radio", name="Edit Stages").click()
    check("stages")
    losses = 2.5 + 2 * (STEPS / 10) ** -0.5 + 0.1 * COSINE(STEPS)
    log = "step,loss\n" + "".join(f"{step},{loss}\n" for step, loss in zip(STEPS, losses, strict=True))
    page.get_by_role("button", name="Open a log…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Files").set_input_files(
        {"name": "run.csv", "mimeType": "text/csv", "buffer": log.encode()}
    )
    dialog.get_by_label("Trained with").select_option("Cosine")
    expect(dialog.get_by_role("button", name="Use this log")).to_be_enabled()
    check("a log")
    dialog.get_by_role("button", name="Use this log").click()
    expect(page.locator("[data-figure=forecast] b").first).to_be_visible()
    check("forecasts")
