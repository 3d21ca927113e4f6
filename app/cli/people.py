"""The ``lockstep`` command: a thin layer over the client.

It needs the base install alone. Commands that run a server, a worker or the demonstration are handed to a program
with more packages, which takes this process's place.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
import yaml

from app.cli.ends import fail, run
from app.cli.text import Board, cause_lines, diverged_lines, plan_text, show_text
from lockstep.client import Client
from lockstep.report import render_markdown, report_from_scores_csv, report_json
from lockstep.spec.problems import InvalidSpecError
from lockstep.spec.reading import load_file
from lockstep.spec.resolve import diff_paths, parse
from lockstep.spec.rules import check
from lockstep.text import isolated

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Lockstep A/B experiments for RL.")
spec_commands = typer.Typer(no_args_is_help=True, help="Work on specifications without a server.")
app.add_typer(spec_commands, name="spec")
SpecFile = Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="YAML or JSON file")]
Id = Annotated[str, typer.Argument(help="Experiment id")]


class Program(NamedTuple):
    """Another program that has a command: the module, its first arguments, and what must be installed for it."""

    module: str
    first: tuple[str, ...]
    packages: str
    extra: str
    summary: str


#: Commands that are not for people with the base install alone.
HANDED_OVER = {
    "serve": Program("app.cli.admin", ("serve",), "fastapi", "server", "Run the API, live streams and pages."),
    "db": Program("app.cli.admin", ("db",), "sqlalchemy", "server", "Schema of the database."),
    "token": Program("app.cli.admin", ("token",), "sqlalchemy", "server", "Access tokens."),
    "doctor": Program("app.cli.admin", ("doctor",), "sqlalchemy", "server", "Check settings, database and libraries."),
    "demo": Program("app.cli.admin", ("demo",), "fastapi", "server", "Run the whole product on this machine once."),
    "worker": Program("worker", (), "torch", "worker", "Train blocks on one device."),
    "data": Program("worker", ("data",), "torch", "worker", "Fetch data sets ahead of training."),
    "env": Program(
        "worker", ("env",), "torch gymnasium", "worker,gym", "Check whether an environment can be trained in."
    ),
}


def main() -> None:
    """Run the command; refusals and a missing server end with a sentence and code 1."""
    run(app, with_alias(sys.argv[1:]))


def _offer(name: str, program: Program) -> None:
    """Add a command that hands over to the program that has it."""

    def command(context: typer.Context) -> None:
        if any(importlib.util.find_spec(package) is None for package in program.packages.split()):
            missing = f"`lockstep {name}` needs more packages: pip install 'lockstep[{program.extra}]'"
            raise fail(missing, 2)
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


@app.command()
def submit(file: SpecFile, key: Annotated[str | None, typer.Option(help="Idempotency key")] = None) -> None:
    """Submit an experiment."""
    with Client() as client:
        _print_submitted(client, client.submit(load_file(file), key=key))


def _print_submitted(client: Client, document: dict[str, Any]) -> None:
    typer.echo(f"{document['id']}  {document['status']}")
    for warning in document["warnings"]:
        typer.echo(f"warning: {warning}")
    typer.echo(f"page:   {client.url}{document['links']['page']}")
    for name, command in document["commands"].items():
        typer.echo(f"{name + ':':8}{command}")


@app.command()
def plan(file: SpecFile) -> None:
    """Say what a submission would run; writes nothing."""
    with Client() as client:
        typer.echo(plan_text(client.plan(load_file(file))))


@app.command()
def ab(
    comparison: Annotated[str, typer.Argument(help="for example shaped-vs-simplified[-vs-sparse]")],
    envs: Annotated[int, typer.Option(help="Environments per arm")] = 4,
    rounds: Annotated[int, typer.Option(help="Rounds")] = 100,
    replicates: Annotated[int, typer.Option(help="Replicates; 6 is the least for p <= 0.05")] = 6,
    preset: Annotated[str, typer.Option(help="Preset")] = "digits_cpu",
    sesoi: Annotated[float, typer.Option(help="Smallest effect of interest, percentage points")] = 2.0,
    dry_run: Annotated[bool, typer.Option(help="Print the spec, submit nothing")] = False,
) -> None:
    """Compare reward modes: one arm for each name between `-vs-`."""
    spec = ab_spec(comparison, envs=envs, rounds=rounds, replicates=replicates, preset=preset, sesoi=sesoi)
    if dry_run:
        typer.echo(yaml.safe_dump(spec, sort_keys=False).rstrip())
        return
    with Client() as client:
        _print_submitted(client, client.submit(spec))


def ab_spec(comparison: str, *, envs: int, rounds: int, replicates: int, preset: str, sesoi: float) -> dict[str, Any]:
    """Return the spec that compares the reward modes named in ``a-vs-b[-vs-c]``."""
    modes = comparison.split("-vs-")
    return {
        "experiment": {"name": comparison.replace("-", " "), "replicates": replicates},
        "preset": preset,
        "env": {"n_envs": envs},
        "budget": {"rounds": rounds},
        "arms": [{"label": mode, "reward": mode} for mode in modes],
        "analysis": {"primary": "eval/accuracy", "sesoi": sesoi, "failure": {"floor": 0.0}},
    }


@app.command("list")
def list_experiments(
    status: Annotated[str | None, typer.Option(help="Only this status")] = None,
    limit: Annotated[int, typer.Option(min=1, max=200)] = 20,
) -> None:
    """List experiments, newest first."""
    with Client() as client:
        for number, item in enumerate(client.experiments(status=status, limit=limit)):
            if number >= limit:
                break
            share = f"{100 * item['progress']['fraction']:.0f} %"
            typer.echo(f"{item['id']}  {item['status']:10} {share:>5}  {isolated(item['name'])}")


@app.command()
def show(
    experiment_id: Id,
    as_json: Annotated[bool, typer.Option("--json", help="Everything that is known, as JSON")] = False,
) -> None:
    """Show an experiment: its state, its arms, why it waits, and why replicates gave no result."""
    with Client() as client:
        found = client.show(experiment_id)
    typer.echo(json.dumps(found, indent=2) if as_json else show_text(found))


@app.command()
def watch(experiment_id: Id) -> None:
    """Follow the comparison of every round until the end; code 1 unless the experiment succeeded."""
    with Client() as client:
        board = Board(client.show(experiment_id))
        for frame in client.watch(experiment_id):
            for line in board.lines(frame):
                typer.echo(line)
        ended, runs = client.show(experiment_id), client.runs(experiment_id)
    for line in [*cause_lines(ended), *diverged_lines(runs)]:
        typer.echo(line)
    if ended["status"] != "succeeded":
        raise typer.Exit(1)


@app.command()
def logs(
    run_id: Annotated[str, typer.Argument(help="Run id, as `lockstep show` names it")],
    level: Annotated[str, typer.Option(help="debug, info, warning or error")] = "debug",
) -> None:
    """Print what the training process of a run wrote, the newest 1,000 lines."""
    with Client() as client:
        found = client.call("GET", f"runs/{run_id}/logs", params={"level": level, "limit": 1000})
    for line in found["items"]:
        typer.echo(line["text"])


def _steer(experiment_id: str, action: str, reason: str) -> None:
    with Client() as client:
        document = client.steer(experiment_id, action, reason)
    typer.echo(f"{document['desired']} " + ("stored" if document["changed"] else "was stored already"))


Reason = Annotated[str, typer.Option(help="A sentence for the timeline")]


@app.command()
def cancel(experiment_id: Id, reason: Reason = "") -> None:
    """Stop an experiment for good."""
    _steer(experiment_id, "cancel", reason)


@app.command()
def pause(experiment_id: Id, reason: Reason = "") -> None:
    """Stop an experiment at the next round border."""
    _steer(experiment_id, "pause", reason)


@app.command()
def resume(experiment_id: Id, reason: Reason = "") -> None:
    """Put a paused experiment back into the queue."""
    _steer(experiment_id, "resume", reason)


@app.command()
def extend(experiment_id: Id, replicates: int, exploratory: bool = False) -> None:
    """Append replicates where the registered analysis allows it."""
    body = {"replicates": replicates, "exploratory": exploratory}
    with Client() as client:
        document = client.call("POST", f"experiments/{experiment_id}/extend", json=body)
    typer.echo(f"{len(document['blocks'])} blocks added")


@app.command()
def clone(
    experiment_id: Id,
    overrides: Annotated[Path | None, typer.Option(help="YAML laid over the spec")] = None,
) -> None:
    """Submit a copy, with sections laid over."""
    body = {"overrides": load_file(overrides) if overrides else {}}
    with Client() as client:
        _print_submitted(client, client.call("POST", f"experiments/{experiment_id}/clone", json=body))


@app.command()
def report(
    experiment_id: Annotated[str | None, typer.Argument(help="Experiment id")] = None,
    form: Annotated[str, typer.Option("--format", help="md, html, json, csv or py (recompute script)")] = "md",
    output: Annotated[Path | None, typer.Option(help="File; default: standard output")] = None,
    scores: Annotated[Path | None, typer.Option("--from", exists=True, help="Recompute from scores.csv")] = None,
    registered: Annotated[Path | None, typer.Option("--report", exists=True, help="Its report.json")] = None,
) -> None:
    """Print or save a report: of an experiment, or computed again from scores.csv and report.json."""
    if scores is not None and registered is not None:
        again = report_from_scores_csv(scores.read_text(), json.loads(registered.read_text())["registration"])
        text = report_json(again) if form == "json" else render_markdown(again)
    elif experiment_id is None:
        raise typer.BadParameter("name an experiment, or give --from scores.csv with --report report.json")
    else:
        with Client() as client:
            found = client.report(experiment_id, form)
        text = json.dumps(found, indent=2) if form == "json" else str(found)
    if output is None:
        typer.echo(text)
    else:
        output.write_text(text)
        typer.echo(f"written to {output}")


@app.command()
def calibrate(
    experiment_id: Annotated[str | None, typer.Argument(help="Re-randomise it; default: simulated scores")] = None,
    repetitions: Annotated[int, typer.Option(min=50, max=10_000)] = 1000,
) -> None:
    """Report the false-winner rate of the whole analysis with its band; code 1 when it lies outside."""
    body = {"experiment": experiment_id, "repetitions": repetitions}
    with Client(timeout=600.0) as client:
        found = client.call("POST", "calibrations", json=body)
    for row in found["rows"]:
        low, high = row["band"]
        state = "ok" if row["passed"] else "OUTSIDE"
        rates = f"{row['rate']:.4f}  expected {row['expected']:.4f} [{low:.4f}, {high:.4f}]"
        typer.echo(f"{row['name']:28} {rates}  {state}")
    if not found["passed"]:
        raise typer.Exit(1)


@spec_commands.command("check")
def spec_check(file: SpecFile) -> None:
    """Check a specification without a server; code 1 when it is refused."""
    try:
        resolved = parse(load_file(file))
        problems, warnings = check(resolved)
    except InvalidSpecError as error:
        problems, warnings = list(error.problems), []
    for problem in problems:
        typer.echo(f"{problem} [{problem.code}]", err=True)
    for warning in warnings:
        typer.echo(f"warning: {warning}")
    if problems:
        raise typer.Exit(1)
    typer.echo(f"valid, hash {resolved.hash}")


@spec_commands.command("diff")
def spec_diff(file: SpecFile, other: Annotated[Path | None, typer.Argument(help="Second file")] = None) -> None:
    """Show only what differs: the arms of one spec, or two specs field by field."""
    try:
        resolved = parse(load_file(file))
        if other is not None:
            second = parse(load_file(other))
            for item in diff_paths(resolved.document, second.document):
                typer.echo(f"{item.path}: {json.dumps(item.base)} -> {json.dumps(item.value)}")
            return
    except InvalidSpecError as error:
        raise fail(error, 1) from error
    for arm in resolved.arms:
        typer.echo(f"{arm.label}:" + ("" if arm.diff else " (base)"))
        for item in arm.diff:
            typer.echo(f"  {item.path}: {json.dumps(item.base)} -> {json.dumps(item.value)}")


for _name, _program in HANDED_OVER.items():
    _offer(_name, _program)
