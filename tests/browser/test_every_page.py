"""Every page in every state: no accessibility violation in light or dark, nothing wider than a telephone, no error.

With LOCKSTEP_SCREENSHOTS=FOLDER each page is also kept as a picture, in more states, both widths and both schemes:
pictures are for people to look at, so tests compare none.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from app.services import access
from tests.browser.states import STATES, fleet
from tests.conftest import LiveServer
from tests.factories import LOCAL

pytestmark = [pytest.mark.browser, pytest.mark.server]

AXE = Path(__file__).parent / "vendor" / "axe.min.js"
FOLDER = os.environ.get("LOCKSTEP_SCREENSHOTS")
WIDE, NARROW = 1280, 390
TABS = ("curves", "runs", "events", "log", "specification", "report")


def violations(page: Page) -> list[str]:
    """Return what axe finds, by all of its rules, one line an element."""
    found = page.evaluate("() => axe.run(document, {resultTypes: ['violations']})")["violations"]
    return [
        f"{rule['id']} ({rule['impact']}): {node['target']} {node['failureSummary'][:300]}"
        for rule in found
        for node in rule["nodes"][:3]
    ]


def looked_at(page: Page, name: str) -> list[str]:
    """Return the faults of the page that is open, in both schemes and both widths; keep its pictures if asked."""
    faults = []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        for width in (WIDE, NARROW):
            page.set_viewport_size({"width": width, "height": 900})
            if not _fits(page, width):
                faults.append(f"{name}: wider than {width} px")
            if FOLDER:
                page.wait_for_timeout(400)
                page.screenshot(path=Path(FOLDER) / f"{name}-{width}-{scheme}.png", full_page=True)
        page.set_viewport_size({"width": WIDE, "height": 900})
        faults += [f"{name} in {scheme}: {text}" for text in violations(page)]
    page.emulate_media(color_scheme="light")
    return faults


def _fits(page: Page, width: int) -> bool:
    """Return whether nothing is wider than the window, once charts have followed its new width."""
    for _ in range(400):
        if page.evaluate("() => document.documentElement.scrollWidth") <= width:
            return True
        page.wait_for_timeout(50)
    return False


def test_every_page_is_clean_in_every_state(sqlite_server: LiveServer, page: Page) -> None:
    page.add_init_script(path=AXE)
    base, faults = sqlite_server.url, []
    for name, address in (("home-empty", "/"), ("queue-empty", "/queue"), ("workers-empty", "/workers")):
        page.goto(base + address)
        expect(page.locator("#empty")).to_be_visible()
        faults += looked_at(page, name)
    ids = {name: make(sqlite_server) for name, make in STATES.items()}
    fleet(sqlite_server)
    for name, experiment_id in ids.items():
        page.goto(f"{base}/experiments/{experiment_id}")
        expect(page.locator("#connection")).to_have_text("live")
        expect(page.locator("#status")).not_to_be_empty()
        page.wait_for_timeout(500)
        faults += looked_at(page, f"experiment-{name}")
    page.goto(f"{base}/experiments/{ids['finished']}")
    expect(page.locator("#verdict")).to_be_visible()
    for tab in TABS:
        page.locator(f".tabs a[href='#{tab}']").click()
        expect(page.locator("#tab-overview" if tab == "curves" else f"#tab-{tab}")).to_be_visible()
        page.wait_for_load_state("networkidle")
        faults += looked_at(page, f"experiment-{tab}")
    for name, address, ready in (
        ("home", "/", "#experiments tbody tr"),
        ("queue", "/queue", "#queue tbody tr"),
        ("workers", "/workers", "#workers > li"),
        ("audit", "/audit", "#audit tbody tr"),
        ("docs", "/docs", "main details"),
        ("compare", f"/compare?ids={ids['finished']},{ids['live']}", "#chart canvas"),
    ):
        page.goto(base + address)
        expect(page.locator(ready).first).to_be_visible()
        if name == "docs":
            page.locator("main details summary").first.click()
        if name == "home":
            page.locator("#choose-all").check()
        faults += looked_at(page, name)
    page.goto(f"{base}/new")
    page.locator("#example").select_option(label="CartPole-v1, two learning rates")
    expect(page.locator("#power svg")).to_be_visible()
    faults += looked_at(page, "new")
    assert not faults, "\n".join(faults)


def test_a_wrong_address_is_told_in_the_style_of_the_house(sqlite_server: LiveServer, page: Page) -> None:
    page.add_init_script(path=AXE)
    page.goto(f"{sqlite_server.url}/nowhere")
    expect(page.locator("h1")).to_have_text("Not Found")
    expect(page.locator("main")).to_contain_text("There is no page /nowhere here.")
    assert looked_at(page, "error-404") == []
    for unknown in ("what%20is%20no%20id", "exp_0000000000"):
        page.goto(f"{sqlite_server.url}/experiments/{unknown}")
        expect(page.locator("#missing")).to_be_visible()
        expect(page.locator("#experiment")).to_be_hidden()
    assert looked_at(page, "experiment-missing") == []
    page.get_by_role("link", name="All experiments").click()
    expect(page.locator("h1")).to_have_text("Experiments")


@pytest.fixture
def guarded(make_server: Callable[..., LiveServer], sqlite_template: Path, tmp_path: Path) -> LiveServer:
    """A server that asks for tokens."""
    path = tmp_path / "guarded.db"
    shutil.copy(sqlite_template, path)
    return make_server(f"sqlite:///{path}", auth="token")


def test_login_says_what_is_wrong_and_goes_on_to_the_page_that_was_asked_for(guarded: LiveServer, page: Page) -> None:
    secret = access.create(guarded.ctx, "eve", "viewer", None, LOCAL).secret
    worker = access.create(guarded.ctx, "w", "worker", None, LOCAL).secret
    page.add_init_script(path=AXE)
    page.goto(f"{guarded.url}/queue?tag=blue")
    expect(page.locator("#why")).to_contain_text("you go on to it from here")
    assert looked_at(page, "login") == []
    for token, told in (
        ("password", "they begin with lsk_"),
        ("lsk_short", "cut short"),
        ("lsk_" + "x" * 40, "not known here"),
        (worker, "may not read pages"),
    ):
        page.locator("#token").fill(token)
        page.keyboard.press("Enter")
        expect(page.locator("#wrong")).to_contain_text(told)
    page.locator("#token").fill(secret)
    page.keyboard.press("Enter")
    expect(page).to_have_url(f"{guarded.url}/queue?tag=blue")
    page.locator("#mine").click()
    expect(page.locator("[name=owner]")).to_have_value("eve")
    page.locator("#log-out").click()
    expect(page.locator("#token")).to_be_visible()


def test_pages_are_walked_by_keyboard_alone(sqlite_server: LiveServer, page: Page) -> None:
    STATES["finished"](sqlite_server)
    page.goto(sqlite_server.url)
    expect(page.locator("#experiments tbody a")).to_be_visible()
    tab_to(page, "#experiments tbody td.pick input")
    page.keyboard.press("Space")
    expect(page.locator("#chosen")).to_be_visible()
    tab_to(page, "#experiments tbody a")
    page.keyboard.press("Enter")
    expect(page.locator("#name")).to_have_text("far apart")
    expect(page.locator("#difference svg")).to_be_visible()
    tab_to(page, ".tabs a[href='#events']")
    page.keyboard.press("Enter")
    expect(page.locator("#tab-events")).to_be_visible()
    tab_to(page, "#timeline-kind")
    page.keyboard.press("End")
    expect(page.locator("#timeline-kind")).to_have_value("everything")


def tab_to(page: Page, selector: str, most: int = 80) -> None:
    """Press Tab until an element has the focus; every stop on the way must show that it has."""
    for _ in range(most):
        page.keyboard.press("Tab")
        stop = page.evaluate(
            "wanted => { const at = document.activeElement, style = getComputedStyle(at);"
            " return [at.matches(wanted), at.outerHTML.slice(0, 120), style.outlineStyle, at === document.body]; }",
            selector,
        )
        assert stop[3] or stop[2] != "none", f"no visible focus on {stop[1]}"
        if stop[0]:
            return
    raise AssertionError(f"{selector} is not reached by {most} presses of Tab")


def test_power_is_drawn_without_a_pilot(sqlite_server: LiveServer, page: Page) -> None:
    page.goto(f"{sqlite_server.url}/new")
    page.locator("#example").select_option(label="digits, two rewards (morphogenesis)")
    expect(page.locator("#power svg")).to_have_attribute(
        "aria-label", re.compile("if the SD is .*if the SD is .*if the SD is")
    )
    expect(page.locator("#power svg path.mean")).to_have_count(3)
    expect(page.locator("#power")).to_contain_text("analysis.pilot or pilot_sd replaces the guess")
