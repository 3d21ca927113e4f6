"""The page of a new experiment: a form and the text of a specification that change each other."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from lockstep.spec.text.reading import load_text
from tests.conftest import LiveServer

pytestmark = [pytest.mark.browser, pytest.mark.server]


def begin(page: Page, url: str) -> None:
    page.goto(f"{url}/new")
    page.locator("#example").select_option(label="CartPole-v1, two learning rates")
    expect(page.locator("#power svg")).to_be_visible()


def test_form_and_text_of_a_specification_change_each_other(sqlite_server: LiveServer, page: Page) -> None:
    begin(page, sqlite_server.url)
    text = page.get_by_role("textbox", name="Specification")
    expect(page.locator("#fields").get_by_label("Replicates")).to_have_value("10")
    expect(page.locator("#fields").get_by_label("Judged by")).to_have_value("eval/native_return_mean")
    before = text.input_value()
    page.locator("#fields").get_by_label("Replicates").fill("7")
    page.locator("#fields").get_by_label("Name").fill("true: # no")
    page.locator("#fields").get_by_label("Smallest effect that matters").fill("2.5")
    expect(page.locator("#plan-result")).to_contain_text("7 blocks")
    after = load_text(text.input_value())
    wanted = load_text(before)
    wanted["experiment"] |= {"replicates": 7, "name": "true: # no"}
    wanted["analysis"]["sesoi"] = 2.5
    assert after == wanted
    assert text.input_value().count("#") == before.count("#") + 1  # every comment stands, and the mark in the name
    # what is missing is added in its section, and a section that is missing at the end
    text.fill("preset: digits_cpu\nexperiment:\n    name: two\narms: [{label: a}, {label: b}]\n")
    page.locator("#fields").get_by_label("Seed").fill("5")
    page.locator("#fields").get_by_label("Rounds").fill("3")
    assert load_text(text.input_value()) == {
        "preset": "digits_cpu",
        "experiment": {"name": "two", "seed": 5},
        "arms": [{"label": "a"}, {"label": "b"}],
        "budget": {"rounds": 3},
    }
    # a value in braces is edited in the text
    text.fill("experiment: {name: two, seed: 3}\nanalysis:\n  primary: {metric: eval/accuracy}\n")
    for label in ("Name", "Seed", "Judged by"):
        expect(page.locator("#fields").get_by_label(label)).to_be_disabled()


def test_a_fault_leads_to_its_line_and_the_cursor_is_told_what_may_stand_there(
    sqlite_server: LiveServer, page: Page
) -> None:
    begin(page, sqlite_server.url)
    text = page.get_by_role("textbox", name="Specification")
    text.fill(re.sub("ppo.lr: 0.001", "ppo.lr: -1", text.input_value()))
    button = page.locator("#faults button").first
    expect(button).to_be_visible()
    button.click()
    chosen = "(node) => node.value.slice(node.selectionStart, node.selectionEnd)"
    assert "-1" in text.evaluate(chosen)
    text.fill("experiment:\n  na")
    text.press("End")
    expect(page.locator("#completion")).to_contain_text("experiment may hold:")
    page.locator("#completion").get_by_role("button", name="name", exact=True).click()
    assert text.input_value() == "experiment:\n  name: "
    text.press("End")
    expect(page.locator("#completion")).to_contain_text("experiment.name")
    text.fill("ppo:\n  lr: 1")
    text.press("End")
    expect(page.locator("#completion")).to_contain_text("Adam learning rate")


def test_it_begins_with_an_example_and_asks_before_it_replaces_what_was_written(
    sqlite_server: LiveServer, page: Page
) -> None:
    page.goto(f"{sqlite_server.url}/new")
    text, example = page.get_by_role("textbox", name="Specification"), page.locator("#example")
    expect(example).to_have_value("CartPole-v1, two learning rates")
    expect(page.locator("#plan-result")).to_contain_text("10 blocks")
    written = text.input_value() + "# mine\n"
    text.fill(written)
    page.once("dialog", lambda asked: asked.dismiss())
    example.select_option(label="preset digits_cpu")
    assert (text.input_value(), example.input_value()) == (written, "CartPole-v1, two learning rates")
    page.once("dialog", lambda asked: asked.accept())
    example.select_option(label="preset digits_cpu")
    expect(text).not_to_have_value(re.compile("# mine"))
    example.select_option(label="a specification of your own")  # nothing was written since: nothing to ask
    expect(text).to_have_value("")
    expect(page.locator("#plan-result")).to_have_text("Write a specification, or start from an example.")
    expect(page.locator("#power svg")).to_have_count(0)
