"""``lockstep spec``: work on specifications without a server. A program of its own, for it loads the statistics.

``lockstep report --from`` ends up here too: it computes a report again.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
import yaml

from app.cli.called import called
from app.cli.ends import fail, run
from app.cli.files import OtherFile, SpecFile, load
from lockstep import plugins
from lockstep.quoting import quoted
from lockstep.report import render_markdown, report_from_scores_csv, report_json
from lockstep.spec import reference
from lockstep.spec.environments.families import FAMILIES
from lockstep.spec.metrics import registered
from lockstep.spec.presets import PRESETS
from lockstep.spec.resolve import diff_paths, parse
from lockstep.spec.rules import NOT_ASKED, Registered, all_problems, check, not_here
from lockstep.spec.template import template
from lockstep.spec.text.problems import InvalidSpecError, nearest

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Work on specifications without a server.")
AsJson = Annotated[bool, typer.Option("--json", help="As JSON")]


def main() -> None:
    """Run the command; a refusal ends with a sentence and code 1."""
    run(app, sys.argv[1:], name="lockstep spec")


@app.command("check")
def check_spec(file: SpecFile) -> None:
    """Check a specification; code 1 when it is refused."""
    raw = load(file)
    try:
        resolved = parse(raw)
        problems, warnings = check(resolved, _beside(resolved.spec.env.id))
    except InvalidSpecError as error:
        problems, warnings = all_problems(raw, error.problems), []
    for problem in problems:
        typer.echo(f"{problem} [{problem.code}]", err=True)
    for warning in warnings:
        typer.echo(f"warning: {warning}")
    if problems:
        raise typer.Exit(1)
    typer.echo(f"valid, hash {resolved.hash}")


def _beside(env_id: str | None) -> Registered:
    """Return what is installed beside this command: no server is asked, but one of its names may have been meant."""
    own = {point.name for point in plugins.installed(plugins.ENVIRONMENTS)}
    rewards = [point.name for point in plugins.installed(plugins.REWARDS)]
    tasks = own if env_id is None or env_id in own else plugins.tasks_here()
    return replace(NOT_ASKED, rewards_here=rewards, tasks_here=tasks)


@app.command("diff")
def diff(file: SpecFile, other: OtherFile = None) -> None:
    """Show only what differs: the arms of one spec, or two specs field by field."""
    try:
        resolved = parse(load(file))
        second = parse(load(other)) if other is not None else None
    except InvalidSpecError as error:
        raise fail(error, 1) from error
    if second is not None:
        for item in diff_paths(resolved.document, second.document):
            typer.echo(f"{item.path}: {json.dumps(item.base)} -> {json.dumps(item.value)}")
        return
    for arm in resolved.arms:
        typer.echo(f"{arm.label}:" + ("" if arm.diff else " (base)"))
        for item in arm.diff:
            typer.echo(f"  {item.path}: {json.dumps(item.base)} -> {json.dumps(item.value)}")


@app.command("init")
def init(
    preset: Annotated[str | None, typer.Option(help="Values to build on; `lockstep spec presets` lists them")] = None,
    task: Annotated[str | None, typer.Option(help="A task of morphogenesis, for example digits_small")] = None,
    env: Annotated[
        str | None, typer.Option(help="An environment of Gymnasium or of a package of yours, for example CartPole-v1")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="A new file; default: standard output")] = None,
) -> None:
    """Write a commented first specification."""
    text = template(preset=preset, task=task, env_id=env)
    told = "" if env is None else not_here(env, _beside(env).tasks_here)
    if told:
        typer.echo(f"warning: --env {env}: {told}", err=True)
    if output is None:
        typer.echo(text, nl=False)
        return
    try:
        with output.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise fail(f"--output {output}: {error.strerror}", 2) from error
    name = called()
    typer.echo(f"written to {output}; next: {name} spec check {output}")
    typer.echo(f"and with a server, which `{name} serve` starts: {name} plan {output}")


@app.command("schema")
def schema() -> None:
    """Print the JSON Schema of a specification, for editors and scripts."""
    typer.echo(json.dumps(reference.schema(), indent=2))


@app.command("presets")
def presets(
    name: Annotated[str | None, typer.Argument(help="Only this one, with its values")] = None, as_json: AsJson = False
) -> None:
    """List the presets, or print the values of one."""
    if name is not None and name not in PRESETS:
        raise fail(f"unknown preset {quoted(name)}; {nearest(name, PRESETS)}", 1)
    chosen = {name: dict(PRESETS[name])} if name is not None else {key: dict(value) for key, value in PRESETS.items()}
    if as_json:
        typer.echo(json.dumps(chosen, indent=2))
    elif name is not None:
        typer.echo(yaml.safe_dump(chosen[name], sort_keys=False).rstrip())
    else:
        for key, values in chosen.items():
            env = values["env"]
            typer.echo(f"{key:24} {env.get('task') or env.get('kind')}: sets {', '.join(values)}")


@app.command("metrics")
def metrics(
    kind: Annotated[str | None, typer.Option(help="Only of this env.kind: gymnasium or morphogenesis")] = None,
    as_json: AsJson = False,
) -> None:
    """List the metrics that an experiment can be judged by, by kind of environment."""
    if kind is not None and kind not in FAMILIES:
        raise fail(f"--kind: unknown env.kind {quoted(kind)}; {nearest(kind, FAMILIES)}", 2)
    kinds = sorted(FAMILIES) if kind is None else [kind]
    if as_json:
        chosen = [vars(item) for item in registered().values() if {*kinds} & {*item.env_kinds}]
        typer.echo(json.dumps(chosen, indent=2))
        return
    for name in kinds:
        typer.echo(f"env.kind {name}:")
        _list_metrics(name)


def _list_metrics(kind: str) -> None:
    for metric in registered().values():
        if kind not in metric.env_kinds:
            continue
        judged = " (reward enters: not for arms that differ in reward)" if metric.reward_dependent else ""
        unit = f" [{metric.unit}]" if metric.unit else ""
        typer.echo(f"  {metric.name:36} {metric.direction} {metric.description}{unit}{judged}")


@app.command("explain")
def explain(
    field: Annotated[str, typer.Argument(help="For example ppo.lr, sesoi, or a section such as analysis")],
    as_json: AsJson = False,
) -> None:
    """Say what a field takes, its default and its meaning."""
    try:
        fields = reference.explain(field)
    except KeyError as error:
        raise fail(str(error.args[0]), 1) from error
    if as_json:
        typer.echo(json.dumps([vars(item) for item in fields], indent=2))
    else:
        typer.echo("\n\n".join(map(str, fields)))


@app.command("reference", hidden=True)
def write_reference() -> None:
    """Print docs/reference.md."""
    typer.echo(reference.markdown(), nl=False)


@app.command("recompute", hidden=True)
def recompute(scores: Path, registered_in: Path, form: str, output: str) -> None:
    """Compute a report again from scores.csv and report.json; reached by `lockstep report --from`."""
    try:
        registration = json.loads(registered_in.read_text(encoding="utf-8"))["registration"]
        again = report_from_scores_csv(scores.read_text(encoding="utf-8"), registration)
    except (ValueError, KeyError, TypeError) as error:
        raise fail(
            f"{scores} and {registered_in} are not the scores and the report of one experiment: {error}", 1
        ) from error
    text = report_json(again) if form == "json" else render_markdown(again)
    if output == "-":
        typer.echo(text)
    else:
        Path(output).write_text(text, encoding="utf-8")
        typer.echo(f"written to {output}")


if __name__ == "__main__":
    main()
