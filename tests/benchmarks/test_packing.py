"""The comparison of packed replicates, at its smallest: it checks digests itself, and its parts add up."""

from __future__ import annotations

import pytest

from benchmarks import packing


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds of a few steps."""
    monkeypatch.setattr(packing, "_STEPS", 16)


@pytest.mark.parametrize("task", ["cartpole", "memory", "pendulum"])
def test_the_ways_are_timed_and_have_equal_numbers(task: str) -> None:
    found = packing.compare(replicates=2, rounds=1, repeats=1, task=task)
    assert set(found["cpu_seconds"]) == {"replicate_by_replicate", "run_by_run", "environments"}
    assert all(ratio > 0 for ratio in found["cpu_seconds"].values())


def test_the_shares_of_a_packed_round_are_parts_of_it() -> None:
    shares = packing.profile(replicates=1, rounds=1)
    assert 0.3 < sum(shares.values()) < 1.05
