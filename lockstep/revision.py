"""Which code this is: the installed version and, where it can be known, the git commit.

Standard library only; nothing here fails for want of git or of package metadata.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

_PACKAGE = "lockstep"
_ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class CodeIdentity:
    """Version and commit of the code that runs.

    Attributes:
        version: of the installed package.
        git_sha: commit as 40 hexadecimal digits, or None.
        reason: why there is no ``git_sha``, else None.
    """

    version: str
    git_sha: str | None
    reason: str | None

    @property
    def text(self) -> str:
        """Version, with the beginning of the commit where that is known."""
        return self.version + (f"+{self.git_sha[:12]}" if self.git_sha else "")


@cache
def code_identity() -> CodeIdentity:
    """Return the identity of the running code; asked of git and the package metadata once per process."""
    sha, reason = _recorded_commit(), None
    if sha is None:
        sha, reason = _checked_out_commit(_ROOT)
    try:
        version = metadata.version(_PACKAGE)
    except metadata.PackageNotFoundError:
        version = "unknown"
    return CodeIdentity(version, sha, reason)


def _recorded_commit() -> str | None:
    """Return the commit that an installation from a repository's address records (PEP 610)."""
    try:
        text = metadata.distribution(_PACKAGE).read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return None
    recorded = json.loads(text).get("vcs_info", {}).get("commit_id") if text else None
    return str(recorded) if recorded else None


def _checked_out_commit(root: Path) -> tuple[str | None, str | None]:
    """Return (commit, None) of the working tree at ``root``, or (None, reason)."""
    if not (root / ".git").exists():
        return None, "installed from files: neither a git checkout nor a recorded commit"
    try:
        result = subprocess.run(  # noqa: S603 - fixed arguments
            ["git", "-C", str(root), "rev-parse", "HEAD"],  # noqa: S607 - git of the path
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        return None, f"git cannot be run: {error.strerror}"
    if result.returncode != 0:
        return None, f"git gives no commit: {result.stderr.strip()[:200]}"
    return result.stdout.strip(), None
