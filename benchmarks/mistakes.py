"""Thirty mistakes of a new user against a real server and two real workers: what each is told.

    python -m benchmarks.mistakes                  (all; writes docs/results/mistakes.md)
    python -m benchmarks.mistakes --only "wrong id" --only "NaN observation"      (--out PAGE: renews their lines)

Every mistake is made as a person makes it: `lockstep submit FILE`, then `lockstep watch`. An innocent experiment is
trained beside them. Exits 1 unless each ends as it must and is told so, the innocent one succeeds, and both
workers are idle and healthy in the end.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.served import Service, end_after, parser, service
from lockstep.client import ApiError, Client
from lockstep.spec.presets import merge

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/results/mistakes.md"
BASE: dict[str, Any] = {
    "experiment": {"name": "mistake", "replicates": 1},
    "preset": "gym_classic",
    "budget": {"rounds": 2},
    "env": {"kind": "gymnasium", "id": "CartPole-v1", "n_envs": 1, "rollout_steps": 64},
    "ppo": {"minibatches": 2},
    "eval": {"episodes": 2, "every_rounds": 2},
    "lockstep": {"grace_seconds": 1},
    "arms": [{"label": "A"}, {"label": "B", "overrides": {"ppo.lr": 1e-3}}],
    "analysis": {"primary": "eval/native_return_mean", "sesoi": 2.0, "inference": "none", "failure": {"floor": 0.0}},
}
POINTS = """[lockstep.environments]
mistaken = benchmarks.mistaken:Mistaken
unfinished = benchmarks.unfinished:Environment
[lockstep.rewards]
reward_raises = benchmarks.mistaken:reward_raises
reward_nan = benchmarks.mistaken:reward_nan
"""
#: Limits short enough that a hang is waited for.
LIMITS = {"STALL_AFTER_SECONDS": "10", "STALL_KILL_SECONDS": "30", "BACKOFF_SECONDS": "1"}


ABOUT = """# Thirty mistakes of a new user

Each was made against a real server and two workers, beside an experiment without a mistake, which succeeded; both
workers were idle and healthy in the end. Written by `python -m benchmarks.mistakes`, which checks every line
(`--only TITLE` renews one). A refusal is what `lockstep submit` says (exit code 1) and the page shows under its form.
Of an experiment that was taken it is the end of `lockstep watch` (exit code 1 unless it succeeded); its page shows the
same reasons on top. Ids are left out, and so is where the project lies.

