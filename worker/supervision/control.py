"""The worker API over HTTP: retries with jitter, fencing token on every write, one meaning for "lost".

Only the supervisor uses this; the training child makes no HTTP call and holds no token.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

import httpx

from lockstep import protocol as p
from lockstep.address import by_way, hidden, proxy_of

ResultT = TypeVar("ResultT")
_RETRY_STATUS = (429, 500, 502, 503, 504)
_JSON = {"Content-Type": "application/json"}
_MAX_WAIT_SECONDS = 5.0
#: How long the server may take, before it has said how long a lease lasts.
_PATIENCE_SECONDS = 30.0
#: What a server stores a second of a large file, at the least.
_STORED_BYTES = 10e6
_TELL_SECONDS = 60.0


class LeaseLost(Exception):  # noqa: N818 - a state of affairs, not an error of ours
    """The server does not honour the lease any more: stop, drop what is unsent, clean, go on."""


class WorkerGone(Exception):  # noqa: N818 - as above
    """The server does not know this worker any more: register again."""


class Refused(Exception):  # noqa: N818 - as above
    """The server refused; repeating would not help.

    Attributes:
        status: HTTP status.
        code: stable code of the problem document.
        again_in: seconds after which the server may answer otherwise; None where it says nothing of the kind.
    """

    def __init__(self, status: int, code: str, detail: str, again_in: float | None = None) -> None:
        super().__init__(f"{status} {code}: {detail}")
        self.status, self.code, self.detail, self.again_in = status, code, detail, again_in


class Elsewhere(Exception):  # noqa: N818 - as above
    """What answered is no Lockstep server: a proxy before it, a sign-in page, another program; the message says what.

    Attributes:
        status: HTTP status.
        is_final: whether the same request gets the same answer again.
    """

    def __init__(self, response: httpx.Response) -> None:
        self.status = response.status_code
        self.is_final = response.status_code == 413
        super().__init__(_foreign(response))


class Control:
    """Calls of one control plane.

    Args:
        url: base URL of the server.
        token: worker token, or None where authentication is off.
        jitter: source of randomness for back-off; injected in tests.

    Attributes:
        patience: seconds after which a connection that says nothing is given up and the call repeated on another: it
            may have died without a word, and what waits to be sent must be there before its lease is over.

    Raises:
        BadAddress: the proxy that the environment names cannot be used.
    """

    def __init__(self, url: str, token: str | None, *, jitter: random.Random | None = None) -> None:
        self.patience = _PATIENCE_SECONDS
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        limits = httpx.Limits(max_connections=8)
        proxy = proxy_of(url)
        self._http = httpx.Client(
            base_url=f"{url.rstrip('/')}/api/v1/",
            headers=headers,
            timeout=httpx.Timeout(10.0, read=_PATIENCE_SECONDS),
            limits=limits,
            proxy=None if proxy is None else proxy.url,
            transport=httpx.HTTPTransport(limits=limits) if proxy is None else None,  # else httpx looks for one
        )
        self._url, self._told = url, -_TELL_SECONDS
        self._jitter = jitter or random.Random()
        self._in_pieces = False

    def _within(self, seconds: float = 0.0) -> httpx.Timeout:
        """Return the limits of a call that rightly takes so many seconds."""
        return httpx.Timeout(min(10.0, self.patience), read=seconds + self.patience)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def tell(self, error: Exception) -> None:
        """Log why the server does not answer, at once and then every minute; headers, and so the token, stay out."""
        now = time.monotonic()
        if now - self._told >= _TELL_SECONDS:
            self._told = now
            reason = str(error) if isinstance(error, Elsewhere) else f"{type(error).__name__} {error}".strip()
            told = f"no answer from {hidden(self._url)} ({reason}){by_way(self._url)}"
            sys.stderr.write(f"{told}; trying again until it answers\n")
            sys.stderr.flush()

    def greet(self) -> None:
        """Find out, before anything that takes long, whether a Lockstep server is there and takes the token.

        Raises:
            Refused: it does not take the token (401, 403), or what answers is no Lockstep server.
            httpx.TransportError: nothing answers.
        """
        response = self._http.get("blocks/blk_none/barrier", params={"attempt": 0, "round": 0, "wait": 0})
        if response.status_code == 404 and _document(response).get("code") == "unknown_block":
            return
        try:
            self._raise(response)
            raise Elsewhere(response)
        except Elsewhere as error:
            if response.status_code in _RETRY_STATUS:
                raise
            raise Refused(error.status, "no_lockstep", str(error)) from error

    def register(self, request: p.RegisterRequest) -> p.RegisterReply:
        """Register this supervisor.

        Raises:
            Refused: also where the server speaks another version of the protocol.
        """
        response = self._http.post("workers", content=request.model_dump_json(), headers=_JSON)
        self._raise(response)
        version = _document(response).get("protocol")
        if not isinstance(version, int):
            raise Elsewhere(response)
        problem = p.version_problem(version, peer="server", side="worker")
        if problem is not None:
            raise Refused(426, "protocol_version", problem)
        return p.RegisterReply.model_validate_json(response.content)

    def claim(self, worker_id: str, wait: float) -> p.Assignment | None:
        """Wait for work once."""
        response = self._http.post(f"workers/{worker_id}/claim", params={"wait": wait}, timeout=self._within(wait))
        self._raise(response)
        if response.status_code == 204:
            return None
        return p.Assignment.model_validate_json(response.content)

    def heartbeat(self, worker_id: str, beat: p.HeartbeatRequest) -> p.HeartbeatReply:
        """Send one heartbeat, without retries: the next one comes soon enough."""
        response = self._http.post(
            f"workers/{worker_id}/heartbeat", content=beat.model_dump_json(), headers=_JSON, timeout=self._within()
        )
        self._raise(response)
        return p.HeartbeatReply.model_validate_json(response.content)

    def ready(self, lease: p.Assignment, request: p.ReadyRequest) -> p.ReadyReply:
        """Say that the child is ready, or refused."""
        answer = self.post_json(lease, "ready", request.model_dump_json().encode())
        return p.ReadyReply.model_validate_json(answer)

    def put_round(self, lease: p.Assignment, index: int, body: bytes) -> p.RoundReply:
        """Hand in a round, as serialised by the spool."""
        response = self._http.put(
            f"assignments/{lease.assignment_id}/rounds/{index}",
            content=body,
            headers={p.LEASE_HEADER: lease.lease, "Content-Type": "application/json"},
            timeout=self._within(),
        )
        self._raise(response)
        return p.RoundReply.model_validate_json(response.content)

    def barrier(self, lease: p.Assignment, index: int, wait: float) -> p.BarrierReply:
        """Wait at the barrier once."""
        params: dict[str, Any] = {"attempt": lease.attempt, "round": index, "wait": wait}
        response = self._http.get(f"blocks/{lease.block_id}/barrier", params=params, timeout=self._within(wait))
        if response.status_code == 409:
            return p.BarrierReply.model_validate_json(response.content)
        self._raise(response)
        return p.BarrierReply.model_validate_json(response.content)

    def post_json(self, lease: p.Assignment, path: str, body: bytes) -> bytes:
        """Post to an assignment path."""
        response = self._http.post(
            f"assignments/{lease.assignment_id}/{path}",
            content=body,
            headers={p.LEASE_HEADER: lease.lease, "Content-Type": "application/json"},
            timeout=self._within(),
        )
        self._raise(response)
        return response.content

    def upload(self, lease: p.Assignment, sha256: str, content: bytes, params: dict[str, Any]) -> None:
        """Upload a file of a run: whole, or in pieces from the first time on that a proxy refused one for its size."""
        if not self._in_pieces or len(content) <= p.PIECE_BYTES:
            try:
                self._put_file(lease, sha256, content, params)
                return
            except Elsewhere as error:
                if error.status != 413 or len(content) <= p.PIECE_BYTES:
                    raise
                self._in_pieces = True
        for offset in range(0, len(content), p.PIECE_BYTES):
            piece = content[offset : offset + p.PIECE_BYTES]
            self._put_file(lease, sha256, piece, {**params, "offset": offset, "size": len(content)})

    def _put_file(self, lease: p.Assignment, sha256: str, content: bytes, params: dict[str, Any]) -> None:
        response = self._http.put(
            f"assignments/{lease.assignment_id}/files/{sha256}",
            content=content,
            params=params,
            headers={p.LEASE_HEADER: lease.lease, "Content-Type": "application/octet-stream"},
            timeout=self._within(len(content) / _STORED_BYTES),
        )
        self._raise(response)

    def download(self, lease: p.Assignment, sha256: str) -> bytes:
        """Download a committed checkpoint."""
        response = self._http.get(
            f"assignments/{lease.assignment_id}/files/{sha256}",
            headers={p.LEASE_HEADER: lease.lease},
            timeout=self._within(),
        )
        self._raise(response)
        return response.content

    def release(self, lease: p.Assignment, request: p.ReleaseRequest) -> None:
        """End the assignment."""
        self.post_json(lease, "release", request.model_dump_json().encode())

    def patiently(self, call: Callable[[], ResultT], *, until: Callable[[], bool]) -> ResultT:
        """Repeat a call over connection faults, 5xx and what a proxy answers, with jittered back-off.

        Args:
            call: what to do.
            until: give up (raise ``LeaseLost``) once this is true.

        Raises:
            Elsewhere: a proxy refuses the size of the request, which no repetition changes.
        """
        failures = 0
        while True:
            try:
                return call()
            except TRANSIENT as error:
                if isinstance(error, Elsewhere) and error.is_final:
                    raise
                failures += 1
                self.tell(error)
                if until():
                    raise LeaseLost("gave up while the server was away") from None
                time.sleep(self._jitter.uniform(0.05, min(_MAX_WAIT_SECONDS, 0.2 * 2**failures)))

    @staticmethod
    def _raise(response: httpx.Response) -> None:
        """Do nothing for an answer of Lockstep's that says yes; raise what any other means."""
        document = _document(response)
        if response.status_code < 300:
            if response.headers.get("content-type", "").startswith("text/html"):
                raise Elsewhere(response)
            return
        if "code" not in document:
            raise Elsewhere(response)
        code, detail = str(document["code"]), str(document.get("detail", document["code"]))
        if response.status_code in _RETRY_STATUS:
            raise _Transient(f"{response.status_code} {code}: {detail}")
        if code in ("worker_gone", "unknown_worker"):
            raise WorkerGone(detail)
        if code in ("lease_lost", "unknown_assignment") or response.status_code == 410:
            raise LeaseLost(detail)
        again_in = response.headers.get("retry-after", "")
        raise Refused(response.status_code, code, detail, float(again_in) if again_in.isdecimal() else None)


class _Transient(Exception):  # noqa: N818 - caught by ``patiently``
    """The server answered that it cannot answer now."""


#: What may pass, so that the same call is worth repeating.
TRANSIENT = (httpx.TransportError, _Transient, Elsewhere)


def _document(response: httpx.Response) -> dict[str, Any]:
    try:
        document = response.json()
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _foreign(response: httpx.Response) -> str:
    """Return in a sentence what answered in the server's place, and what to do."""
    name = response.headers.get("server")
    told = f"{response.status_code} {response.reason_phrase}".strip() + (f" from {name}" if name else "")
    if response.status_code == 413:
        size = f"{len(response.request.content) / 1e6:.3g} MB"
        remedy = "raise its limit of a request body (nginx: client_max_body_size) to the server's own"
        return f"a proxy before the server refused a body of {size} ({told}); {remedy}"
    if response.is_redirect:
        target = response.headers.get("location", "another address")
        return f"it redirects to {target} ({told}); give the address that it leads to with --api"
    kind = response.headers.get("content-type", "no type").partition(";")[0]
    remedy = "look whether the server behind it is up" if response.status_code >= 500 else "check the address --api"
    return f"what answered is no Lockstep server but a proxy or another program ({told}, {kind}); {remedy}"
