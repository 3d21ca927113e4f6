"""Commands on experiments: submit, follow, read, steer."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urljoin

import typer

from app.cli import text
from app.cli.called import NAME, called
from app.cli.ends import an_id, fail, reach, within
from app.cli.files import SpecFile, form_of, load
from lockstep.address import EXPERIMENT_ID, hidden
from lockstep.quoting import quoted

if TYPE_CHECKING:
    from lockstep.client import Client, Submitted

app = typer.Typer()
Id = Annotated[str, typer.Argument(parser=an_id("exp"), help="Experiment id, as `lockstep list` shows it")]
AsJson = Annotated[bool, typer.Option("--json", help="What the API answers, as JSON")]
#: How long a command that follows something waits for a server that is away.
FOLLOWED_SECONDS = 600.0
_REPORTS = {f".{form}": form for form in ("md", "html", "json", "csv", "py")}
_EXPORTS = {".json": "json", ".csv": "csv", ".sqlite": "sqlite", ".db": "sqlite"}
Why = Annotated[str, typer.Argument(metavar="REASON", help="Why: a sentence for the timeline, in quotes")]
Reason = Annotated[str, typer.Option(help="The same as an option")]


def _json(document: Any) -> None:
    typer.echo(json.dumps(document, indent=2))


@app.command()
def submit(
    file: SpecFile,
    key: Annotated[
        str | None, typer.Option(help="Any text: however often it is submitted under one key, it is stored once")
    ] = None,
    follow_it: Annotated[bool, typer.Option("--watch", help="Follow it to its end, as `lockstep watch` does")] = False,
    as_json: AsJson = False,
) -> None:
    """Submit an experiment."""
    with reach() as client:
        document = client.submit(load(file), key=key)
        _show_submitted(client, document, as_json)
    if follow_it:
        watch(document["id"], as_json=as_json)


def _show_submitted(client: Client, document: Submitted, as_json: bool) -> None:
    if as_json:
        _json(document)
        return
    typer.echo(f"{document['id']}  {document['status']}")
    for warning in document["warnings"]:
        typer.echo(f"warning: {warning}")
    typer.echo(f"page:   {urljoin(hidden(client.url), document['links']['page'])}")
    for name, command in document["commands"].items():
        typer.echo(f"{name + ':':8}{command.replace(NAME, called(), 1)}")


@app.command()
def plan(file: SpecFile, as_json: AsJson = False) -> None:
    """Say what a submission would run, cost and find; writes nothing."""
    with reach() as client:
        document = client.plan(load(file))
    if as_json:
        _json(document)
    else:
        typer.echo(text.plan_text(document))


@app.command()
def ab(
    comparison: Annotated[
        str, typer.Argument(help="Names of reward modes, for example shaped-vs-simplified[-vs-sparse]")
    ],
    envs: Annotated[int, typer.Option(parser=within(1, 4096), help="Environments per arm")] = 4,
    rounds: Annotated[int, typer.Option(parser=within(1, 100_000), help="Rounds of training of each run")] = 100,
    replicates: Annotated[
        int, typer.Option(parser=within(1, 1000), help="Replicates: runs of each arm; 6 is the least for p <= 0.05")
    ] = 6,
    preset: Annotated[str, typer.Option(help="Values to build on; `lockstep spec presets` lists them")] = "digits_cpu",
    sesoi: Annotated[
        float, typer.Option(parser=within(0.001, 100.0), help="Smallest effect of interest, percentage points")
    ] = 2.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the specification, submit nothing")] = False,
    as_json: AsJson = False,
) -> None:
    """Compare reward modes: one arm for each name between `-vs-`."""
    modes = comparison.split("-vs-")
    if len(set(modes)) < max(2, len(modes)):
        raise fail(f"{quoted(comparison)}: name two or more different reward modes, as in shaped-vs-simplified", 2)
    spec = ab_spec(comparison, envs=envs, rounds=rounds, replicates=replicates, preset=preset, sesoi=sesoi)
    if dry_run:
        import yaml

        typer.echo(json.dumps(spec) if as_json else yaml.safe_dump(spec, sort_keys=False).rstrip())
        return
    with reach() as client:
        _show_submitted(client, client.submit(spec), as_json)


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
    status: Annotated[
        str | None, typer.Option(help="Only in this state: queued, running, paused, succeeded, failed, partial, ..")
    ] = None,
    owner: Annotated[str | None, typer.Option(help="Only of this owner: a name or an owner's id")] = None,
    tag: Annotated[str | None, typer.Option(help="Only with this tag")] = None,
    limit: Annotated[int, typer.Option(parser=within(1, 200), help="At most so many, from 1 to 200")] = 20,
    as_json: AsJson = False,
) -> None:
    """List experiments, newest first."""
    with reach() as client:
        experiments = client.experiments(status=status, owner=owner, tag=tag, limit=limit)
        items = list(islice(experiments, limit))
    if as_json:
        _json(items)
    for item in items if not as_json else ():
        typer.echo(text.list_line(item))
    if not items and not as_json:
        is_all = status is owner is tag is None
        typer.echo("no experiment" + (f" yet: {called()} spec init writes a first one" if is_all else ""))


@app.command()
def show(experiment_id: Id, as_json: AsJson = False) -> None:
    """Show an experiment: its state, its arms, why it waits, and why replicates gave no result."""
    with reach() as client:
        experiment = client.show(experiment_id)
        runs = [] if as_json else client.runs(experiment_id)
    if as_json:
        _json(experiment)
    else:
        typer.echo(text.show_text(experiment, runs))


@app.command()
def watch(
    experiment_id: Id,
    as_json: Annotated[bool, typer.Option("--json", help="Every frame of the live stream, one a line")] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Lines also on a terminal, instead of a table")] = False,
) -> None:
    """Follow the comparison of every round until the end; code 1 unless the experiment succeeded."""
    from app.cli.watching import Board, follow

    with reach() as asking:
        first = asking.show(experiment_id)
        with reach(patience=FOLLOWED_SECONDS) as client:
            frames = client.watch(experiment_id)
            if as_json:
                for frame in frames:
                    typer.echo(json.dumps(frame))
            else:
                board = Board(first, time.monotonic)
                follow(frames, board, lambda: asking.show(experiment_id), as_table=sys.stdout.isatty() and not plain)
            ended, runs = client.show(experiment_id), client.runs(experiment_id)
    told = [*text.cause_lines(ended), *text.diverged_lines(runs), *text.answer_lines(ended)]
    for line in told if not as_json else ():
        typer.echo(line)
    if ended["status"] != "succeeded":
        raise typer.Exit(1)


@app.command()
def events(
    experiment_id: Id,
    severity: Annotated[str, typer.Option(help="debug, info, warning or error: this and what is worse")] = "info",
    everything: Annotated[
        bool, typer.Option("--all", help="What every round brings, too; --json always has it")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print the timeline, oldest first: what happened, when, and by whom."""
    known = ("debug", "info", "warning", "error")
    if severity not in known:
        raise typer.BadParameter(f"use one of {', '.join(known)}", param_hint="--severity")
    found, hidden_events = [], 0
    with reach() as client:
        for item in client.events(experiment_id):
            if known.index(item["severity"]) < known.index(severity):
                continue
            if as_json:
                found.append(item)
            elif everything or not text.is_routine(item):
                typer.echo(text.event_line(item))
            else:
                hidden_events += 1
    if as_json:
        _json(found)
    elif hidden_events:
        told = "1 routine event is" if hidden_events == 1 else f"{hidden_events} routine events are"
        typer.echo(f"{told} not shown: {called()} events {experiment_id} --all")


