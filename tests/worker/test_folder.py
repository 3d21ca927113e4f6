"""The folder of a start of a supervisor: what a living one holds is not cleared by another."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from lockstep.address import BadAddress
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


@pytest.mark.parametrize("deleted", [".", "held"])
def test_a_folder_that_was_deleted_is_held_again(tmp_path: Path, deleted: str) -> None:
    first = WorkFolder(tmp_path / "cpu_h_0")
    shutil.rmtree(first.path / deleted) if deleted == "." else (first.path / deleted).unlink()
    first.path.mkdir(exist_ok=True)  # as whoever writes there does
    (first.path / "unsent").touch()
    first.keep()
    second = WorkFolder(tmp_path / "cpu_h_0")
    assert (first.path / "unsent").exists()
    first.close()
    first.keep()
    assert not first.path.exists()
    second.close()


def test_what_holds_a_folder_does_not_grow_old(tmp_path: Path) -> None:
    folder = WorkFolder(tmp_path / "cpu_h_0")
    os.utime(folder.path / "held", (0, 0))
    folder.keep()
    assert (folder.path / "held").stat().st_mtime > 0
    folder.close()


def test_a_folder_that_takes_no_files_is_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "cpu_h_0").touch()
    (tmp_path / "cpu_h_1" / "held").mkdir(parents=True)
    for name in ("cpu_h_0", "cpu_h_1"):
        with pytest.raises(BadAddress, match=rf"{name} \(.*choose another with --work-dir"):
            WorkFolder(tmp_path / name)


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    elsewhere, root = tmp_path / "elsewhere", tmp_path / "cpu_h_0"
    for folder in (elsewhere, root):
        folder.mkdir()
    (root / "link").symlink_to(elsewhere)
    WorkFolder(root).close()
    assert not [*elsewhere.iterdir()]
