"""Commands on what all experiments share: workers and the queue."""

from __future__ import annotations

import json
import sys
import time
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli import text
from app.cli.ends import reach, within

if TYPE_CHECKING:
    from lockstep.client import Client

app = typer.Typer()
workers = typer.Typer(no_args_is_help=True, help="What trains: list, drain, clear a quarantine.")
app.add_typer(workers, name="workers")
webhooks = typer.Typer(no_args_is_help=True, help="Who is told of ends, failures and verdicts (admins).")
app.add_typer(webhooks, name="webhooks")
AsJson = Annotated[bool, typer.Option("--json", help="What the API answers, as JSON")]
WorkerId = Annotated[str, typer.Argument(help="Worker id, or its name where only one has it")]
_TOP_SECONDS = 2.0


@workers.command("list")
def list_workers(
    retired: Annotated[bool, typer.Option("--retired", help="Those that have gone, too")] = False,
    as_json: AsJson = False,
) -> None:
    """List the workers: device, state, what each one trains, and what is wrong with it."""
    with reach() as client:
        items = client.workers(retired=retired)
    if as_json:
        typer.echo(json.dumps(items, indent=2))
        return
    for line in text.worker_lines(items):
        typer.echo(line)


def _id_of(client: Client, name: str) -> str:
    """Return the id of a worker that is given by id or name; an unknown one is left for the server to refuse."""
    named = [item["id"] for item in client.workers() if item["name"] == name]
    if len(named) > 1:
        raise typer.BadParameter(f"{len(named)} workers are called {name}; give an id: {', '.join(named)}")
    return named[0] if named else name


def _order(worker: str, action: str, as_json: bool, **options: Any) -> None:
    with reach() as client:
        document = client.call("POST", f"workers/{_id_of(client, worker)}/{action}", **options)
    typer.echo(json.dumps(document, indent=2) if as_json else text.worker_line(document))


@workers.command("drain")
def drain(
    worker: WorkerId,
    now: Annotated[
        bool, typer.Option("--now", help="Stop after the running round; another worker goes on with it")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Let a worker finish the replicate that it trains, then retire."""
    _order(worker, "drain", as_json, json={"now": now})


@workers.command("clear")
def clear(worker: WorkerId, as_json: AsJson = False) -> None:
    """Take a worker out of quarantine, once its device is mended; `lockstep workers list` says what was wrong."""
    _order(worker, "clear", as_json)


@app.command()
def queue(
    action: Annotated[str | None, typer.Argument(help="pause or resume; without it the queue is shown")] = None,
    as_json: AsJson = False,
) -> None:
    """Show what waits, in order and why; or pause or resume the whole queue."""
    if action not in (None, "pause", "resume"):
        raise typer.BadParameter("use pause or resume, or nothing to show the queue")
    with reach() as client:
        if action is not None:
            client.call("POST", f"queue/{action}")
        found = client.call("GET", "queue")
    typer.echo(json.dumps(found, indent=2) if as_json else "\n".join(text.queue_lines(found)))


@webhooks.command("list")
def list_webhooks(as_json: AsJson = False) -> None:
    """List webhooks: where to, what is told, and failures since the last success."""
    with reach() as client:
        items = client.webhooks()
    if as_json:
        typer.echo(json.dumps(items, indent=2))
        return
    for item in items:
        owner = f"  owner {item['owner']}" if item["owner"] else ""
        typer.echo(f"{item['id']}  {item['url']}  {', '.join(item['events'])}  failures {item['failures']}{owner}")


@webhooks.command("add")
def add_webhook(
    url: Annotated[str, typer.Argument(help="Where to send, http or https")],
    event: Annotated[
        list[str] | None, typer.Option(help="end, failure or verdict, once for each; default: all three")
    ] = None,
    owner: Annotated[str | None, typer.Option(help="Only of this owner's experiments: an owner's id")] = None,
    as_json: AsJson = False,
) -> None:
    """Add a webhook; the secret that signs what it is sent is printed once."""
    body = {"url": url, "owner": owner, **({"events": event} if event else {})}
    with reach() as client:
        made = client.call("POST", "webhooks", json=body)
    typer.echo(json.dumps(made, indent=2) if as_json else f"{made['id']}  {made['secret']}")


@webhooks.command("remove")
def remove_webhook(
    webhook_id: Annotated[str, typer.Argument(help="Webhook id, as `lockstep webhooks list` shows it")],
) -> None:
    """Remove a webhook, with what it was still to be told."""
    with reach() as client:
        client.call("DELETE", f"webhooks/{webhook_id}")
    typer.echo("removed")


@webhooks.command("deliveries")
def list_deliveries(
    webhook_id: Annotated[str, typer.Argument(help="Webhook id, as `lockstep webhooks list` shows it")],
    limit: Annotated[int, typer.Option(parser=within(1, 200), help="At most so many, from 1 to 200")] = 20,
    as_json: AsJson = False,
) -> None:
    """List what a webhook was told and is to be told, the newest first, and why something was not taken."""
    with reach() as client:
        items = client.call("GET", f"webhooks/{webhook_id}/deliveries", params={"limit": limit})["items"]
    if as_json:
        typer.echo(json.dumps(items, indent=2))
        return
    for item in items:
        why = f"  {item['error']}" if item["error"] else ""
        told = f"{item['event']:8} {item['state']:10} attempts {item['attempts']}"
        typer.echo(f"{item['created_at'][:19].replace('T', ' ')}Z  {item['experiment_id']}  {told}{why}")


@app.command()
def audit(
    by: Annotated[str | None, typer.Option("--actor", help="Only what this one did: a name or an owner's id")] = None,
    target: Annotated[str | None, typer.Option(help="Only what was done to this experiment, token or queue")] = None,
    limit: Annotated[int, typer.Option(parser=within(1, 2000), help="At most so many, from 1 to 2000")] = 50,
    as_json: AsJson = False,
) -> None:
    """Show who did what, newest first: submitted, paused, cancelled, edited, created and revoked tokens, logged in."""
    with reach() as client:
        items = list(islice(client.audit(actor=by, target=target, limit=min(limit, 200)), limit))
    if as_json:
        typer.echo(json.dumps(items, indent=2))
        return
    for item in items:
        typer.echo(text.audit_line(item))


@app.command()
def top(
    once: Annotated[
        bool, typer.Option("--once", help="Print it once, as it always is where the output is no terminal")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show workers, what runs and what waits, every two seconds until Ctrl-C."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with reach() as client:
        if as_json:
            typer.echo(json.dumps(_overview(client), indent=2))
            return
        if once or not sys.stdout.isatty():
            typer.echo("\n".join(text.top_lines(_overview(client))))
            return
        with Live(console=Console(), screen=True, auto_refresh=False) as live:
            while True:
                live.update(Text("\n".join(text.top_lines(_overview(client)))), refresh=True)
                time.sleep(_TOP_SECONDS)


def _overview(client: Client) -> dict[str, Any]:
    return {
        "workers": client.workers(),
        "running": list(islice(client.experiments(status="running", limit=50), 50)),
        "queue": client.call("GET", "queue"),
    }
