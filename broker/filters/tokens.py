"""Split an SQL92 filter into words.

Source: RocketMQ's filter/…/parser/SelectorParser.jj (keywords in any case; no digit or point may
follow a number).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import attrs

KEYWORDS = frozenset(
    [
        "NOT",
        "AND",
        "OR",
        "BETWEEN",
        "IN",
        "TRUE",
        "FALSE",
        "NULL",
        "IS",
        "CONTAINS",
        "STARTSWITH",
        "ENDSWITH",
    ]
)
LENGTH_MAX = 16_384
"""Characters of an expression."""

_TOKEN = re.compile(
    r"""
      (?P<blank>  [ \t\n\r\f]++ | /\*(?:[^*]|\*+[^*/])*\*+/ )
    | (?P<float>  [0-9]++\.[0-9]*+(?:[eE][+-]?[0-9]+)?
                | \.[0-9]++(?:[eE][+-]?[0-9]+)?
                | [0-9]++[eE][+-]?[0-9]+ )
    | (?P<whole>  0 | [1-9][0-9]*[lL]? )
    | (?P<text>   '(?:''|[^'])*' )
    | (?P<name>   [A-Za-z_$][A-Za-z0-9_$]* )
    | (?P<sign>   <> | <= | >= | [=<>+\-(),] )
    """,
    re.VERBOSE,
)
_LINE_COMMENT = re.compile(r"--[^\n\r]*(?:\r\n|\n|\r)")
_DIGITS = frozenset("0123456789.")


class FilterInvalid(Exception):
    """An expression that cannot be compiled; the message names the place and the reason."""


@attrs.frozen
class Token:
    """A word of an expression.

    ``kind``: the sign or keyword itself, or ``name``, ``text``, ``whole``, ``float``, ``end``;
    ``text``: the word as written; ``at``: its position, from 0.
    """

    kind: str
    text: str
    at: int


def tokens(expression: str) -> Iterator[Token]:
    """Yield the words of an expression, then a word of the kind ``end``.

    Raises: FilterInvalid at a character that does not begin a word.
    """
    if len(expression) > LENGTH_MAX:
        raise FilterInvalid(
            f"the expression has {len(expression)} characters, the limit is {LENGTH_MAX}"
        )
    at = 0
    # Without an end of line after it, ``--`` is not a comment but two minus signs.
    last_line = max(expression.rfind("\n"), expression.rfind("\r"))
    while at < len(expression):
        if at < last_line and expression.startswith("--", at):
            comment = _LINE_COMMENT.match(expression, at)
            if comment is not None:
                at = comment.end()
                continue
        found = _TOKEN.match(expression, at)
        if found is None:
            what = (
                "a text without its closing quote"
                if expression[at] == "'"
                else f"{expression[at]!r}"
            )
            raise FilterInvalid(f"{what} at character {at + 1} does not begin a word of SQL92")
        kind, text = str(found.lastgroup), found.group()
        if kind in ("whole", "float") and expression[found.end() : found.end() + 1] in _DIGITS:
            raise FilterInvalid(
                f"{expression[at : found.end() + 1]!r} at character {at + 1} is not a number"
            )
        if kind == "name" and text.upper() in KEYWORDS:
            yield Token(text.upper(), text, at)
        elif kind == "sign":
            yield Token(text, text, at)
        elif kind != "blank":
            yield Token(kind, text, at)
        at = found.end()
    yield Token("end", "", at)
