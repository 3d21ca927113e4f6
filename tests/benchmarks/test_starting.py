"""Faults at the start are told as the page says: one sentence, code 3, no traceback, no secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import starting


@pytest.mark.pg
def test_faults_are_told_as_the_page_says(pg_url: str, tmp_path: Path) -> None:
    with starting.world(pg_url, tmp_path) as world:
        found = list(starting.told(world))
        written = starting.page(found, world)
    assert len(found) >= 40
    for item in found:
        assert item.code == item.fault.code, item
        assert "Traceback" not in item.said
        assert starting.SECRET not in item.said
        assert len(item.said.splitlines()) == 1, item
        assert len(item.said) < 400, item
    assert starting.TARGET.read_text(encoding="utf-8") == written, "python -m benchmarks.starting"
