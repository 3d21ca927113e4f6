"""Parsing, resolution, arms and hashes of a specification; each refusal names field and remedy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lockstep.spec import tasks
from lockstep.spec.arms import discount_of
from lockstep.spec.defaults import complete
from lockstep.spec.plan import make_plan
from lockstep.spec.presets import PRESETS
from lockstep.spec.resolve import Spec, parse
from lockstep.spec.rules import NOT_ASKED, Registered, all_problems, check
from lockstep.spec.text.problems import InvalidSpecError, Problem
from lockstep.spec.text.reading import load_text
from tests.factories import cartpole_spec, tiny_spec

ROOT = Path(__file__).parents[3]
EXAMPLES = [*sorted((ROOT / "examples").glob("*.yaml")), ROOT / "app" / "cli" / "demo.yaml"]


def problems_of(raw: dict[str, Any]) -> list[Problem]:
    try:
        found, _ = check(parse(raw))
    except InvalidSpecError as error:
        return list(error.problems)
    return found


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_is_valid_and_resolves_the_same_way_twice(path: Path) -> None:
    first, second = parse(load_text(path.read_text())), parse(load_text(path.read_text()))
    assert check(first)[0] == []
    assert first.hash == second.hash
    assert parse(first.document).hash == first.hash


@pytest.mark.parametrize("name", list(PRESETS))
def test_preset_resolves_for_its_task(name: str) -> None:
    task = "ALE/Breakout-v5" if name == "gym_atari" else "CartPole-v1"
    env = {"env": {"id": task}} if PRESETS[name]["env"].get("kind") == "gymnasium" else {}
    assert problems_of(spec_of(name, **env)) == []


def spec_of(preset: str, **changes: Any) -> dict[str, Any]:
    arms = [{"label": "A"}, {"label": "B", "overrides": {"ppo.lr": 2e-3}}]
    analysis = {"sesoi": 1.0, "failure": {"floor": 0.0}}
    return {"experiment": {"name": preset}, "preset": preset, "arms": arms, "analysis": analysis, **changes}


@pytest.mark.parametrize(
    ("env", "told"),
    [
        ({"id": "CartPole-v1"}, "is for games of ale-py, not 'CartPole-v1'"),
        ({"id": "ALE/Breakout-v5", "kwargs": {"frameskip": 4}}, "frameskip of env.kwargs must be 1"),
        ({}, "needs env.id"),
    ],
)
def test_what_the_preset_for_atari_games_cannot_train_is_refused(env: dict[str, Any], told: str) -> None:
    [problem] = problems_of(spec_of("gym_atari", env=env))
    assert told in problem.message
    assert problem.remedy


def test_own_keys_win_over_the_preset_and_task_fills_the_rest() -> None:
    spec = parse(tiny_spec(env={"horizon": 9})).spec
    assert (spec.env.horizon, spec.env.n_envs, spec.host.lr) == (9, 2, 0.05)
    assert spec.env.slots == tasks.TASKS["digits_tiny"].slots
    assert spec.return_norm == "popart"


def test_diff_of_an_arm_is_minimal_and_names_base_and_value() -> None:
    raw = tiny_spec(arms=[{"label": "A"}, {"label": "B", "reward": "sparse", "overrides": {"ppo.lr": 0.002}}])
    arms = parse(raw).arms
    assert arms[0].diff == ()
    assert [(d.path, d.base, d.value) for d in arms[1].diff] == [
        ("ppo.lr", 0.003, 0.002),
        ("reward.mode", "shaped", "sparse"),
    ]


@pytest.mark.parametrize(
    ("changes", "pointer", "code", "remedy"),
    [
        ({"ppoo": {}}, "/ppoo", "unknown_key", "did you mean 'ppo'?"),
        ({"ppo": {"lambda": 2.0}}, "/ppo/lambda", "less_than_equal", ""),
        ({"ppo": {"lr": "0.1"}}, "/ppo/lr", "float_type", ""),
        ({"preset": "digits_gpu"}, "/preset", "unknown_preset", "digits"),
        ({"env": {"task": "digit_tiny"}}, "/env/task", "unknown_task", "did you mean 'digits_tiny'?"),
        ({"env": {"slots": ["r0c0", "r0c7"]}}, "/env/slots/1", "unknown_slot", "did you mean"),
        ({"env": {"horizon": 5}}, "/env/horizon", "too_short", "use at least"),
        ({"env": {"batches_per_step": 99}}, "/env/batches_per_step", "too_many_batches", "use at most"),
        ({"ppo": {"minibatches": 64}}, "/ppo/minibatches", "too_many_minibatches", "use at most 2"),
        ({"ppo": {"aux_coef": 0.5}}, "/ppo/aux_coef", "not_built", "set it to 0"),
        ({"lockstep": {"barrier": "none"}}, "/lockstep/barrier", "contradiction", "placement"),
        ({"reward": {"pbrs_wait": 1.0}}, "/reward/pbrs_wait", "unknown_key", "did you mean 'pbrs_weight'?"),
        (
            {"arms": [{"label": "A"}, {"label": "A", "reward": "sparse"}]},
            "/arms/1/label",
            "duplicate",
            "rename",
        ),
        ({"arms": [{"label": "A"}, {"label": "B"}]}, "/arms/1", "identical_arms", "experiment.kind to aa"),
        (
            {"arms": [{"label": "A"}, {"label": "B", "overrides": {"env.horizon": 9}}]},
            "/arms/1/overrides/env.horizon",
            "not_overridable",
            "override only",
        ),
        (
            {"arms": [{"label": "A"}, {"label": "B", "overrides": {"ppo.lrr": 9}}]},
            "/arms/1/overrides/ppo.lrr",
            "unknown_key",
            "did you mean 'lr'?",
        ),
        ({"experiment": {"kind": "aa"}}, "/experiment/kind", "aa_arms_differ", "make the arms equal"),
        ({"analysis": None}, "/analysis", "missing", "add analysis"),
        (
            {"arms": [{"label": "A"}, {"label": "S", "policy": "static_matched"}]},
            "/arms/1/static_set",
            "missing",
            "{slot: blueprint}",
        ),
        (
            {"arms": [{"label": "A"}, {"label": "S", "policy": "static_matched", "static_set": {"run": "r"}}]},
            "/arms/1/static_set/episode",
            "missing",
            "add it",
        ),
        (
            {"arms": [{"label": "A"}, {"label": "S", "policy": "static_matched", "static_set": {"r0c0": 3}}]},
            "/arms/1/static_set/r0c0",
            "string_type",
            "",
        ),
        (
            {"arms": [{"label": "A"}, {"label": "S", "static_set": {"run": "r", "episode": 0}}]},
            "/arms/1/static_set",
            "not_applicable",
            "remove it",
        ),
        ({"eval": {"max_steps": 40}}, "/eval/max_steps", "not_applicable", "remove eval.max_steps"),
        ({"eval": {"budget": 40}}, "/eval/budget", "unknown_key", "budget stands at the outermost level"),
        ({"precision": {"host": "fp16"}}, "/precision/host", "literal_error", ""),
    ],
)
def test_refusal_names_field_and_remedy(changes: dict[str, Any], pointer: str, code: str, remedy: str) -> None:
    raw = {**tiny_spec(experiment={"replicates": 2}), **{k: v for k, v in changes.items() if v is None}}
    for name, value in changes.items():
        if isinstance(value, dict):
            raw = tiny_spec(**{name: value}) if name != "experiment" else tiny_spec(experiment=value)
        elif value is not None:
            raw = {**raw, name: value}
    found = [problem for problem in problems_of(raw) if problem.pointer == pointer]
    assert found, problems_of(raw)
    assert found[0].code == code
    assert remedy in found[0].remedy


@pytest.mark.parametrize(
    ("key", "remedy"),
    [
        ("net", "write its fields under overrides of the arm, as net.NAME"),
        ("ppo.lr", "write it under overrides of the arm"),
        ("lr", "write it under overrides of the arm, as host.lr, graft.lr or ppo.lr"),
        ("learning_rate", "write it under overrides of the arm, as ppo.lr"),
        ("lable", "did you mean 'label'?"),
        ("colour", "known: label, overrides, policy, reward, static_set"),
    ],
)
def test_what_stands_in_an_arm_is_sent_to_its_overrides(key: str, remedy: str) -> None:
    [problem] = problems_of(tiny_spec(arms=[{"label": "A"}, {"label": "B", key: {}}]))
    assert (problem.pointer, problem.code, problem.remedy) == (f"/arms/1/{key}", "unknown_key", remedy)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("a: &x [1]\nb: *x", "yaml_alias"),
        ("- 1", "malformed"),
        ("a: [", "malformed"),
        ("a: !!python/object:os.system {}", "malformed"),
        ("experiment: {name: .nan}", "malformed"),
        ("a: " + "[" * 30 + "]" * 30, "too_deep"),
    ],
)
def test_text_that_is_no_plain_data_is_refused(text: str, code: str) -> None:
    with pytest.raises(InvalidSpecError) as refused:
        parse(load_text(text))
    assert refused.value.problems[0].code == code


def test_all_problems_are_collected_in_one_refusal() -> None:
    raw = tiny_spec(ppo={"lr": -1.0, "clip": 3.0}, env={"n_envs": 0})
    assert {problem.pointer for problem in problems_of(raw)} == {"/ppo/lr", "/ppo/clip", "/env/n_envs"}


def test_replicates_one_warns_that_no_inference_is_possible() -> None:
    raw = tiny_spec(experiment={"replicates": 1})
    raw["analysis"] = None
    found, warnings = check(parse(raw))
    assert found == []
    assert any("no inference" in warning for warning in warnings)


def test_a_registered_reward_gets_what_was_written_for_it_and_no_built_in_default() -> None:
    # a plug-in's constant may bear the name of a built-in one
    arms = [
        {"label": "a"},
        {"label": "b", "overrides": {"reward.rent_weight": 0.25}},
        {"label": "c", "reward": "shaped"},
    ]
    raw = tiny_spec(arms=arms, reward={"mode": "thrifty", "sparse_scale": 2.0})
    a, b, c = (arm.config["reward"] for arm in parse(raw).arms)
    assert a == {"mode": "thrifty", "sparse_scale": 2.0}
    assert b == {"mode": "thrifty", "sparse_scale": 2.0, "rent_weight": 0.25}
    assert len(c) > 20
    # what the experiment's section names for the built-in mode is not meant for another one
    raw = tiny_spec(arms=[{"label": "a"}, {"label": "b", "reward": "thrifty"}], reward={"sparse_scale": 2.0})
    assert parse(raw).arms[1].config["reward"] == {"mode": "thrifty"}


def undescribed(schema: dict[str, Any]) -> list[str]:
    """Return every field of a model's JSON Schema, and of the models below it, that says nothing."""
    models = {"": schema, **schema.get("$defs", {})}
    fields = [
        (f"{model}.{name}", rule) for model, m in models.items() for name, rule in m.get("properties", {}).items()
    ]
    assert fields
    return [name for name, rule in fields if not rule.get("description")]


