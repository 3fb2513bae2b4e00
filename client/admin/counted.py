"""Numbers with their noun in text for people."""

from __future__ import annotations


def count_of(count: int, noun: str) -> str:
    """Return ``1 retry``, ``2 retries``, ``0 messages``."""
    if count == 1:
        return f"1 {noun}"
    return f"{count} {noun[:-1]}ies" if noun.endswith("y") else f"{count} {noun}s"