| # | mistake | ends as | command line and page | report |
|---|---|---|---|---|"""


@dataclass(frozen=True)
class Mistake:
    """What is done wrongly, how it must end, and words that must be told.

    Attributes:
        title: for people.
        spec: changes of the base, or a whole text.
        ends: ``refused`` at submission, or the status of the experiment.
        words: a pattern of what the command line says.
    """

    title: str
    spec: Mapping[str, Any] | str
    ends: str
    words: str


def _env(how: str, **changes: Any) -> dict[str, Any]:
    given = {"how": how, **({"at": changes.pop("at")} if "at" in changes else {})}
    return {"env": {"id": "mistaken", "kwargs": given, **changes}}


def _paid(mode: str) -> dict[str, Any]:
    return {"arms": [{"label": "A"}, {"label": "B", "reward": mode}], "eval": {"xeval": False}}


_FAULT = r"cause environment: environment 'mistaken' \(number 0, episode \d+\) "
MISTAKES = (
    Mistake("a section misspelt", {"ppoo": {"lr": 0.1}}, "refused", "/ppoo: unknown key .*did you mean 'ppo'"),
    Mistake("a number as text", {"ppo": {"lr": "fast"}}, "refused", "/ppo/lr: .*number"),
    Mistake("a key given twice", yaml.safe_dump(BASE) + "budget: {rounds: 3}\n", "refused", "'budget' is given twice"),
    Mistake("unknown preset", {"preset": "gym_clasic"}, "refused", "did you mean 'gym_classic'"),
    Mistake("wrong id", {"env": {"id": "CartPole-v7"}}, "refused", "no registered worker knows env.id 'CartPole-v7'"),
    Mistake("wrong keyword", {"env": {"kwargs": {"lenght": 3}}}, "refused", "/env/kwargs/lenght: unknown key 'lenght'"),
    Mistake("package of the task missing", {"env": {"id": "LunarLander-v3"}}, "refused", "Box2D is not installed"),
    Mistake("package of one's own incomplete", {"env": {"id": "unfinished"}}, "refused", "ModuleNotFoundError"),
    Mistake("unknown reward", {"reward": {"mode": "shapd"}}, "refused", "unknown reward mode 'shapd'"),
    Mistake("arms that do not differ", {"arms": [{"label": "A"}, {"label": "B"}]}, "refused", "same configuration"),
    Mistake(
        "the task changed in an arm",
        {"arms": [{"label": "A"}, {"label": "B", "overrides": {"env.id": "Acrobot-v1"}}]},
        "refused",
        "override only",
    ),
    Mistake("more minibatches than transitions", {"ppo": {"minibatches": 65}}, "refused", "use at most 64"),
    Mistake(
        "two replicates and a test that needs six",
        {"experiment": {"replicates": 2}, "analysis": {"inference": "full"}},
        "refused",
        "smallest two-sided p of the exact test is 0.5, above the level 0.05",
    ),
    Mistake(
        "an observation that is text",
        _env("shows text"),
        "failed",
        "cause config: .*a Text has no fixed number of components; register the environment wrapped in gymnasium.wrap",
    ),
    Mistake("a constructor that raises", _env("builds wrongly"), "failed", "cause config: .*TypeError: reach"),
    Mistake(
        "a constructor that hangs",
        _env("hangs while built"),
        "failed",
        "cause environment: building env.id='mistaken' .* has not returned for",
    ),
    Mistake("a reset that raises", _env("resets wrongly"), "failed", _FAULT + "in reset raised AttributeError"),
    Mistake(
        "a reset of the old interface", _env("resets as of old"), "failed", _FAULT + "in reset returned one ndarray"
    ),
    Mistake("a step that raises", _env("raises"), "failed", _FAULT + "in step 3 raised KeyError: 'velocity'"),
    Mistake("a step that hangs", _env("hangs"), "failed", "cause environment: environment 'mistaken' .*not returned"),
    Mistake("a step that exits", _env("exits"), "failed", _FAULT + "in step 3 raised SystemExit: licence"),
    Mistake("a step of the old interface", _env("steps as of old"), "failed", _FAULT + "in step 3 returned 4 values"),
    Mistake(
        "NaN reward at step 1,000",
        _env("pays nan", at=1000, rollout_steps=1200) | {"budget": {"rounds": 1}},
        "failed",
        _FAULT + r"in step \d+ returned the reward nan, which is not finite",
    ),
    Mistake("a reward of two numbers", _env("pays a vector"), "failed", _FAULT + ".*a reward that is no single number"),
    Mistake(
        "NaN observation", _env("shows nan"), "failed", _FAULT + "in step 3 returned an observation that holds nan"
    ),
    Mistake("wrong shape", _env("shows too little"), "failed", _FAULT + r".*shape \(1,\), its space has \(4,\)"),
    Mistake(
        "a raising reward",
        _paid("reward_raises"),
        "failed",
        r"reward mode 'reward_raises' of arm 'B' in episode \d+ raised KeyError: 'speed'",
    ),
    Mistake(
        "a reward that is not finite",
        _paid("reward_nan"),
        "failed",
        r"reward mode 'reward_nan' of arm 'B': the reward is (-inf|nan) .*must be finite",
    ),
    Mistake("episodes that never end", _env("never ends") | {"eval": {"max_steps": 200}}, "succeeded", "succeeded"),
    Mistake(
        "a step size without measure",
        {"arms": [{"label": "A"}, {"label": "B", "overrides": {"ppo.lr": 1e30}}]},
        "succeeded",
        "succeeded",
    ),
)


def install(site: Path) -> None:
    """Write what a package installs, so that the entry points of the mistakes are found."""
    facts = site / "mistaken-1.0.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: mistaken\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(POINTS)


@dataclass
class Told:
    """How a mistake ended.

    Attributes:
        ends: ``refused``, or the status of the experiment.
        said: by the command line: of `submit`, or of the end of `watch`.
        code: its exit code.
        verdict: what the report says, or nothing.
    """

    ends: str
    said: str
    code: int
    verdict: str = ""


class Bench:
    """A service and the commands that a person types.

    Args:
        running: the service.
    """

    def __init__(self, running: Service) -> None:
        self.running = running
        self._environment = {**os.environ, "LOCKSTEP_URL": running.url}

    def submit(self, spec: Mapping[str, Any] | str) -> subprocess.CompletedProcess[str]:
        """Write a file and submit it."""
        file = self.running.work / "spec.yaml"
        file.write_text(spec if isinstance(spec, str) else yaml.safe_dump(spec))
        return self._lockstep("submit", str(file))

    def end_of(self, experiment_id: str) -> Told:
        """Watch an experiment to its end and read its report."""
        watched = self._lockstep("watch", experiment_id)
        shown = self.running.client.show(experiment_id)
        lines = watched.stdout.strip().splitlines()
        at = next((number for number, line in enumerate(lines) if line.startswith("the experiment is")), 0)
        return Told(shown["status"], "\n".join(lines[at:]), watched.returncode, self._verdict(experiment_id))

    def _verdict(self, experiment_id: str) -> str:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                verdict = self.running.client.report(experiment_id)["verdict"]
                return " ".join([verdict["sentence"], *verdict["flags"]])
            except ApiError:
                time.sleep(0.2)
        return "no report"

    def _lockstep(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "app.cli", *arguments]
        return subprocess.run(command, env=self._environment, cwd=ROOT, capture_output=True, text=True, check=False)


def make_all(bench: Bench, mistakes: Sequence[Mistake]) -> dict[str, Told]:
    """Submit every mistake, then follow those that were taken."""
    told, taken = {}, {}
    for mistake in mistakes:
        spec = mistake.spec if isinstance(mistake.spec, str) else _spec(mistake)
        submitted = bench.submit(spec)
        if submitted.returncode == 0:
            taken[mistake.title] = submitted.stdout.split()[0]
        else:
            told[mistake.title] = Told("refused", submitted.stderr.strip(), submitted.returncode)
    for title, experiment_id in taken.items():
        told[title] = bench.end_of(experiment_id)
        print(f"{title}: {told[title].ends}", flush=True)
    return {mistake.title: told[mistake.title] for mistake in mistakes}


def _spec(mistake: Mistake) -> dict[str, Any]:
    assert not isinstance(mistake.spec, str)
    return merge(merge(BASE, mistake.spec), {"experiment": {"name": mistake.title}})


def faults(mistakes: Sequence[Mistake], told: Mapping[str, Told]) -> list[str]:
    """Return what did not end, or was not told, as it must."""
    found = []
    for mistake in mistakes:
        got = told[mistake.title]
        if got.ends != mistake.ends or not re.search(mistake.words, got.said):
            found.append(f"{mistake.title}: must end as {mistake.ends} with {mistake.words!r}, but {got}")
        if got.code != int(got.ends != "succeeded"):
            found.append(f"{mistake.title}: exit code {got.code}")
        if "Traceback" in got.said or "infrastructure" in got.said + got.verdict:
            found.append(f"{mistake.title}: says {got}")
    return found


def wait_for_workers(client: Client, number: int, statuses: Sequence[str], seconds: float = 300.0) -> bool:
    """Wait until so many workers have one of these states and are healthy."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        workers = client.call("GET", "workers")["items"]
        if sum(worker["status"] in statuses and worker["health"].get("ok", False) for worker in workers) == number:
            return True
        time.sleep(0.2)
    return False