def test_every_field_of_a_specification_says_what_it_is() -> None:
    schema = Spec.model_json_schema(by_alias=True)
    assert undescribed(schema) == []
    assert len(schema["$defs"]["Reward"]["properties"]) > 80
    # the test can fail, at the top and below
    del schema["$defs"]["Reward"]["properties"]["rent_cap"]["description"], schema["properties"]["ppo"]["description"]
    assert undescribed(schema) == [".ppo", "Reward.rent_cap"]


def test_every_reward_constant_names_its_unit_and_range() -> None:
    units = ("reward units", "parameters", "pp", "epochs", "steps", "nats", "share", "ratio", "units of Phi")
    for name, rule in Spec.model_json_schema()["$defs"]["Reward"]["properties"].items():
        if name == "mode" or rule.get("type") == "boolean":
            continue
        assert any(unit in rule["description"] for unit in units), name
        bounds = [rule, *rule.get("anyOf", [])]
        signed = name in ("prune_harmful_below", "ransomware_effect", "basic_plus_low")
        assert signed or any({"minimum", "exclusiveMinimum"} & set(bound) for bound in bounds), name
        assert "default" in rule, name


def test_the_defaults_of_registered_names_stand_in_the_resolved_spec_and_its_hash() -> None:
    def announced(price: float) -> Registered:
        schema = {"properties": {"price": {"type": "number", "default": price}, "label": {"type": "string"}}}
        return Registered(
            {"thrifty": {"env_kinds": ["morphogenesis"], "schema": schema}},
            {"corridor": {"properties": {"length": {"type": "integer", "default": 6}, "wide": {"default": True}}}},
        )

    arms: list[dict[str, Any]] = [
        {"label": "a"},
        {"label": "b", "reward": "thrifty"},
        {"label": "c", "reward": "thrifty"},
    ]
    arms[2]["overrides"] = {"reward.price": 0.25, "reward.label": "x"}
    given = parse(tiny_spec(arms=arms))
    written = complete(given, announced(0.5))
    a, b, c = (arm.config["reward"] for arm in written.arms)
    assert "price" not in a
    assert b == {"mode": "thrifty", "price": 0.5}
    assert c == {"mode": "thrifty", "price": 0.25, "label": "x"}
    assert written.document["arms"][1]["overrides"] == {"reward.price": 0.5}
    assert [arm.diff for arm in written.arms] == [arm.diff for arm in given.arms]
    # what another version would have paid is another experiment
    assert len({given.hash, written.hash, complete(given, announced(0.75)).hash}) == 3
    again = complete(parse(written.document), announced(0.75))
    assert (again.hash, [arm.config for arm in again.arms]) == (written.hash, [arm.config for arm in written.arms])
    # the default that the mode would take and the same number written out are one configuration
    arms[2]["overrides"] = {"reward.price": 0.5}
    found, _ = check(complete(parse(tiny_spec(arms=arms)), announced(0.5)), announced(0.5))
    assert [problem.code for problem in found] == ["identical_arms"]

    env = {"kind": "gymnasium", "id": "corridor", "kwargs": {"wide": False}}
    gym = complete(parse({"experiment": {"name": "g"}, "env": env, "arms": arms[:2]}), announced(0.5))
    assert gym.document["env"]["kwargs"] == {"length": 6, "wide": False}
    assert [arm.config["env"]["kwargs"] for arm in gym.arms] == [{"length": 6, "wide": False}] * 2


