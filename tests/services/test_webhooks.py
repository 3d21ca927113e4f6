"""Webhooks: what is told, signed; receivers that are dead, slow or back; restarts."""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest
from sqlalchemy import func, select

from app.delivery import Courier
from app.errors import InvalidError, NotFoundError
from app.services import audit, webhooks
from app.services.context import Actor, Context
from app.services.results.finishing import finish_due
from app.store.database.engine import AT_THE_END, END_EVENTS
from app.store.records.events import NewEvent, add_events
from app.store.schema import tables as t
from tests.conftest import Clock, LiveServer, wait_until
from tests.factories import LOCAL, SimulatedWorker, submit, tiny_spec

ALL = ["end", "failure", "verdict"]


class Receiver:
    """A real HTTP server that keeps what it is sent and answers as it is told."""

    def __init__(self) -> None:
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.status = 204
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.got.append((dict(self.headers), body))
                self.send_response(receiver.status)
                self.send_header("Location", "/elsewhere")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook?team=a"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def events(self) -> list[str]:
        return [json.loads(body)["event"] for _, body in self.got]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


def tell(ctx: Context, experiment_id: str, text: str = "it ends") -> None:
    with ctx.store.write() as session:
        payload = {"verdict": None}
        event = NewEvent("experiment_end", text, status="succeeded", payload=payload)
        add_events(session, ctx.store.now(session), experiment_id, [event])


def states(ctx: Context, hook: dict[str, Any]) -> list[str]:
    return [item["state"] for item in webhooks.deliveries(ctx, hook["id"], before=None, limit=100)["items"]]


def test_end_and_verdict_are_told_signed_and_once(ctx: Context, receiver: Receiver) -> None:
    hook = webhooks.add(ctx, receiver.url, ALL, None, LOCAL)
    experiment_id = submit(ctx, tiny_spec(analysis={"inference": "none"}))
    worker = SimulatedWorker(ctx).register()
    worker.claim()
    worker.train(rounds=2)
    finish_due(ctx)
    assert Courier(ctx).send_due() == 2
    assert Courier(ctx).send_due() == 0
    assert receiver.events == ["end", "verdict"]
    for number, (headers, body) in enumerate(receiver.got):
        told = json.loads(body)
        assert told["experiment"] == {"id": experiment_id, "name": "tiny", "owner": "alice"}
        assert told["status"] == "succeeded"
        assert headers["Lockstep-Event"] == told["event"]
        assert int(headers["Lockstep-Delivery"]) == number + 1
        parts = dict(part.split("=", 1) for part in headers["Lockstep-Signature"].split(","))
        made = hmac.new(hook["secret"].encode(), f"{parts['t']}.".encode() + body, hashlib.sha256).hexdigest()
        assert parts["v1"] == made
        with ctx.store.read() as session:
            assert abs(int(parts["t"]) - ctx.store.now(session)) <= 1
    assert states(ctx, hook) == ["delivered", "delivered"]
    assert "secret" not in webhooks.listing(ctx)[0]


@pytest.mark.server
def test_a_webhook_that_names_the_servers_own_calls_steers_nothing(sqlite_server: LiveServer) -> None:
    ctx = sqlite_server.ctx
    hook = webhooks.add(ctx, f"{sqlite_server.url}/api/v1/queue/pause", ["end"], None, LOCAL)
    tell(ctx, submit(ctx))

    def tried() -> list[dict[str, Any]]:
        items = webhooks.deliveries(ctx, hook["id"], before=None, limit=9)["items"]
        return [item for item in items if item["attempts"]]

    wait_until(tried, what="the delivery")
    assert [item["error"] for item in tried()] == ["HTTP 403"]
    assert httpx.get(f"{sqlite_server.url}/api/v1/queue", timeout=60).json()["paused"] is False


def test_signature_is_the_documented_one() -> None:
    made = webhooks.signature("whs_secret", 1700000000, b"{}")
    assert made == "t=1700000000,v1=" + hmac.digest(b"whs_secret", b"1700000000.{}", "sha256").hex()


def test_failed_replicate_is_told_with_its_cause(ctx: Context, receiver: Receiver) -> None:
    webhooks.add(ctx, receiver.url, ["failure"], None, LOCAL)
    submit(ctx)
    worker = SimulatedWorker(ctx).register()
    worker.claim()
    worker.ready()
    worker.release("error", "config", "env: no such thing")
    Courier(ctx).send_due()
    [told] = [json.loads(body) for _, body in receiver.got]
    assert (told["event"], told["cause"], told["replicate"]) == ("failure", "config", 0)


def test_only_what_is_asked_for_is_told_and_of_the_owner_asked_for(ctx: Context, receiver: Receiver) -> None:
    webhooks.add(ctx, receiver.url, ["verdict"], None, LOCAL)
    webhooks.add(ctx, receiver.url, ["end"], "tok_mia", LOCAL)
    mine, other = submit(ctx, actor=Actor("mia", "submitter", "-", "tok_mia")), submit(ctx)
    tell(ctx, mine)
    tell(ctx, other)
    Courier(ctx).send_due()
    assert [json.loads(body)["experiment"]["id"] for _, body in receiver.got] == [mine]


