"""Every learning algorithm by name, the control plane's half: its defaults and rules.

A new one is an entry here and in ``worker.rl.algorithms``, and, where it has settings, a section of its own in
``lockstep.spec.resolve.Config`` under its name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lockstep.quoting import quoted
from lockstep.spec.arms import ResolvedArm
from lockstep.spec.environments.families import family_of
from lockstep.spec.sections import Env
from lockstep.spec.text.problems import Problem, nearest


@dataclass(frozen=True)
class Algorithm:
    """One algorithm, the half that needs no torch.

    Attributes:
        name: the ``policy`` of an arm that it trains.
        fill: lay defaults that depend on other sections into the plain data of a configuration; the paths named
            beside it were set by the user and stay.
        rules: what the settings of an arm (with its number) must keep in these environments.
    """

    name: str
    fill: Callable[[dict[str, Any], Collection[str]], None]
    rules: Callable[[int, ResolvedArm, Env], Iterator[Problem]]


def _fill_ppo(data: dict[str, Any], named: Collection[str]) -> None:
    ppo = data["ppo"]
    ppo["entropy_anneal_rounds"] = ppo["entropy_anneal_rounds"] or data["budget"]["rounds"]
    if ppo["adv_norm"] is None or ("net.body" in named and "ppo.adv_norm" not in named):
        ppo["adv_norm"] = default_adv_norm(data["net"])


def default_adv_norm(net: Mapping[str, Any]) -> str:
    """Return how advantages are normalised where a spec does not say: over what one minibatch may not show."""
    return "rollout" if net["body"] == "lstm" else "minibatch"


def _ppo_rules(index: int, arm: ResolvedArm, env: Env) -> Iterator[Problem]:
    ppo = arm.config["ppo"]

    def at(name: str) -> str:
        return arm.at(index, "ppo", name)

    if arm.config["net"]["body"] == "lstm" and ppo["minibatches"] > env.n_envs:
        message = f"ppo.minibatches {ppo['minibatches']} exceeds env.n_envs {env.n_envs} (LSTM: whole rows)"
        yield Problem(at("minibatches"), "too_many_minibatches", message, f"use at most {env.n_envs}")
    transitions = env.n_envs * family_of(env.kind).steps_per_round(env)
    if arm.config["net"]["body"] != "lstm" and ppo["minibatches"] > transitions:
        message = f"ppo.minibatches {ppo['minibatches']} exceeds the {transitions} transitions of a round"
        yield Problem(at("minibatches"), "too_many_minibatches", message, f"use at most {transitions}")
    if ppo["entropy_coef_end"] > ppo["entropy_coef_start"]:
        message = "ppo.entropy_coef_end exceeds ppo.entropy_coef_start"
        yield Problem(at("entropy_coef_end"), "contradiction", message, "lower the one, or raise the other")
    if ppo["aux_coef"] != 0:
        message = "ppo.aux_coef weighs a contribution predictor, which is not built"
        yield Problem(at("aux_coef"), "not_built", message, "set it to 0")
    yield from _head_rules(ppo, at, env)


def _head_rules(ppo: Mapping[str, Any], at: Callable[[str], str], env: Env) -> Iterator[Problem]:
    known = family_of(env.kind).heads
    if known is None:
        return
    for name in ("prob_floor", "entropy_head_weights"):
        for head in ppo[name]:
            if head not in known:
                yield Problem(at(name), "unknown_head", f"ppo.{name}: no head {quoted(head)}", nearest(head, known))


ALGORITHMS: dict[str, Algorithm] = {"ppo": Algorithm("ppo", _fill_ppo, _ppo_rules)}
