"""How a client of the API exchanges requests for answers: errors, retries and streams, once for both clients.

A call is a generator of steps: "send this", "wait so long", "give me the next bytes". It knows no socket and no event
loop. ``drive`` takes its steps one after the other, ``adrive`` awaits them; nothing else differs between the clients.
"""

from __future__ import annotations

import functools
import json
import logging
import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field, replace
from types import MethodType
from typing import Any, Concatenate, Generic, ParamSpec, TypeAlias, TypeVar, overload

import httpx

from lockstep.address import BadAddress
from lockstep.quoting import quoted

_log = logging.getLogger("lockstep.client")
#: Answers of a proxy whose server is away, of a server that is busy, and of one that is asked too often.
AWAY = frozenset({429, 502, 503, 504})
#: How the operating system's errors begin.
_NUMBER = re.compile(r"^\[Errno -?\d+\] ")
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 10.0
_SAFE_TO_REPEAT = frozenset({"GET", "HEAD", "PUT", "DELETE", "PATCH"})
T = TypeVar("T")
P = ParamSpec("P")


class ApiError(Exception):
    """The server refused; carries the problem document.

    Attributes:
        status: HTTP status.
        document: RFC 9457 problem.
    """

    def __init__(self, status: int, document: Mapping[str, Any]) -> None:
        self.status = status
        self.document = dict(document)
        lines = [
            f"{item['pointer'] or '/'}: {item['message']}" + (f" ({item['remedy']})" if item.get("remedy") else "")
            for item in document.get("errors", [])
        ]
        super().__init__("\n".join(lines) or str(document.get("detail", f"HTTP {status}")))

    @property
    def is_away(self) -> bool:
        """Whether the server is away or busy, so that the same call may succeed later."""
        return self.status in AWAY

    @property
    def is_foreign(self) -> bool:
        """Whether something else than a Lockstep server has answered: a proxy, a page, another program."""
        return "code" not in self.document


@dataclass(frozen=True)
class Request:
    """A request to send; its answer is read whole.

    Attributes:
        method: HTTP method.
        path: below ``/api/v1/``.
        options: what httpx takes: params, json, content, headers, timeout.
        is_harmless: it changes nothing, whatever its method.
        is_probe: the path is no part of the API; it stands below the server's own URL, as ``readyz`` does.
    """

    method: str
    path: str
    options: Mapping[str, Any] = field(default_factory=dict)
    is_harmless: bool = False
    is_probe: bool = False

    def __post_init__(self) -> None:
        """Refuse a path that would lead elsewhere, as an empty id and one with ``..`` or ``?`` in it do."""
        if any(part in ("", ".", "..") or set(part) & set("?#%\\ ") for part in self.path.lstrip("/").split("/")):
            raise BadAddress(
                f"{quoted(self.path)} is no path of the API; give an id as the list of experiments shows it"
            )

    def below(self, base: httpx.URL) -> str:
        """Return where it goes, for a client whose requests go below ``base``, that of the API."""
        return str(base).removesuffix("api/v1/") + self.path if self.is_probe else self.path

    @property
    def may_be_repeated(self) -> bool:
        """Whether a second one does nothing that the first has not done: by its method, or by its key."""
        has_key = "Idempotency-Key" in self.options.get("headers", {})
        return self.is_harmless or has_key or self.method in _SAFE_TO_REPEAT


@dataclass(frozen=True)
class Open:
    """A request whose body is read piece by piece with ``Read``; a refusal is read whole."""

    request: Request


@dataclass(frozen=True)
class Read:
    """The next bytes of what was opened last; None at its end."""


@dataclass(frozen=True)
class Sleep:
    """So many seconds in which nothing is done."""

    seconds: float


@dataclass(frozen=True)
class Item:
    """Something for who iterates."""

    value: Any


