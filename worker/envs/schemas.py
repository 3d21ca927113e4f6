"""What the schema of a registered reward mode says without its values."""

from __future__ import annotations

from typing import Any


def schema_defaults(factory: object) -> dict[str, Any]:
    """Return the constants that a registered mode's schema gives by itself."""
    properties = getattr(factory, "schema", {}).get("properties", {})
    return {name: rule["default"] for name, rule in properties.items() if "default" in rule}
