"""A headless Chromium, driven by Playwright; tests that need it are skipped where one of them is missing."""

import shutil
from contextlib import contextmanager

import pytest
from browsing import until
from chat_fake import ChatFake

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MILLISECONDS = 120_000
"""Hang guard of every wait."""

WIDE, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def browser():
    """One browser for a file; Playwright's event loop must not run while other files are tested."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs Playwright: pip install playwright")
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=found)
        yield chromium
        chromium.close()


@pytest.fixture
def opened(browser):
    """Opens the page of a server in a new tab: a context manager that checks that the console stayed without errors."""

    @contextmanager
    def visit(url, *, viewport=WIDE, scheme="light", expected=(), settings=True, context=None):
        """Open a page, with its settings open if it is wide. Tabs of one `context` share what the browser keeps."""
        own = context is None
        context = context or browser.new_context(viewport=viewport, color_scheme=scheme)
        context.set_default_timeout(MILLISECONDS)
        tab, problems, requests = context.new_page(), [], []
        tab.on("pageerror", lambda error: problems.append(str(error)))
        tab.on("console", lambda message: problems.append(message.text) if message.type in ("error", "warning") else None)
        tab.on("dialog", lambda dialog: problems.append(dialog.message) or dialog.dismiss())
        tab.on("request", lambda request: requests.append(request.url))
        try:
            tab.goto(url)
            until(tab, "document.getElementById('listed').options.length || document.getElementById('key').open")
            if settings and viewport is WIDE and not tab.evaluate("document.getElementById('key').open"):
                tab.click("#toggle")
            yield tab
            unexpected = [text for text in problems if not any(part in text for part in expected)]
            assert unexpected == []
            assert [each for each in requests if not each.startswith((url, "data:,", "blob:"))] == []
        finally:
            context.close() if own else tab.close()

    return visit


@pytest.fixture
def fake():
    return ChatFake()


@pytest.fixture
def tab(opened, serving, fake):
    """The page of the scripted server."""
    with serving(fake.app) as url, opened(url) as tab:
        yield tab
