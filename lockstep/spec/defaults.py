"""Defaults of registered rewards and environments, written into a resolved specification.

The control plane loads no plug-in: what a constant is when nobody names it stands in the schema that the
workers announced. It is resolved at submission, so that spec, hash and export say what ran, and a later
version of the package with another default changes no experiment that was submitted before.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lockstep.spec.arms import ResolvedArm
from lockstep.spec.resolve import ResolvedSpec, parse
from lockstep.spec.rules import Registered


def complete(resolved: ResolvedSpec, registered: Registered) -> ResolvedSpec:
    """Return ``resolved`` with every default that the announced schemas give; what is given stays as it is.

    A constant of a reward joins its arm's overrides (the base section may serve another mode), an argument
    of an environment joins ``env.kwargs``. The diffs of the arms stay those of what was written.

    Raises:
        InvalidSpecError: a default breaks the range of the built-in constant whose name it bears.
    """
    document = json.loads(json.dumps(resolved.document))
    kwargs = {**_defaults(registered.environments.get(resolved.spec.env.id or "", {})), **document["env"]["kwargs"]}
    document["env"]["kwargs"] = kwargs
    arms = []
    for arm, written in zip(resolved.arms, document["arms"], strict=True):
        schema = registered.rewards.get(arm.reward_mode, {}).get("schema", {})
        missing = {name: value for name, value in _defaults(schema).items() if name not in arm.config["reward"]}
        written["overrides"] |= {f"reward.{name}": value for name, value in missing.items()}
        arms.append(_with(arm, missing, kwargs))
    if document == resolved.document:
        return resolved
    again = parse(document)  # what is stored must be accepted again
    return replace(again, arms=tuple(arms))


def _with(arm: ResolvedArm, constants: Mapping[str, Any], kwargs: Mapping[str, Any]) -> ResolvedArm:
    reward, env = {**arm.config["reward"], **constants}, {**arm.config["env"], "kwargs": dict(kwargs)}
    return replace(arm, config={**arm.config, "reward": reward, "env": env})


def _defaults(schema: Mapping[str, Any]) -> dict[str, Any]:
    properties: Mapping[str, Mapping[str, Any]] = schema.get("properties", {})
    return {name: rule["default"] for name, rule in properties.items() if "default" in rule}
