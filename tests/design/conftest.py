"""The design page of three curves, in a browser."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

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


@pytest.fixture
def visit(browser: "Browser", server: Server) -> Callable[..., AbstractContextManager["DesignPage"]]:
    """Return a function that opens the page, of other curves if they are given, with options of a context.

    Afterwards, check for errors and for requests to other hosts.
    """
    from support.design.page import PEAK, WIDE, DesignPage

    @contextmanager
    def visit(
        curves: dict[str, Curve] | None = None, size: tuple[int, int] = WIDE, **options: Any
    ) -> Iterator[DesignPage]:
        other = nullcontext(server) if curves is None else served(initial_curves([*curves.items()], PEAK))
        with other as host:
            options |= {"viewport": {"width": size[0], "height": size[1]}}
            context = browser.new_context(permissions=["clipboard-read", "clipboard-write"], **options)
            page = context.new_page()
            errors: list[str] = []
            requested: list[str] = []
            page.on("request", lambda request: requested.append(request.url))
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.on("console", lambda message: errors.append(message.text))  # such as of the security policy
            page.goto(host.address)
            design = DesignPage(page)
            design.settle()
            yield design
            rejected = "Failed to load resource: "  # logged if the server rejects or does not answer
            assert [text for text in errors if not text.startswith(rejected)] == []
            assert all(address.startswith(host.address) for address in requested)
            context.close()

    return visit


@pytest.fixture
def design(visit: Callable[..., AbstractContextManager["DesignPage"]]) -> Iterator["DesignPage"]:
    """The page of the three curves, with STABLE selected."""
    with visit() as design:
        yield design
