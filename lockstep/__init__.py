"""What both sides and every user share: specifications, statistics, reports, the wire contract, the client.

``from lockstep import Client`` is all that a script needs; ``AsyncClient`` is its twin to be awaited.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lockstep.client import AsyncClient as AsyncClient
    from lockstep.client import Client as Client

__all__ = ["AsyncClient", "Client"]


def __getattr__(name: str) -> Any:
    # loaded when first asked for: a worker or a test of a formula needs no HTTP library
    if name not in __all__:
        raise AttributeError(f"module 'lockstep' has no attribute {name!r}")
    return getattr(importlib.import_module("lockstep.client"), name)
