"""The family ``gymnasium``: any task that is registered with Gymnasium, by its id."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lockstep.quoting import quoted
from lockstep.spec.arms import ResolvedArm
from lockstep.spec.environments.family import Family, Score
from lockstep.spec.sections import Engine, Env, Optimiser
from lockstep.spec.text.problems import Problem, nearest, pointer

#: ``mask_velocity`` hides the velocities of a classic task, ``atari`` prepares a game of ale-py.
MASK_VELOCITY, ATARI = WRAPPERS = "mask_velocity", "atari"
#: Components of observations that ``mask_velocity`` sets to 0, by task.
VELOCITIES: Mapping[str, tuple[int, ...]] = {
    "CartPole-v1": (1, 3),
    "Acrobot-v1": (4, 5),
    "MountainCar-v0": (1,),
    "Pendulum-v1": (2,),
    "LunarLander-v3": (2, 3, 5),
}
#: Fields of ``env`` that mean something here.
FIELDS = frozenset(
    {
        *("kind", "id", "kwargs", "wrappers", "n_envs", "processes"),
        *("gamma", "rollout_steps", "max_episode_steps", "reward_scale"),
    }
)
#: Sections that mean nothing here, with what they hold where a specification leaves them out.
FOREIGN_SECTIONS: Mapping[str, Optimiser | Engine] = {"host": Optimiser(), "graft": Optimiser(), "engine": Engine()}
#: Steps after which an episode of evaluation is cut where neither the spec nor the environment has a limit.
EVAL_MAX_STEPS = 100_000
#: Outcomes of an episode of evaluation that was cut, so or at the environment's own limit, beside ``done``.
CAPPED, TIME_LIMIT = "capped", "horizon"
#: What holds only in part with some batched simulators, as records of runs and reports name it: pairing by equal random
#: numbers, and that a resumed run equals one that was not interrupted.
RANDOM_NUMBERS, RESUMED_EPISODES = "Common random numbers", "Resumed episodes"
#: A guess for control tasks, before a worker has measured one.
_STEPS_PER_SECOND = 4_000

SCORES = (
    Score(
        "native_return_mean",
        "native_return",
        "return",
        "max",
        None,
        None,
        False,
        "return in the environment's own reward",
        "train/native_return_mean",
        "native_return",
        "native return",
    ),
    Score(
        "return_mean",
        "episode_reward",
        "reward",
        "max",
        None,
        None,
        True,
        "return in the arm's own reward",
        "train/return_mean",
        "reward",
        "reward",
    ),
    Score(
        "success_rate",
        "success",
        "share",
        "max",
        0.0,
        1.0,
        False,
        "share of episodes whose last info says is_success; only where an environment says it",
        "train/success_rate",
        "success",
        "success rate",
    ),
)


def _fill(_data: dict[str, Any]) -> None:
    """Nothing depends on the task: workers know its spaces, the control plane does not."""


def _rules(env: Env, arms: Sequence[ResolvedArm]) -> Iterator[Problem]:
    if env.id is None:
        example = "ALE/Breakout-v5" if ATARI in env.wrappers else "CartPole-v1"
        yield Problem("/env/id", "missing", "env.kind gymnasium needs env.id", f"for example id: {example}")
    if env.kwargs.get("render_mode") == "human":
        message = "render_mode human of env.kwargs opens a window, and workers have none"
        yield Problem("/env/kwargs/render_mode", "not_applicable", message, "remove it")
    yield from _foreign_rules(env, arms[0].config)
    yield from _wrapper_rules(env)


def _foreign_rules(env: Env, config: Mapping[str, Any]) -> Iterator[Problem]:
    """What is said of hosts and grafts would change nothing here, so that whoever says it means something else."""
    for name, field in Env.model_fields.items():
        if name not in FIELDS and getattr(env, name) != field.get_default(call_default_factory=True):
            remedy = "use env.max_episode_steps for a limit of steps" if name == "horizon" else f"remove env.{name}"
            yield Problem(
                pointer("env", name), "not_applicable", f"env.{name} belongs to env.kind morphogenesis", remedy
            )
    for name, default in FOREIGN_SECTIONS.items():
        if config[name] != default.model_dump(mode="json", by_alias=True):
            message = f"{name} belongs to env.kind morphogenesis"
            yield Problem(pointer(name), "not_applicable", message, f"remove {name}")


def _wrapper_rules(env: Env) -> Iterator[Problem]:
    for index, name in enumerate(env.wrappers):
        at = pointer("env", "wrappers", index)
        if name not in WRAPPERS:
            message = f"env.wrappers names {quoted(name)}, which is not known"
            yield Problem(at, "unknown_wrapper", message, nearest(name, WRAPPERS))
        elif name in env.wrappers[:index]:
            yield Problem(at, "duplicate", f"env.wrappers names {quoted(name)} twice", "name it once")
    if MASK_VELOCITY in env.wrappers and env.id is not None and env.id not in VELOCITIES:
        message = f"env.wrappers [{MASK_VELOCITY}] does not know which observations of {quoted(env.id)} are velocities"
        remedy = f"remove it, or set env.id to one of {', '.join(sorted(VELOCITIES))}"
        yield Problem("/env/wrappers", "not_applicable", message, remedy)
    if ATARI in env.wrappers and env.id is not None and not env.id.startswith("ALE/"):
        message = f"env.wrappers [{ATARI}] is for games of ale-py, not {quoted(env.id)}"
        yield Problem("/env/wrappers", "not_applicable", message, "remove it, or set env.id to ALE/Breakout-v5, say")
    if ATARI in env.wrappers and (env.kwargs or {}).get("frameskip", 1) != 1:
        message = f"env.wrappers [{ATARI}] skips frames itself, so frameskip of env.kwargs must be 1"
        yield Problem("/env/kwargs", "contradiction", message, "leave it out")


FAMILY = Family(
    name="gymnasium",
    scores=SCORES,
    controls=("random",),
    reward_modes=("native",),
    default_reward="native",
    heads=None,
    eval_episodes=100,
    eval_max_steps=EVAL_MAX_STEPS,
    return_norm="none",
    keyed_by="env_reset",
    fill=_fill,
    rules=_rules,
    steps_per_round=lambda env: env.rollout_steps,
    memory_bytes=lambda _env, _num_arms: 2**28,
    seconds=lambda _env, env_steps: round(env_steps / _STEPS_PER_SECOND + 5, 1),
    dataset=lambda _env: None,
    packs=True,
    is_package=True,
    usual_preset="gym_classic",
    on_host=True,
    shows_images=lambda env: ATARI in env.wrappers or (env.id or "").startswith("ALE/"),
)
