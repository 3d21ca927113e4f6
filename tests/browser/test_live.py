"""What a page learns where a proxy drops its WebSocket."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, expect

from tests.conftest import LiveServer
from tests.factories import SimulatedWorker, submit, tiny_spec
from tests.proxies import plain

pytestmark = [pytest.mark.browser, pytest.mark.server]


def test_page_follows_by_server_sent_events_where_sockets_are_dropped(
    sqlite_server: LiveServer, browser: Browser
) -> None:
    experiment_id = submit(sqlite_server.ctx, tiny_spec(budget={"rounds": 3}))
    worker = SimulatedWorker(sqlite_server.ctx).register()
    assert worker.claim() is not None
    worker.ready()
    with plain(sqlite_server.url, "", drops_sockets=True) as url:
        page = browser.new_page()  # whose console may say that a socket failed
        page.goto(f"{url}/experiments/{experiment_id}")
        expect(page.locator("#connection")).to_have_text("live")
        for index in range(3):
            worker.hand_in(index)
            worker.checkpoint(index + 1)
        expect(page.locator("#verdict")).to_be_visible()
        page.close()