@app.command()
def logs(
    run_id: Annotated[str, typer.Argument(parser=an_id("run"), help="Run id, as `lockstep show` names it")],
    level: Annotated[str, typer.Option(help="debug, info, warning or error: this and what is worse")] = "debug",
    follow_it: Annotated[bool, typer.Option("--follow", "-f", help="Go on as lines come, until the run ends")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Each line as JSON")] = False,
) -> None:
    """Print what the training process of a run wrote, the newest 1,000 lines."""
    with reach(patience=FOLLOWED_SECONDS if follow_it else 0.0) as client:
        for line in client.logs(run_id, level=level, follow=follow_it):
            typer.echo(json.dumps(line) if as_json else line["text"])


@app.command()
def export(
    experiment_id: Id,
    given: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="json, csv (training episodes) or sqlite; by default what the suffix of the file says, else json",
        ),
    ] = None,
    output: Annotated[Path | None, typer.Option(help="File or folder; default: EXPERIMENT.FORMAT, or TRACKER")] = None,
    to: Annotated[
        str | None, typer.Option("--to", help="For a tracker instead: tensorboard, mlflow or wandb-offline")
    ] = None,
) -> None:
    """Save everything that is stored of an experiment, or its metrics in the form of a tracker."""
    if to is not None:
        _export_to(experiment_id, to, output or Path({"mlflow": "mlruns"}.get(to, to)))
        return
    form = form_of(given, output, _EXPORTS, "json")
    target = output or Path(f"{experiment_id}.{form}")
    with reach() as client:
        size = client.download(f"experiments/{experiment_id}/export", target, format=form)
    typer.echo(f"written to {target} ({size / 1e6:.1f} MB)")


