"""The parts of the experiment page, each by its address: curves, records, specification, report."""

from __future__ import annotations

import csv
import re
import time
from pathlib import Path

import httpx
import pytest
import yaml
from playwright.sync_api import Page, expect

from lockstep.client import Client
from tests.browser.states import claim, finished, hand_in, worker_of
from tests.conftest import LiveServer
from tests.factories import submit, tiny_spec

pytestmark = [pytest.mark.browser, pytest.mark.server]


def test_parts_of_a_finished_experiment_are_whole(sqlite_server: LiveServer, page: Page) -> None:
    overrides = {"ppo.lr": 1e-7}  # "1e-7" is a word to readers of YAML 1.1
    arms = [{"label": "A", "reward": "shaped"}, {"label": "no", "reward": "shaped", "overrides": overrides}]
    experiment_id = finished(sqlite_server, arms=arms, experiment={"name": 'far: "apart"', "replicates": 6})
    page.goto(f"{sqlite_server.url}/experiments/{experiment_id}")
    expect(page.locator("#verdict")).to_be_visible()
    expect(page.locator(".stick #question")).to_contain_text("Which arm is better by eval/accuracy?")
    expect(page.locator("#difference svg")).to_have_attribute("aria-label", re.compile(r"^no minus A: mean \+13"))
    page.locator(".tabs a", has_text="Report").click()
    expect(page.frame_locator("#report").locator("body")).to_contain_text("eval/accuracy")
    page.wait_for_function("() => document.querySelector('#report').clientHeight > 1000")
    page.evaluate("document.querySelector('#report').contentDocument.documentElement.remove()")  # as while it loads
    page.evaluate("window.dispatchEvent(new Event('resize'))")
    page.locator(".tabs a", has_text="Specification").click()
    with Client(sqlite_server.url) as client:
        assert yaml.safe_load(page.locator("#spec").inner_text()) == client.show(experiment_id)["spec"]
    page.locator(".tabs a", has_text="Events").click()
    expect(page.locator("#timeline")).to_contain_text("beats")
    expect(page.locator("#timeline")).not_to_contain_text("`")
    page.locator(".tabs a", has_text="Curves").click()
    expect(page.locator("#difference")).to_be_hidden()
    expect(page.locator("#chart canvas")).to_be_visible()


def test_curves_over_time_begin_at_the_first_round_of_each_replicate(
    sqlite_server: LiveServer, page: Page, tmp_path: Path
) -> None:
    experiment_id = submit(sqlite_server.ctx, tiny_spec(experiment={"replicates": 2}, budget={"rounds": 3}))
    worker = worker_of(sqlite_server)
    for _ in range(2):
        claim(worker)
        for index in range(3):
            hand_in(worker, index)
            time.sleep(0.05)
        worker.checkpoint(3)
        worker.release()
    page.goto(f"{sqlite_server.url}/experiments/{experiment_id}#curves")
    expect(page.locator("#shown")).to_contain_text("Showing 12 of 12 points")
    page.locator("#axis").select_option("time")
    expect(page.locator("#chart")).to_have_attribute("data-axis", "time")
    with page.expect_download() as saving:
        page.get_by_role("button", name="CSV of the chart").click()
    head, *rows = csv.reader(Path(saving.value.path()).read_text().splitlines())
    assert head[0] == "time"
    assert sorted(float(row[0]) for row in rows)[0] == 0.0
    assert 0.05 < max(float(row[0]) for row in rows) < 30.0
    means = [row[head.index("A (mean of 2)")] for row in rows]
    assert len([value for value in means if value]) == 3  # a round each, of both replicates


def test_pages_and_their_files_are_compressed_and_answers_are_not(sqlite_server: LiveServer) -> None:
    with httpx.Client(base_url=sqlite_server.url) as http:
        home = http.get("/")
        script = home.text.split('src="')[-1].split('"')[0]
        for path, encoding in (("/", "gzip"), (script, "gzip"), ("/api/v1/experiments", None)):
            assert http.get(path).headers.get("content-encoding") == encoding
        assert "immutable" in http.get(script).headers["cache-control"]
        shown = http.get("/experiments/exp_0000000000").text
    assert shown.count('rel="modulepreload"') > 15
    assert "panels/chart.js" in shown
