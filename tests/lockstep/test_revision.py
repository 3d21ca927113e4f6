"""The code names its commit, or says why it cannot."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from lockstep import revision
from lockstep.revision import code_identity


def _git(root: Path, *arguments: str) -> str:
    settings = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    result = subprocess.run(["git", "-C", str(root), *settings, *arguments], capture_output=True, text=True, check=True)
    return result.stdout.strip()


def test_a_checkout_tells_its_commit_and_other_folders_why_they_have_none(tmp_path: Path) -> None:
    assert revision._checked_out_commit(tmp_path) == (
        None,
        "installed from files: neither a git checkout nor a recorded commit",
    )
    _git(tmp_path, "init", "--quiet")
    sha, reason = revision._checked_out_commit(tmp_path)
    assert sha is None
    assert reason is not None
    assert reason.startswith("git gives no commit: ")
    _git(tmp_path, "commit", "--quiet", "--allow-empty", "-m", "one")
    assert revision._checked_out_commit(tmp_path) == (_git(tmp_path, "rev-parse", "HEAD"), None)


def test_without_git_the_reason_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".git").mkdir()
    monkeypatch.setenv("PATH", "")
    sha, reason = revision._checked_out_commit(tmp_path)
    assert sha is None
    assert reason is not None
    assert reason.startswith("git cannot be run")


def test_the_running_code_has_a_commit_or_a_reason_but_not_both() -> None:
    code = code_identity()
    assert code.version
    assert (code.git_sha is None) != (code.reason is None)
    assert code.git_sha is None or re.fullmatch(r"[0-9a-f]{40,64}", code.git_sha)
