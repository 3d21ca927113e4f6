"""Addresses and tokens as people give them: what can be mended is mended, the rest is refused in one sentence.

A token never stands in a sentence. Server, worker, client and command line read them here alone.
"""

from __future__ import annotations

from urllib.parse import urlsplit


class BadAddress(ValueError):  # noqa: N818 - says what is wrong
    """The URL or the token cannot be used; the message names the setting and the remedy, never the token."""


class BadToken(BadAddress):
    """The token cannot be used."""


def clean_url(text: str, field: str) -> str:
    """Return a base URL without blanks around it and without a slash at its end.

    Args:
        text: as given.
        field: the setting it comes from, for the message.

    Raises:
        BadAddress: no scheme, no host, a bad port or a blank inside.
    """
    url = text.strip().rstrip("/")
    if any(sign.isspace() or not sign.isprintable() for sign in url):
        raise BadAddress(f"{field}: the URL has a blank or a line break in it; give it as one word")
    parts = urlsplit(url) if "://" in url else None
    if parts is None or parts.scheme not in ("http", "https"):
        told = url.rpartition("@")[2].rpartition("://")[2] or "127.0.0.1:7480"
        raise BadAddress(f"{field}: the URL must begin with http:// or https://; for example http://{told}")
    try:
        _ = parts.port
    except ValueError:
        raise BadAddress(f"{field}: the port of the URL is not a number from 0 to 65535") from None
    if not parts.hostname:
        raise BadAddress(f"{field}: the URL names no host; for example http://127.0.0.1:7480")
    return url


def clean_token(text: str | None, field: str) -> str | None:
    """Return a token without blanks and line breaks around it, as files of secrets have them; None when there is none.

    Raises:
        BadToken: a header could not carry it.
    """
    token = (text or "").strip()
    if any(not "!" <= sign <= "~" for sign in token):
        raise BadToken(f"{field}: the token has a blank, a line break or a special character in it; give it as printed")
    return token or None
