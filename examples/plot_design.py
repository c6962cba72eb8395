"""Draw the pictures of docs/design.md, into docs/pictures: the page in a browser without a window.

python examples/plot_design.py
"""

import re
import shutil
import tempfile
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from plateau_jax import Curve, PlateauCurve, StagedCurve
from plateau_jax.tools.design.answers import initial_curves
from plateau_jax.tools.design.server import Server

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
PICTURES = DOCS / "pictures"
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
CURVES = [
    ("Cosine", PlateauCurve(10_000, warmup_steps=500)),
    ("Line to 0", PlateauCurve(10_000, warmup_steps=500, decay_shape="linear")),
    (
        "Stable + cooldown",
        PlateauCurve(10_000, warmup_steps=500, plateaus=[(0, 80)], decay_shape="1-sqrt"),
    ),
]

STABLE = StagedCurve([(300, 1.0), (49_700,)])
RUN = STABLE.cooldown(20_000, 5_000, shape="linear")
LONGER = PlateauCurve(50_000, warmup_steps=300, plateaus=[(0, 80)], decay_shape="linear")


def draw_page(page: Page) -> None:
    with served(CURVES, 3e-4) as address:
        page.goto(address)
        page.wait_for_selector("[data-figure=bound]")
        page.hover("#picture", position={"x": 620, "y": 150})
        page.wait_for_selector("#readout b")
        page.wait_for_selector("main[aria-busy=false]")
        page.screenshot(path=PICTURES / "design.png")


def draw_forecasts(page: Page) -> None:
    """Open the log of docs/forecast.md, which has no learning rates."""
    losses = re.findall(r"\d\.\d{4}", (DOCS / "forecast.md").read_text().split('"""')[1])
    log = "".join(f"{600 * (index + 1)},{loss}\n" for index, loss in enumerate(losses))
    curves = [
        ("Cosine", PlateauCurve(50_000, warmup_steps=300)),
        ("20 % cooldown", LONGER),
        ("The run", RUN),
    ]
    with served(curves, 2e-3) as address, tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.csv"
        path.write_text(f"step,loss\n{log}")
        page.goto(address)
        page.click("#open-log")
        page.set_input_files("#opening-log [type=file]", path)
        page.select_option("#opening-log select", label="The run")
        page.click("#opening-log .primary:enabled")
        page.wait_for_selector("[data-figure=forecast] b")
        page.mouse.move(0, 0)
        page.wait_for_selector("main[aria-busy=false]")
        # In a lower window, the plot that stays in view would cover the table.
        page.set_viewport_size({"width": 1280, "height": 1800})
        top, bottom = (page.locator(part).bounding_box() for part in (".forecasts", ".curves"))
        assert top
        assert bottom
        height = bottom["y"] + bottom["height"] - top["y"]
        page.screenshot(path=PICTURES / "design-forecast.png", clip={**top, "height": height})


@contextmanager
def served(curves: list[tuple[str, Curve]], peak: float) -> Generator[str]:
    with Server(0, initial_curves(curves, peak)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.address
        server.shutdown()


with sync_playwright() as tools:
    browser = tools.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
    page = browser.new_page(viewport={"width": 1280, "height": 1240}, color_scheme="light")
    draw_page(page)
    draw_forecasts(page)
    browser.close()
