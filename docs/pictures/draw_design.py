"""Draw the picture of docs/design.md: the page in a browser without a window.

python docs/pictures/draw_design.py
"""

import shutil
import threading
from pathlib import Path

from playwright.sync_api import sync_playwright

from plateau_jax import PlateauCurve
from plateau_jax.tools.design.answers import initial_curves
from plateau_jax.tools.design.server import Server

PICTURE = Path(__file__).with_name("design.png")
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
CURVES = [
    ("Cosine", PlateauCurve(10_000, warmup_steps=500)),
    ("Line to 0", PlateauCurve(10_000, warmup_steps=500, decay_shape="linear")),
    (
        "Stable + cooldown",
        PlateauCurve(10_000, warmup_steps=500, plateaus=[(0, 80)], decay_shape="1-sqrt"),
    ),
]


with Server(0, initial_curves(CURVES, 3e-4)) as server, sync_playwright() as tools:
    threading.Thread(target=server.serve_forever, daemon=True).start()
    browser = tools.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
    page = browser.new_page(viewport={"width": 1280, "height": 1080}, color_scheme="light")
    page.goto(server.address)
    page.wait_for_selector("[data-figure=bound]")
    page.hover("#picture", position={"x": 620, "y": 150})
    page.wait_for_selector("#readout b")
    page.wait_for_selector("main[aria-busy=false]")
    page.screenshot(path=PICTURE)
    browser.close()
    server.shutdown()
