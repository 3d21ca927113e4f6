"""Each probe of ``benchmarks/ppo_probes.py`` with one RNG seed; the benchmark runs five."""

from __future__ import annotations

import pytest

from benchmarks.ppo_probes import PROBES


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(PROBES))
def test_probe_reaches_its_known_answer(name: str) -> None:
    ok, told = PROBES[name](0)
    assert ok, told
