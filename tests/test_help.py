"""Every command, argument and option says what it is; one thing has one name everywhere."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from app.cli import admin, launch, people, specs
from worker import __main__ as worker
from worker.commands import data_cli, env_cli, reward_cli

_PROGRAMS = {"lockstep": people.app, "admin": admin.app, "launch": launch.app, "spec": specs.app}


def commands_of(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    yield name, command
    for inner, found in getattr(command, "commands", {}).items():
        if not found.hidden:
            yield from commands_of(f"{name} {inner}", found)


def parsers() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """The parsers of the programs that have no typer, caught where each is asked to read a command line."""
    found: list[argparse.ArgumentParser] = []
    for read in (worker.parse, data_cli.main, env_cli.parse, reward_cli.parse):
        with pytest.MonkeyPatch.context() as patch:

            def caught(parser: argparse.ArgumentParser, *_: Any) -> Any:
                found.append(parser)
                raise LookupError

            patch.setattr(argparse.ArgumentParser, "parse_args", caught)
            with pytest.raises(LookupError):
                read([])
    for parser in found:
        yield parser.prog, parser
        for action in parser._actions:
            for name, inner in action.choices.items() if isinstance(action, argparse._SubParsersAction) else ():
                yield f"{parser.prog} {name}", inner


@pytest.mark.parametrize("program", _PROGRAMS)
def test_every_command_and_its_parameters_are_described(program: str) -> None:
    found = list(commands_of(program, typer.main.get_command(_PROGRAMS[program])))
    assert len(found) > 3
    bare = [name for name, command in found if not (command.help or "").strip()]
    for name, command in found:
        bare += [f"{name} {item.name}" for item in command.params if not getattr(item, "help", None)]
    assert bare == []


def test_every_option_of_workers_and_checks_is_described() -> None:
    found = dict(parsers())
    assert {"lockstep worker", "lockstep env check", "lockstep reward check", "lockstep data fetch"} <= {*found}
    bare = [f"{name} {item.dest}" for name, parser in found.items() for item in parser._actions if not item.help]
    assert [item for item in bare if not item.endswith(" command")] == []
    assert all("None" not in parser.format_help() for parser in found.values()), (
        "a default that is none is told in words"
    )


def test_the_server_is_named_alike_by_every_program() -> None:
    options = dict(parsers())["lockstep worker"]._option_string_actions
    assert options["--url"] is options["--api"]
    for name, command in commands_of("launch", typer.main.get_command(launch.app)):
        given = {option for item in command.params for option in item.opts}
        assert ("--api" in given) == ("--url" in given), name


def test_help_begins_with_what_is_needed_first() -> None:
    listed = list(typer.main.get_command(people.app).commands)  # type: ignore[attr-defined]
    text = CliRunner().invoke(people.app, ["--help"]).stdout
    assert text.index(" demo ") < text.index(" serve ") < text.index(" submit ") < text.index(" webhooks ")
    assert {*people._ORDER} == {*listed}
