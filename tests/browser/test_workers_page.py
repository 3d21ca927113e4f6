"""The page of workers: what each one is, does and has failed at; drain, and a quarantine that is cleared."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.browser.states import claim, failed, fleet, worker_of
from tests.conftest import LiveServer
from tests.factories import submit, tiny_spec

pytestmark = [pytest.mark.browser, pytest.mark.server]


def test_cards_say_what_each_worker_does_and_why_one_is_ill(sqlite_server: LiveServer, page: Page) -> None:
    failed(sqlite_server, experiment={"name": "told"})
    workers = fleet(sqlite_server)
    page.goto(f"{sqlite_server.url}/workers")
    ill, idle = (page.locator(f"#workers > li[data-id='{workers[name].worker_id}']") for name in ("ill", "idle"))
    expect(page.locator("#workers > li").first).to_contain_text("ill")  # who needs a person comes first
    expect(ill.locator(".defect")).to_have_text("quarantined: 900 MiB in use after the block, 3 MiB before any")
    expect(ill.locator("ol")).to_contain_text("quarantined: 900 MiB in use")
    expect(idle).to_contain_text("3 GiB of 16 GiB")
    expect(idle).to_contain_text("12 % · 41 °C")
    expect(idle).to_contain_text("torch 2.13.0")
    expect(page.locator("#facts")).to_contain_text("1 quarantined")
    ill.get_by_role("button", name="Clear quarantine").press("Enter")
    expect(ill.locator(".badge")).to_have_text("idle")
    page.on("dialog", lambda dialog: dialog.accept())
    idle.get_by_role("button", name="Drain").press("Enter")
    expect(page.locator("#workers > li")).to_have_count(2)  # it was idle: it has retired


def test_card_of_a_worker_shows_its_round_and_its_last_error(sqlite_server: LiveServer, page: Page) -> None:
    submit(sqlite_server.ctx, tiny_spec(experiment={"name": "blew up"}))
    worker = worker_of(sqlite_server)
    claim(worker)
    worker.release("error", "config", "RuntimeError: my reward blew up (mypkg/shape.py:22)")
    experiment_id = submit(sqlite_server.ctx, tiny_spec(experiment={"name": "goes on"}, budget={"rounds": 4}))
    claim(worker)
    worker.beat("working", round=1)
    page.goto(f"{sqlite_server.url}/workers")
    card = page.locator(f"#workers > li[data-id='{worker.worker_id}']")
    expect(card.get_by_role("link", name="goes on")).to_have_attribute("href", f"/experiments/{experiment_id}")
    expect(card).to_contain_text("1 of 4")
    expect(card).to_contain_text("replicate 0 (config) RuntimeError: my reward blew up (mypkg/shape.py:22)")
