"""axe, an accessibility checker, finds nothing to object to in any state of the page."""

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect
from support.design.page import wait_until_settled

pytestmark = pytest.mark.slow


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
