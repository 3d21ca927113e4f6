"""Keyed random generators: the one home of randomness in the worker.

Every draw is a pure function of (seed, purpose, key=value, ...), so two arms that ask the same
question get the same answer, whatever the device, the order of issue or the number of
environments. The arm is part of a key only where ``lockstep.crn: environment`` asks for
policies that draw apart. Standard library and numpy only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

_PREFIX = "lockstep/1"
#: Purposes a key may name (training.md 3.7); evaluation puts ``eval/`` before an environment purpose.
PURPOSES = frozenset(
    {
        "host_init",
        "data_order",
        "augment",
        "dropout",
        "val_subset",
        "graft_init",
        "env_reset",
        "policy_init",
        "minibatch_order",
        "action_noise",
        "obs_calibration",
        "warmup",
        "update_order",
        "shapley",
        "control_policy",
        "replicate",
    }
)


def derive(seed: int, purpose: str, **key: int | str) -> int:
    """Return the 63-bit key of a purpose.

    The key is SHA-256 of ``lockstep/1|<seed>|<purpose>|k=v|...`` (in the order given), first
    eight bytes big-endian, shifted right by one.
    """
    base = purpose.removeprefix("eval/").removeprefix("warmup/")
    if base not in PURPOSES:
        raise ValueError(f"unknown purpose {purpose!r}: known are {sorted(PURPOSES)}")
    return _digest("|".join([_PREFIX, str(seed), purpose, *(f"{k}={v}" for k, v in key.items())]))


def replicate_seed(root: int, replicate: int) -> int:
    """Return the seed of a replicate under the experiment's root seed."""
    return _digest(f"{_PREFIX}|{root}|replicate|{replicate}")


def generator(seed: int, purpose: str, **key: int | str) -> np.random.Generator:
    """Return a counter-based (Philox) generator for a purpose; independent of every other key."""
    return np.random.Generator(np.random.Philox(key=derive(seed, purpose, **key)))


def generators(seed: int, purpose: str, keys: Iterable[Mapping[str, int | str]]) -> Iterator[np.random.Generator]:
    """Yield what ``generator`` returns for each key; one serves until the next is asked for.

    A single generator takes one key after the other, which costs a tenth of making one each.
    """
    philox = np.random.Philox(key=0)
    drawn = np.random.Generator(philox)
    new = philox.state
    for key in keys:
        new["state"]["key"][0] = derive(seed, purpose, **key)
        philox.state = new
        yield drawn


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