def _export_to(experiment_id: str, tracker: str, folder: Path) -> None:
    from lockstep import trackers

    write = trackers.WRITERS.get(tracker)
    if write is None:
        raise typer.BadParameter(f"use one of {', '.join(trackers.WRITERS)}", param_hint="--to")
    with reach() as client:
        experiment = trackers.collect(client, experiment_id)
    write(experiment, folder)
    typer.echo(f"{len(experiment.runs)} runs written to {folder}; {trackers.SHOWN[tracker].format(folder=folder)}")


@app.command()
def compare(
    experiment_ids: Annotated[list[str], typer.Argument(help="One to eight ids of experiments")],
    as_json: AsJson = False,
) -> None:
    """Show the settings in which the arms of experiments differ, side by side."""
    with reach() as client:
        comparison = client.call("GET", "compare", params={"experiments": experiment_ids})
    if as_json:
        _json(comparison)
    else:
        typer.echo(text.compare_text(comparison))


#: What comes of a wish.
_STEERED = {"cancel": "stops for good", "pause": "pauses at the end of its running rounds", "run": "goes on"}


def _steer(experiment_id: str, action: str, why: str, reason: str, as_json: bool) -> None:
    if why and reason:
        raise typer.BadParameter("give it once, behind the id or with --reason", param_hint="REASON")
    if re.fullmatch(EXPERIMENT_ID, why.strip()):
        raise typer.BadParameter(f"{why} is an experiment; steer one at a time", param_hint="REASON")
    with reach() as client:
        document = client.steer(experiment_id, action, why or reason)
    if as_json:
        _json(document)
    else:
        told = _STEERED[document["desired"]]
        typer.echo(f"{experiment_id} {told}" + ("" if document["changed"] else ", as was asked for before"))


@app.command()
def cancel(experiment_id: Id, why: Why = "", reason: Reason = "", as_json: AsJson = False) -> None:
    """Stop an experiment for good, now; what has been trained is kept."""
    _steer(experiment_id, "cancel", why, reason, as_json)


@app.command()
def pause(experiment_id: Id, why: Why = "", reason: Reason = "", as_json: AsJson = False) -> None:
    """Stop an experiment at the end of its running rounds; `lockstep resume` goes on from there."""
    _steer(experiment_id, "pause", why, reason, as_json)


@app.command()
def resume(experiment_id: Id, why: Why = "", reason: Reason = "", as_json: AsJson = False) -> None:
    """Put a paused experiment back into the queue."""
    _steer(experiment_id, "resume", why, reason, as_json)


