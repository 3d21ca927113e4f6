"""Constants of the reward modes: the spec's own record, read for the task that is trained.

Names, defaults and meaning stand in ``lockstep.spec.rewards`` alone.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

from lockstep.spec.rewards import Reward
from lockstep.spec.tasks import TASKS


class RewardConfig(Reward):
    """The constants without the mode; values stay as they were given, so that a hash stays too."""

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """Return {constant: default}."""
        return {name: info.default for name, info in Reward.model_fields.items() if name != "mode"}

    @classmethod
    def parse(cls, section: Mapping[str, Any], task: str) -> RewardConfig:
        """Read a spec's ``reward`` section; an unknown key or bad value raises ``ValueError``."""
        given = {key: value for key, value in section.items() if key != "mode"}
        known = cls.defaults()
        for key, value in given.items():
            if key not in known:
                raise ValueError(f"reward.{key} is unknown; known are {sorted(known)}")
            _check(key, value, known[key])
        return _with_task(cls.model_construct(**given), task)

    def hash(self) -> str:
        """Return the SHA-256 of the resolved constants as canonical JSON."""
        values = {name: getattr(self, name) for name in self.defaults()}
        text = json.dumps(values, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def _check(key: str, value: Any, default: Any) -> None:
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise ValueError(f"reward.{key}={value!r}: give true or false")
        return
    if value is None and default is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"reward.{key}={value!r}: give a finite number")
    if value < 0 and (default is None or default >= 0):
        raise ValueError(f"reward.{key}={value!r}: give a number >= 0")
    if value == 0 and key in _DIVISORS:
        raise ValueError(f"reward.{key}=0 divides; give a number > 0")


_DIVISORS = frozenset(
    {
        "host_floor",
        "timing_epochs",
        "ratio_threshold",
        "ratio_credit_scale",
        "commit_epochs",
        "basic_plus_min_steps",
        "param_budget",
        "sparse_scale",
        "loss_sigma",
        "commit_min_contribution",
    }
)


def _with_task(cfg: RewardConfig, task: str) -> RewardConfig:
    """Fill the loss constants from the task where the spec leaves them open."""
    if task not in TASKS:
        return cfg
    constants = {f"loss_{name}": value for name, value in vars(TASKS[task].loss).items()}
    return cfg.model_copy(update={name: v for name, v in constants.items() if getattr(cfg, name) is None})
