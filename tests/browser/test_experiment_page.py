"""What a person sees: a curve grows while a real worker trains, then the verdict appears, no reload."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from lockstep.client import Client
from tests.conftest import LiveServer, WorkerProcess
from tests.factories import tiny_spec

pytestmark = [pytest.mark.browser, pytest.mark.server]


def points_on(page: Page) -> int:
    return int(page.locator("#chart").get_attribute("data-points") or 0)


def wait_for_points(page: Page, least: int) -> None:
    """Let the page work until its chart holds that many points (its policy forbids evaluating a condition)."""
    for _ in range(1800):
        if points_on(page) >= least:
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"the chart has {points_on(page)} points, expected {least}")


def test_curve_grows_and_verdict_appears_without_reload(
    sqlite_server: LiveServer, start_worker: Callable[..., WorkerProcess], page: Page
) -> None:
    with Client(sqlite_server.url) as client:
        spec = tiny_spec(experiment={"replicates": 2}, budget={"rounds": 3}, eval={"every_rounds": 3})
        experiment_id = client.submit(spec)["id"]
    page.goto(f"{sqlite_server.url}/experiments/{experiment_id}")
    page.evaluate("() => { window.sameDocument = true; }")
    expect(page.locator("#name")).to_have_text("tiny")
    expect(page.locator("#waiting")).to_contain_text("no worker is registered")
    assert points_on(page) == 0
    start_worker(sqlite_server.url)
    wait_for_points(page, 2)
    wait_for_points(page, points_on(page) + 1)
    expect(page.locator("#connection")).to_have_text("live")
    expect(page.locator("#verdict")).to_be_visible(timeout=120_000)
    expect(page.locator("#verdict-code")).to_have_text("no inference")
    frame = page.frame_locator("#report")
    expect(frame.locator("body")).to_contain_text("eval/accuracy", timeout=20_000)
    assert page.evaluate("() => window.sameDocument") is True


def test_queue_page_lists_experiments_and_says_why_they_wait(sqlite_server: LiveServer, page: Page) -> None:
    with Client(sqlite_server.url) as client:
        client.submit(tiny_spec(experiment={"name": "<b>mine</b>", "tags": ["blue"]}))
    page.goto(sqlite_server.url)
    expect(page.locator("#experiments tbody tr")).to_have_count(1)
    expect(page.locator("#experiments tbody")).to_contain_text("<b>mine</b>")
    expect(page.locator("#queue tbody")).to_contain_text("start one with `lockstep worker`")


def test_submit_form_shows_every_problem_with_its_remedy(sqlite_server: LiveServer, page: Page) -> None:
    page.goto(sqlite_server.url)
    page.locator("textarea").fill("experiment: {name: x}\narms: [{label: a}, {label: b}]\nppoo: {}\n")
    page.locator("#plan").click()
    expect(page.locator("#plan-result")).to_contain_text("did you mean 'ppo'?")
