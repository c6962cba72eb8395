"""The design page of three curves, in a browser."""

from contextlib import contextmanager

import pytest
from design.design import served

from plateau_jax.tools.design.answers import initial_curves


# One for each file: two of playwright's loops in one process exclude each other.
@pytest.fixture(scope="module")
def browser():
    from design.page import chromium  # which only slow tests need

    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def server():
    from design.page import CURVES, PEAK

    with served(initial_curves(list(CURVES.items()), PEAK)) as server:
        yield server


@contextmanager
def open_page(browser, host, size, **options):
    """Open the page in a new context of the browser, with these options.

    Afterwards, check for errors and for requests to other hosts.
    """
    from design.page import DesignPage

    width, height = size
    context = browser.new_context(
        permissions=["clipboard-read", "clipboard-write"],
        viewport={"width": width, "height": height},
        **options,
    )
    page = context.new_page()
    requests = []
    errors = []

    def on_request(request):
        requests.append(request.url)

    def on_error(error):
        errors.append(str(error))

    def on_message(message):  # such as one of the security policy
        # This is logged if the server rejects a request or does not answer.
        if not message.text.startswith("Failed to load resource: "):
            errors.append(message.text)

    page.on("request", on_request)
    page.on("pageerror", on_error)
    page.on("console", on_message)
    page.goto(host.address)
    design = DesignPage(page)
    design.settle()
    yield design
    assert errors == []
    for address in requests:
        assert address.startswith(host.address)
    context.close()


@pytest.fixture
def visit(browser, server):
    """Return a function that opens the page, of different curves if they are given."""
    from design.page import PEAK, WIDE

    @contextmanager
    def visit(curves=None, size=WIDE, **options):
        if curves is None:
            with open_page(browser, server, size, **options) as design:
                yield design
        else:
            with (
                served(initial_curves(list(curves.items()), PEAK)) as host,
                open_page(browser, host, size, **options) as design,
            ):
                yield design

    return visit


@pytest.fixture
def design(visit):
    """The page of the three curves, with STABLE selected."""
    with visit() as design:
        yield design


@pytest.fixture(scope="module")
def page_of_many_tests(browser, server):
    from design.page import WIDE

    with open_page(browser, server, WIDE) as design:
        yield design


@pytest.fixture
def undone(page_of_many_tests):
    """A page like `design` that many tests change, since opening it takes long.

    Afterwards, undo the changes, and check that no message is left.
    """
    from playwright.sync_api import expect

    page_of_many_tests.do("Edit Stable")
    yield page_of_many_tests
    page_of_many_tests.undo_all()
    expect(page_of_many_tests.page.locator("[aria-invalid=true]")).to_have_count(0)
    expect(page_of_many_tests.page.locator("#stale")).to_be_hidden()