@dataclass(frozen=True)
class Reply:
    """An answer: status, headers with small names, body (empty for what was opened)."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""

    def data(self) -> Any:
        """Return its JSON, None without a body.

        Raises:
            ApiError: it is no JSON, so no Lockstep server has answered.
        """
        if not self.body:
            return None
        try:
            return json.loads(self.body)
        except ValueError:
            kind = self.headers.get("content-type", "no content type")
            told = f"the answer is {kind}, not JSON: something else answers at this address; check the URL"
            raise ApiError(self.status, {"detail": told}) from None

    def checked(self) -> Reply:
        """Return itself.

        Raises:
            ApiError: the server, or what stands before it, refused.
        """
        if self.status < 300 or self.status == 304:
            return self
        raise ApiError(self.status, self._problem())

    def _problem(self) -> dict[str, Any]:
        if self.status < 400:
            target = self.headers.get("location", "another address")
            return {"detail": f"the address leads on to {target}; name that one as the URL"}
        try:
            document = json.loads(self.body)
        except ValueError:
            document = None
        if isinstance(document, dict):
            return document
        phrase = f"{self.status} {httpx.codes.get_reason_phrase(self.status)}".strip()
        return {"detail": f"{phrase}: a proxy answered, not the server; try again when the server is back"}


Step: TypeAlias = Request | Open | Read | Sleep | Item
#: A call as steps: it is sent the answer of each one, or thrown the failure of its transport.
Steps: TypeAlias = Generator[Step, Any, T]


@dataclass(frozen=True)
class Patience:
    """How long an outage is waited out.

    Attributes:
        seconds: from its first failure on; 0: every failure is told at once.
        clock: monotonic seconds.
        chance: numbers from 0 to 1, so that many clients do not come back in one moment.
        url: of the server, for people.
    """

    seconds: float
    clock: Callable[[], float]
    chance: Callable[[], float]
    url: str


class Outage:
    """The waiting in one outage: 0.5 s, doubled to at most 10 s, each shortened by chance."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._count = 0
        self._until: float | None = None

    def over(self) -> None:
        """Note that the server has answered."""
        self._count, self._until = 0, None

    def next_wait(self, reason: str, at_least: float = 0.0) -> float | None:
        """Return how long to wait before the next trial, seconds; None when patience is at its end."""
        now = self._patience.clock()
        if self._until is None:
            self._until = now + self._patience.seconds
            if self._patience.seconds > 0:
                told = "no answer from %s (%s); trying again for up to %.0f s"
                _log.warning(told, self._patience.url, reason, self._patience.seconds)
        longest = min(_LONGEST_WAIT, _FIRST_WAIT * 2.0**self._count)
        self._count += 1
        wait = max(at_least, longest * (0.5 + 0.5 * self._patience.chance()))
        left = self._until - now
        return None if left <= 0 else min(wait, left)


def answer(request: Request, patience: Patience) -> Steps[Reply]:
    """Send a request and return the server's own answer; an outage is waited out where repeating is harmless.

    A request that may not be repeated is sent again only where no connection was made, so that nothing was sent. What
    is not there after a deletion whose answer was lost has been deleted.
    """
    outage = Outage(patience)
    is_lost = False
    while True:
        try:
            reply: Reply = yield request
        except httpx.TransportError as error:
            unsent = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)
            may_wait = unsent or request.may_be_repeated
            wait = outage.next_wait(reason_of(error)) if may_wait else None
            if wait is None:
                raise
            is_lost = is_lost or not unsent
        else:
            if is_lost and request.method == "DELETE" and reply.status == 404:
                return Reply(204, {})
            if not (request.may_be_repeated and _is_passing(reply)):
                return reply
            wait = outage.next_wait(f"HTTP {reply.status}", _asked_to_wait(reply))
            if wait is None:
                return reply
        yield Sleep(wait)


def _is_passing(reply: Reply) -> bool:
    """Whether the same request may be answered later: the server is away, or the first one with its key still runs."""
    if reply.status == 409:
        return b'"in_progress"' in reply.body
    return reply.status in AWAY


def _asked_to_wait(reply: Reply) -> float:
    given = reply.headers.get("retry-after", "")
    return float(given) if given.isdecimal() else 0.0


def reason_of(error: httpx.TransportError) -> str:
    """Return what to tell of a lost connection."""
    if "WRONG_VERSION_NUMBER" in str(error):
        return "it does not speak TLS; write http:// where the URL has https://"
    return _NUMBER.sub("", str(error)) or type(error).__name__


def json_of(request: Request, patience: Patience) -> Steps[Any]:
    """Return the JSON of an answer, None without a body.

    Raises:
        ApiError: the server refused.
    """
    reply = yield from answer(request, patience)
    return reply.checked().data()


def drive(steps: Steps[Any], http: httpx.Client, sleep: Callable[[float], None]) -> Iterator[Any]:
    """Take steps one after the other; yield the items among them."""
    result: Any = None
    failure: httpx.TransportError | None = None
    pieces: Iterator[bytes] = iter(())
    with ExitStack() as opened:
        while True:
            try:
                step = steps.throw(failure) if failure is not None else steps.send(result)
            except StopIteration:
                return
            result = failure = None
            try:
                if isinstance(step, Item):
                    yield step.value
                elif isinstance(step, Sleep):
                    sleep(step.seconds)
                elif isinstance(step, Read):
                    result = next(pieces, None)
                elif isinstance(step, Open):
                    opened.close()
                    stream = http.stream(step.request.method, step.request.path, **step.request.options)
                    response = opened.enter_context(stream)
                    result = _reply(response, response.read() if response.status_code >= 300 else b"")
                    pieces = response.iter_bytes() if response.status_code < 300 else iter(())
                else:
                    response = http.request(step.method, step.below(http.base_url), **step.options)
                    result = _reply(response, response.content)
            except httpx.TransportError as error:
                failure = error


