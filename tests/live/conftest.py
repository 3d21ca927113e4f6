"""A server whose leases outlast any stall of a loaded machine: the simulated workers here send no heartbeats."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.conftest import LiveServer

PATIENT = {"lease_ttl_seconds": 600.0}


@pytest.fixture
def server(make_server: Callable[..., LiveServer], database_url: str) -> LiveServer:
    """A live server that takes no lease back, on each database."""
    return make_server(database_url, **PATIENT)
