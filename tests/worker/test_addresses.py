"""Tokens and URLs as people give them: mended, or refused in one sentence that never holds the token."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.address import BadAddress, clean_token, clean_url
from lockstep.client import Client

SECRET = "canary-7f3a"
URLS = ["localhost:7480", "127.0.0.1", "ftp://host", "http://a b", "http://host:port", "http://", "http://a\nb"]
URLS += ["http://a..b", "http://.", f"http://{'a' * 64}.de", "http://999.1.1.1"]


def test_a_token_and_a_url_from_a_file_lose_the_line_break() -> None:
    assert clean_token(f" {SECRET}\r\n", "token") == SECRET
    assert clean_token(" \n", "token") is None
    assert clean_url(" http://host:7480/base/\n", "url") == "http://host:7480/base"
    with Client("http://host\n", f"{SECRET}\n") as client:
        assert client.url == "http://host"


@pytest.mark.parametrize("token", [f"{SECRET}\nmore", f"{SECRET} more", f"{SECRET}\u00e9"])
def test_a_token_that_no_header_carries_is_refused_without_being_shown(token: str) -> None:
    with pytest.raises(BadAddress, match="token: the token has a blank") as refused:
        Client("http://host", token)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("url", URLS)
def test_a_url_that_cannot_be_used_is_refused_with_the_remedy(url: str) -> None:
    with pytest.raises(BadAddress, match=r"^url: ") as refused:
        Client(url)
    assert "\n" not in str(refused.value)


def run(*command: str, **env: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **env}
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, env=environment, timeout=60, check=False
    )


def test_the_worker_refuses_an_address_and_a_token_with_code_3(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{SECRET}\n{SECRET}\n")
    wrong = [
        ["--host", "a\nb"],
        ["--name", " "],
        ["--token-file", str(file)],
        ["--api", "localhost:1"],
        ["--token-file", str(tmp_path / "none")],
    ]
    for options in wrong:
        ended = run("-m", "worker", *options)
        assert ended.returncode == 3
        assert ended.stderr.startswith(f"error: {options[0]}")
        assert ended.stderr.count("\n") == 1
        assert SECRET not in ended.stderr + ended.stdout


def test_the_command_line_refuses_them_with_code_3() -> None:
    code = "from app.cli.people import main; main()"
    ended = run("-c", code, "list", LOCKSTEP_TOKEN=f"{SECRET}\nx", LOCKSTEP_URL="http://127.0.0.1:9")
    assert (ended.returncode, ended.stderr.count("\n")) == (3, 1)
    assert ended.stderr.startswith("error: LOCKSTEP_TOKEN: ")
    assert SECRET not in ended.stderr + ended.stdout
