"""Every environment family by name, the control plane's half.

A new one is an entry here and in ``worker.envs.families``.
"""

from __future__ import annotations

from lockstep.quoting import quoted
from lockstep.spec.environments import gymnasium, morphogenesis
from lockstep.spec.environments.family import Family
from lockstep.spec.text.problems import InvalidSpecError, Problem, nearest

FAMILIES: dict[str, Family] = {family.name: family for family in (morphogenesis.FAMILY, gymnasium.FAMILY)}


def family_of(kind: str) -> Family:
    """Return the family of an ``env.kind``.

    Raises:
        InvalidSpecError: there is none of that name.
    """
    if kind not in FAMILIES:
        raise InvalidSpecError(
            [Problem("/env/kind", "unknown_kind", f"unknown env.kind {quoted(kind)}", nearest(kind, FAMILIES))]
        )
    return FAMILIES[kind]
