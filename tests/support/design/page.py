"""The design page in a browser: what a user does there, and what the page shows."""

import json
import re

import numpy as np
import pytest
from numpy.typing import NDArray
from playwright.sync_api import Locator, Page, expect

from plateau_jax import Curve, PlateauCurve, StagedCurve

# The curves that the page starts with, and their peak.
PEAK = 3e-4
COSINE = PlateauCurve(10_000, warmup_steps=500)
STABLE = PlateauCurve(10_000, warmup_steps=500, plateaus=[(10, 40)], decay_shape="linear")
STAGED = StagedCurve([(500, 1.0), (6_000,), (3_500, 0.0, "1-sqrt")])

WIDE, PHONE = (1320, 1000, "light"), (390, 844, "dark")
at_both_sizes = pytest.mark.parametrize("page", [WIDE, PHONE], ids=["wide", "phone"], indirect=True)


def wait_until_settled(page: Page) -> None:
    """Wait until every answer has arrived."""
    expect(page.locator("main[aria-busy=false]")).to_be_attached()
    expect(page.locator("#curves tbody tr").first.locator("[data-figure=bound]")).to_be_attached()


def curve_of_json(page: Page) -> Curve:
    """Parse the JSON on the page."""
    wait_until_settled(page)
    page.get_by_role("radio", name="JSON").check()
    text = page.locator("#code").text_content() or ""
    page.get_by_role("radio", name="optax").check()
    return Curve.from_dict(json.loads(text))


def curve_of_optax_code(page: Page) -> Curve:
    """Run the code for optax on the page, and return its curve."""
    wait_until_settled(page)
    code = page.locator("#code").text_content() or ""
    names: dict[str, Curve] = {}
    exec(code, names)
    return names["curve"]


def handle(page: Page, name: str) -> Locator:
    return page.get_by_role("slider", name=name, exact=True)


def centre(handle: Locator) -> tuple[float, float]:
    handle.scroll_into_view_if_needed()
    box = handle.locator(".mark").bounding_box()
    assert box
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def position_in_picture(page: Page, name: str) -> tuple[float, float]:
    """Return the position of a handle, in pixels of the picture."""
    x, y = re.findall(r"[-\d.]+", handle(page, name).get_attribute("transform") or "")
    return float(x), float(y)


def drag(page: Page, name: str, right: float, down: float) -> None:
    x, y = centre(handle(page, name))
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + right / 2, y + down / 2, steps=3)
    page.mouse.move(x + right, y + down, steps=3)
    page.mouse.up()
    wait_until_settled(page)


def assert_shown(page: Page, curve: Curve) -> None:
    """Check that the code to copy, the JSON and the picture show this curve, at every step."""
    steps = np.arange(curve.total_steps + 2)
    assert np.array_equal(curve_of_optax_code(page)(steps), curve(steps))
    assert curve_of_json(page) == curve
    points = page.locator("polyline.selected").get_attribute("points") or ""
    drawn = np.array([[float(number) for number in point.split(",")] for point in points.split()])
    origin, top = axes_in_picture(page)
    shown = (origin[1] - drawn[:, 1]) / (origin[1] - top)
    nearest = np.rint((drawn[:, 0] - origin[0]) / (drawn[-1, 0] - origin[0]) * curve.total_steps).astype(int)
    # Positions are rounded to a tenth of a pixel, which is several steps: compare with all steps nearby.
    margin = curve.total_steps // 200 + 1
    near: NDArray[np.int64] = nearest[:, None] + np.arange(-margin, margin + 1)
    nearby = curve(np.clip(near, 0, curve.total_steps))
    assert np.all(shown >= nearby.min(1) - 0.005)
    assert np.all(shown <= nearby.max(1) + 0.005)


def axes_in_picture(page: Page) -> tuple[tuple[float, float], float]:
    """Return the pixels of step 0 at learning rate 0, and the height of the peak."""
    axis = page.locator("line.axis").first
    x, y = (float(axis.get_attribute(name) or "nan") for name in ("x1", "y1"))
    return (x, y), position_in_picture(page, "Peak learning rate")[1]
