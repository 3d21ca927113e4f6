"""Which key a draw of the environment uses (environment.md 5.3, training.md 3.7).

Training keys name env and episode; evaluation keys live in ``eval/`` and name the evaluation episode
in their place, so that evaluating consumes nothing of training. No key names arm, device or count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from worker import keys

Phase = Literal["train", "eval"]


@dataclass(frozen=True)
class Streams:
    """Keyed generators of a replicate in one phase."""

    replicate_seed: int
    phase: Phase

    def key(self, purpose: str, env: int, episode: int, **extra: int | str) -> int:
        """Return the 63-bit key of a purpose; in evaluation ``env`` is the evaluation episode."""
        if self.phase == "eval":
            return keys.derive(self.replicate_seed, f"eval/{purpose}", episode=env, **extra)
        return keys.derive(self.replicate_seed, purpose, env=env, episode=episode, **extra)

    def generator(self, purpose: str, env: int, episode: int, **extra: int | str) -> np.random.Generator:
        """Return the generator of a purpose."""
        return np.random.Generator(np.random.Philox(key=self.key(purpose, env, episode, **extra)))
