"""Every command line that a page shows is one of the program: its commands, options and required arguments."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from app.cli import admin, launch, specs
from app.cli.people import EPILOG, HANDED_OVER, app
from worker.__main__ import parse
from worker.commands import env_cli, reward_cli
from worker.supervision.agent import TOKEN_REFUSED

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    [
        *(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")),
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "examples").rglob("*.md"),
    ],
    key=lambda path: path.name,
)
#: `lockstep ...` alone in back quotes, or at the place of the command in a line of a block.
COMMAND = re.compile(r"(?:^|`|\s)(?:\.venv/bin/)?(lockstep [a-z][^`#>\n]*)", re.MULTILINE)


def lines(page: Path) -> list[str]:
    text = page.read_text().replace("\\\n", " ")
    blocks = re.findall(r"^```\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    quoted = re.findall(r"(?<!`)`((?:\.venv/bin/)?lockstep [a-z][^`]*)`(?!`)", text)
    shown = [line for block in blocks for line in block.splitlines() if ".venv/bin/lockstep" in line]
    return [found.group(1).strip() for line in [*shown, *quoted] if (found := COMMAND.search(line))]


def refuse_unknown(command: Any, words: list[str]) -> None:
    """Raise what the program would say to these words; the name of a command alone stands for the command."""
    for name in words:
        if not hasattr(command, "commands"):
            break
        assert name in command.commands, f"no command {name!r}"
        command, words = command.commands[name], words[1:]
    if words:
        # a file that exists and an id that could, whatever the page calls them
        words = [re.sub(r"^(FILE|.*\.(yaml|csv|json))$", "pyproject.toml", word) for word in words]
        command.make_context("page", [re.sub(r"^(<id>?|ID|exp_\.+|EXPERIMENT)$", "exp_0000", word) for word in words])


def test_pages_show_commands() -> None:
    assert len(lines(ROOT / "README.md")) > 5


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_command_lines_of_a_page_are_those_of_the_program(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    people, operators = typer.main.get_command(app), typer.main.get_command(admin.app)
    for line in lines(page):
        words = [word for word in shlex.split(line)[1:] if word != "..."]
        if words[0] == "worker":
            parse(words[1:])
        elif words[0] == "env":
            env_cli.parse(words[1:])
        elif words[0] == "reward":
            reward_cli.parse(words[1:])
        elif words[0] in ("spec", "launch"):
            program = specs.app if words[0] == "spec" else launch.app
            refuse_unknown(typer.main.get_command(program), words[1:])
        elif words[0] != "data":
            refuse_unknown(operators if words[0] in HANDED_OVER else people, words)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_of_a_page_work_where_nothing_was_activated(page: Path) -> None:
    blocks = re.findall(r"^```(?:\w*)\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    bare = [line for block in blocks for line in block.splitlines() if re.match(r"(lockstep|pip|python) ", line)]
    assert bare == []


def test_exit_codes_are_those_of_the_program() -> None:
    told = re.findall(r"^\| (\d) \| ([^;:|]*)", (ROOT / "docs" / "client.md").read_text(), re.MULTILINE)
    assert [int(code) for code, _ in told] == [0, 1, 2, 3, TOKEN_REFUSED]
    for code, meaning in told[:-1]:
        assert f"{code} {meaning.strip()}" in EPILOG


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= 600
