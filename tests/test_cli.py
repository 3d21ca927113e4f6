"""The ``lockstep`` command: every command for people against a real server, and how commands end."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from app.cli import admin, people, specs, text
from app.cli.watching import Board, beats
from app.services.experiments.reading import answer_of
from app.services.results.finishing import finish_due
from app.services.training.ingest import post_logs
from app.store.rows.records import Headline
from lockstep.client import Client
from lockstep.protocol import LogsRequest
from lockstep.report import build_report
from lockstep.spec.presets import PRESETS
from lockstep.spec.reference import fields, markdown
from lockstep.spec.resolve import parse
from lockstep.spec.rules import check
from lockstep.spec.tasks import TASKS
from lockstep.spec.template import template
from lockstep.spec.text.problems import InvalidSpecError
from lockstep.spec.text.reading import load_text
from tests.conftest import LiveServer
from tests.factories import SimulatedWorker, submit, tiny_spec
from tests.lockstep.report.factories import make_analysis, make_inputs

ROOT = Path(__file__).parents[1]


def binary(url: str, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the real command."""
    environment = {**os.environ, "LOCKSTEP_URL": url}
    command = [str(Path(sys.executable).parent / "lockstep"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment, **options)


class Command:
    """The command in this process, against one server."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._environment = {"LOCKSTEP_URL": url, "COLUMNS": "200"}

    def __call__(self, *arguments: str, code: int = 0, given: str | None = None) -> str:
        """Return what it prints."""
        result = CliRunner().invoke(people.app, list(arguments), env=self._environment, input=given)
        assert result.exit_code == code, f"{arguments}: {result.output} {result.stderr} {result.exception!r}"
        return result.stdout

    def json(self, *arguments: str) -> Any:
        """Return what it prints as data."""
        return json.loads(self(*arguments, "--json"))


@pytest.fixture
def lockstep(sqlite_server: LiveServer) -> Command:
    """The command."""
    return Command(sqlite_server.url)


@pytest.fixture
def finished(sqlite_server: LiveServer) -> str:
    """The id of an experiment that has ended and is reported."""
    experiment_id = submit(sqlite_server.ctx, tiny_spec(experiment={"replicates": 2}, budget={"rounds": 2}))
    worker = SimulatedWorker(sqlite_server.ctx).register()
    for _ in range(2):
        while worker.claim() is None:
            worker.beat("idle")
        lines = [{"seq": 1, "level": "debug", "text": "line 1"}, {"seq": 2, "level": "error", "text": "line 2"}]
        held, request = worker.held, LogsRequest.model_validate({"lines": lines})
        post_logs(sqlite_server.ctx, held.assignment_id, held.lease, request)
        worker.train(rounds=2)
    finish_due(sqlite_server.ctx)
    return experiment_id


def fail_two_replicates(worker: SimulatedWorker) -> None:
    for _ in range(2):
        while worker.claim() is None:
            worker.beat("idle")
        worker.ready()
        worker.release("error", "environment", "reward mode 'simplified' raised KeyError: 'speed'")


@pytest.mark.server
def test_a_retry_beside_replicates_that_succeeded_warns_of_changed_code(
    lockstep: Command, sqlite_server: LiveServer
) -> None:
    experiment_id = submit(sqlite_server.ctx, tiny_spec(budget={"rounds": 1}, experiment={"replicates": 3}))
    worker = SimulatedWorker(sqlite_server.ctx).register()
    assert worker.claim() is not None
    worker.train(rounds=1)
    fail_two_replicates(worker)
    assert lockstep("retry", experiment_id).splitlines()[1:] == [
        "warning: if code of yours has changed since replicates succeeded, the report will be invalid; "
        f"lockstep clone {experiment_id} trains all with one code"
    ]


@pytest.mark.server
def test_replicates_that_failed_run_again_on_request(lockstep: Command, sqlite_server: LiveServer) -> None:
    experiment_id = submit(sqlite_server.ctx, tiny_spec(experiment={"replicates": 2}))
    fail_two_replicates(SimulatedWorker(sqlite_server.ctx).register())
    shown = lockstep("show", experiment_id)
    assert "failed: replicates 0, 1, cause environment in the code of arm B: reward mode 'simplified' raised" in shown
    again = "once it is mended, and installed again unless it is editable (pip install -e)"
    assert f"{again}: lockstep retry {experiment_id}" in shown
    assert lockstep("retry", experiment_id) == (
        f"2 replicates are in the queue again; lockstep watch {experiment_id} follows\n"
    )
    assert lockstep.json("show", experiment_id)["causes"] == []


def test_a_specification_at_fault_is_cloned_with_a_correction_for_a_retry_trains_the_same() -> None:
    cause = {"status": "failed", "cause": "config", "replicates": [0], "arms": [], "run_id": None, "text": "env: no"}
    experiment = {"id": "exp_1", "causes": [cause], "progress": {"blocks_by_status": {"failed": 1}}}
    _, field, code = text.cause_lines(experiment)
    assert field.endswith("lockstep clone exp_1 --overrides FILE, or submit a corrected one")
    assert code.startswith("once code is mended, and installed again unless it is editable")
    experiment["causes"] = [{**cause, "cause": "oom"}]
    assert [*text.cause_lines(experiment)][1:] == ["once it is mended: lockstep retry exp_1"]


@pytest.mark.server
def test_what_is_submitted_can_be_listed_shown_steered_copied_and_extended(lockstep: Command, tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(tiny_spec(experiment={"name": "by file", "tags": ["mine"]})))
    path = str(tmp_path / "spec.yaml")
    plan = lockstep.json("plan", path)
    assert plan["num_runs"] == 2 * plan["num_blocks"]
    assert f"hash {plan['spec_hash']}" in lockstep("plan", path)
    first = lockstep.json("submit", path, "--key", "once")["id"]
    assert lockstep("submit", path, "--key", "once").startswith(first)
    second = lockstep("submit", "-", given=json.dumps(tiny_spec(experiment={"name": "by pipe"}))).split()[0]
    assert [item["id"] for item in lockstep.json("list")] == [second, first]
    assert [item["id"] for item in lockstep.json("list", "--tag", "mine")] == [first]
    assert lockstep("list", "--status", "failed") == "no experiment\n"
    assert lockstep.json("list", "--owner", "nobody") == []
    assert len(lockstep.json("list", "--limit", "1")) == 1
    assert "by pipe" in lockstep("list")
    assert lockstep.json("show", first)["name"] == "by file"
    assert "waits: no worker" in lockstep("show", first)
    with Client(lockstep.url) as client:
        run = client.runs(first)[0].id
    assert f"replicate 0: A {run} pending, B run_" in lockstep("show", first)
    assert "arm A: the base (reward.mode = shaped)" in lockstep("show", first)
    assert f"warning: an equal experiment, {first}, exists" in lockstep("submit", path)
    assert lockstep.json("pause", first, "--reason", "lunch")["desired"] == "pause"
    assert lockstep("pause", first) == f"{first} pauses at the end of its running rounds, as was asked for before\n"
    assert lockstep("resume", first) == f"{first} goes on\n"
    assert any("lunch" in line for line in lockstep("events", first).splitlines())
    assert lockstep.json("events", first, "--severity", "error") == []
    lockstep("events", first, "--severity", "loud", code=2)
    assert lockstep.json("clone", first)["name"] == "by file (copy)"
    (tmp_path / "over.yaml").write_text("budget: {rounds: 9}")
    copy = lockstep.json("clone", first, "--overrides", str(tmp_path / "over.yaml"))["id"]
    assert lockstep.json("compare", first, copy)["rows"] != []
    assert "budget.rounds" in lockstep("compare", first, copy)
    assert lockstep("extend", first, "1", "--exploratory") == "1 replicate added\n"
    lockstep("cancel", second, first, code=2)
    lockstep("cancel", second, "enough", "--reason", "enough", code=2)
    assert lockstep("cancel", second, "it is enough") == f"{second} stops for good\n"
    assert any("it is enough" in line for line in lockstep("events", second).splitlines())
    assert "shaped vs sparse" in lockstep("ab", "shaped-vs-sparse", "--dry-run")
    assert lockstep.json("ab", "shaped-vs-sparse", "--rounds", "1", "--envs", "4", "--sesoi", "1")["status"]


def test_a_folder_in_the_place_of_a_specification_is_told_with_the_file_to_name(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text("")
    told = CliRunner().invoke(people.app, ["submit", str(tmp_path)], env={"COLUMNS": "400"}).stderr
    assert f"{tmp_path} is a folder; name a file, for example {tmp_path / 'spec.yaml'}" in told


@pytest.mark.server
def test_events_leave_out_what_every_round_brings_and_say_how_many(lockstep: Command, finished: str) -> None:
    *shown, last = lockstep("events", finished).splitlines()
    every = lockstep("events", finished, "--all").splitlines()
    routine = [line for line in every if line not in shown]
    assert all(re.search(r"round \d of replicate \d: |checkpoint before round", line) for line in routine)
    assert len(routine) == 8
    assert last == f"8 routine events are not shown: lockstep events {finished} --all"
    assert len(lockstep.json("events", finished)) == len(every)


@pytest.mark.server
def test_what_has_ended_can_be_followed_read_and_saved(
    lockstep: Command, finished: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    *_, state, verdict, report = lockstep("watch", finished).splitlines()
    assert (state, report) == ("the experiment has succeeded", f"report: lockstep report {finished}")
    assert verdict.startswith("verdict: ")
    assert lockstep("show", finished).splitlines()[-2:] == [verdict, report]
    assert json.loads(lockstep("watch", finished, "--json").splitlines()[-1])["type"] == "end"
    assert "written to" in lockstep("export", finished)
    assert json.loads((tmp_path / f"{finished}.json").read_text())["facts"]["experiment_id"] == finished
    lockstep("export", finished, "--format", "sqlite", "--output", "all.db")
    assert (tmp_path / "all.db").read_bytes().startswith(b"SQLite format 3")
    lockstep("report", finished, "--format", "json", "--output", "report.json")
    lockstep("report", finished, "--format", "csv", "--output", "scores.csv")
    lockstep("report", finished, "--output", "report.HTML")
    assert (tmp_path / "report.HTML").read_text().startswith("<!doctype html>")
    lockstep("export", finished, "--output", "all.sqlite")
    assert (tmp_path / "all.sqlite").read_bytes().startswith(b"SQLite format 3")
    for command in ("report", "export"):  # what the two say differs
        lockstep(command, finished, "--format", "json", "--output", "scores.csv", code=2)
    assert "# " in lockstep("report", finished)
    run = lockstep.json("show", finished)["id"]
    assert run == finished
    rows = lockstep.json("calibrate", "--repetitions", "50")["rows"]
    assert rows


def test_the_flags_of_a_verdict_stand_below_it_with_their_meaning() -> None:
    analysis = make_analysis(6, failure={"floor": 70.0})
    report = build_report(
        make_inputs({"a": [61.0 + r for r in range(6)], "b": [50.0 + r * r / 5 for r in range(6)]}, analysis)
    )
    answer = answer_of(Headline("exp_1", **{name: report[name] for name in ("verdict", "registration", "comparisons")}))
    lines = [*text.answer_lines({"id": "exp_1", "answer": answer})]
    assert lines[0].startswith("verdict: WINNER_MEANINGFUL: `a` beats")
    assert lines[1].startswith("  FLOOR_ABOVE_SCORE: a successful run scored worse than the registered failure score")
    assert len(lines) == 3


@pytest.mark.server
def test_workers_are_listed_drained_and_cleared_and_the_queue_is_shown(
    lockstep: Command, sqlite_server: LiveServer
) -> None:
    assert lockstep("workers", "list") == "no worker: lockstep worker starts one\n"
    assert lockstep("queue") == "nothing waits\n"
    experiment_id = submit(sqlite_server.ctx, tiny_spec(experiment={"replicates": 3}))
    assert lockstep("queue").startswith(f"{experiment_id}  tiny: replicates 0 to 2; ")
    assert lockstep("queue", "pause").splitlines()[0] == "the queue is paused: lockstep queue resume"
    assert lockstep.json("queue", "resume")["paused"] is False
    lockstep("queue", "stop", code=2)
    worker = SimulatedWorker(sqlite_server.ctx).register()
    [shown] = lockstep.json("workers", "list")
    assert shown["name"] in lockstep("workers", "list")
    assert {"workers", "running", "queue"} == set(lockstep.json("top"))
    assert "waiting" in lockstep("top", "--once").splitlines()
    assert "drains" in lockstep("workers", "drain", shown["name"]) or lockstep.json("workers", "list", "--retired")
    lockstep("workers", "clear", shown["id"], code=1)
    del worker


@pytest.mark.server
def test_webhooks_are_added_listed_and_removed_and_the_record_of_acts_tells_it(
    lockstep: Command, sqlite_server: LiveServer
) -> None:
    experiment_id = submit(sqlite_server.ctx)
    hook, secret = lockstep("webhooks", "add", "http://127.0.0.1:9/", "--event", "verdict", "--owner", "alice").split()
    assert secret.startswith("whs_")
    assert lockstep("webhooks", "list") == f"{hook}  http://127.0.0.1:9/  verdict  failures 0  owner alice\n"
    assert lockstep("webhooks", "deliveries", hook) == ""
    assert lockstep.json("webhooks", "deliveries", hook) == []
    assert secret not in json.dumps(lockstep.json("webhooks", "list"))
    lockstep("webhooks", "add", "chat.example/hook", code=1)
    lockstep("webhooks", "add", "http://chat.example", "--event", "party", code=1)
    assert lockstep("webhooks", "remove", hook) == "removed\n"
    lockstep("webhooks", "remove", hook, code=1)
    told = [line.split() for line in lockstep("audit").splitlines()]
    assert [words[3] for words in told] == ["webhook.remove", "webhook.add", "experiment.submit"]
    [act] = lockstep.json("audit", "--target", experiment_id, "--actor", "alice")
    assert (act["action"], act["target"]) == ("experiment.submit", experiment_id)


def test_tokens_are_listed_with_owner_end_and_last_use(sqlite_template: Path, tmp_path: Path) -> None:
    (tmp_path / "lockstep.db").write_bytes(sqlite_template.read_bytes())
    environment = {"LOCKSTEP_DATABASE_URL": f"sqlite:///{tmp_path / 'lockstep.db'}", "LOCKSTEP_DATA_DIR": str(tmp_path)}

    def token(*arguments: str, code: int = 0) -> str:
        result = CliRunner().invoke(admin.app, ["token", *arguments], env=environment)
        assert result.exit_code == code, result.output + result.stderr
        return result.stdout if code == 0 else result.stderr

    assert token("create", "--name", "mia", "--days", "1").startswith("lsk_")
    first = json.loads(token("list", "--json"))[0]["id"]
    token("create", "--name", "mia's laptop", "--role", "viewer", "--like", first)
    lines = token("list").splitlines()
    laptop = next(line for line in lines if "laptop" in line)
    assert "viewer     valid    never expires" in laptop
    assert laptop.endswith(f"never used             mia's laptop  owner {first}")
    assert any("submitter  valid    expires 20" in line and line.endswith("mia") for line in lines)
    assert token("revoke", first) == "revoked\n"
    assert any("revoked" in line for line in token("list").splitlines())
    assert token("revoke", first, code=1).startswith("error: no valid token")
    assert token("create", "--name", "x", "--like", "tok_none", code=1).startswith("error: --like: no token tok_none")


@pytest.mark.server
def test_logs_are_printed_and_followed_to_the_end_of_the_run(
    lockstep: Command, sqlite_server: LiveServer, finished: str
) -> None:
    with Client(sqlite_server.url) as client:
        run = client.runs(finished)[0]
    assert lockstep("logs", run["id"]) == "line 1\nline 2\n"
    assert lockstep("logs", run["id"], "--follow", "--level", "error") == "line 2\n"
    assert json.loads(lockstep("logs", run["id"], "--json").splitlines()[0])["text"] == "line 1"


@pytest.mark.server
def test_the_binary_says_no_in_one_sentence_and_tells_it_by_its_code(sqlite_server: LiveServer, tmp_path: Path) -> None:
    unknown = binary(sqlite_server.url, "show", "exp_nothing")
    assert (unknown.returncode, unknown.stdout) == (1, "")
    assert unknown.stderr.startswith("refused: ")
    away = binary("http://127.0.0.1:9", "list")
    assert f"start one with `{Path(sys.executable).parent / 'lockstep'} serve`" in away.stderr  # as it was called
    assert away.returncode == 3
    assert "lockstep serve" in away.stderr
    unwritable = binary(sqlite_server.url, "spec", "init", "--output", str(tmp_path / "no" / "spec.yaml"))
    assert unwritable.returncode == 2
    for ended in (unknown, away, unwritable):
        assert "Traceback" not in ended.stderr
        assert len(ended.stderr.splitlines()) == 1


def test_version_and_help_of_everything_come_without_a_server() -> None:
    assert binary("http://127.0.0.1:9", "--version").stdout.startswith("lockstep ")
    told = binary("http://127.0.0.1:9", "--help").stdout
    assert "Exit codes" in told
    for name in ("submit", "watch", "export", "logs", "events", "workers", "queue", "compare", "top", "spec", "doctor"):
        assert name in told


def test_help_loads_neither_client_nor_specifications_nor_statistics() -> None:
    heavy = "{'scipy', 'torch', 'fastapi', 'numpy', 'httpx', 'pydantic', 'yaml', 'asyncio', 'rich.live', 'rich.table'}"
    code = f"import sys; from app.cli import people; print(sorted({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.server
def test_on_a_terminal_a_table_is_drawn(sqlite_server: LiveServer, finished: str) -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "LOCKSTEP_URL": sqlite_server.url, "TERM": "xterm", "COLUMNS": "120"}
    command = [sys.executable, "-m", "app.cli", "watch", finished]
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        seen = b"".join(_read(ours))
    assert process.returncode == 0
    assert "replicate" in seen.decode()
    assert "B - A" in seen.decode()


def _read(descriptor: int) -> Iterator[bytes]:
    while True:
        try:
            chunk = os.read(descriptor, 65536)
        except OSError:  # the other end is closed
            os.close(descriptor)
            return
        yield chunk


def experiment(**changes: Any) -> dict[str, Any]:
    document = {
        "id": "exp_1",
        "name": "two",
        "status": "running",
        "rounds": 10,
        "arms": [{"label": "a"}, {"label": "b"}],
        "progress": {"blocks": 2},
        "shown": {"field": "native_return", "label": "native return", "unit": ""},
        "why_waiting": None,
    }
    return {**document, **changes}


def round_of(block: str, index: int) -> dict[str, Any]:
    arms = [{"group_id": name, "native_return": value, "reward": 1.0} for name, value in (("a", 1.5), ("b", 4.0))]
    rounds = [{"block_id": block, "replicate": 0, "round": index, "comparison": {"arms": arms}}]
    return {"type": "delta", "rounds": rounds}


def test_board_tells_the_time_left_from_the_rate_and_why_it_waits() -> None:
    now = [0.0]
    board = Board(experiment(), lambda: now[0])
    named = enumerate(("x", "y"))
    blocks = [{"id": name, "replicate": n, "status": "running", "complete_rounds": 0} for n, name in named]
    assert list(board.lines({"type": "snapshot", "blocks": blocks, "comparisons": {}})) == []
    [line] = board.lines(round_of("x", 0))
    assert line.endswith(
        "replicate 0, round 1/10  a: native return 1.50, reward 1.00 | b: native return 4.00, reward 1.00"
    )
    now[0] = 1.0
    assert list(board.lines(round_of("x", 1))) == []  # a line every other second, whatever their number
    now[0] = 60.0
    [line] = board.lines(round_of("x", 2))
    assert "replicate 0, round 3/10" in line
    assert [column.header for column in board.table().columns][-1] == "b - a"
    assert board.waiting(experiment()) == "[###.................]  15 %  running, about 8 min left"
    waits = experiment(status="queued", why_waiting={"text": "no worker is registered"})
    assert board.waiting(waits).endswith("queued; waits: no worker is registered")
    far = {"text": "evaluating replicate 0: 37 of 200 episodes are over after 400 of at most 1,000 steps"}
    assert board.waiting(experiment(evaluating=far)).endswith(f"running; {far['text']}")
    assert far["text"] in str(board.table().caption)
    now[0] = 61.0
    list(board.lines(round_of("x", 2)))
    assert str(board.table().caption) == "running", "a round has come since"
    diverged = {
        "type": "run_status",
        "status": "failed",
        "cause": "diverged",
        "replicate": 1,
        "group_id": "b",
        "text": "NaN",
    }
    assert list(board.lines({"type": "status", "event": diverged})) == ["NaN"]
    assert board.table().row_count == 2
    # a replicate that is tried again stands once, with its newest block
    now[0] = 90.0
    [line] = board.lines(round_of("x again", 0))
    assert "replicate 0, round 1/10" in line
    assert board.table().row_count == 2
    assert "  5 %" in board.waiting(experiment())


def test_beats_come_while_no_frame_does_and_errors_go_on() -> None:
    def frames() -> Iterator[dict[str, Any]]:
        yield {"type": "snapshot"}
        raise ValueError("away")

    found = beats(frames(), 5.0)
    assert next(found) == {"type": "snapshot"}
    with pytest.raises(ValueError, match="away"):
        next(found)


def test_durations_are_told_in_the_units_that_matter() -> None:
    told = [text.duration(seconds) for seconds in (3.2, 89, 200, 7_500, 200_000)]
    assert told == ["3 s", "89 s", "3 min", "2 h 5 min", "2 d 7 h"]


@pytest.mark.parametrize(
    ("typed", "offered"), [("lockstep su", "submit"), ("lockstep list --st", "--status"), ("lockstep en", "env")]
)
def test_bash_completes_commands_and_options(typed: str, offered: str) -> None:
    program = shutil.which("lockstep", path=str(Path(sys.executable).parent))
    assert program is not None
    script = f'eval "$({program} --show-completion bash)"; COMP_WORDS=({typed}); COMP_CWORD={len(typed.split()) - 1}'
    command = ["bash", "-c", f'{script}; _lockstep_completion {program}; echo "${{COMPREPLY[@]}}"']
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() == [offered]


@pytest.mark.parametrize(
    ("program", "words", "told"),
    [
        (people.app, "list --limit abc", "use a whole number from 1 to 200, not 'abc'"),
        (people.app, "extend exp_aaaa soon", "use a whole number from 1 to 1000, not 'soon'"),
        (people.app, "ab shaped-vs-sparse --sesoi nan", "use a number from 0.001 to 100.0, not 'nan'"),
        (people.app, "ab shaped", "name two or more different reward modes"),
        (people.app, "ab shaped-vs-shaped", "name two or more different reward modes"),
        (people.app, "show ../queue", "use an id that begins with exp_, not '../queue'"),
        (people.app, "watch ''", "use an id that begins with exp_, not ''"),
        (people.app, "logs exp_aaaa", "use an id that begins with run_, not 'exp_aaaa'"),
        (admin.app, "token create --name x --days nan", "use a number from 0.001 to 3650.0, not 'nan'"),
        (admin.app, "token create --name x --days -1", "use a number from 0.001 to 3650.0, not '-1'"),
        (admin.app, "serve --port x", "use a whole number from 0 to 65535, not 'x'"),
    ],
)
def test_numbers_and_ids_that_cannot_be_are_wrong_calls(program: Any, words: str, told: str) -> None:
    result = CliRunner().invoke(program, shlex.split(words), env={"COLUMNS": "200"})
    assert (result.exit_code, told in result.stderr) == (2, True), result.output


def test_every_number_of_the_command_line_has_its_range() -> None:
    pattern = re.compile(r"Annotated\[\s*(?:int|float)\b[^=]*?typer\.(?:Option|Argument)\((?!parser=within)")
    assert [path.name for path in (ROOT / "app/cli").glob("*.py") if pattern.search(path.read_text())] == []


def spec_command(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(specs.app, list(arguments))
    assert result.exit_code == code, result.output + result.stderr
    return result.stdout if code == 0 else result.stderr


@pytest.mark.parametrize(
    "given",
    [
        {},
        *({"preset": name} for name in PRESETS),
        *({"task": name} for name in TASKS),
        *({"env_id": name} for name in ("Acrobot-v1", "ALE/Pong-v5", "123", "a: #b", "off", "\u00e9")),
    ],
    ids=str,
)
def test_every_template_is_accepted_as_it_stands(given: dict[str, str]) -> None:
    resolved = parse(load_text(template(**given)))
    problems, _ = check(resolved)
    assert problems == []
    assert resolved.spec.env.id == given.get("env_id", resolved.spec.env.id)


@pytest.mark.parametrize(
    ("env_id", "preset", "floor", "sesoi", "is_known"),
    [
        ("ALE/Pong-v5", "gym_atari", 0.0, 2.0, False),
        ("CartPole-v1", "gym_classic", 0.0, 25.0, True),
        ("MinAtar/Asterix-v1", "gym_image_small", 0.0, 1.0, True),
        ("MountainCarContinuous-v0", "gym_continuous", -100.0, 5.0, True),
        ("Pendulum-v1", "gym_continuous", -3300.0, 20.0, True),
        ("mine-v0", "gym_classic", 0.0, 2.0, False),
    ],
)
def test_template_builds_on_the_preset_and_the_returns_of_its_task(
    env_id: str, preset: str, floor: float, sesoi: float, is_known: bool
) -> None:
    text = template(env_id=env_id)
    written = load_text(text)
    assert (written["preset"], written["analysis"]["failure"]) == (preset, {"floor": floor})
    assert written["analysis"]["sesoi"] == sesoi
    for chosen in ("no return of this task may be lower", "the smallest difference worth acting on"):
        assert (f"CHOOSE it: {chosen}" in text) != is_known
    told = f"  # `lockstep env check {env_id}` measures random actions and prints both, ready to paste\n"
    assert (told in text) != is_known


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"preset": "gym_classic", "task": "digits_small"}, "preset gym_classic is for env.kind gymnasium"),
        ({"preset": "digits_cpu", "env_id": "CartPole-v1"}, "preset digits_cpu is for env.kind morphogenesis"),
        ({"preset": "cifar_scale", "task": "digits_tiny"}, "env.val_images 2000 exceeds"),
        ({"env_id": " "}, "env.id: it is blank"),
    ],
)
def test_template_refuses_what_does_not_fit_together(given: dict[str, str], told: str) -> None:
    with pytest.raises(InvalidSpecError, match=told):
        template(**given)


def test_template_refuses_what_it_does_not_know_and_never_overwrites(tmp_path: Path) -> None:
    result = CliRunner().invoke(specs.app, ["init", "--preset", "digits_cpuu"])
    assert "digits_cpu" in str(result.exception)
    target = tmp_path / "spec.yaml"
    assert spec_command("init", "--env", "CartPole-v1", "--output", str(target)).splitlines() == [
        f"written to {target}; next: lockstep spec check {target}",
        f"and with a server, which `lockstep serve` starts: lockstep plan {target}",
    ]
    before = target.read_text()
    needless, needy = before.splitlines()[:2]
    assert needless.endswith("`lockstep spec check FILE` needs no server.")
    assert needy.startswith("# With one (`lockstep serve`) `lockstep plan FILE` says ")
    assert "File exists" in spec_command("init", "--output", str(target), code=2)
    assert target.read_text() == before


def test_init_warns_of_an_environment_that_nothing_here_has() -> None:
    result = CliRunner().invoke(specs.app, ["init", "--env", "CartPol-v1"])
    told = "warning: --env CartPol-v1: no package that is installed here has it, did you mean 'CartPole-v1'?\n"
    assert (result.exit_code, result.stderr) == (0, told)
    assert "id: CartPol-v1" in result.stdout
    assert CliRunner().invoke(specs.app, ["init", "--env", "CartPole"]).stderr == ""


def test_spec_commands_explain_fields_presets_and_metrics() -> None:
    assert "number > 0; default 0.0003" in spec_command("explain", "ppo.lr")
    assert "analysis.sesoi" in spec_command("explain", "sesoi")
    assert len(json.loads(spec_command("explain", "lockstep", "--json"))) > 3
    assert "did you mean 'ppo.lr'" in spec_command("explain", "ppo.lrr", code=1)
    assert "digits_cpu" in spec_command("presets")
    assert load_text(spec_command("presets", "digits_cpu")) == PRESETS["digits_cpu"]
    assert set(json.loads(spec_command("presets", "--json"))) == set(PRESETS)
    assert "digits_cpu" in spec_command("presets", "digits_cp", code=1)
    assert "eval/native_return_mean" in spec_command("metrics")
    ours = spec_command("metrics", "--kind", "gymnasium")
    assert "eval/native_return_mean" in ours
    assert "accuracy" not in ours
    assert json.loads(spec_command("metrics", "--json"))[0]["name"].startswith("eval/")
    assert "properties" in json.loads(spec_command("schema"))


def test_every_field_is_described_and_the_reference_is_current() -> None:
    assert [field.path for field in fields() if not field.description] == []
    assert (ROOT / "docs" / "reference.md").read_text() == markdown(), "lockstep spec reference > docs/reference.md"


def test_the_reference_tells_of_general_fields_first_and_of_each_once() -> None:
    general, heading, special = markdown().partition("\n## Fields of morphogenesis\n")
    assert heading
    first, second = ([f.path for f in fields() if f"\n| `{f.path}` |" in page] for page in (general, special))
    assert sorted(first + second) == sorted(field.path for field in fields())
    assert {"env.id", "reward.mode", "arms[].policy", "telemetry.level"} <= {*first}
    assert {"env.task", "reward.pbrs_weight", "host.lr", "engine.path"} <= {*second}
    assert general.index("\n### experiment\n") < general.index("\n### ppo\n")
