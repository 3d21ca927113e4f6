"""The ``lockstep`` command: a thin layer over the client.

It needs the base install alone. Commands that run a server, a worker or the demonstration are handed to a program
with more packages, which takes this process's place.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperGroup

from app.cli import experiments, fleet
from app.cli.called import CALLED, called
from app.cli.ends import fail, run

#: Ends the help text.
EPILOG = (
    "Exit codes: 0 done; 1 the server, the specification or the experiment says no; 2 wrongly called; "
    "3 what it needs is away, or its settings cannot be used. "
    "LOCKSTEP_URL and LOCKSTEP_TOKEN name the server and the token."
)
#: Commands in the order in which they are first needed; any others follow.
_ORDER = (
    *("demo", "serve", "worker", "spec", "env", "reward", "plan", "submit", "watch", "report", "show", "list"),
    *("logs", "events", "top", "workers", "queue", "cancel", "pause", "resume", "retry", "clone", "extend"),
    *("ab", "compare", "export", "calibrate", "doctor", "launch", "data", "token", "audit", "webhooks", "db"),
)


class _InOrder(TyperGroup):
    """Lists commands by when they are needed."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands."""
        names = super().list_commands(ctx)
        return sorted(names, key=lambda name: _ORDER.index(name) if name in _ORDER else len(_ORDER))


app = typer.Typer(cls=_InOrder, no_args_is_help=True, help="Lockstep A/B experiments for RL.", epilog=EPILOG)
app.add_typer(experiments.app)
app.add_typer(fleet.app)


class Program(NamedTuple):
    """Another program that has a command: the module, its first arguments, and what must be installed for it."""

    module: str
    first: tuple[str, ...]
    packages: str
    extra: str
    summary: str


#: Commands that are not for people with the base install alone.
HANDED_OVER = {
    "spec": Program("app.cli.specs", (), "scipy", "", "Work on specifications without a server."),
    "serve": Program("app.cli.admin", ("serve",), "fastapi", "server", "Run the API, live streams and pages."),
    "db": Program("app.cli.admin", ("db",), "sqlalchemy", "server", "Schema of the database."),
    "token": Program("app.cli.admin", ("token",), "sqlalchemy", "server", "Access tokens."),
    "doctor": Program(
        "app.cli.admin", ("doctor",), "sqlalchemy", "server", "Check settings, database, plug-ins and the server."
    ),
    "demo": Program("app.cli.admin", ("demo",), "fastapi", "server", "Run the whole product on this machine once."),
    "worker": Program("worker", (), "torch", "worker", "Train on one device what the server hands out."),
    "launch": Program("app.cli.launch", (), "yaml", "", "Start workers here, by SSH, Slurm, Ray or Kubernetes."),
    "data": Program("worker", ("data",), "torch", "worker", "Fetch data sets ahead of training."),
    "env": Program(
        "worker", ("env",), "torch gymnasium", "worker,gym", "Check whether an environment can be trained in."
    ),
    "reward": Program(
        "worker", ("reward",), "torch gymnasium", "worker,gym", "List reward modes; check whether one can be paid."
    ),
}


def _version(wanted: bool) -> None:
    if wanted:
        import importlib.metadata

        typer.echo(f"lockstep {importlib.metadata.version('lockstep')}")
        raise typer.Exit


@app.callback()
def root(
    url: Annotated[
        str | None, typer.Option(help="The server; default LOCKSTEP_URL, else http://127.0.0.1:7480")
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Lockstep A/B experiments for RL."""
    del version
    if url is not None:
        os.environ["LOCKSTEP_URL"] = url  # for programs that commands are handed over to, too


def main() -> None:
    """Run the command; refusals and a missing server end with a sentence and code 1."""
    run(app, with_alias(sys.argv[1:]))


def _offer(name: str, program: Program) -> None:
    """Add a command that hands over to the program that has it."""

    def command(context: typer.Context) -> None:
        if any(importlib.util.find_spec(package) is None for package in program.packages.split()):
            missing = f"`lockstep {name}` needs more packages: pip install 'lockstep[{program.extra}]'"
            raise fail(missing, 2)
        os.environ[CALLED] = called()
        arguments = [sys.executable, "-m", program.module, *program.first, *context.args]
        os.execv(sys.executable, arguments)  # noqa: S606 - no shell, own program

    pass_all = {"allow_extra_args": True, "ignore_unknown_options": True}
    app.command(name, help=program.summary, context_settings=pass_all, add_help_option=False)(command)


def with_alias(arguments: list[str]) -> list[str]:
    """Read ``--dual-ab a-vs-b`` as the command ``ab a-vs-b``; everything else stays as it is."""
    first, *rest = arguments or [""]
    if first.partition("=")[0] != "--dual-ab":
        return arguments
    return ["ab", *([first.partition("=")[2]] if "=" in first else []), *rest]


for _name, _program in HANDED_OVER.items():
    _offer(_name, _program)
