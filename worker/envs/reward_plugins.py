"""Reward modes of installed packages: what a factory says of itself, read and checked before it is called.

A package names a factory by the entry-point group ``lockstep.rewards``. The factory is called as ``factory(constants,
*, gamma, task)`` and returns the function; its attributes say the rest (docs/rewards.md).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from lockstep.plugins import REWARDS
from lockstep.spec.environments.families import FAMILIES
from lockstep.spec.text.problems import nearest
from lockstep.spec.text.schemas import schema_fault

#: Whom a mode serves that does not say.
DEFAULT_KIND = "morphogenesis"


@dataclass(frozen=True)
class RewardPlugin:
    """A registered mode.

    Attributes:
        name: text; of the entry point, as in ``reward.mode``; -
        version: text; of the formulas, recorded with every run: raise it whenever a number changes; refused
        env_kinds: tuple of texts; families that it serves: ``("gymnasium",)``, ``("morphogenesis",)`` or both;
            ``("morphogenesis",)``
        tasks: tuple of texts; the ``env.id`` or ``env.task`` that it can score, where it reads their observations or
            infos (the worker checks it on steps of the first one); every task
        schema: mapping; flat JSON Schema of its constants: ``properties`` of a scalar ``type`` with ``minimum``,
            ``maximum``, ``exclusiveMinimum``, ``exclusiveMaximum``, ``enum``, ``default``; no constant is taken
        death_pay: number; reward of the step in which a host diverged (morphogenesis); -10
        factory: callable; the entry point itself: ``factory(constants, *, gamma, task)`` returns the function, given
            the constants with every default, the discount, and the ``env.id`` or ``env.task``; refused
    """

    name: str
    version: str
    env_kinds: tuple[str, ...]
    tasks: tuple[str, ...]
    schema: Mapping[str, Any]
    death_pay: float
    factory: Any

    def constants(self, section: Mapping[str, Any]) -> dict[str, Any]:
        """Return the constants of a ``reward`` section over the schema's defaults."""
        properties = self.schema.get("properties", {})
        defaults = {name: rule["default"] for name, rule in properties.items() if "default" in rule}
        return {**defaults, **{name: value for name, value in section.items() if name != "mode"}}


def digest(constants: Mapping[str, Any]) -> str:
    """Return the SHA-256 of constants."""
    return hashlib.sha256(json.dumps(constants, sort_keys=True).encode()).hexdigest()


def points() -> list[EntryPoint]:
    """Return the entry points of reward modes; none is loaded."""
    return list(entry_points(group=REWARDS))


def installed(mode: str) -> RewardPlugin | None:
    """Load the registered mode of a name, and no other package's; None when none has it.

    Raises:
        ValueError: the factory says something that cannot be used.
    """
    point = next(iter(entry_points(group=REWARDS, name=mode)), None)
    return None if point is None else read(mode, point.load())


def read(name: str, factory: Any) -> RewardPlugin:
    """Return what a factory says of itself.

    Raises:
        ValueError: it cannot be used; the sentence names the attribute and the remedy.
    """
    if not callable(factory):
        kind = type(factory).__name__
        raise ValueError(f"the entry point names a {kind}; let it name a function (constants, *, gamma, task)")
    if not hasattr(factory, "version"):
        called = getattr(factory, "__name__", name)
        remedy = f"write {called}.version = '1' below it, and raise it whenever a number changes"
        raise ValueError(f"its factory has no version; {remedy}")
    kinds = _texts(factory, "env_kinds", (DEFAULT_KIND,))
    for kind in kinds:
        if kind not in FAMILIES:
            raise ValueError(f"env_kinds names {kind!r}, which is no family; {nearest(kind, FAMILIES)}")
    schema = getattr(factory, "schema", {})
    fault = schema_fault(schema)
    if fault is not None:
        raise ValueError(fault)
    pay = float(getattr(factory, "death_pay", -10.0))
    return RewardPlugin(name, str(factory.version), kinds, _texts(factory, "tasks", ()), schema, pay, factory)


def _texts(factory: Any, name: str, default: tuple[str, ...]) -> tuple[str, ...]:
    given = getattr(factory, name, default)
    if isinstance(given, str) or not all(isinstance(text, str) for text in given):
        raise ValueError(f"{name} is {given!r}; write a tuple of names, for example {name} = ('gymnasium',)")
    return tuple(given)