TASKS = Registered(
    {},
    {"corridor": {}},
    {
        "gymnasium": {
            "CartPole-v0": {"arguments": ["render_mode"]},
            "CartPole-v1": {"arguments": ["render_mode", "sutton_barto_reward"]},
            "Ant-v2": {"arguments": None},
            "Lander-v3": {"defect": "Box2D is not installed"},
        }
    },
)


@pytest.mark.parametrize(
    ("env", "told"),
    [
        ({"id": "CartPole-v7"}, ("/env/id", "unknown_environment", "did you mean 'CartPole-v")),
        ({"id": "cartpole-V1"}, ("/env/id", "unknown_environment", "did you mean 'CartPole-v1'? Install")),
        ({"id": "coridor"}, ("/env/id", "unknown_environment", "did you mean 'corridor'? Install")),
        ({"id": "mine:coridor"}, ("/env/id", "did you mean 'corridor'? Write the name behind the colon")),
        ({"id": "Zebra"}, ("/env/id", "unknown_environment", "register corridor. Install the package that has it")),
        ({"id": "Lander-v3"}, ("/env/id", "defective_environment", "install what is missing")),
        ({"id": "CartPole-v0", "kwargs": {"sutton_barto_reward": 1}}, ("/env/kwargs/sutton_barto_reward",)),
        ({"id": "CartPole", "kwargs": {"rendermode": 1}}, ("/env/kwargs/rendermode", "unknown_key", "'render_mode'?")),
        ({"id": "CartPole", "kwargs": {"sutton_barto_reward": True}}, ()),
        ({"id": "Ant-v2", "kwargs": {"anything": 1}}, ()),
        ({"id": "corridor", "kwargs": {"anything": 1}}, ()),
    ],
)
def test_tasks_that_no_registered_worker_has_are_refused(env: dict[str, Any], told: tuple[str, ...]) -> None:
    found, warnings = check(parse(cartpole_spec(env=env)), TASKS)
    assert [warning for warning in warnings if "not checked" in warning] == []
    problem = [f"{item.pointer} {item.code} {item.remedy}" for item in found if item.pointer.startswith("/env")]
    assert len(problem) == bool(told)
    assert all(word in problem[0] for word in told)


