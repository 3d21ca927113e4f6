"""The folder of a start of a supervisor: what a living one holds is not cleared by another."""

from __future__ import annotations

from pathlib import Path

from worker.supervision.folder import WorkFolder


def test_a_second_start_clears_what_has_ended_and_not_what_lives(tmp_path: Path) -> None:
    ended = tmp_path / "cpu_h_0" / "asg_1"  # as earlier versions laid it
    ended.mkdir(parents=True)
    killed = WorkFolder(tmp_path / "cpu_h_0")
    (killed.path / "spool").write_text("unsent")
    assert not ended.exists()
    first = WorkFolder(tmp_path / "cpu_h_0")
    assert (killed.path / "spool").exists()
    killed.let_go()
    second = WorkFolder(tmp_path / "cpu_h_0")
    assert not killed.path.exists()
    assert first.path.is_dir()
    assert first.path != second.path
    second.close()
    assert not second.path.exists()
    assert first.path.is_dir()
    first.close()
