"""What a newcomer reads first names only what exists."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DECISIONS = ROOT / "docs" / "decisions"
#: A word of a page that looks like a path of ours.
PATH = re.compile(r"`((?:lockstep|app|worker|tests|docs|examples|benchmarks|migrations)/[\w./*<>-]+)")


def exists(pattern: str) -> bool:
    # <feature> stands for one of several names
    return any(ROOT.glob(re.sub(r"<\w+>", "*", pattern.rstrip("/"))))


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "CONTRIBUTING.md", "docs/extending.md"])
def test_every_path_of_a_page_exists(page: str) -> None:
    named = PATH.findall((ROOT / page).read_text())
    assert [path for path in named if not exists(path)] == []


def test_index_names_every_decision_and_no_other() -> None:
    named = set(re.findall(r"\]\((\d{4}[\w-]+\.md)\)", (DECISIONS / "README.md").read_text()))
    assert named == {path.name for path in DECISIONS.glob("0*.md")}


def test_commands_of_the_pages_are_make_targets() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    pages = "".join((ROOT / page).read_text() for page in ("README.md", "CONTRIBUTING.md"))
    named = set(re.findall(r"(?:`|^)make ([a-z-]+)", pages, re.MULTILINE))
    assert named
    assert named <= targets


@pytest.mark.parametrize(
    ("target", "called"),
    [("serve", "serve --port 7591"), ("demo", "demo --port 7591"), ("worker", "worker --api http://127.0.0.1:7591")],
)
def test_targets_that_reach_a_server_take_its_port(target: str, called: str) -> None:
    told = subprocess.run(
        ["make", "-n", "-C", str(ROOT), target, "PORT=7591"], capture_output=True, text=True, check=True
    )
    assert f"lockstep {called}\n" in told.stdout


def test_readme_is_short_and_shows_one_picture_of_the_page() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.split()) <= 600
    (picture,) = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text)
    assert (ROOT / picture).stat().st_size < 200_000


def test_functions_that_the_table_of_the_house_names_stand_in_the_file_beside_them() -> None:
    rows = (ROOT / "ARCHITECTURE.md").read_text().splitlines()
    named = [
        (path, name)
        for row in rows
        for path, told in re.findall(r"`([\w/]+\.py)`(?::| \()((?: ?`\w+`,?)+)", row)
        for name in re.findall(r"`(\w+)`", told)
    ]
    assert len(named) >= 8
    for path, name in named:
        assert re.search(rf"^ *(async )?def {name}\(", (ROOT / path).read_text(), re.MULTILINE), f"no {name} in {path}"
