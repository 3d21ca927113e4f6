"""From the list to a comparison: choose, act on all at once, sort, keep a view, and read experiments side by side."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from lockstep.client import Client
from tests.browser.states import finished, live, waiting
from tests.conftest import LiveServer
from tests.factories import tiny_spec

pytestmark = [pytest.mark.browser, pytest.mark.server]


def test_two_chosen_experiments_stand_side_by_side(sqlite_server: LiveServer, page: Page, tmp_path: Path) -> None:
    first = finished(sqlite_server)
    second = finished(sqlite_server, experiment={"name": "longer", "replicates": 6}, budget={"rounds": 3})
    page.goto(sqlite_server.url)
    expect(page.locator("#chosen")).to_be_hidden()
    for name in ("far apart", "longer"):
        page.get_by_label(f"choose {name}").check()
    expect(page.locator("#chosen-count")).to_have_text("2 chosen")
    page.locator("#compare").click()
    expect(page).to_have_url(re.compile(rf"/compare\?ids={first},{second}$"))
    expect(page.locator("#warnings")).to_have_text(re.compile("budget differs"))
    # entropy is annealed over all rounds unless the specification says otherwise
    expect(page.locator("#differs tbody tr")).to_have_text([re.compile("budget.rounds23"), re.compile("rounds23")])
    plots = page.locator("#effects svg")
    expect(plots).to_have_count(2)
    expect(plots.first).to_have_attribute("aria-label", re.compile("B minus A: .10"))
    expect(page.locator("#chart")).to_have_attribute("data-points", "10")
    expect(page.locator("#legend .key")).to_have_count(4)
    with page.expect_download() as download:
        page.locator("#save-svg").click()
    drawn = Path(download.value.path()).read_text()
    assert drawn.startswith("<svg ")
    assert "longer: B" in drawn
    page.locator("#answers tbody tr", has_text="longer").get_by_role("link", name="take longer out").click()
    expect(page).to_have_url(re.compile(rf"ids={first}$"))
    expect(page.locator("#same")).to_contain_text("Add a second experiment")


def test_unknown_id_is_named_and_the_rest_is_compared(sqlite_server: LiveServer, page: Page) -> None:
    experiment_id = waiting(sqlite_server)
    page.goto(f"{sqlite_server.url}/compare")
    expect(page.locator("#empty")).to_contain_text("The address holds what is compared")
    page.locator("#add").select_option(value=experiment_id)
    expect(page.locator("#effects")).to_contain_text("No estimate before the registered end: 0 of 4")
    expect(page.locator("#legend")).to_contain_text("No round with")


def test_chosen_experiments_are_tagged_prioritised_and_cancelled(sqlite_server: LiveServer, page: Page) -> None:
    with Client(sqlite_server.url) as client:
        ids = [client.submit(tiny_spec(experiment={"name": f"n{i}", "tags": ["old"]}))["id"] for i in range(3)]
        page.goto(sqlite_server.url)
        for name in ("n0", "n1"):
            page.get_by_label(f"choose {name}").check()
        page.get_by_label("tag", exact=True).fill("blue")
        page.locator("#add-tag").click()
        expect(page.locator(".tag", has_text="blue")).to_have_count(2)
        page.get_by_label("tag", exact=True).fill("old")
        page.locator("#take-tag").click()
        expect(page.locator(".tag", has_text="old")).to_have_count(1)
        page.get_by_label("priority").fill("70")
        page.locator("#set-priority").click()
        expect(page.locator("#experiments td[data-name=Priority]", has_text="70")).to_have_count(2)
        page.once("dialog", lambda dialog: dialog.accept())
        page.locator("#cancel-chosen").click()
        expect(page.locator(".badge.cancelled")).to_have_count(2)
        shown = [client.show(experiment_id) for experiment_id in ids]
    assert [(one["tags"], one["priority"], one["status"]) for one in shown] == [
        (["blue"], 70, "cancelled"),
        (["blue"], 70, "cancelled"),
        (["old"], shown[2]["priority"], "queued"),
    ]


def test_order_and_filters_live_in_the_address_and_in_saved_views(sqlite_server: LiveServer, page: Page) -> None:
    with Client(sqlite_server.url) as client:
        for name in ("alpha", "beta", "gamma"):
            client.submit(tiny_spec(experiment={"name": name, "tags": ["blue"] if name != "gamma" else []}))
    page.goto(f"{sqlite_server.url}/?sort=name&tag=blue")
    names = page.locator("#experiments tbody a")
    expect(names).to_have_text(["alpha", "beta"])
    page.locator("th[data-key=name] button").click()
    expect(names).to_have_text(["beta", "alpha"])  # newest first again
    expect(page.locator("th[data-key=name]")).not_to_have_attribute("aria-sort", re.compile("."))


def test_queue_says_what_waits_what_runs_and_until_when(sqlite_server: LiveServer, page: Page) -> None:
    live(sqlite_server)
    waiting(sqlite_server, experiment={"name": "next", "replicates": 2, "tags": ["blue"]})
    page.goto(f"{sqlite_server.url}/queue")
    expect(page.locator("#queue tbody tr")).to_have_count(2)
    row = page.locator("#queue tbody tr", has_text="in the middle")
    expect(row).to_contain_text("replicates 2–5")
    expect(row).to_contain_text(re.compile("in about|now"))
    expect(page.locator("#running tbody tr")).to_contain_text("replicate 1")
    page.locator("[name=tag]").fill("blue")
    expect(page.locator("#queue tbody tr")).to_have_count(1)
    assert page.url.endswith("?tag=blue")
    page.locator("#queue-toggle").click()
    expect(page.locator("#queue tbody tr")).to_contain_text("paused")


def test_grafts_of_every_environment_are_drawn(sqlite_server: LiveServer, page: Page) -> None:
    experiment_id = live(sqlite_server)
    page.goto(f"{sqlite_server.url}/experiments/{experiment_id}")
    drawn = page.locator("#grafts svg")
    expect(drawn).to_have_count(2)
    expect(drawn.first).to_have_attribute(
        "aria-label", re.compile("bottleneck in r0c0, fossilized; norm in r0c1, pruned")
    )
    page.locator("#graft-round").fill("2")
    page.locator("#graft-round").press("Enter")
    expect(page.locator("#grafts svg .name").first).to_contain_text("bottleneck +2.31 pp")


def test_a_server_that_does_not_answer_is_a_state_and_no_row_of_messages(sqlite_server: LiveServer, page: Page) -> None:
    waiting(sqlite_server)
    page.clock.install()
    for address in ("/", "/queue", "/workers"):
        page.goto(sqlite_server.url + address)
        page.wait_for_load_state("networkidle")
        page.context.set_offline(True)
        page.clock.run_for(6_000)
        expect(page.locator("#connection")).to_contain_text("reconnecting since")
        expect(page.locator("#message")).to_be_hidden()
        page.context.set_offline(False)
        page.clock.run_for(6_000)
        expect(page.locator("#connection")).to_be_hidden()
