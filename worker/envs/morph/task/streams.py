"""Which key a draw of the environment uses (environment.md 5.3, training.md 3.7).

Training keys name env and episode; evaluation keys live in ``eval/`` and name the evaluation episode
in their place, so that evaluating consumes nothing of training. No key names arm, device or count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from lockstep import keys

Phase = Literal["train", "eval"]


@dataclass(frozen=True)
class Streams:
    """Keyed generators of a replicate in one phase.

    Attributes:
        replicate_seed, phase: root of every key.
        first_env: number, in its run, of the environment that callers count as 0.
    """

    replicate_seed: int
    phase: Phase
    first_env: int = 0

    def number(self, env: int) -> int:
        """Return the number of an environment in its run."""
        return self.first_env + env

    def key(self, purpose: str, env: int, episode: int, **extra: int | str) -> int:
        """Return the 63-bit key of a purpose; in evaluation ``env`` is the evaluation episode."""
        number = self.number(env)
        if self.phase == "eval":
            return keys.derive(self.replicate_seed, f"eval/{purpose}", episode=number, **extra)
        return keys.derive(self.replicate_seed, purpose, env=number, episode=episode, **extra)

    def generator(self, purpose: str, env: int, episode: int, **extra: int | str) -> np.random.Generator:
        """Return the generator of a purpose."""
        return np.random.Generator(np.random.Philox(key=self.key(purpose, env, episode, **extra)))
