"""Numbers of replicates in words, for reports and the command line; imports nothing that costs time."""

from __future__ import annotations

from collections.abc import Sequence


def replicates_text(replicates: Sequence[int]) -> str:
    """Return the numbers of replicates in words: ``replicate 0``, ``replicates 0 to 5``, ``replicates 0, 3, 4``."""
    if len(replicates) == 1:
        return f"replicate {replicates[0]}"
    if len(replicates) > 2 and replicates[-1] - replicates[0] == len(replicates) - 1:
        return f"replicates {replicates[0]} to {replicates[-1]}"
    return f"replicates {', '.join(map(str, replicates))}"
