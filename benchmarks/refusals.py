"""What mistakes in specifications, commands, client and settings are told: docs/results/refusals.md.

    python -m benchmarks.refusals

All in this process, without a server: seconds. benchmarks/mistakes.py makes those that need workers.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import typer
import yaml
from typer.testing import CliRunner

from app.cli import admin, people, specs
from app.cli.ends import ended_by
from lockstep.client import Client
from lockstep.spec.presets import merge
from lockstep.spec.resolve import parse
from lockstep.spec.rules import check
from lockstep.spec.template import template
from lockstep.spec.text.problems import InvalidSpecError
from lockstep.spec.text.reading import load_text

TARGET = Path(__file__).parents[1] / "docs" / "results" / "refusals.md"
HEAD = """# Mistakes and what each is told

Made in one process, without a server, by `python -m benchmarks.refusals`; a test makes them again and compares. Each is
told in one sentence a fault, with the exit code of the command line where it has one (1: refused, 2: wrongly called, 3:
what it needs is away or its settings cannot be used). [Thirty mistakes](mistakes.md) that a worker finds have a table
of their own, as have [faults at the start](starting.md).
"""
BASE = load_text(template(env_id="CartPole-v1"))
#: Nothing listens there.
NOWHERE = "http://127.0.0.1:9"


@dataclass(frozen=True)
class Refusal:
    """A mistake.

    Attributes:
        where: spec, command line, client or settings.
        mistake: what was done, as it is written.
        told: what is said of it.
        code: exit code; None where there is no command.
    """

    where: str
    mistake: str
    told: str
    code: int | None


def _text(changes: str) -> str:
    return yaml.safe_dump(BASE, sort_keys=False) + changes


#: As written in the file, each laid over a specification that is accepted, or the whole text of one.
SPECS: tuple[tuple[str, Mapping[str, Any] | str], ...] = (
    ("ppoo: {lr: 0.1}", {"ppoo": {"lr": 0.1}}),
    ("ppo: {lr: fast}", {"ppo": {"lr": "fast"}}),
    ("ppo: {lr: -1}", {"ppo": {"lr": -1}}),
    ("ppo: {lr: .inf}", {"ppo": {"lr": float("inf")}}),
    ("ppo: {learning_rate: 0.1}", {"ppo": {"learning_rate": 0.1}}),
    ("ppo: {gama: 0.9}", {"ppo": {"gama": 0.9}}),
    ("ppo: {minibatches: 100000}", {"ppo": {"minibatches": 100000}}),
    ("preset: gym_clasic", {"preset": "gym_clasic"}),
    ("budget: {total_timesteps: 100000}", {"budget": {"total_timesteps": 100000}}),
    ("budget: {rounds: 0}", {"budget": {"rounds": 0}}),
    ("budget: {..} twice", _text("budget: {rounds: 3}\n")),
    ("a tab for blanks", "experiment:\n\tname: tabs\n"),
    ("a bracket left open", "arms: [{label: a}, {label: b}\n"),
    ("an empty file", ""),
    ("a list in place of sections", "- experiment\n- arms\n"),
    ("arms: [one]", {"arms": [{"label": "A"}]}),
    ("arms: {A: .., B: ..}", {"arms": {"A": {}, "B": {}}}),
    ("two arms of one label", {"arms": [{"label": "A"}, {"label": "A", "overrides": {"ppo.lr": 0.1}}]}),
    ("label: my arm!", {"arms": [{"label": "A"}, {"label": "my arm!", "overrides": {"ppo.lr": 0.1}}]}),
    ("arms that do not differ", {"arms": [{"label": "A"}, {"label": "B"}]}),
    ("overrides: {env.id: ..}", {"arms": [{"label": "A"}, {"label": "B", "overrides": {"env.id": "Acrobot-v1"}}]}),
    ("overrides: {ppo.lrr: 0.1}", {"arms": [{"label": "A"}, {"label": "B", "overrides": {"ppo.lrr": 0.1}}]}),
    ("reward: {mode: shaped}", {"reward": {"mode": "shaped"}}),
    ("experiment: {replicates: {max: 10}}", {"experiment": {"replicates": {"max": 10}}}),
    ("experiment: {replicates: 2}", {"experiment": {"replicates": 2}}),
    ("experiment: {seed: -1}", {"experiment": {"seed": -1}}),
    ("experiment: {name: ''}", {"experiment": {"name": ""}}),
    ("analysis: {sesoi: -2}", {"analysis": {"sesoi": -2}}),
    ("analysis: {primary: accuracy}", {"analysis": {"primary": "accuracy"}}),
    ("analysis: {alpha: 5}", {"analysis": {"alpha": 5}}),
    ("looks: {mode: planned, at: [10, 6]}", {"analysis": {"looks": {"mode": "planned", "at": [10, 6]}}}),
)
#: Commands: the program that has it, and its words.
COMMANDS: tuple[tuple[typer.Typer, str], ...] = (
    (people.app, "sumbit spec.yaml"),
    (people.app, "submit missing.yaml"),
    (people.app, "submit"),
    (people.app, "watch exp_0000 --jsn"),
    (people.app, "list --limit 0"),
    (people.app, "queue stop"),
    (people.app, "events exp_0000 --severity loud"),
    (people.app, "report"),
    (people.app, "export exp_0000 --to aim"),
    (people.app, "list"),
    (admin.app, "token create --name mia --role king"),
    (admin.app, "db downgrade 9999"),
    (specs.app, "explain ppo.lrr"),
    (specs.app, "init --preset digits_cpuu"),
)
#: Settings of the server.
SETTINGS: tuple[tuple[str, str], ...] = (
    ("LOCKSTEP_PORT", "99999"),
    ("LOCKSTEP_PORT", "http"),
    ("LOCKSTEP_AUTH", "on"),
    ("LOCKSTEP_BIND", "0.0.0.0"),
    ("LOCKSTEP_LEASE_TTL_SECONDS", "10"),
    ("LOCKSTEP_SESSION_HOURS", "0"),
    ("LOCKSTEP_LOG_LEVEL", "loud"),
)
_HTML = {"content": b"<html>Bad Gateway</html>", "headers": {"content-type": "text/html"}}


def _client(answer: Mapping[str, Any]) -> Client:
    return Client(NOWHERE, patience=0.0, transport=httpx.MockTransport(lambda _: httpx.Response(**answer)))


#: Calls of a script.
CALLS: tuple[tuple[str, Callable[[], Any]], ...] = (
    ("Client('localhost:7480')", lambda: Client("localhost:7480")),
    ("Client('http://host:port')", lambda: Client("http://host:port")),
    ("Client(token='lsk_a b')", lambda: Client(token="lsk_a b")),
    ("client.show(..), no server there", lambda: Client(NOWHERE, patience=0.0).show("exp_1")),
    ("client.show(..), a proxy whose server is away", lambda: _client({"status_code": 502, **_HTML}).show("exp_1")),
    ("client.show(..), another site", lambda: _client({"status_code": 200, **_HTML}).show("exp_1")),
    (
        "client.show(..), http for https",
        lambda: _client({"status_code": 301, "headers": {"location": "https://lab.example/"}}).show("exp_1"),
    ),
)


def refusals() -> Iterator[Refusal]:
    """Make every mistake and yield what is told."""
    for written, given in SPECS:
        yield Refusal("spec", written, _of_spec(given), 1)
    for program, words in COMMANDS:
        with _environment(LOCKSTEP_URL=NOWHERE):
            yield _of_command(program, words)
    for name, value in SETTINGS:
        with _environment(**{name: value}):
            found = _of_command(admin.app, "doctor")
        yield Refusal("settings", f"{name}={value}", found.told, found.code)
    for written, call in CALLS:
        yield Refusal("client", written, _of_call(call), None)


def _of_spec(given: Mapping[str, Any] | str) -> str:
    try:
        problems, _ = check(parse(load_text(given) if isinstance(given, str) else merge(BASE, given)))
    except InvalidSpecError as error:
        problems = list(error.problems)
    return "; ".join(map(str, problems))


def _of_command(program: typer.Typer, words: str) -> Refusal:
    result = CliRunner().invoke(program, words.split(), env={"COLUMNS": "1000", "TERM": "dumb", "NO_COLOR": "1"})
    told, code = " ".join(_inside(result.stderr)), result.exit_code
    if isinstance(result.exception, Exception):
        ended = ended_by(result.exception)
        told, code = ended if ended is not None else (f"Traceback: {result.exception!r}", 1)
    prefix = {id(admin.app): "", id(specs.app): "spec "}.get(id(program), "")
    return Refusal("command line", f"lockstep {prefix}{words}", told, code)


def _inside(text: str) -> Iterator[str]:
    """Yield the sentences of an error, without the frame that is drawn around it and the line of its usage."""
    for line in text.splitlines():
        bare = line.strip("│╭╮╰╯─ ").removeprefix("Error").strip("─ ")
        if bare and not bare.startswith(("Usage:", "Try ")):
            yield bare


def _of_call(call: Callable[[], Any]) -> str:
    try:
        call()
    except Exception as error:  # what a script sees
        return f"{type(error).__name__}: {error}"
    return ""


@contextmanager
def _environment(**changes: str) -> Iterator[None]:
    before = dict(os.environ)
    for name in [name for name in before if name.startswith("LOCKSTEP_") and name != "LOCKSTEP_NO_SKIP"]:
        del os.environ[name]
    os.environ.update(changes)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def page(found: list[Refusal]) -> str:
    """Return the table."""
    rows = [
        f"| {number} | {item.where} | `{item.mistake}` | {_cell(item.told)} | {item.code or ''} |"
        for number, item in enumerate(found, 1)
    ]
    return "\n".join([HEAD, "| # | where | mistake | told | code |", "|---|---|---|---|---|", *rows, ""])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", "<br>")


def main() -> None:
    """Write the page."""
    logging.disable(logging.WARNING)
    found = list(refusals())
    TARGET.write_text(page(found), encoding="utf-8")
    print(f"{len(found)} mistakes in {TARGET}")


if __name__ == "__main__":
    main()