async def adrive(
    steps: Steps[Any], http: httpx.AsyncClient, sleep: Callable[[float], Awaitable[None]]
) -> AsyncIterator[Any]:
    """Take steps as ``drive`` does, in an event loop."""
    result: Any = None
    failure: httpx.TransportError | None = None
    pieces: AsyncIterator[bytes] | None = None
    async with AsyncExitStack() as opened:
        while True:
            try:
                step = steps.throw(failure) if failure is not None else steps.send(result)
            except StopIteration:
                return
            result = failure = None
            try:
                if isinstance(step, Item):
                    yield step.value
                elif isinstance(step, Sleep):
                    await sleep(step.seconds)
                elif isinstance(step, Read):
                    result = await anext(pieces, None) if pieces is not None else None
                elif isinstance(step, Open):
                    await opened.aclose()
                    stream = http.stream(step.request.method, step.request.path, **step.request.options)
                    response = await opened.enter_async_context(stream)
                    result = _reply(response, await response.aread() if response.status_code >= 300 else b"")
                    pieces = response.aiter_bytes() if response.status_code < 300 else None
                else:
                    response = await http.request(step.method, step.below(http.base_url), **step.options)
                    result = _reply(response, response.content)
            except httpx.TransportError as error:
                failure = error


def _reply(response: httpx.Response, body: bytes) -> Reply:
    return Reply(response.status_code, {name.lower(): value for name, value in response.headers.items()}, body)


def as_item(steps: Steps[T]) -> Steps[None]:
    """Yield what a call returns as its one item."""
    yield Item((yield from steps))


class Runs:
    """What runs the steps of a call: a client."""

    def run(self, steps: Steps[Any]) -> Any:
        """Return what the steps return, or an awaitable of it."""
        raise NotImplementedError

    def each(self, steps: Steps[Any]) -> Any:
        """Return an iterator of the items among the steps, or an asynchronous one."""
        raise NotImplementedError


class Sync(Runs):
    """Marks clients whose calls return."""


class Async(Runs):
    """Marks clients whose calls are awaited."""


class Call(Generic[P, T]):
    """A method of both clients that returns one thing: written once as steps, plain or to be awaited."""

    def __init__(self, steps: Callable[Concatenate[Any, P], Steps[T]]) -> None:
        @functools.wraps(steps)
        def method(client: Runs, *args: P.args, **kwargs: P.kwargs) -> Any:
            return client.run(steps(client, *args, **kwargs))

        self.steps = steps
        self._method = method
        self.__doc__ = steps.__doc__

    @overload
    def __get__(self, client: None, owner: type[Any]) -> Call[P, T]: ...
    @overload
    def __get__(self, client: Sync, owner: type[Any]) -> Callable[P, T]: ...
    @overload
    def __get__(self, client: Async, owner: type[Any]) -> Callable[P, Awaitable[T]]: ...
    def __get__(self, client: Any, owner: type[Any]) -> Any:
        """Return the method of a client."""
        return self if client is None else MethodType(self._method, client)


class Listing(Generic[P, T]):
    """A method of both clients that yields things: for ``for`` in one, for ``async for`` in the other."""

    def __init__(self, steps: Callable[Concatenate[Any, P], Steps[None]], kind: Callable[..., T]) -> None:
        @functools.wraps(steps)
        def method(client: Runs, *args: P.args, **kwargs: P.kwargs) -> Any:
            return client.each(steps(client, *args, **kwargs))

        del kind  # what is yielded, for the type checker
        self.steps = steps
        self._method = method
        self.__doc__ = steps.__doc__

    @overload
    def __get__(self, client: None, owner: type[Any]) -> Listing[P, T]: ...
    @overload
    def __get__(self, client: Sync, owner: type[Any]) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, client: Async, owner: type[Any]) -> Callable[P, AsyncIterator[T]]: ...
    def __get__(self, client: Any, owner: type[Any]) -> Any:
        """Return the method of a client."""
        return self if client is None else MethodType(self._method, client)


def listing(
    kind: Callable[..., T],
) -> Callable[[Callable[Concatenate[Any, P], Steps[None]]], Listing[P, T]]:
    """Return a decorator of steps that yield things of a kind."""
    return lambda steps: Listing(steps, kind)


def with_headers(request: Request, **headers: str | None) -> Request:
    """Return a request with more headers, none for those that are None; ``_`` stands for ``-``."""
    more = {name.replace("_", "-"): value for name, value in headers.items() if value is not None}
    return replace(request, options={**request.options, "headers": {**request.options.get("headers", {}), **more}})


def steady(seconds: float, clock: Callable[[], float], url: str) -> Patience:
    """Return the patience of a client."""
    return Patience(seconds, clock, random.random, url)
