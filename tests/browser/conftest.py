"""A real browser: playwright driving Debian's chromium."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

CHROMIUM = Path("/usr/bin/chromium")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium without a screen."""
    if not CHROMIUM.exists():
        pytest.skip("no chromium at /usr/bin/chromium")
    expect.set_options(timeout=60_000)  # a machine with other work on it
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        yield made
        made.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page whose console errors fail the test."""
    context = browser.new_context(viewport={"width": 1280, "height": 1000})
    context.set_default_timeout(60_000)
    made = context.new_page()
    errors: list[str] = []
    made.on("pageerror", lambda error: errors.append(str(error)))
    made.on("console", lambda message: errors.append(message.text) if _is_fault(message) else None)
    yield made
    context.close()
    assert errors == []


def _is_fault(message: ConsoleMessage) -> bool:
    """A refusal that the page asked for and told in words is no fault of the page, nor is a line that a test cut."""
    refused = any(f"status of {status}" in message.text for status in (401, 403, 404, 422))
    return message.type == "error" and not refused and "ERR_INTERNET_DISCONNECTED" not in message.text