def page(told: Mapping[str, Told], before: str = "") -> str:
    """Return the table in Markdown; mistakes that were not made keep their line of the page ``before``."""
    rows = []
    for number, mistake in enumerate(MISTAKES, start=1):
        start = f"| {number} | {mistake.title} |"
        got = told.get(mistake.title)
        if got is not None:
            rows.append(f"{start} {got.ends} | {_cell(got.said)} | {_cell(got.verdict)} |")
        else:
            rows += [line for line in before.splitlines() if line.startswith(start)]
    return "\n".join([ABOUT, *rows, ""])


def _cell(text: str) -> str:
    plain = re.sub(r"\b(run|exp)_[0-9a-f]+", r"\1_..", text).replace(f"{ROOT.resolve()}/", "")
    return "<br>".join(line.strip().replace("|", "\\|") for line in plain.splitlines())


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the mistakes; return 1 when one was told wrongly or did harm."""
    options = _options(arguments)
    end_after(options.limit)
    mistakes = [item for item in MISTAKES if not options.only or item.title in options.only]
    with tempfile.TemporaryDirectory() as folder:
        install(Path(folder) / "site")
        os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(folder) / "site"), str(ROOT)])
        os.environ.update({f"LOCKSTEP_{name}": value for name, value in LIMITS.items()})
        with service(options.port, Path(folder)) as running:
            running.start_workers(["cpu", "cpu"])
            if not wait_for_workers(running.client, 2, ["idle"]):
                raise SystemExit("two workers did not come up")
            innocent = running.client.submit(merge(BASE, {"experiment": {"name": "innocent", "replicates": 3}}))["id"]
            bench = Bench(running)
            told = make_all(bench, mistakes)
            found = faults(mistakes, told)
            if (ended := bench.end_of(innocent)).ends != "succeeded":
                found.append(f"the innocent experiment: {ended}")
            if not wait_for_workers(running.client, 2, ["idle"]):
                found.append(f"workers: {json.dumps(running.client.call('GET', 'workers')['items'])}")
    for line in found:
        print(f"FAULT {line}")
    if options.out is not None:
        before = options.out.read_text() if options.out.exists() else ""
        options.out.write_text(page(told, before))
    print(f"{len(mistakes)} mistakes, {len(found)} faults")
    return int(bool(found))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    found = parser(__doc__, port=7497)
    found.add_argument("--only", action="append", default=[], help="title of a mistake; may be given again")
    options = found.parse_args(arguments)
    if options.out is None and not options.only:
        options.out = PAGE
    return options


if __name__ == "__main__":
    sys.exit(main())
