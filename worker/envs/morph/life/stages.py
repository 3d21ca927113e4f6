"""Stages and ops of a graft's life, with the integers of the specification (environment.md 1, 3.1)."""

from __future__ import annotations

from enum import IntEnum


class Stage(IntEnum):
    """Lifecycle state of a slot; 0 and 5 are reserved and rejected."""

    DORMANT = 1
    GERMINATED = 2
    TRAINING = 3
    BLENDING = 4
    HOLDING = 6
    FOSSILIZED = 7
    PRUNED = 8
    EMBARGOED = 9
    RESETTING = 10


class Op(IntEnum):
    """What an action does; the index in the op head."""

    WAIT = 0
    GERMINATE = 1
    SET_ALPHA_TARGET = 2
    PRUNE = 3
    FOSSILIZE = 4
    ADVANCE = 5
