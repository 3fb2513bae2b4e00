"""Compare values in an SQL92 filter with Java's types and conversions.

So an expression selects the same messages as on a Java broker. A property is text. Compared with a
number, it is converted to the constant's Java type (a whole number of 32 or 64 bits, or double); if
the conversion fails, the whole expression fails. Source:
RocketMQ's filter/…/expression/ComparisonExpression.java.
"""

from __future__ import annotations

import math
import re

LONG = range(-(2**63), 2**63)
_WHOLE = re.compile(r"[+-]?\d+")
_DOUBLE = re.compile(
    r"""[\x00-\x20]*+ (?: (?P<sign>[+-]?) (?P<word>NaN|Infinity)
        | (?P<decimal>[+-]?(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?) [fFdD]?
        | (?P<hex>[+-]?0[xX](?:[0-9a-fA-F]++(?:\.[0-9a-fA-F]*+)?|\.[0-9a-fA-F]++)[pP][+-]?[0-9]++)
            [fFdD]? ) [\x00-\x20]*+""",
    re.VERBOSE,
)
"""Without backtracking: the text comes from producers and may have 32 KB."""


class Int(int):
    """Java's Integer: a constant that fits 32 bits, whatever its suffix."""


class Long(int):
    """Java's Long."""


Value = str | bool | Int | Long | float | None


class Incomparable(Exception):
    """A comparison that raises an exception in Java: the message is not delivered."""


def whole(text: str, bits: int) -> int:
    """Return a whole number as Integer.valueOf and Long.valueOf do. Raises: Incomparable.

    ``text``: an optional sign, and digits of any script.
    """
    if not _WHOLE.fullmatch(text) or max(text) > "\uffff" or len(text) > 64:
        raise Incomparable(f"{text!r} is not a whole number")
    number = int(text)
    if not -(2 ** (bits - 1)) <= number < 2 ** (bits - 1):
        raise Incomparable(f"{text!r} does not fit {bits} bits")
    return number


def double(text: str) -> float:
    """Return a number as Double.valueOf does. Raises: Incomparable."""
    found = _DOUBLE.fullmatch(text)
    if found is None:
        raise Incomparable(f"{text!r} is not a number")
    if found["word"]:
        return math.copysign(
            math.nan if found["word"] == "NaN" else math.inf, -1 if found["sign"] == "-" else 1
        )
    if found["hex"]:
        try:
            return float.fromhex(found["hex"])
        except OverflowError:
            return -math.inf if found["hex"].startswith("-") else math.inf
    return float(found["decimal"])


def compare_doubles(left: float, right: float) -> int:
    """Compare as Double.compareTo does: NaN equals NaN and is the largest, -0.0 is below 0.0."""
    if left != left or right != right:
        return (left != left) - (right != right)
    if left == right == 0.0:
        return int(math.copysign(1, left) - math.copysign(1, right)) // 2
    return (left > right) - (left < right)


def compare(left: str | bool | int | float, right: str | bool | int | float) -> int:
    """Return a number below, at or above 0, as Java's comparison does. Raises: Incomparable.

    The result is -1 for kinds that do not convert to each other.
    """
    if isinstance(left, str):
        if isinstance(right, str):
            return _order(_utf16(left), _utf16(right))
        left = _read_as(left, right)
    elif isinstance(right, str):
        if isinstance(left, bool):
            raise Incomparable(
                "a boolean constant stands to the left of a text: write the property first"
            )
        right = _read_as(right, left)
    if isinstance(left, bool) or isinstance(right, bool):
        return _order(left, right) if isinstance(left, bool) and isinstance(right, bool) else -1
    if isinstance(left, float) or isinstance(right, float):
        return compare_doubles(float(left), float(right))
    return _order(left, right)


def _read_as(text: str, other: bool | int | float) -> bool | int | float:
    if isinstance(other, bool):
        return text.lower() == "true"
    if isinstance(other, float):
        return double(text)
    return whole(text, 64 if isinstance(other, Long) else 32)


def _order(left: int | bytes, right: int | bytes) -> int:
    return (left > right) - (left < right)  # type: ignore[operator]


def _utf16(text: str) -> bytes:
    return text.encode("utf-16-be", "surrogatepass")
