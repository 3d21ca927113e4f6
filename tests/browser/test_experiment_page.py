"""What a person sees: a curve grows while a real worker trains, then the verdict appears, no reload."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from lockstep.client import Client
from tests.conftest import LiveServer, WorkerProcess
from tests.factories import SimulatedWorker, cartpole_spec, tiny_spec

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


def test_cartpole_opens_on_a_curve_and_watch_tells_the_return(
    sqlite_server: LiveServer, start_worker: Callable[..., WorkerProcess], page: Page
) -> None:
    with Client(sqlite_server.url) as client:
        experiment_id = client.submit(cartpole_spec())["id"]
    command = [sys.executable, "-m", "app.cli", "watch", experiment_id]
    with (
        subprocess.Popen(
            command, env={**os.environ, "LOCKSTEP_URL": sqlite_server.url}, stdout=subprocess.PIPE, text=True
        ) as watch,
        contextlib.ExitStack() as stack,
    ):
        stack.callback(watch.kill)
        page.goto(f"{sqlite_server.url}/experiments/{experiment_id}")
        expect(page.locator("#connection")).to_have_text("live")
        expect(page.locator("#metric")).to_have_value("train/native_return_mean")
        start_worker(sqlite_server.url)
        wait_for_points(page, 6)
        expect(page.locator("#score-name")).to_have_text("Native return, last 10 episodes")
        expect(page.locator("tr[data-arm=B] .score")).to_have_text(re.compile(r"^\d+\.\d\d$"))
        lines = (watch.communicate(timeout=60)[0]).splitlines()
    rounds = [line for line in lines if line.startswith("[")]
    assert len(rounds) == 3
    assert all(re.search(r"A: native return \d+\.\d\d, reward \d+\.\d\d \| B: native return", line) for line in rounds)
    # opened again after the first evaluation, the page begins with the registered primary
    page.reload()
    expect(page.locator("#metric")).to_have_value("eval/native_return_mean")
    wait_for_points(page, 2)


def test_a_failed_experiment_says_why_and_shows_the_log(
    sqlite_server: LiveServer, start_worker: Callable[..., WorkerProcess], page: Page
) -> None:
    with Client(sqlite_server.url) as client:
        experiment_id = client.submit(cartpole_spec(env={"kwargs": {"max_episode_steps": -3}}))["id"]
    page.goto(f"{sqlite_server.url}/experiments/{experiment_id}")
    expect(page.locator("#connection")).to_have_text("live")
    expect(page.locator("#causes")).to_be_hidden()
    start_worker(sqlite_server.url)
    told = page.locator("#cause-list li")
    expect(told).to_contain_text("replicate 0, cause config: env: env.id='CartPole-v1' with env.kwargs", timeout=60_000)
    expect(told).to_contain_text("ValueError: Expect the `max_episode_steps` to be positive")
    told.locator("button").click()
    expect(page.locator("#log")).to_contain_text("Traceback (most recent call last)")


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


def test_workers_page_tells_what_cannot_be_used(sqlite_server: LiveServer, page: Page) -> None:
    reason = "importing stuck_package:none took over 60 s"
    SimulatedWorker(sqlite_server.ctx, environments={"stuck": {"defect": reason}}).register()
    page.goto(f"{sqlite_server.url}/workers")
    expect(page.locator("#workers .defect")).to_have_text(f"environment stuck cannot be used: {reason}")
