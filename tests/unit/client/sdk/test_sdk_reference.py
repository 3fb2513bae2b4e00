"""The SDK reference has every name of the SDK once.

Its site builds only from names that exist (``make site``).
"""

from __future__ import annotations

import re
from pathlib import Path

import triomq

PAGE = Path(__file__).resolve().parents[4] / "docs/reference/sdk.md"


def test_every_public_name_is_in_the_reference_once() -> None:
    named = re.findall(r"^::: triomq\.[\w.]+\.(\w+)$", PAGE.read_text(), re.MULTILINE)
    assert sorted(named) == sorted(name for name in triomq.__all__ if name != "__version__")