def test_a_task_that_nobody_can_check_is_said_to_be_so() -> None:
    for registered, why in ((NOT_ASKED, "that is done when they are submitted"), (Registered({}, {}), "no worker")):
        _, warnings = check(parse(cartpole_spec(env={"id": "Zebra"})), registered)
        assert any(f"env.id 'Zebra' and env.kwargs are not checked: {why}" in warning for warning in warnings)


@pytest.mark.parametrize(
    ("env", "given", "is_warned"),
    [
        ({"id": "corridor"}, {}, True),
        ({"id": "corridor", "max_episode_steps": 50}, {}, False),
        ({"id": "corridor"}, {"eval": {"max_steps": 50}}, False),
        ({"id": "CartPole-v1"}, {}, False),
    ],
)
def test_an_own_environment_without_a_limit_of_steps_is_warned_of(
    env: dict[str, Any], given: dict[str, Any], is_warned: bool
) -> None:
    resolved = parse(cartpole_spec(env=env, **given))
    warnings = [text for text in check(resolved, TASKS)[1] if "env.max_episode_steps" in text]
    assert len(warnings) == is_warned
    assert ("50 steps (env.max_episode_steps)" in make_plan(resolved).evaluation) == ("max_episode_steps" in env)


@pytest.mark.parametrize(
    "changes", [{"reward": {"mode": "thrifty", "price": 2}}, {"eval": {"xeval_modes": ["thrifty"]}}]
)
def test_a_reward_that_may_be_registered_is_left_to_the_server(changes: dict[str, Any]) -> None:
    resolved = parse(cartpole_spec(**changes))
    problems, warnings = check(resolved)
    assert problems == []
    [told] = [warning for warning in warnings if "thrifty" in warning]
    assert told == "reward mode 'thrifty' is not known here and is checked when it is submitted (built in: native)"
    assert [problem.code for problem in check(resolved, Registered({}, {}))[0]] == ["unknown_reward"]


