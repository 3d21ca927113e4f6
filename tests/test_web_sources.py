"""The scripts and templates of the pages, read as text: small modules, names that exist, nothing forbidden.

What a linter would say, without a second language's tools: it runs where no browser is.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

WEB = Path(__file__).parents[1] / "app" / "web"
MODULES = sorted(path for path in (WEB / "static").rglob("*.js") if "vendor" not in path.parts)
TEMPLATES = sorted((WEB / "templates").glob("*.html"))
MOST_LINES, MOST_COLUMNS = 200, 120
IMPORT = re.compile(r"^import (?:\* as (?P<all>\w+)|\{(?P<names>[^}]*)\}) from \"(?P<path>[^\"]+)\";", re.MULTILINE)
EXPORT = re.compile(r"^export (?:async )?(?:function|class|const) (\w+)", re.MULTILINE)
ELEMENT = re.compile(r"(?:node|getElementById)\(\s*[\"`]([\w-]+)[\"`]")


def names_of(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(WEB)))
def test_module_is_small_and_its_imports_exist_and_are_used(module: Path) -> None:
    text = module.read_text()
    lines = text.splitlines()
    assert len(lines) <= MOST_LINES
    # a sentence for people may be longer than the line
    assert [line for line in lines if len(line) > MOST_COLUMNS and not re.search(r"[\"`]", line)] == []
    assert lines[0].startswith("// "), "the first line says what the module is for"
    body = IMPORT.sub("", text)
    for found in IMPORT.finditer(text):
        target = (module.parent / found["path"]).resolve()
        exported = EXPORT.findall(target.read_text())
        for name in names_of(found["names"] or ""):
            assert name in exported, f"{found['path']} exports no {name}"
            assert re.search(rf"\b{name}\b", body), f"{name} is not used"
        if found["all"]:
            used = set(re.findall(rf"(?<!\.)\b{found['all']}\.(\w+)", body))
            assert used, f"{found['all']} is not used"
            assert used <= set(exported), f"{found['path']} exports no {used - set(exported)}"


def test_elements_that_scripts_ask_for_stand_in_a_template() -> None:
    there = {name for path in TEMPLATES for name in re.findall(r'id="([\w-]+)"', path.read_text())}
    asked = {(module.name, name) for module in MODULES for name in ELEMENT.findall(module.read_text())}
    assert len(asked) > 60
    assert {(module, name) for module, name in asked if name not in there} == set()


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_template_has_nothing_that_the_policy_forbids(template: Path) -> None:
    text = template.read_text()
    assert re.findall(r"\son\w+=|\sstyle=|<style|javascript:", text) == []
    assert all("src=" in tag for tag in re.findall(r"<script[^>]*>", text))


def test_arms_have_the_colours_of_the_page_in_the_report_too() -> None:
    page, report = (
        re.findall(r"--arm(\d): ?(#[0-9a-f]{6})", path.read_text())
        for path in (WEB / "static" / "app.css", WEB.parents[1] / "lockstep" / "report" / "rendering" / "report.css")
    )
    assert len(page) == 16  # eight by day, eight by night
    assert report == page
