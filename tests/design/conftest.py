"""The design page of three curves, in a browser."""

from contextlib import contextmanager, nullcontext

import pytest
from support.design.design import served

from plateau_jax.design.answers import initial_curves


# One for each file: two of playwright's loops in one process exclude each other.
@pytest.fixture(scope="module")
def browser():
    from support.design.page import chromium  # which only slow tests need

    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def server():
    from support.design.page import CURVES, PEAK

    with served(initial_curves([*CURVES.items()], PEAK)) as server:
        yield server


@pytest.fixture
def visit(browser, server):
    """Return a function that opens the page, of other curves if they are given, with options of a context.

    Afterwards, check for errors and for requests to other hosts.
    """
    from support.design.page import PEAK, WIDE, DesignPage

    @contextmanager
    def visit(curves=None, size=WIDE, **options):
        other = nullcontext(server) if curves is None else served(initial_curves([*curves.items()], PEAK))
        with other as host:
            options |= {"viewport": {"width": size[0], "height": size[1]}}
            context = browser.new_context(permissions=["clipboard-read", "clipboard-write"], **options)
            page = context.new_page()
            errors, requested = [], []
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
def design(visit):
    """The page of the three curves, with STABLE selected."""
    with visit() as design:
        yield design