def test_names_that_are_installed_here_lead_to_those_that_were_meant() -> None:
    here = replace(NOT_ASKED, rewards_here=["progress"], tasks_here=["pointgoal", "Zebra-v1"])
    warnings = check(parse(cartpole_spec(env={"id": "pointgaol"}, reward={"mode": "progres"})), here)[1]
    assert any("; no package that is installed here has it, did you mean 'pointgoal'?" in told for told in warnings)
    assert any("checked when it is submitted (did you mean 'progress'?)" in told for told in warnings)
    told = " ".join(check(parse(cartpole_spec(env={"id": "Zebra"}, reward={"mode": "progress"})), here)[1])
    assert "no package" not in told
    assert "(a package that is installed here has it)" in told


def test_a_built_in_reward_of_another_family_is_refused_without_a_server() -> None:
    [problem] = problems_of(cartpole_spec(reward={"mode": "shaped"}))
    told = "reward mode 'shaped' is built in for env.kind morphogenesis, not gymnasium"
    assert (problem.code, problem.message) == ("unknown_reward", told)
    assert problem.remedy == "set env.kind to morphogenesis, or use one of native"


def test_minibatches_beyond_the_transitions_of_a_round_are_refused_for_every_network() -> None:
    env = {"n_envs": 2, "rollout_steps": 8}
    for net, most in (("mlp", 16), ("lstm", 2)):
        for minibatches in (most, most + 1):
            raw = cartpole_spec(env=env, net={"body": net}, ppo={"minibatches": minibatches})
            found = [item for item in problems_of(raw) if item.code == "too_many_minibatches"]
            assert [item.remedy for item in found] == ([f"use at most {most}"] if minibatches > most else [])


def test_copied_static_set_is_valid_without_a_server_and_said_to_be_open() -> None:
    copied = {"run": "run_a", "episode": 2}
    arms: list[dict[str, Any]] = [
        {"label": "A"},
        {"label": "S", "policy": "static_matched", "static_set": copied},
    ]
    resolved = parse(tiny_spec(arms=[*arms, {**arms[1], "label": "T", "static_set": {**copied, "episode": 3}}]))
    problems, warnings = check(resolved)
    assert not problems
    assert sum("looked up by the server at submission" in warning for warning in warnings) == 2
    assert [arm.static_set for arm in resolved.arms] == [None, None, None]


def test_a_registered_default_outside_of_the_range_of_its_namesake_is_refused() -> None:
    schema = {"properties": {"death_pay": {"type": "number", "default": -3.0}}}
    registered = Registered({"harsh": {"env_kinds": ["morphogenesis"], "schema": schema}}, {})
    given = parse(tiny_spec(arms=[{"label": "a"}, {"label": "b", "reward": "harsh"}]))
    with pytest.raises(InvalidSpecError) as refused:
        complete(given, registered)
    assert "death_pay" in str([problem.pointer for problem in refused.value.problems])


def test_discount_may_be_written_with_the_task_and_is_stored_where_it_was() -> None:
    plain = tiny_spec(ppo={"gamma": 0.9})
    ppo = {name: value for name, value in plain["ppo"].items() if name != "gamma"}
    moved = {**plain, "ppo": ppo, "env": {**plain["env"], "gamma": 0.9}}
    assert parse(moved).hash == parse(plain).hash
    arms = [{"label": "a"}, {"label": "b", "overrides": {"env.gamma": 0.8}}]
    found = parse({**plain, "arms": arms})
    assert [discount_of(arm.config) for arm in found.arms] == [0.9, 0.8]
    assert [item.path for item in found.arms[1].diff] == ["ppo.gamma"]


