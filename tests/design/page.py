"""The design page in a browser: what a user does there, and what the page shows."""

import json
import re
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from design.design import run_copied
from numpy.typing import NDArray
from playwright.sync_api import Browser, Locator, Page, Route, expect, sync_playwright

from plateau_jax import Curve, PlateauCurve, StagedCurve

expect.set_options(timeout=60_000)  # a slow machine is not an error

# The curves that the page starts with, and their peak.
PEAK = 3e-4
COSINE = PlateauCurve(10_000, warmup_steps=500)
STABLE = PlateauCurve(10_000, warmup_steps=500, plateaus=[(10, 40)], decay_shape="linear")
STAGED = StagedCurve([(500, 1.0), (6_000,), (3_500, 0.0, "1-sqrt")])
CURVES = {"Cosine": COSINE, "Stages": STAGED, "Stable": STABLE}

WIDE = (1320, 1000)
PHONE = (390, 844)

FOCUSED = "document.activeElement.ariaLabel ?? document.activeElement.textContent"

Action = str | tuple[str, str]
"""A button to click; `Edit NAME`; or the label of a field, and its text or choice in its list."""


def fill(field: Locator, text: str) -> None:
    """Write a text into a field, or choose it in a list."""
    if field.evaluate("field => field.localName === 'select'"):
        field.select_option(text)
    else:
        field.fill(text)


class DesignPage:
    """The page, with what a user does there."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.dialog = page.get_by_role("dialog")
        self.selected = page.locator("#curves").get_by_role("radio", checked=True)

    def settle(self) -> None:
        """Wait until every answer has arrived."""
        expect(self.page.locator("main[aria-busy=false]")).to_be_attached()
        first_curve = self.page.locator("#curves tbody tr").first
        expect(first_curve.locator("[data-figure=bound]")).to_be_attached()

    def field(self, label: str) -> Locator:
        labelled = self.page.locator("main").get_by_label(label, exact=True)
        return labelled.and_(self.page.locator("input, select"))

    def button(self, name: str) -> Locator:
        return self.page.get_by_role("button", name=name, exact=True).last

    def do(self, *actions: Action) -> None:
        """Do one thing after the other, and wait for the answers."""
        for action in actions:
            if isinstance(action, tuple):
                label, text = action
                fill(self.field(label), text)
            elif action.startswith("Edit "):
                self.page.get_by_role("radio", name=action, exact=True).check()
            else:
                self.button(action).click()
        self.settle()

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)
        self.settle()

    def undo_all(self) -> None:
        while self.button("Undo").is_enabled():
            self.button("Undo").click()
        self.settle()

    def reload(self) -> None:
        self.page.reload()
        self.settle()

    def resize(self, width: int, height: int) -> None:
        self.page.set_viewport_size({"width": width, "height": height})

    def open_json(self, curve: Any) -> None:
        self.do("Open…")
        self.dialog.get_by_role("textbox").fill(json.dumps(curve))
        self.accept()

    def accept(self) -> None:
        self.dialog.locator("button.primary").click()
        expect(self.dialog).to_be_hidden()
        self.settle()

    def hold_the_next_answer(self) -> list[Route]:
        """Hold the server's next answer; the list then has its request, which may be continued."""
        held: list[Route] = []

        def hold_the_first(route: Route) -> None:
            if held:
                route.continue_()
            else:
                held.append(route)

        self.page.route("**/describe", hold_the_first)
        return held

    @property
    def code(self) -> str:
        self.settle()
        return self.page.locator("#code").text_content() or ""

    @property
    def curve(self) -> Any:
        """The curve that the code for optax builds."""
        return run_copied(self.code)["curve"]

    @property
    def names(self) -> list[str]:
        self.settle()
        fields = self.page.get_by_role("textbox", name="Name of").all()
        return [field.input_value() for field in fields]

    def peak(self) -> float:
        return float(self.field("Peak learning rate").input_value())

    def handle(self, name: str) -> Locator:
        return self.page.get_by_role("slider", name=name, exact=True)

    def position(self, name: str) -> tuple[float, float]:
        """Return the position of a handle, in pixels of the picture."""
        x, y = re.findall(r"[-\d.]+", self.handle(name).get_attribute("transform") or "")
        return float(x), float(y)

    def grab(self, name: str) -> tuple[float, float]:
        """Press the mouse in the middle of a handle; return its pixel in the window."""
        self.handle(name).scroll_into_view_if_needed()
        box = self.handle(name).locator(".mark").bounding_box()
        assert box
        x = box["x"] + box["width"] / 2
        y = box["y"] + box["height"] / 2
        self.page.mouse.move(x, y)
        self.page.mouse.down()
        return x, y

    def drag(self, name: str, right: float, down: float, *, releases: bool = True) -> None:
        x, y = self.grab(name)
        self.page.mouse.move(x + right / 2, y + down / 2, steps=3)
        self.page.mouse.move(x + right, y + down, steps=3)
        if releases:
            self.page.mouse.up()
        self.settle()

    def drawn(self) -> str:
        """Return the points of the selected curve in the picture."""
        return self.page.locator("polyline.selected").get_attribute("points") or ""

    def axes(self) -> tuple[float, float, float]:
        """Return the pixels of step 0 and of learning rate 0, and the height of the peak."""
        axis = self.page.locator("line.axis").first
        x = float(axis.get_attribute("x1") or "nan")
        y = float(axis.get_attribute("y1") or "nan")
        return x, y, self.position("Peak learning rate")[1]

    def check(self, curve: Curve) -> None:
        """Check that the code to copy, the JSON and the picture show this curve."""
        assert self.curve == curve
        self.page.get_by_role("radio", name="JSON").check()
        assert Curve.from_dict(json.loads(self.code)) == curve
        self.page.get_by_role("radio", name="optax").check()
        points = np.array([point.split(",") for point in self.drawn().split()], float)
        x = points[:, 0]
        y = points[:, 1]
        left, bottom, top = self.axes()
        shown = (bottom - y) / (bottom - top)
        fraction = (x - left) / (x[-1] - left)
        nearest = np.rint(fraction * curve.total_steps).astype(int)
        # Positions are rounded to a tenth of a pixel, which is several steps: compare with all
        # steps nearby.
        margin = curve.total_steps // 200 + 1
        offsets = np.arange(-margin, margin + 1)
        steps_nearby: NDArray[np.int64] = nearest[:, None] + offsets
        nearby = curve(np.clip(steps_nearby, 0, curve.total_steps))
        assert np.all(shown >= nearby.min(1) - 0.005)
        assert np.all(shown <= nearby.max(1) + 0.005)


@contextmanager
def chromium() -> Generator[Browser]:
    """Start a browser; skip the test if the system has none."""
    path = (
        shutil.which("chromium")
        or shutil.which("chromium-browser")
        or shutil.which("google-chrome")
    )
    if path is None:
        pytest.skip("no chromium on this system")
    with sync_playwright() as tools:
        # Chromium's sandbox does not work for root, which CI runs as.
        browser = tools.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()
