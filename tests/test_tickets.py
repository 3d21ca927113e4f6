"""Rows of the ticket table that are properties of the source, of a command or of a sentence (docs/tickets.md)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from app.cli.people import app, with_alias
from app.services.context import Context
from app.services.training.comparison import compare_runs, log_line
from app.store import experiments
from lockstep.spec.metrics import shown_of
from lockstep.spec.resolve import parse
from tests.factories import submit, tiny_spec

ROOT = Path(__file__).parents[1]
HOT = [*(ROOT / "worker/rl").glob("*.py"), *(ROOT / "worker/train").glob("*.py"), *(ROOT / "worker/envs").rglob("*.py")]
PACKAGE = [*(ROOT / "worker").rglob("*.py"), *(ROOT / "app").rglob("*.py")]
LOOP = [*(ROOT / "worker/rl").glob("*.py"), *(ROOT / "worker/train").glob("*.py"), *(ROOT / "worker/envs").glob("*.py")]
LOOP += [ROOT / "worker/envs/morph/episode/controls.py", ROOT / "worker/envs/morph/episode/env.py"]
#: The update and the loop over a block may be this long, any other function half of it.
LONGEST = {"prepare": 80, "update": 80, "_round": 80}
#: Names with an underscore that the library itself offers.
OFFERED = ("_foreach_norm", "_foreach_copy_", "_foreach_add_", "_parameters", "_buffers")
#: Optional CUDA parts, loaded once per block or capture where they are wanted.
OPTIONAL = ("worker.envs.morph.engine.captured", "worker.envs.morph")


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def functions(path: Path) -> Iterator[ast.FunctionDef]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef):
            yield node


@pytest.mark.parametrize("words", ["GradScaler", "grad_scaler", "tqdm", "in locals()", "gradient_ratio", "grad_ratio"])
def test_package_never_names_what_the_tickets_banned(words: str) -> None:
    assert [named(path) for path in PACKAGE if words in path.read_text()] == []


def test_hot_modules_import_at_their_top_only() -> None:
    inner = [
        f"{named(path)}:{node.lineno}"
        for path in HOT
        for function in functions(path)
        for node in ast.walk(function)
        if isinstance(node, ast.Import) or (isinstance(node, ast.ImportFrom) and node.module not in OPTIONAL)
    ]
    assert inner == []


def test_a_name_says_compiled_only_where_something_is_compiled() -> None:
    named_so = {named(path) for path in HOT if re.search(r"\b_?compiled_?\w*\b\s*[:=(]", path.read_text())}
    compiling = {named(path) for path in HOT if "torch.compile" in path.read_text()}
    assert named_so <= compiling


def test_no_object_reads_the_private_fields_of_another() -> None:
    found = []
    for path in HOT:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Attribute) or not re.fullmatch(r"_[a-z]\w*", node.attr):
                continue
            owner = node.value.id if isinstance(node.value, ast.Name) else ""
            if owner not in ("self", "cls") and node.attr not in OFFERED:
                found.append(f"{named(path)}:{node.lineno} {ast.unparse(node)}")
    assert found == []


def test_every_field_of_a_record_is_read_somewhere() -> None:
    text = "\n".join(path.read_text() for path in [*PACKAGE, *(ROOT / "benchmarks").glob("*.py")])
    unread = []
    for path in LOOP:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and any("dataclass" in ast.unparse(d) for d in node.decorator_list):
                fields = [
                    n.target.id for n in node.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)
                ]
                unread += [f"{node.name}.{f}" for f in fields if not re.search(rf"\.{f}\b|\"{f}\"|getattr", text)]
    assert unread == []


def test_training_loop_stays_in_small_files_and_functions() -> None:
    long_files = {named(path): n for path in LOOP if (n := len(path.read_text().splitlines())) > 400}
    assert long_files == {}
    long = {
        f"{named(path)}:{f.name}": length
        for path in LOOP
        for f in functions(path)
        if (length := _body_lines(f)) > LONGEST.get(f.name, 40)
    }
    assert long == {}


def _body_lines(function: ast.FunctionDef) -> int:
    first = function.body[1] if ast.get_docstring(function) and len(function.body) > 1 else function.body[0]
    return (function.end_lineno or first.lineno) - first.lineno + 1


@pytest.mark.parametrize("pair", ["shaped-vs-simplified", "shaped-vs-sparse", "simplified-vs-sparse"])
@pytest.mark.parametrize("form", ["ab {}", "--dual-ab {}", "--dual-ab={}"])
def test_dual_ab_and_ab_give_the_same_spec_of_each_pair(pair: str, form: str) -> None:
    arguments = with_alias([*form.format(pair).split(), "--envs", "4", "--rounds", "9", "--dry-run"])
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    resolved = parse(yaml.safe_load(result.output))
    assert [arm.reward_mode for arm in resolved.arms] == pair.split("-vs-")
    assert (resolved.spec.env.n_envs, resolved.spec.budget.rounds) == (4, 9)


def test_other_arguments_are_left_alone() -> None:
    assert with_alias([]) == []
    assert with_alias(["show", "--dual-ab"]) == ["show", "--dual-ab"]


def test_comparison_before_the_first_episode_says_no_data_and_later_names_arm_and_reward(ctx: Context) -> None:
    experiment_id = submit(ctx, tiny_spec())
    with ctx.store.read() as session:
        found = compare_runs(session, experiments.runs(session, experiment_id), 0)
    accuracy, native = shown_of("eval/accuracy"), shown_of("eval/native_return_mean")
    assert (
        log_line(found, accuracy)
        == "A (shaped): Acc=no data, Reward=no data; B (simplified): Acc=no data, Reward=no data"
    )
    assert found["differences"] == [{"arm": "B", "against": "A", "accuracy": None, "native_return": None}]
    arm = {"group_id": "A", "reward_mode": "shaped", "accuracy": 61.25, "reward": 3.456}
    assert log_line({"arms": [arm]}, accuracy) == "A (shaped): Acc=61.2 %, Reward=3.46"
    arm = {"group_id": "A", "reward_mode": "native", "accuracy": None, "native_return": 21.0, "reward": 3.456}
    assert log_line({"arms": [arm]}, native) == "A (native): Native return=21.00, Reward=3.46"


def test_every_test_that_the_ticket_table_names_exists() -> None:
    table = (ROOT / "docs/tickets.md").read_text()
    cited = re.findall(r"`((?:tests|benchmarks)/[\w/]+\.py)(?:::(\w+))?`", table)
    assert len(cited) > 50
    missing = [(path, name) for path, name in cited if not _holds(ROOT / path, name)]
    assert missing == []


def _holds(path: Path, name: str) -> bool:
    return path.exists() and (not name or f"def {name}(" in path.read_text())


#: "training.md 2.4", "environment.md 2 and 5.1": a file of the specification and sections of it.
NUMBER = r"\d+(?:\.\d+)*"
FILES = "tasks|training|environment|statistics|performance|control-plane"
CITATION = re.compile(rf"\b({FILES})\.md(?:,? sections?)? ({NUMBER})((?:(?:,| and| to) {NUMBER})*)")


def cited(text: str) -> set[str]:
    numbers = [(file, [first, *re.findall(NUMBER, rest)]) for file, first, rest in CITATION.findall(text)]
    return {f"{file}.md {number}" for file, sections in numbers for number in sections}


def test_every_cited_section_of_the_specification_is_listed() -> None:
    listed = cited((ROOT / "docs/specification.md").read_text())
    roots = [ROOT / name for name in ("app", "worker", "tests", "benchmarks", "docs", "examples")]
    files = [path for root in roots for path in root.rglob("*") if path.suffix in {".py", ".md", ".yaml"}]
    assert sorted(set().union(*(cited(path.read_text()) for path in files)) - listed) == []