def test_discount_written_twice_must_agree() -> None:
    plain = tiny_spec(ppo={"gamma": 0.9}, env={"gamma": 0.8})
    with pytest.raises(InvalidSpecError, match=r"env\.gamma and ppo\.gamma differ"):
        parse(plain)
    arms = [{"label": "a"}, {"label": "b", "overrides": {"env.gamma": 0.8, "ppo.gamma": 0.9}}]
    with pytest.raises(InvalidSpecError, match=r"env\.gamma and ppo\.gamma differ"):
        parse(tiny_spec(arms=arms))
    with pytest.raises(InvalidSpecError, match=r"env\.gamma must be at most 1, not 1\.5") as refused:
        parse(tiny_spec(env={"gamma": 1.5}))
    assert [problem.pointer for problem in refused.value.problems] == ["/env/gamma"]


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (
            cartpole_spec(budget={"rounds": 10}),
            "5,120 env steps a run, where settings such as those of preset gym_clas",
        ),
        (cartpole_spec(budget={"rounds": 60}), None),
        ({**spec_of("cifar_baseline"), "budget": {"rounds": 3}}, "3 rounds a run, where 100 are usual"),
        (spec_of("digits_cpu"), None),
        (cartpole_spec(budget={"rounds": 2}, experiment={"mode": "smoke", "replicates": 1}), None),
    ],
)
def test_a_budget_far_below_that_of_its_preset_is_named(raw: dict[str, Any], told: str | None) -> None:
    found = [text for text in check(parse(raw))[1] if text.startswith("budget.rounds: ")]
    assert [text.removeprefix("budget.rounds: ")[: len(told or "")] for text in found] == ([told] if told else [])


def test_misspelt_overrides_of_all_arms_are_told_at_once_with_what_was_meant() -> None:
    arms = [
        {"label": "A", "overrides": {"env.gama": 0.9, "env.proceses": 2}},
        {"label": "B", "overrides": {"ppo.clp": 0.1}},
        {"label": "C", "overrides": {"env.processes": 2, "env.kwargs.length": 3}},
    ]
    with pytest.raises(InvalidSpecError) as refused:
        parse(cartpole_spec(arms=arms))
    told = [(problem.pointer, problem.code, problem.remedy) for problem in refused.value.problems]
    assert told[:2] == [
        ("/arms/0/overrides/env.gama", "unknown_key", "did you mean 'env.gamma'?"),
        ("/arms/0/overrides/env.proceses", "unknown_key", "did you mean 'env.processes'?"),
    ]
    assert [code for _, code, _ in told[2:]] == ["unknown_key", "not_overridable", "not_overridable"]


def told_of(raw: dict[str, Any]) -> list[tuple[str, str]]:
    with pytest.raises(InvalidSpecError) as refused:
        parse(raw)
    return [(problem.pointer, problem.code) for problem in all_problems(raw, refused.value.problems)]


def test_faults_of_rules_are_told_beside_those_of_the_schema_without_what_follows_from_them() -> None:
    short = {"primary": "eval/accuracy", "sesoi": -2.0, "failure": {"floor": 0.0}}
    raw = tiny_spec(ppo={"lrr": 1e-3}, experiment={"replicates": 6}, analysis={**short, "inference": "full"})
    arms = [{"label": "A", "reward": "shapd"}, {"label": "B", "reward": "sparse", "overrides": {"ppo.minibatches": 9}}]
    told = told_of({**raw, "arms": arms})
    # not that 9 minibatches are too many: the section of theirs is not known
    assert sorted(told) == [("/analysis/sesoi", "E_SESOI"), ("/ppo/lrr", "unknown_key")]
    arms = [{"label": "A", "overrides": {"ppo.lrr": 1.0}}, {"label": "B"}]
    # not that the arms are the same
    assert sorted(told_of({**raw, "ppo": {"minibatches": 2}, "arms": arms})) == [
        ("/analysis/sesoi", "E_SESOI"),
        ("/arms/0/overrides/ppo.lrr", "unknown_key"),
    ]
    assert told_of({**raw, "env": {"n_envz": 2}, "ppo": {}}) == [("/env/n_envz", "unknown_key")]
