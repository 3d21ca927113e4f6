"""What is told of an installed plug-in without loading it."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockstep.plugins import identities


def test_identity_of_a_plug_in_follows_its_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site"
    facts = site / "mine-1.0.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("[lockstep.rewards]\nown = mine.reward:Own\nother = gone:Own\n")
    (site / "mine").mkdir()
    (site / "mine" / "__init__.py").touch()
    code = site / "mine" / "reward.py"
    code.write_text("FACTOR = 1\n")
    monkeypatch.syspath_prepend(str(site))
    assert identities({"native"}) == {}
    before = identities({"native", "own"})
    assert before["own"].startswith("mine 1.0 (")
    assert identities({"own"}) == before
    code.write_text("FACTOR = -1\n")
    assert identities({"own"}) != before
    assert identities({"other"}) == {"other": "mine 1.0 (no files)"}
