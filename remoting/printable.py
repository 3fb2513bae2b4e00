"""Text from a peer on its way to a log or a terminal: no character of it moves a cursor, hides text or begins a line of its own."""

from __future__ import annotations

import logging
import re
from typing import Any

_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    r"""Write control characters, changes of direction and lone surrogates as escapes, ``\n`` or ``\x1b``."""
    return _UNPRINTABLE.sub(_escape, text)


def printable_lines(text: str) -> str:
    """Do the same, but keep the ends of lines and tabs: for a traceback or a text of several lines that this process laid out."""
    return _UNPRINTABLE.sub(lambda found: found[0] if found[0] in "\n\t" else _escape(found), text)


def printable_json(text: str) -> str:
    """Write what JSON allows as it is, but a terminal obeys, as ``\\uXXXX``; the document stays the same."""
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")


class PrintableFormatter(logging.Formatter):
    """The formatter of all processes: each record is one line, and its traceback has no control characters but ends of lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  (a name of logging)
        """Return one line, whatever the arguments of the record hold."""
        return printable(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802  (a name of logging)
        """Return a traceback; the texts of its errors may come from a peer."""
        return printable_lines(super().formatException(ei))
