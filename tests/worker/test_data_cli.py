"""The data command: fingerprints, and messages instead of tracebacks."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker.commands.data_cli import main
from worker.envs.morph.task import cifar


def test_fingerprint_of_digits_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fingerprint", "digits"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("87ff0c9e40dc7e2c0e34e7257799c2e3f3aec1a016363bb11cad869ec428a826\ntrain 1085")


def test_missing_files_are_reported_with_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fingerprint", "cifar10", "--data-dir", str(tmp_path)]) == 1
    assert "lockstep data fetch cifar10" in capsys.readouterr().err


def test_fetch_without_network_exits_1_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cifar.fetch, "__defaults__", ("http://127.0.0.1:9/archive.tar.gz",))
    assert main(["fetch", "cifar10", "--data-dir", str(tmp_path)]) == 1
    assert "where there is a network" in capsys.readouterr().err
