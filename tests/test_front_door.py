"""What a newcomer reads first names only what exists."""

from __future__ import annotations

import re
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
