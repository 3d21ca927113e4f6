"""The commands that the README shows are those of the command line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import typer

from app.cli.people import app

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_token_create_and_the_names_of_the_commands_are_those_of_the_program() -> None:
    group: Any = typer.main.get_command(app)
    assert "launch" not in group.commands
    named = set(re.findall(r"\.venv/bin/lockstep ([a-z]+)", README))
    assert named <= set(group.commands)
    assert "lockstep token create --role admin --name NAME" in README
