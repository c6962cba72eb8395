"""The design page of three curves, in a browser."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import pytest
from support.design.design import served

from plateau_jax import Curve
from plateau_jax.design.answers import initial_curves
from plateau_jax.design.server import Server

if TYPE_CHECKING:  # only slow tests need a browser
    from playwright.sync_api import Browser
    from support.design.page import DesignPage


# One for each file: two of playwright's loops in one process exclude each other.
@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    from support.design.browser import chromium

    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    from support.design.page import CURVES, PEAK

    with served(initial_curves([*CURVES.items()], PEAK)) as server:
        yield server


class Visit(Protocol):
    def __call__(
        self, curves: dict[str, Curve] | None = None, peak: float = ..., **context: Any
    ) -> AbstractContextManager["DesignPage"]: ...


@contextmanager
def _visit(
    browser: "Browser",
    server: Server,
    curves: dict[str, Curve] | None = None,
    peak: float = 3e-4,
    **context: Any,
) -> Iterator["DesignPage"]:
    from support.design.page import WIDE, DesignPage

    if curves is not None:
        with (
            served(initial_curves([*curves.items()], peak)) as other,
            _visit(browser, other, **context) as design,
        ):
            yield design
        return
    width, height = context.pop("size", WIDE)
    permissions = ["clipboard-read", "clipboard-write"]
    viewport: Any = {"width": width, "height": height}
    opened = browser.new_context(viewport=viewport, permissions=permissions, **context)
    page = opened.new_page()
    errors: list[str] = []
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text))  # such as of the content security policy
    design = DesignPage(page)
    page.goto(server.address)
    design.settle()
    yield design
    rejected = "Failed to load resource: "  # Chromium logs this if the server rejects or does not answer
    assert [text for text in errors if not text.startswith(rejected)] == []
    assert all(address.startswith(server.address) for address in requested)
    opened.close()


@pytest.fixture
def visit(browser: "Browser", server: Server) -> Visit:
    """Open the page, of other curves if they are given, in a browser with these options of a context.

    Afterwards, check for errors and for requests to other hosts.
    """
    return partial(_visit, browser, server)


@pytest.fixture
def design(visit: Visit) -> Iterator["DesignPage"]:
    """The page of the three curves, with STABLE selected."""
    with visit() as design:
        yield design
