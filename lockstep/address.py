"""Addresses, tokens and paths as people give them: what can be mended is mended, the rest is refused in one sentence.

A secret never stands in a sentence. Server, worker, client and command line read them here alone.
"""

from __future__ import annotations

import importlib.util
import ipaddress
import os
import re
import urllib.request
from pathlib import Path
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

from lockstep.quoting import QUOTED, quoted

#: What may be told again of an address without a scheme: a host, perhaps with port and path, but no secret of ours.
_HOST = re.compile(r"(?!(?:ls[a-z]|whs)_)[A-Za-z0-9.-]+(:\d+)?(/[\w./-]*)?")
#: The whole of an experiment's id.
EXPERIMENT_ID = r"^exp_[0-9a-z]{4,40}$"
_PROXY_SCHEMES = ("http", "https", "socks5", "socks5h")


class BadAddress(ValueError):  # noqa: N818 - says what is wrong
    """The URL, the token or the path cannot be used; the message names setting and remedy, never a secret."""


class BadToken(BadAddress):
    """The token cannot be used."""


class Proxy(NamedTuple):
    """A proxy by way of which an address is reached: the variable of the environment that names it, and its URL."""

    variable: str
    url: str


def clean_url(text: str, field: str, *, is_base: bool = True) -> str:
    """Return a URL without blanks around it; one that others begin with also without a slash at its end.

    Args:
        text: as given.
        field: the setting it comes from, for the message.
        is_base: whether paths are put behind it, so that it can have no query.

    Raises:
        BadAddress: no scheme, no host, a bad port, a blank inside or something behind its path.
    """
    url = text.strip().rstrip("/") if is_base else text.strip()
    if any(sign.isspace() or not sign.isprintable() for sign in url):
        raise BadAddress(f"{field}: the URL has a blank or a line break in it; give it as one word")
    parts = _parts(url, field)
    if parts is None or parts.scheme not in ("http", "https"):
        told = url.rpartition("@")[2].rpartition("://")[2]
        example = told if len(told) <= QUOTED and _HOST.fullmatch(told) else "127.0.0.1:7480"
        raise BadAddress(f"{field}: the URL must begin with http:// or https://; for example http://{example}")
    try:
        _ = parts.port
    except ValueError:
        raise BadAddress(f"{field}: the port of the URL is not a number from 0 to 65535") from None
    if not parts.hostname:
        raise BadAddress(f"{field}: the URL names no host; for example http://127.0.0.1:7480")
    if not _can_be_asked_for(parts.hostname):
        raise BadAddress(f"{field}: the host {quoted(parts.hostname)} is no name or number of a host; correct it")
    if is_base and (parts.query or parts.fragment):
        raise BadAddress(f"{field}: the URL has something behind its path; end it before the ? or #")
    return url


def _can_be_asked_for(host: str) -> bool:
    """Return whether a name server, or the system, can be asked for a host."""
    try:
        if ":" in host or host.replace(".", "").isdecimal():
            ipaddress.ip_address(host.partition("%")[0])
        else:
            host.encode("idna")
    except ValueError:  # UnicodeError is one
        return False
    return True


def _parts(url: str, field: str) -> SplitResult | None:
    try:
        return urlsplit(url) if "://" in url else None
    except ValueError:
        raise BadAddress(
            f"{field}: the URL cannot be read; an IPv6 address stands in brackets: http://[::1]:7480"
        ) from None


def clean_token(text: str | None, field: str) -> str | None:
    """Return a token without blanks and line breaks around it, as files of secrets have them; None when there is none.

    Raises:
        BadToken: a header could not carry it.
    """
    token = (text or "").strip()
    if any(not "!" <= sign <= "~" for sign in token):
        raise BadToken(f"{field}: the token has a blank, a line break or a special character in it; give it as printed")
    return token or None


def clean_path(text: str | Path, field: str = "") -> Path:
    """Return a path whose ``~`` is a home folder.

    Raises:
        BadAddress: there is no such home.
    """
    try:
        return Path(text).expanduser()
    except RuntimeError:
        named = Path(text).parts[0]
        where = f"{field}: " if field else ""
        raise BadAddress(f"{where}there is no home folder {named}; give the path in full") from None


def hidden(url: str) -> str:
    """Return a URL as it may be shown: in one line, without its password and other secrets."""
    shown = re.sub(r"(://[^:/@?]*):.*@", r"\1:***@", url.strip(), flags=re.DOTALL)
    shown = re.sub(r"(?i)^(https?://)[^:/@?#]+@", r"\1***@", shown)  # a token that stands alone
    shown = re.sub(r"(?i)([?&][^=&]*(?:password|secret|key|token|sig|code|auth)[^=&]*=)[^&]*", r"\1***", shown)
    return " ".join(shown.split())


def proxy_of(url: str) -> Proxy | None:
    """Return the proxy by way of which a URL is reached; None where it is reached directly, as this machine always is.

    Raises:
        BadAddress: the variable that names it cannot be used.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    if is_loopback(host) or urllib.request.proxy_bypass(parts.netloc.rpartition("@")[2]):
        return None
    spelled = [form for name in (f"{parts.scheme}_proxy", "all_proxy") for form in (name, name.upper())]
    variable = next((name for name in spelled if os.environ.get(name)), None)
    if variable is None:
        return None
    given = os.environ[variable]
    proxy = given if "://" in given else f"http://{given}"
    scheme = proxy.partition("://")[0].lower()
    if scheme not in _PROXY_SCHEMES:
        known = ", ".join(f"{name}://" for name in _PROXY_SCHEMES)
        raise BadAddress(f"{variable}: {scheme}:// is no proxy; use one of {known}, or take the variable away")
    if scheme.startswith("socks") and importlib.util.find_spec("socksio") is None:
        raise BadAddress(
            f"{variable}: a SOCKS proxy needs one more package: pip install 'httpx[socks]'; or add {host} to NO_PROXY"
        )
    return Proxy(variable, proxy)


def by_way(url: str) -> str:
    """Return what to add where nothing answers at a URL: the proxy in between, if there is one, and how to avoid it."""
    proxy = proxy_of(url)
    if proxy is None:
        return ""
    host = urlsplit(url).hostname
    return (
        f", by way of the proxy {hidden(proxy.url)} that {proxy.variable} names; add {host} to NO_PROXY to go directly"
    )


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
