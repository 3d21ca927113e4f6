"""The one text of a JSON value, and its hash: what is registered is named by it."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def canonical_json(value: Any) -> str:
    """Return a plain JSON value as text: sorted keys, no spaces; NaN and Infinity raise ``ValueError``."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def canonical_hash(value: Any) -> str:
    """Return SHA-256 (hex) of the canonical JSON."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()
