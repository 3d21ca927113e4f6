"""A real browser: playwright driving Debian's chromium."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

CHROMIUM = Path("/usr/bin/chromium")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium without a screen."""
    if not CHROMIUM.exists():
        pytest.skip("no chromium at /usr/bin/chromium")
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        yield made
        made.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page whose console errors fail the test."""
    context = browser.new_context(viewport={"width": 1280, "height": 1000})
    made = context.new_page()
    errors: list[str] = []
    made.on("pageerror", lambda error: errors.append(str(error)))
    made.on("console", lambda message: errors.append(message.text) if _is_fault(message) else None)
    yield made
    context.close()
    assert errors == []


def _is_fault(message: ConsoleMessage) -> bool:
    """A refusal that the page asked for is no fault of the page."""
    return message.type == "error" and "status of 422" not in message.text
