"""What both sides and every user share: specifications, statistics, reports, the wire contract, the client.

``from lockstep import Client`` is all that a script needs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lockstep.client import Client as Client

__all__ = ["Client"]


def __getattr__(name: str) -> Any:
    # loaded when first asked for: a worker or a test of a formula needs no HTTP library
    if name != "Client":
        raise AttributeError(f"module 'lockstep' has no attribute {name!r}")
    return importlib.import_module("lockstep.client").Client
