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
from tests.browser.states import claim, finished, retried, worker_of
from tests.conftest import LiveServer, WorkerProcess, wait_until
from tests.factories import cartpole_spec, submit, tiny_spec

pytestmark = [pytest.mark.browser, pytest.mark.server]
NO_EMPTY_SECTION = "() => [...document.querySelectorAll('section')].every((s) => !s.offsetHeight || s.innerText.trim())"


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
    page.locator(".tabs a", has_text="Report").click()
    frame = page.frame_locator("#report")
    expect(frame.locator("body")).to_contain_text("eval/accuracy")
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
        wait_until(lambda: sqlite_server.app.state.hub.num_readers == 2, what="page and command to follow")
        start_worker(sqlite_server.url)
        wait_for_points(page, 6)
        expect(page.locator("#score-name")).to_have_text("train/native_return_mean")
        page.locator("summary", has_text="Data").click()
        expect(page.locator("tr[data-arm=B] .score")).to_have_text(re.compile(r"^\d+(\.\d+)?$"))
        expect(page.locator("#difference svg")).to_be_visible()
        assert page.evaluate(NO_EMPTY_SECTION), "the room of what this experiment has not"
        lines = (watch.communicate(timeout=120)[0]).splitlines()
    rounds = [line for line in lines if " round " in line]
    assert "replicate 0, round 3/3" in rounds[-1]
    assert all(re.search(r"A: native return \d+\.\d\d \| B: native return \d+\.\d\d$", line) for line in rounds)
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
    expect(told).to_contain_text("replicate 0 failed, cause config: env: env.id='CartPole-v1' with env")
    expect(told).to_contain_text("ValueError: Expect the max_episode_steps to be positive")
    expect(page.locator("#retry")).to_be_visible()
    expect(page.locator("#retry-note")).to_contain_text("It corrects no field: where one is wrong, ")
    expect(page.locator("#retry-note")).to_contain_text("use Clone and edit")
    told.locator("button").click()
    expect(page.locator("#log")).to_contain_text("Traceback (most recent call last)")


def test_a_long_evaluation_says_on_the_page_how_far_it_is(sqlite_server: LiveServer, page: Page) -> None:
    experiment_id = submit(sqlite_server.ctx, tiny_spec(budget={"rounds": 4}))
    worker = worker_of(sqlite_server)
    claim(worker)
    worker.hand_in(0)
    worker.beat(round=1, evaluation={"over": 37, "episodes": 200, "steps": 400, "max_steps": 1000})
    page.goto(f"{sqlite_server.url}/experiments/{experiment_id}")
    far = "evaluating replicate 0: 37 of 200 episodes are over after 400 of at most 1,000 steps"
    expect(page.locator("#facts")).to_contain_text(far)
    worker.beat(round=1, evaluation={"over": 150, "episodes": 200, "steps": 700, "max_steps": 1000})
    expect(page.locator("#facts")).to_contain_text("150 of 200 episodes")
    worker.hand_in(1)
    worker.beat(round=2)
    expect(page.locator("#facts")).not_to_contain_text("evaluating")


def test_home_lists_experiments_and_the_queue_says_why_they_wait(sqlite_server: LiveServer, page: Page) -> None:
    with Client(sqlite_server.url) as client:
        client.submit(tiny_spec(experiment={"name": "<b>mine</b>", "tags": ["blue"], "replicates": 3}))
    page.goto(sqlite_server.url)
    expect(page.locator("#experiments tbody tr")).to_have_count(1)
    expect(page.locator("#experiments tbody")).to_contain_text("<b>mine</b>")
    page.locator("[name=tag]").fill("green")
    expect(page.locator("#none")).to_be_visible()
    assert page.url.endswith("?tag=green")
    page.goto(f"{sqlite_server.url}/queue")
    expect(page.locator("#queue tbody tr")).to_have_count(1)
    expect(page.locator("#queue tbody")).to_contain_text("replicates 0–2")
    expect(page.locator("#queue tbody")).to_contain_text("start one with `lockstep worker`")


def test_plan_stands_beside_what_is_written_and_tells_faults_and_power(sqlite_server: LiveServer, page: Page) -> None:
    page.goto(f"{sqlite_server.url}/new")
    page.locator("textarea").fill("experiment: {name: x}\narms: [{label: a}, {label: b}]\nppoo: {}\n")
    expect(page.locator("#plan-result")).to_contain_text("did you mean 'ppo'?")
    page.once("dialog", lambda asked: asked.accept())  # what was written is replaced
    page.locator("#example").select_option(label="CartPole-v1, two learning rates")
    expect(page.locator("#plan-result")).to_contain_text("10 blocks, 20 runs")
    page.locator("button[type=submit]").click()
    expect(page.locator("#name")).to_have_text("my first comparison")


def test_the_list_names_the_winner_first_where_it_is_the_control_too(sqlite_server: LiveServer, page: Page) -> None:
    finished(sqlite_server, analysis={"inference": "full", "sesoi": 2.0, "control": "B"})
    page.goto(sqlite_server.url)
    row = page.locator("#experiments tbody tr")
    expect(row).to_contain_text("winner meaningful B +10")
    expect(row.locator("svg")).to_have_attribute("aria-label", re.compile(r"B minus A: \+10"))