@app.command()
def retry(experiment_id: Id, as_json: AsJson = False) -> None:
    """Run the replicates that failed again, from their beginning, once what stopped them is mended."""
    with reach() as client:
        succeeded = client.show(experiment_id)["progress"]["blocks_by_status"].get("succeeded", 0)
        added = client.retry(experiment_id)
    if as_json:
        _json({"blocks": added})
    else:
        told = "1 replicate is" if len(added) == 1 else f"{len(added)} replicates are"
        typer.echo(f"{told} in the queue again; {called()} watch {experiment_id} follows")
        if succeeded:
            typer.echo(
                "warning: if code of yours has changed since replicates succeeded, the report will be invalid; "
                f"{called()} clone {experiment_id} trains all with one code"
            )


@app.command()
def extend(
    experiment_id: Id,
    replicates: Annotated[int, typer.Argument(parser=within(1, 1000), help="How many more")],
    exploratory: Annotated[
        bool,
        typer.Option(
            "--exploratory", help="Beside the registered analysis, where that allows no more: the report says so"
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Append replicates where the registered analysis allows it."""
    with reach() as client:
        added = client.extend(experiment_id, replicates, exploratory=exploratory)
    if as_json:
        _json({"blocks": added})
    else:
        typer.echo("1 replicate added" if len(added) == 1 else f"{len(added)} replicates added")


@app.command()
def clone(
    experiment_id: Id,
    overrides: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="YAML file with the fields to change; all others stay"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Submit a copy, with fields changed."""
    laid_over = load(overrides) if overrides else {}
    with reach() as client:
        _show_submitted(client, client.clone(experiment_id, laid_over), as_json)


@app.command()
def report(
    experiment_id: Annotated[
        str | None, typer.Argument(parser=an_id("exp"), help="Experiment id, as `lockstep list` shows it")
    ] = None,
    given: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="md, html, json, csv or py (recompute script); by default what the suffix of the file says, else md",
        ),
    ] = None,
    output: Annotated[Path | None, typer.Option(help="File; default: standard output")] = None,
    scores: Annotated[
        Path | None, typer.Option("--from", exists=True, help="Compute it again from this scores.csv; with --report")
    ] = None,
    registered: Annotated[
        Path | None, typer.Option("--report", exists=True, help="The report.json that belongs to --from")
    ] = None,
) -> None:
    """Print or save a report: of an experiment, or computed again from scores.csv and report.json."""
    form = form_of(given, output, _REPORTS, "md")
    if scores is not None and registered is not None:
        files = [str(scores), str(registered), form, str(output or "-")]
        os.execv(sys.executable, [sys.executable, "-m", "app.cli.specs", "recompute", *files])  # noqa: S606 - own program
    if experiment_id is None:
        raise typer.BadParameter("name an experiment, or give --from scores.csv with --report report.json")
    with reach() as client:
        found = client.report(experiment_id, form)
    told = json.dumps(found, indent=2) if form == "json" else str(found)
    if form == "md" and output is None and sys.stdout.isatty():
        told = text.read_aloud(told)
    if output is None:
        typer.echo(told)
    else:
        output.write_text(told, encoding="utf-8")
        typer.echo(f"written to {output}")


@app.command()
def calibrate(
    experiment_id: Annotated[
        str | None,
        typer.Argument(
            parser=an_id("exp"), help="Experiment whose scores are dealt out at random; default: simulated scores"
        ),
    ] = None,
    repetitions: Annotated[
        int, typer.Option(parser=within(50, 10_000), help="Experiments to simulate, from 50 to 10000")
    ] = 1000,
    as_json: AsJson = False,
) -> None:
    """Report the false-winner rate of the whole analysis with its band; code 1 when it lies outside."""
    body = {"experiment": experiment_id, "repetitions": repetitions}
    with reach(timeout=600.0) as client:
        calibration = client.call("POST", "calibrations", json=body)
    if as_json:
        _json(calibration)
    for row in calibration["rows"] if not as_json else ():
        low, high = row["band"]
        state = "ok" if row["passed"] else "OUTSIDE"
        rates = f"{row['rate']:.4f}  expected {row['expected']:.4f} [{low:.4f}, {high:.4f}]"
        typer.echo(f"{row['name']:28} {rates}  {state}")
    if not calibration["passed"]:
        raise typer.Exit(1)
