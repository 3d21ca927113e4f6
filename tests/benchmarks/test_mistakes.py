"""Some of a new user's mistakes against real processes: each is told as the table says, and nobody else is hurt."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.mistakes import MISTAKES, Told, faults, page

ROOT = Path(__file__).parents[2]
SELECTION = ("wrong id", "NaN observation")


@pytest.mark.slow
@pytest.mark.server
@pytest.mark.xdist_group("training")
def test_a_selection_of_mistakes_harms_neither_worker_nor_an_innocent_experiment() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    chosen = [word for title in SELECTION for word in ("--only", title)]
    command = [sys.executable, "-m", "benchmarks.mistakes", "--port", str(port), *chosen]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "2 mistakes, 0 faults" in ended.stdout


def test_an_end_or_a_sentence_that_is_not_the_expected_one_is_a_fault() -> None:
    mistake = next(item for item in MISTAKES if item.title == "wrong id")
    right = Told("refused", "refused: /env/id: no registered worker knows env.id 'CartPole-v7'", 1)
    assert faults([mistake], {mistake.title: right}) == []
    for wrong in (
        Told("failed", right.said, 1),
        Told("refused", "refused: no", 1),
        Told("refused", right.said, 0),
        Told("refused", f"Traceback {right.said}", 1),
        Told("refused", right.said, 1, "lost to infrastructure"),
    ):
        assert faults([mistake], {mistake.title: wrong})


def test_the_page_keeps_the_lines_of_what_was_not_made_again() -> None:
    once = page({"wrong id": Told("refused", "no", 1), "wrong shape": Told("failed", "yes | no", 1, "none")})
    again = page({"wrong id": Told("refused", "still no", 1)}, once)
    assert "| 5 | wrong id | refused | still no |  |" in again
    assert "| 26 | wrong shape | failed | yes \\| no | none |" in again
