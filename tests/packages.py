"""Packages with entry points, written into a folder as an installer would."""

from __future__ import annotations

from pathlib import Path


def write_package(site: Path, name: str, code: str, points: str, module: str | None = None) -> None:
    """Write a package of one module, ``name_code`` unless another is given, with its entry points."""
    site.mkdir(parents=True, exist_ok=True)
    (site / f"{module or f'{name}_code'}.py").write_text(code)
    facts = site / f"{name}-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(points)
