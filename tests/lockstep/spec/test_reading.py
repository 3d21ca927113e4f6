"""Numbers, words and keys of specifications as text: YAML 1.2's core schema, and JSON read as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from lockstep.spec.resolve import parse
from lockstep.spec.text.problems import InvalidSpecError, Problem
from lockstep.spec.text.reading import load_bytes, load_file, load_json, load_text
from tests.factories import tiny_spec


def problem_of(text: str, *, as_json: bool = False) -> Problem:
    with pytest.raises(InvalidSpecError) as refused:
        (load_json if as_json else load_text)(text)
    (problem,) = refused.value.problems
    assert "\n" not in problem.message
    return problem


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3e-4", 3e-4),
        ("1e5", 1e5),
        ("1E+5", 1e5),
        ("-.5e-3", -5e-4),
        ("1.", 1.0),
        ("1.0e-05", 1e-5),
        ("12", 12),
        ("+12", 12),
        ("0o17", 15),
        ("0xFF", 255),
        ("017", 17),
        ("yes", "yes"),
        ("no", "no"),
        ("on", "on"),
        ("Off", "Off"),
        ("true", True),
        ("FALSE", False),
        ("~", None),
        ("null", None),
        ("", None),
        ("1_000", "1_000"),
        ("1:30", "1:30"),
        ("2026-01-01", "2026-01-01"),
        ("0b1", "0b1"),
        ("'3e-4'", "3e-4"),
        ("!!float 3", 3.0),
        ("!!str 3", "3"),
    ],
)
def test_a_plain_yaml_scalar_is_read_as_yaml_1_2_reads_it(text: str, value: Any) -> None:
    found = load_text(f"a: {text}")["a"]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("number", [1e-5, 3e-4, 1e22, 5e-324, 12, 0.5])
def test_a_number_that_python_prints_arrives_from_yaml_and_json(number: float) -> None:
    for text in (json.dumps({"a": number}), json.dumps({"a": number}, indent=2), f"a: {number!r}", f'"a": {number}'):
        assert load_text(text) == {"a": number}
    assert load_text(yaml.safe_dump({"a": number})) == {"a": number}


def test_json_is_read_as_json_where_yaml_would_read_something_else() -> None:
    text = '{"a": "\\ud83d\\ude00",\t"b": [1e-5, "yes", null, true]}'
    expected = {"a": "\N{GRINNING FACE}", "b": [1e-5, "yes", None, True]}
    assert load_text(text) == expected
    assert load_text("\n " + text) == expected
    assert load_bytes(b"\xef\xbb\xbf" + text.encode(), as_json=True) == expected


def test_a_mapping_in_braces_that_is_no_json_is_yaml() -> None:
    assert load_text("{a: 1e-5, b: 'x'}") == {"a": 1e-5, "b": "x"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\nppo:\n  lr: 1e-5\n  clip: 0.2\n  lr: 2e-5\n", ["'lr'", "line 5"]),
        ("a: 1\n'a': 2\n", ["'a'", "line 2"]),
        ("1: x\n'1': y\n", ["'1'", "line 2"]),
        ("arms: [{label: a, label: b}]", ["'label'", "line 1"]),
        ('{"ppo": {"lr": 1, "lr": 2}}', ["'lr'"]),
    ],
)
def test_a_key_given_twice_is_refused_by_name_and_place(text: str, words: list[str]) -> None:
    problem = problem_of(text)
    assert problem.code == "duplicate_key"
    assert all(word in problem.message for word in words), problem
    assert problem.remedy


def test_habits_of_yaml_that_are_refused_are_told_with_what_to_write() -> None:
    assert problem_of("a:\n\tb: 1").remedy == "indent with spaces, not with tabs"
    merged = problem_of("a: {<<: {b: 1}}")
    assert (merged.message, merged.remedy) == (
        "YAML merge keys (<<) are not allowed in line 1, column 5",
        "write the values out",
    )
    assert load_text('"<<": 1') == {"<<": 1}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [1\nb: 2\n", ["not valid YAML", "line 2"]),
        ("a: \x07", ["not valid YAML"]),
        ("a: !!int x", ["'x'", "line 1"]),
        ("a: !!timestamp 2026-01-01", ["timestamp", "line 1"]),
        ("a: !!binary aGk=", ["binary"]),
        ("!!python/name:os.system a: 1", ["python/name"]),
        ("a: 1\nb: .inf", ["'.inf'", "line 2", "finite"]),
        ("a: 1e999", ["'1e999'", "finite"]),
        ("? [1]\n: 2", ["key", "line 1"]),
        ("a: " + "1" * 5000, ["too long"]),
        ("- 1", ["mapping"]),
        ("", ["mapping"]),
        ("a: 1\n---\nb: 2\n", ["document"]),
    ],
)
def test_yaml_that_cannot_be_read_is_refused_in_one_sentence(text: str, words: list[str]) -> None:
    problem = problem_of(text)
    assert problem.code == "malformed"
    assert all(word in problem.message for word in words), problem


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1", ["not valid JSON", "line 1"]),
        ('{"a": 1,}', ["not valid JSON", "line 1"]),
        ('{"a": NaN}', ["NaN"]),
        ('{"a": -1e999}', ["-1e999", "finite"]),
        ('{"a": ' + "1" * 5000 + "}", ["too long"]),
        ("[1]", ["mapping"]),
    ],
)
def test_json_that_cannot_be_read_is_refused_in_one_sentence(text: str, words: list[str]) -> None:
    problem = problem_of(text, as_json=True)
    assert problem.code == "malformed"
    assert all(word in problem.message for word in words), problem


@pytest.mark.parametrize("number", ["-1e999", ".inf", ".nan", "1" * 301, "NaN", "Infinity"])
def test_a_number_that_cannot_be_used_is_refused_by_its_field(number: str) -> None:
    as_json = not number.startswith(".")
    text = f'{{"a": [1, {{"b/c": {number}}}]}}'
    assert problem_of(text, as_json=as_json).pointer == "/a/1/b~1c"
    if as_json and number[-1].isdecimal():
        assert problem_of(f"a: [1, {{b/c: {number}}}]").pointer == "/a/1/b~1c"


@pytest.mark.parametrize("levels", [30, 900, 200_000])
def test_nesting_bombs_are_refused(levels: int) -> None:
    assert problem_of('{"a": ' + "[" * levels + "]" * levels + "}").code == "too_deep"
    assert problem_of("a: " + "[" * levels).code == "too_deep"


def test_a_file_is_read_by_its_suffix_and_must_be_utf_8(tmp_path: Path) -> None:
    raw = tiny_spec(ppo={"lr": 1e-5, "adam_eps": 1e-05})
    (tmp_path / "a.json").write_text(json.dumps(raw))
    (tmp_path / "a.yaml").write_text(json.dumps(raw))
    assert parse(load_file(tmp_path / "a.json")).hash == parse(load_file(tmp_path / "a.yaml")).hash == parse(raw).hash
    (tmp_path / "b.json").write_text("experiment: {name: x}")
    with pytest.raises(InvalidSpecError, match="not valid JSON"):
        load_file(tmp_path / "b.json")
    (tmp_path / "c.yaml").write_bytes(b"a: \xff")
    with pytest.raises(InvalidSpecError, match="UTF-8"):
        load_file(tmp_path / "c.yaml")