@pytest.mark.parametrize("width", [1280, 390])
def test_answer_difference_and_lanes_of_a_finished_experiment_fit_the_screen(
    sqlite_server: LiveServer, page: Page, width: int
) -> None:
    experiment_id = finished(sqlite_server)
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(sqlite_server.url)
    row = page.locator("#experiments tbody tr")
    expect(row).to_contain_text("winner meaningful B +10")
    expect(row.locator("svg")).to_have_attribute("aria-label", re.compile("B minus A: .10"))
    row.locator("a").click()
    expect(page.locator("#verdict-code")).to_have_text("winner meaningful")
    expect(page.locator("#verdict-sentence code").first).to_have_text("B")
    expect(page.locator("#verdict-numbers")).to_have_text(
        re.compile(r"95\s%\sCI .* \(whether there is a difference\) · 90\s%\sCI .* \(whether it matters\)")
    )
    expect(page.locator("#difference svg")).to_have_attribute("aria-label", re.compile("B minus A: mean .10"))
    expect(page.locator("#difference")).to_contain_text("replicate 5")
    wait_for_points(page, 12)
    page.locator("summary", has_text="Lockstep").click()
    expect(page.locator(".lane")).to_have_count(12)
    for tab in ("Runs and devices", "Events", "Logs", "Specification", "Report", "Overview"):
        page.locator(".tabs a", has_text=tab).click()
        expect(page.locator(".tabs a[aria-current]")).to_have_text(tab)
        assert page.evaluate("() => document.documentElement.scrollWidth") <= width, tab
    assert experiment_id in page.url


def test_difference_is_hidden_between_registered_looks(sqlite_server: LiveServer, page: Page) -> None:
    looks = {"mode": "planned", "at": [7, 12]}
    analysis = {"inference": "full", "sesoi": 2.0, "looks": looks, "replicates": {"planned": 12, "max": 12}}
    finished(sqlite_server, trained=6, experiment={"name": "looks", "replicates": 12}, analysis=analysis)
    page.goto(sqlite_server.url)
    page.locator("#experiments a").click()
    expect(page.locator("#difference")).to_contain_text("looks are registered at 7, 12 replicates")
    expect(page.locator("#difference svg")).to_have_count(0)


def test_unknown_experiment_draws_no_buttons_and_pages_are_reached_by_keyboard(
    sqlite_server: LiveServer, page: Page
) -> None:
    page.goto(f"{sqlite_server.url}/workers")
    expect(page.locator("#empty")).to_contain_text("lockstep worker")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("Experiments")


def test_record_of_acts_and_the_calls_of_the_api_have_pages(sqlite_server: LiveServer, page: Page) -> None:
    experiment_id = submit(sqlite_server.ctx)
    page.goto(f"{sqlite_server.url}/audit")
    expect(page.locator("#audit tbody tr")).to_contain_text(experiment_id)
    page.locator("input[name=actor]").fill("nobody")
    page.keyboard.press("Enter")
    expect(page.locator("#empty")).to_be_visible()
    page.locator("nav >> text=API").click()
    page.locator("summary", has_text="POST /api/v1/plans").click()
    expect(page.locator("details[open] pre")).to_contain_text("arms:")


def test_a_replicate_that_was_tried_again_counts_once_and_no_green_stands_beside_an_invalid_report(
    sqlite_server: LiveServer, page: Page
) -> None:
    experiment_id = retried(sqlite_server)
    page.goto(f"{sqlite_server.url}/experiments/{experiment_id}")
    expect(page.locator("#facts")).to_contain_text("2 of 2 replicates ended")
    expect(page.locator("#verdict-code")).to_have_text("invalid")
    expect(page.locator("#status")).to_have_class("badge void")
    expect(page.locator(".lane")).to_have_count(4)


def test_the_difference_says_of_an_arm_that_it_diverged(sqlite_server: LiveServer, page: Page) -> None:
    analysis = {"inference": "none", "failure": {"floor": 0.0}}
    spec = tiny_spec(experiment={"replicates": 2}, budget={"rounds": 2}, analysis=analysis)
    experiment_id, worker = submit(sqlite_server.ctx, spec), worker_of(sqlite_server)
    for diverged in (["B"], []):
        claim(worker)
        worker.hand_in(0)
        worker.hand_in(1, diverged=diverged)
        worker.checkpoint(2)
        worker.release()
    page.goto(f"{sqlite_server.url}/experiments/{experiment_id}")
    expect(page.locator("#difference .note")).to_contain_text("B diverged in 1 of 2 replicates")
    expect(page.locator("#difference circle title").first).to_have_text(re.compile("before an arm diverged"))
    expect(page.locator(".lane", has_text="diverged")).to_have_count(1)
    expect(page.locator("#difference circle title").last).not_to_have_text(re.compile("diverged"))
