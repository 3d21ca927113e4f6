"""The table of the reference's defects names every row, and only tests that exist (docs/defects.md)."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
TABLE = (ROOT / "docs/defects.md").read_text()


def rows(section: str) -> dict[int, str]:
    return {int(number): rest for number, rest in re.findall(r"^\| (\d+) \| (.*)$", section, re.MULTILINE)}


def test_every_defect_and_every_step_of_the_recipe_names_a_test() -> None:
    defects, recipe = map(rows, TABLE.split("## The offline recipe"))
    assert list(defects) == list(range(1, 47))
    assert list(recipe) == list(range(1, 13))
    without = [number for number, row in defects.items() if "`tests/" not in row]
    assert without == [26]  # code that was removed
    assert all("`tests/" in row for row in recipe.values())


def test_every_test_that_the_defect_table_names_exists() -> None:
    cited = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", TABLE)
    assert len(cited) > 60
    missing = [
        (path, name)
        for path, name in cited
        if not (ROOT / path).exists() or (name and f"def {name}(" not in (ROOT / path).read_text())
    ]
    assert missing == []
