"""The design page of three curves, in a browser."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from support.design.design import served

from plateau_jax.design.answers import initial_curves
from plateau_jax.design.server import Server

if TYPE_CHECKING:  # only slow tests need a browser
    from playwright.sync_api import Browser, Page


# One for each file: two of playwright's loops in one process exclude each other.
@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    from support.design.browser import chromium

    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    from support.design.page import COSINE, PEAK, STABLE, STAGED

    with served(initial_curves([("Cosine", COSINE), ("Stages", STAGED), ("Stable", STABLE)], PEAK)) as server:
        yield server


@pytest.fixture
def requested() -> list[str]:
    return []


@pytest.fixture
def page(
    browser: "Browser", server: Server, requested: list[str], request: pytest.FixtureRequest
) -> Iterator["Page"]:
    """The page with STABLE selected. Afterwards, check for errors and for requests to other hosts."""
    from support.design.page import WIDE, wait_until_settled

    width, height, scheme = getattr(request, "param", WIDE)
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme=scheme,
        permissions=["clipboard-read", "clipboard-write"],
    )
    page = context.new_page()
    errors: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text))  # such as of the content security policy
    rejection = "Failed to load resource: the server responded"  # Chromium logs this if the server rejects
    page.goto(server.address)
    wait_until_settled(page)
    yield page
    assert [text for text in errors if not text.startswith(rejection)] == []
    assert all(address.startswith(server.address) for address in requested)
    context.close()
