"""Escape text of peers: no character may move the cursor, hide text or begin a line."""

from __future__ import annotations

import logging
import re
from typing import Any

_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str) -> str:
    r"""Escape control characters, direction marks and lone surrogates, as ``\n`` or ``\x1b``."""
    return _UNPRINTABLE.sub(_escape, text)


def printable_lines(text: str) -> str:
    """Do the same but keep ends of lines and tabs, for texts of several lines."""
    return _UNPRINTABLE.sub(lambda found: found[0] if found[0] in "\n\t" else _escape(found), text)


def printable_json(text: str) -> str:
    """Escape characters that JSON allows and terminals obey as ``\\uXXXX``: an equal document."""
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")


class PrintableFormatter(logging.Formatter):
    """Formats a record as one line, followed by a traceback without control characters."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  (a name of logging)
        """Return one line, whatever the arguments of the record contain."""
        return printable(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802  (a name of logging)
        """Return a traceback; the texts of its errors may come from a peer."""
        return printable_lines(super().formatException(ei))
