"""Learning seed by seed, at its smallest: a replicate comes to the same whatever is trained beside it."""

from __future__ import annotations

from benchmarks.learnt import learnt


def test_replicates_come_to_the_same_in_whatever_portions_they_are_trained() -> None:
    together = learnt(range(3), rounds=1)
    assert len(set(together)) == 3
    assert together == [*learnt(range(1), rounds=1), *learnt(range(1, 3), rounds=1)]
