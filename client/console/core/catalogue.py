"""The texts of all pages in English and Chinese: ``texts/en.toml`` and ``texts/zh.toml``."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

LANGUAGES = {"en": "English", "zh": "中文"}
"""language → its own name"""
DEFAULT_LANGUAGE = "en"
FOLDER = Path(__file__).with_name("texts")


@cache
def texts_of(language: str) -> Mapping[str, str]:
    """Return ``section.key`` → text."""
    tables = tomllib.loads((FOLDER / f"{language}.toml").read_text(encoding="utf-8"))
    return {
        f"{section}.{key}": text for section, table in tables.items() for key, text in table.items()
    }


def preferred_language(cookie: str | None, accepted: str) -> str:
    """Choose a language: the user's choice, otherwise the first that the browser names."""
    if cookie in LANGUAGES:
        return cookie or DEFAULT_LANGUAGE
    for part in accepted.split(",")[:20]:
        name = part.partition(";")[0].strip().lower().partition("-")[0]
        if name in LANGUAGES:
            return name
    return DEFAULT_LANGUAGE
