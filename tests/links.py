"""A network of its own for a worker, on a link to this machine that can be cut.

It takes root, the right to make network namespaces, and Debian's iproute2.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

#: An address range for measurements (RFC 2544), which no network uses.
_NEAR, _FAR, _BITS = "198.18.{}.1", "198.18.{}.2", 30
#: Nobody has it: what is sent there arrives nowhere, and nobody is told.
_NOBODY = "02:00:00:00:00:01"


class NoLink(RuntimeError):  # noqa: N818 - a state of affairs
    """No link can be made on this machine; the message says why and what to do."""


@dataclass(frozen=True)
class Link:
    """A link between this machine and a network namespace.

    Attributes:
        name: of the namespace.
        near, far: names of its ends.
        address: of this machine, as seen from there.
        peer: address of the other end.
    """

    name: str
    near: str
    far: str
    address: str
    peer: str

    @property
    def inside(self) -> list[str]:
        """What to put before a command so that it runs at the other end."""
        return ["ip", "netns", "exec", self.name]

    def cut(self, how: Literal["down", "dropped"]) -> None:
        """Cut it: this end is down, or all that is sent either way is lost without a word to anybody."""
        if how == "down":
            _ip("link", "set", self.near, "down")
            return
        _ip("neigh", "replace", self.peer, "lladdr", _NOBODY, "nud", "permanent", "dev", self.near)
        far = ["neigh", "replace", self.address, "lladdr", _NOBODY, "nud", "permanent", "dev", self.far]
        _ip("-n", self.name, *far)

    def heal(self, how: Literal["down", "dropped"]) -> None:
        """Undo a cut."""
        if how == "down":
            _ip("link", "set", self.near, "up")
            return
        _ip("neigh", "del", self.peer, "dev", self.near)
        _ip("-n", self.name, "neigh", "del", self.address, "dev", self.far)


@contextlib.contextmanager
def link() -> Iterator[Link]:
    """Make a link for the block.

    Raises:
        NoLink: it cannot be made here.
    """
    if os.geteuid() != 0 or shutil.which("ip") is None:
        raise NoLink("a network namespace takes root and the program ip: run this as root, with iproute2 installed")
    number = os.getpid() % 65_536
    name, third = f"lockstep-{number}", number % 256
    made = Link(name, f"lsn{number}", f"lsf{number}", _NEAR.format(third), _FAR.format(third))
    try:
        try:
            _ip("netns", "add", name)
            _ip("link", "add", made.near, "type", "veth", "peer", "name", made.far, "netns", name)
        except subprocess.CalledProcessError as error:
            told = error.stderr.decode(errors="replace").strip()
            raise NoLink(f"no network namespace can be made ({told}); run this where NET_ADMIN is allowed") from error
        _ip("addr", "add", f"{made.address}/{_BITS}", "dev", made.near)
        _ip("link", "set", made.near, "up")
        _ip("-n", name, "addr", "add", f"{made.peer}/{_BITS}", "dev", made.far)
        _ip("-n", name, "link", "set", made.far, "up")
        _ip("-n", name, "link", "set", "lo", "up")
        yield made
    finally:
        subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL, check=False)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