def test_dead_receiver_is_tried_again_ever_later_in_order_and_holds_up_nobody(
    ctx: Context, clock: Clock, receiver: Receiver
) -> None:
    dead = webhooks.add(ctx, "http://127.0.0.1:9/", ALL, None, LOCAL)
    alive = webhooks.add(ctx, receiver.url, ALL, None, LOCAL)
    experiment_id = submit(ctx)
    tell(ctx, experiment_id, "first")
    tell(ctx, experiment_id, "second")
    courier = Courier(ctx)
    assert courier.send_due() == 2
    assert (states(ctx, alive), states(ctx, dead)) == (["delivered"] * 2, ["waiting"] * 2)
    for rest in (5, 10, 20):
        clock.advance(rest - 1)
        assert webhooks.take(ctx) is None
        clock.advance(1.01)
        courier.send_due()
    [shown] = [item for item in webhooks.listing(ctx) if item["id"] == dead["id"]]
    assert shown["failures"] == 4
    second, first = webhooks.deliveries(ctx, dead["id"], before=None, limit=10)["items"]
    assert (first["attempts"], second["attempts"]) == (4, 0)
    assert "ConnectError" in first["error"]


def test_receiver_that_comes_back_gets_all_in_order_and_a_redirect_is_no_success(
    ctx: Context, clock: Clock, receiver: Receiver
) -> None:
    hook = webhooks.add(ctx, receiver.url, ALL, None, LOCAL)
    experiment_id = submit(ctx)
    for text in ("first", "second", "third"):
        tell(ctx, experiment_id, text)
    receiver.status = 302
    assert Courier(ctx).send_due() == 0
    assert webhooks.deliveries(ctx, hook["id"], before=None, limit=10)["items"][-1]["error"] == "HTTP 302"
    receiver.status = 200
    clock.advance(5.01)
    assert Courier(ctx).send_due() == 3
    assert [json.loads(body)["text"] for _, body in receiver.got] == ["first", "first", "second", "third"]


def test_what_cannot_be_delivered_in_three_days_is_given_up(ctx: Context, clock: Clock) -> None:
    hook = webhooks.add(ctx, "http://127.0.0.1:9/", ALL, None, LOCAL)
    tell(ctx, submit(ctx))
    clock.advance(3 * 24 * 3600 + 1)
    Courier(ctx).send_due()
    assert states(ctx, hook) == ["given_up"]


def test_process_that_dies_while_it_sends_loses_nothing_and_nobody_sends_meanwhile(
    ctx: Context, clock: Clock, receiver: Receiver
) -> None:
    webhooks.add(ctx, receiver.url, ALL, None, LOCAL)
    tell(ctx, submit(ctx))
    assert webhooks.take(ctx) is not None  # and then it dies
    assert webhooks.take(ctx) is None
    clock.advance(31)
    assert Courier(ctx).send_due() == 1


def test_what_is_rolled_back_is_not_told(ctx: Context) -> None:
    webhooks.add(ctx, "http://127.0.0.1:9/", ALL, None, LOCAL)
    experiment_id = submit(ctx)

    def fail() -> None:
        with ctx.store.write() as session:
            add_events(session, 0.0, experiment_id, [NewEvent("experiment_end", "x", payload={})])
            session.info[AT_THE_END][END_EVENTS](session)
            raise RuntimeError("the transaction fails")

    with pytest.raises(RuntimeError, match="the transaction fails"):
        fail()
    with ctx.store.read() as session:
        assert session.execute(select(func.count()).select_from(t.delivery)).scalar_one() == 0


@pytest.mark.parametrize(
    "url",
    [
        "https://bot:s3cret-word@chat.example/hook",
        "https://s3cret-word@chat.example/hook",
        "https://chat.example/hook?token=s3cret-word",
        "https://chat.example/services/T0/s3cret-word-of-more-than-20-letters",
    ],
)
def test_secrets_in_the_url_of_a_webhook_are_shown_nowhere(ctx: Context, url: str) -> None:
    made = webhooks.add(ctx, url, ALL, None, LOCAL)
    told = [
        made["url"],
        webhooks.listing(ctx)[0]["url"],
        str(audit.page(ctx, actor=None, target=made["id"], before=None, limit=10)),
    ]
    assert all("chat.example" in text and "s3cret-word" not in text for text in told), told
    tell(ctx, submit(ctx))
    sent = webhooks.take(ctx)
    assert sent is not None
    assert sent.url == url


def test_wrong_webhooks_are_refused_and_removed_ones_are_told_nothing(ctx: Context) -> None:
    with pytest.raises(InvalidError, match="url: the URL must begin with http:// or https://"):
        webhooks.add(ctx, "chat.example/hook", ALL, None, LOCAL)
    with pytest.raises(InvalidError, match="name one or more of end, failure, verdict"):
        webhooks.add(ctx, "http://chat.example/hook", [], None, LOCAL)
    hook = webhooks.add(ctx, "http://127.0.0.1:9/", ALL, None, LOCAL)
    tell(ctx, submit(ctx))
    webhooks.remove(ctx, hook["id"], LOCAL)
    assert webhooks.take(ctx) is None
    with pytest.raises(NotFoundError):
        webhooks.remove(ctx, hook["id"], LOCAL)
