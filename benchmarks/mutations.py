"""Does a test notice when one line of the statistics is wrong?

Each mutation changes one line in a temporary copy of the tree; the small test files that concern the file run there
until one fails, in a process of their own. The copy without a change must pass. A mutation that no test notices is a
missing test: the exit code is 1. Writes benchmarks/results/mutations.json with the test that noticed each.

    nice python -m benchmarks.mutations [part of a name]
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import scipy.stats  # noqa: F401 - imported once here, so that the process of every mutation has it already

from benchmarks.simulated import write_rates

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "benchmarks" / "results" / "mutations.json"
STATS, REPORT = "lockstep/stats", "lockstep/report"
#: Test files that concern a source file, the quick ones first.
TESTS = {
    f"{STATS}/exact.py": ("stats/test_methods", "stats/test_golden", "stats/test_brute_force"),
    f"{STATS}/paired.py": ("stats/test_brute_force", "stats/test_golden"),
    f"{STATS}/unpaired.py": ("stats/test_brute_force", "stats/test_golden", "stats/test_methods"),
    f"{STATS}/results.py": ("stats/test_methods", "stats/test_brute_force", "stats/test_experiment"),
    f"{STATS}/scores.py": ("stats/test_experiment", "report/test_build"),
    f"{STATS}/registered.py": ("stats/test_reviewed_faults",),
    f"{STATS}/sequential.py": ("stats/test_looks", "stats/test_methods", "stats/test_golden"),
    f"{STATS}/multiplicity.py": ("stats/test_brute_force", "stats/test_experiment"),
    f"{STATS}/verdict.py": ("stats/test_experiment", "stats/test_golden"),
    f"{STATS}/failures.py": ("stats/test_experiment", "report/test_build"),
    f"{STATS}/estimands.py": ("stats/test_experiment", "stats/test_reviewed_faults"),
    f"{STATS}/planning.py": ("stats/test_golden",),
    f"{STATS}/power.py": ("stats/test_power",),
    f"{REPORT}/findings/staged.py": ("stats/test_reviewed_faults",),
    f"{REPORT}/findings/clock.py": ("stats/test_reviewed_faults",),
    f"{REPORT}/numbers.py": ("stats/test_reviewed_faults",),
    f"{REPORT}/findings/sections.py": ("report/test_build",),
}


@dataclass(frozen=True)
class Mutation:
    """One wrong line: ``old``, found once in the file, becomes ``new``."""

    name: str
    file: str
    old: str
    new: str


MUTATIONS = (
    Mutation("a p equal to the level is not enough", f"{STATS}/exact.py", "p <= level * (1 + ", "p < level * (1 - "),
    Mutation(
        "tail of an order statistic is strict",
        f"{STATS}/exact.py",
        "np.cumsum(null) <= tail * (1 + LEVEL_SLACK)",
        "np.cumsum(null) < tail * (1 - LEVEL_SLACK)",
    ),
    Mutation(
        "rank test leaves out the observed value",
        f"{STATS}/unpaired.py",
        "null[max(observed, 0) :]",
        "null[max(observed, 0) + 1 :]",
    ),
    Mutation(
        "sign-flip test leaves out ties with the observed sum",
        f"{STATS}/paired.py",
        "abs(total) - limit) / count)",
        "abs(total) + limit) / count)",
    ),
    Mutation(
        "sign-flip test counts one tail only",
        f"{STATS}/paired.py",
        "both = min(1.0, 2 * _pairs_at_least",
        "both = min(1.0, 1 * _pairs_at_least",
    ),
    Mutation(
        "two-sided p from the larger tail",
        f"{STATS}/results.py",
        "2 * min(self.greater, self.less)",
        "2 * max(self.greater, self.less)",
    ),
    Mutation(
        "ties get the smallest rank instead of the middle one",
        f"{STATS}/results.py",
        "(2 * starts + sizes + 1)[groups]",
        "(2 * starts + 2)[groups]",
    ),
    Mutation(
        "ranks of zero differences are kept", f"{STATS}/paired.py", "kept = ranks[differences != 0]", "kept = ranks"
    ),
    Mutation(
        "Walsh interval starts one average too far in",
        f"{STATS}/paired.py",
        "float(averages[v])",
        "float(averages[v + 1])",
    ),
    Mutation(
        "studentised test is not studentised",
        f"{STATS}/unpaired.py",
        "theirs = u**2 * (v0 + u * (v1 + u * v2))",
        "theirs = u**2 * self.own",
    ),
    Mutation(
        "a minimised metric is not turned round",
        f"{STATS}/scores.py",
        'sign = 1.0 if direction == "max" else -1.0',
        "sign = 1.0",
    ),
    Mutation(
        "a failed run is better than the floor",
        f"{STATS}/scores.py",
        "if worst is not None and worst < floor:",
        "if worst is not None and worst > floor:",
    ),
    Mutation(
        "losses are filled in favour of the claim",
        f"{STATS}/scores.py",
        "value = floor if arm.label in named",
        "value = floor if arm.label not in named",
    ),
    Mutation(
        "ties are judged on the scale of the floor",
        f"{STATS}/registered.py",
        "arm.values[np.isfinite(arm.ranked)] for arm",
        "arm.values for arm",
    ),
    Mutation(
        "O'Brien-Fleming spends as a one-sided test",
        f"{STATS}/sequential.py",
        "2 * ndtr(ndtri(alpha / 2) / sqrt(fraction))",
        "2 * ndtr(ndtri(alpha) / sqrt(fraction))",
    ),
    Mutation(
        "Pocock spending is linear",
        f"{STATS}/sequential.py",
        "return alpha * log(1 + (e - 1) * fraction)",
        "return alpha * fraction",
    ),
    Mutation(
        "earlier looks cost no alpha",
        f"{STATS}/sequential.py",
        "crossed += float(mass @ outside)",
        "crossed = float(mass @ outside)",
    ),
    Mutation(
        "early stops are ordered by the last look only",
        f"{STATS}/sequential.py",
        "crossed += float(mass @ ndtr(",
        "crossed = float(mass @ ndtr(",
    ),
    Mutation(
        "median-unbiased estimate is a lower bound",
        f"{STATS}/sequential.py",
        "for p in (0.5, level / 2, 1 - level / 2)",
        "for p in (level, level / 2, 1 - level / 2)",
    ),
    Mutation(
        "an anytime analysis forgets what it had rejected",
        f"{STATS}/sequential.py",
        "1.0 / float(np.max(path))",
        "1.0 / float(path[-1])",
    ),
    Mutation(
        "a bet knows the block that it bets on",
        f"{STATS}/sequential.py",
        "known = np.concatenate([np.full((len(x), 1), 0.25), variance[:, :-1]], axis=1)",
        "known = variance",
    ),
    Mutation(
        "Holm divides by all comparisons at every step",
        f"{STATS}/multiplicity.py",
        "min(1.0, (len(ps) - i) * _or_one(ps[index]))",
        "min(1.0, len(ps) * _or_one(ps[index]))",
    ),
    Mutation(
        "Holm goes on after the first that fails",
        f"{STATS}/multiplicity.py",
        "levels[index] = level / (len(ps) - step)",
        "levels[index] = level / (len(ps) - i)",
    ),
    Mutation("max-T without the pair guard", f"{STATS}/multiplicity.py", "max(a, float(b)) for a, b", "a for a, b"),
    Mutation(
        "equivalence at the margin itself", f"{STATS}/results.py", "and self.high < margin", "and self.high <= margin"
    ),
    Mutation(
        "meaningful when the bound is just the smallest effect",
        f"{STATS}/verdict.py",
        "low > evidence.sesoi",
        "low >= evidence.sesoi",
    ),
    Mutation(
        "a bound at 0 claims nothing",
        f"{STATS}/verdict.py",
        "agrees = low is not None and low >= 0",
        "agrees = low is not None and low > 0",
    ),
    Mutation(
        "the direction of the test does not matter",
        f"{STATS}/verdict.py",
        "sign != 0 and evidence.sign in (0, sign) and evidence.p is not None",
        "sign != 0 and evidence.p is not None",
    ),
    Mutation(
        "a winner needs to beat one rival only",
        f"{STATS}/verdict.py",
        "if all(_beats(arm.label, pair) for pair",
        "if any(_beats(arm.label, pair) for pair",
    ),
    Mutation(
        "the p of the headline is the smallest",
        f"{STATS}/verdict.py",
        "p_max=max((p for p in ps",
        "p_max=min((p for p in ps",
    ),
    Mutation(
        "the headline takes the strongest of the winner's claims",
        f"{STATS}/verdict.py",
        "return max((p.verdict.code for p in pairs if p.involves(winner))",
        "return min((p.verdict.code for p in pairs if p.involves(winner))",
    ),
    Mutation(
        "a family is judged at the undivided level",
        f"{STATS}/verdict.py",
        'if design.comparisons == "winner" or level == design.level:',
        "if design.comparisons:",
    ),
    Mutation(
        "the stronger of two claims stands",
        f"{STATS}/failures.py",
        "code=max(ours.code, theirs.code",
        "code=min(ours.code, theirs.code",
    ),
    Mutation(
        "two treatments of failures may name different arms",
        f"{STATS}/failures.py",
        "if not (pair.superior and pair.superior == other.superior):",
        "if not pair.superior:",
    ),
    Mutation(
        "failing more often is no harm",
        f"{STATS}/failures.py",
        "PASS if excess <= 0 else HARM",
        "PASS if excess >= 0 else HARM",
    ),
    Mutation(
        "a guardrail passes beyond its margin",
        f"{STATS}/failures.py",
        "upper < margin:",
        "upper > margin:",
    ),
    Mutation(
        "a mean that contradicts the claim is overlooked",
        f"{STATS}/estimands.py",
        "mean * pair.superior < -noise(",
        "mean * pair.superior > -noise(",
    ),
    Mutation(
        "an equivalence whose means are apart is overlooked",
        f"{STATS}/estimands.py",
        "abs(mean) >= design.sesoi",
        "abs(mean) >= 1e9 * design.sesoi",
    ),
    Mutation(
        "one run alone makes a second group",
        f"{STATS}/estimands.py",
        "inside = 2 <= at + 1 <= ordered.size - 2",
        "inside = True",
    ),
    Mutation(
        "bound of an SD on the wrong side",
        f"{STATS}/planning.py",
        "chi2.ppf(0.2, n - 1)",
        "chi2.ppf(0.8, n - 1)",
    ),
    Mutation(
        "planning lets the last look overrule the first",
        f"{STATS}/power.py",
        "fresh = codes[rows] == _OPEN",
        "fresh = codes[rows] >= _OPEN",
    ),
    Mutation(
        "planning ignores the failures' second treatment",
        f"{STATS}/power.py",
        "weaker = np.minimum(code, other)",
        "weaker = np.maximum(code, other)",
    ),
    Mutation(
        "a later look overrules the first crossing",
        f"{REPORT}/findings/staged.py",
        "if p.in_family and p.is_settled}",
        "if p.in_family and not p.is_settled}",
    ),
    Mutation(
        "looks go on after the answer",
        f"{REPORT}/findings/staged.py",
        "if is_answered(found.result):",
        "if not found.result:",
    ),
    Mutation(
        "ranges leave the bounds of the metric",
        f"{REPORT}/numbers.py",
        "return [min(max(end, low), high) for end in ends_]",
        "return [max(end, low) for end in ends_]",
    ),
    Mutation(
        "any guardrail at the undivided level",
        f"{REPORT}/findings/sections.py",
        "harm_level = analysis.alpha / max(1, ",
        "harm_level = analysis.alpha / max(1, 0 * ",
    ),
    Mutation(
        "a lost block counts for a look",
        f"{REPORT}/findings/clock.py",
        "complete = [r for r in seen if is_complete(inputs, table, r)]",
        "complete = list(seen)",
    ),
)


@dataclass(frozen=True)
class Noticed:
    """A mutation with the test that failed on it, None when none did."""

    name: str
    file: str
    old: str
    new: str
    killed_by: str | None
    error: str
    seconds: float


def copied(target: Path) -> None:
    """Copy what the tests of the statistics need."""
    for folder in ("lockstep", "tests"):
        shutil.copytree(ROOT / folder, target / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", target)


class _FirstFailure:
    """Remembers the first test that failed, with its error."""

    def __init__(self) -> None:
        self.found: tuple[str, str] | None = None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and self.found is None:
            self.found = report.nodeid, str(report.longrepr).strip().splitlines()[-1][:200]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and self.found is None:
            self.found = report.nodeid, str(report.longrepr).strip().splitlines()[-1][:200]


def first_failure(tree: Path, files: tuple[str, ...]) -> tuple[str, str] | None:
    """Return the first test that fails in a tree, with its error; None when all pass."""
    ours, theirs = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=_run, args=(tree, files, theirs))
    child.start()
    theirs.close()
    found: tuple[str, str] | None = ours.recv()
    child.join()
    return found


def _run(tree: Path, files: tuple[str, ...], answer: Connection) -> None:
    """Run tests of the tree in this fresh process, which has imported nothing of the project but benchmarks."""
    os.chdir(tree)
    sys.path.insert(0, str(tree))
    sys.dont_write_bytecode = True
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - until the process ends
    first = _FirstFailure()
    paths = [f"tests/lockstep/{file}.py" for file in files]
    options = ["-q", "-x", "--noconftest", "-p", "no:cacheprovider", "-m", "not slow", "--tb=line"]
    code = pytest.main([*options, *paths], plugins=[first])
    if code not in (0, 1, 2) or (code == 0) != (first.found is None):
        raise RuntimeError(f"pytest ended with {code}")
    answer.send(first.found)


def tried(mutation: Mutation, tree: Path) -> Noticed:
    """Return whether a test notices a mutation; the tree is put back as it was."""
    path, start = tree / mutation.file, time.perf_counter()
    before = path.read_text()
    if before.count(mutation.old) != 1:
        raise ValueError(f"{mutation.file} holds {mutation.old!r} {before.count(mutation.old)} times: name one line")
    path.write_text(before.replace(mutation.old, mutation.new))
    try:
        test, error = first_failure(tree, TESTS[mutation.file]) or (None, "")
    finally:
        path.write_text(before)
    return Noticed(**asdict(mutation), killed_by=test, error=error, seconds=round(time.perf_counter() - start, 1))


def main(part: str) -> int:
    """Try every mutation whose name holds ``part``; 1 when one is not noticed."""
    start = time.perf_counter()
    done: list[Noticed] = []
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        copied(tree)
        broken = first_failure(tree, tuple(dict.fromkeys(file for files in TESTS.values() for file in files)))
        if broken is not None:
            print(f"the tests fail without a mutation: {broken[0]} {broken[1]}")
            return 1
        for mutation in (m for m in MUTATIONS if part in m.name):
            found = tried(mutation, tree)
            done.append(found)
            print(f"{found.name}: {found.killed_by or 'NOT NOTICED'} ({found.seconds} s)", flush=True)
            if not part:
                about = "one-line mutations of the statistics, each with the first test that fails on it"
                write_rates(RESULT, about, time.perf_counter() - start, mutations=[asdict(n) for n in done])
    return 1 if any(n.killed_by is None for n in done) else 0


if __name__ == "__main__":
    sys.exit(main(" ".join(sys.argv[1:])))
