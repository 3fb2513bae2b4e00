"""JSON as Java's fastjson reads and writes it, which is not always JSON.

Besides the standard, reading accepts bare keys (``{0:"a"}``), objects as keys
(``{{"topic":"T"}:1}``) and single quotes, and resolves ``{"$ref":"$.path"}`` (None if the path
leads nowhere). Bytes that are not UTF-8 become U+FFFD, as in Java. Numbers may have any length, as
the strict parser skips numbers that the caller does not use. An object as a key becomes a text: its
compact JSON with sorted members. Writing can produce maps with bare numbers or objects as keys.
Source: remoting/…/protocol/RemotingSerializable.java (fastjson 1.2.83).
"""

import re
import sys
from collections.abc import Iterable
from typing import Any

import attrs

from triomq.remoting.core.errors import LocalProtocolError, RemoteProtocolError
from triomq.remoting.protocol.structs import msgspec

DEPTH_MAX = 64
REFERENCED_VALUES_MAX = 20_000
LOOSE_BYTES_MAX = 65_536
"""Loose parsing takes up to 1 µs for a byte."""
VALUES_MAX = 100_000
"""Strict parsing takes up to 0.4 µs for a value, and holds the interpreter's lock until it returns:
a thread would not help.
"""
_FIX = "send JSON as a RocketMQ peer would"
_TOKEN = re.compile(
    r'[ \t\r\n]*(?:([{}\[\]:,])|"((?:[^"\\]|\\.)*)"|\'((?:[^\'\\]|\\.)*)\'|([^\s{}\[\]:,"\']+))',
    re.DOTALL,
)
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_SIMPLE_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "0": "\0"}
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?\Z")
# Python reads integers up to this length with any settings; a longer one becomes an infinite
# float.
_DIGITS_MAX = sys.int_info.str_digits_check_threshold
_LITERALS: dict[str, object] = {"true": True, "false": False, "null": None, "NaN": None}
_SURROGATES = re.compile("[\ud800-\udfff]+")

_decode_strictly = msgspec.json.Decoder(float_hook=float).decode
"""With Python's ``float``: msgspec takes 20 µs for a number like ``1.5e300``, 0.3 s for a body of
128 KiB of them.
"""

_END = ("end", "")
_Token = tuple[str, str]


@attrs.frozen
class JsonLimits:
    """Limits of a text: while the server parses it, all other requests wait."""

    loose_bytes: int = LOOSE_BYTES_MAX
    """The longest text that is parsed loosely, and the most values that a text with references may
    expand to.
    """
    values: int = VALUES_MAX
    """Objects, arrays, texts, numbers and literals; a comma in a text counts as a value, too."""


REQUEST_LIMITS = JsonLimits()
"""The limits of a request to a server."""


def loads(data: bytes | bytearray | memoryview | str, limits: JsonLimits | None = None) -> Any:
    """Return the value of a text, parsed strictly if possible, or else loosely.

    `limits`: those of a server; without limits, a text may be as long as its frame.

    Raises: RemoteProtocolError.
    """
    if limits is not None:
        _require_few_values(data, limits.values)
    try:
        value = _decode_strictly(data)
    except (ValueError, RecursionError):  # DecodeError and UnicodeDecodeError are ValueErrors
        if limits is not None and len(data) > limits.loose_bytes:
            raise RemoteProtocolError(
                f"{len(data):,} bytes that are not standard JSON, where {limits.loose_bytes:,} is"
                " the limit",
                "send standard JSON in UTF-8, or less of it",
            ) from None
        value = _loads_loosely(data)
    if '"$ref"' in data if isinstance(data, str) else b'"$ref"' in bytes(data):
        value = _Resolver(value, None if limits is None else limits.loose_bytes).resolve(
            value, DEPTH_MAX, False
        )
    return value


def _require_few_values(data: bytes | bytearray | memoryview | str, values_max: int) -> None:
    if len(data) <= values_max:  # a value takes at least one byte
        return
    text = data.encode(errors="replace") if isinstance(data, str) else bytes(data)
    # Each value except the first follows one of these, or a colon and a name that follows one.
    values = 1 + text.count(b",") + text.count(b"[") + text.count(b"{")
    if values > values_max:
        raise RemoteProtocolError(
            f"JSON of up to {values:,} values, where {values_max:,} is the limit",
            "send less in one request",
        )


def key_text(value: object) -> str:
    """Return the text of an object that is a map key: compact, members sorted."""
    return msgspec.json.encode(value, order="sorted").decode()


def object_key_map(entries: Iterable[tuple[object, object]]) -> msgspec.Raw:
    """Return a JSON object whose keys are objects, as Java's readers need it, for ``dumps``."""
    encode = msgspec.json.encode
    return msgspec.Raw(
        b"{" + b",".join(encode(key) + b":" + encode(value) for key, value in entries) + b"}"
    )


def bare_key_map(entries: Iterable[tuple[int, object]]) -> msgspec.Raw:
    """Return a JSON object whose numeric keys have no quotes, as fastjson writes them."""
    encode = msgspec.json.encode
    return msgspec.Raw(
        b"{" + b",".join(b"%d:" % key + encode(value) for key, value in entries) + b"}"
    )


def dumps(value: object) -> bytes:
    """Return compact JSON.

    Raises: LocalProtocolError for values that JSON does not have.
    """
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise LocalProtocolError(f"cannot write as JSON: {error}") from error


def _loads_loosely(data: bytes | bytearray | memoryview | str) -> object:
    reader = _Reader(data if isinstance(data, str) else str(data, "utf-8", "replace"))
    value = reader.value(DEPTH_MAX)
    if reader.next() != _END:
        raise reader.complaint("text after the end of the value")
    return value


class _Reader:
    """A recursive-descent parser over tokens that a regular expression finds.

    A token is (kind, text); the kinds are punct, string, bare and end.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._peeked: _Token | None = None

    def complaint(self, what: str) -> RemoteProtocolError:
        return RemoteProtocolError(f"bad JSON near character {self._position}: {what}", _FIX)

    def next(self) -> _Token:
        if self._peeked is not None:
            token, self._peeked = self._peeked, None
            return token
        match = _TOKEN.match(self._text, self._position)
        if match is None:
            if self._text[self._position :].strip(" \t\r\n"):
                raise self.complaint("unreadable text")
            return _END
        self._position = match.end()
        punct, double, single, bare = match.groups()
        if punct is not None:
            return ("punct", punct)
        if bare is not None:
            return ("bare", bare)
        return ("string", _unescape(double if double is not None else single))

    def peek(self) -> _Token:
        if self._peeked is None:
            self._peeked = self.next()
        return self._peeked

    def value(self, depth: int) -> object:
        if depth == 0:
            raise self.complaint(f"nested deeper than {DEPTH_MAX}")
        kind, text = self.next()
        if kind == "string":
            return text
        if kind == "bare":
            return self._literal(text)
        if (kind, text) == ("punct", "{"):
            return self._object(depth)
        if (kind, text) == ("punct", "["):
            return self._array(depth)
        raise self.complaint("a value is missing" if kind == "end" else f"unexpected {text!r}")

    def _literal(self, text: str) -> object:
        if text in _LITERALS:
            return _LITERALS[text]
        match = _NUMBER.match(text)
        if match is None:
            raise self.complaint(f"unknown word {text[:40]!r}")
        return float(text) if match[1] or match[2] or len(text) > _DIGITS_MAX else int(text)

    def _array(self, depth: int) -> list[object]:
        values: list[object] = []
        while self.peek() != ("punct", "]"):
            values.append(self.value(depth - 1))
            if self.peek() == ("punct", ","):
                self.next()
            elif self.peek() != ("punct", "]"):
                raise self.complaint("',' or ']' expected")
        self.next()
        return values

    def _object(self, depth: int) -> dict[str, object]:
        members: dict[str, object] = {}
        while self.peek() != ("punct", "}"):
            kind, text = self.peek()
            if kind in ("string", "bare"):
                key = self.next()[1]
            elif text == "{":
                key = key_text(self.value(depth - 1))
            else:
                raise self.complaint("a key is missing")
            if self.next() != ("punct", ":"):
                raise self.complaint("':' expected")
            members[key] = self.value(depth - 1)
            if self.peek() == ("punct", ","):
                self.next()
            elif self.peek() != ("punct", "}"):
                raise self.complaint("',' or '}' expected")
        self.next()
        return members


def _unescape(text: str) -> str:
    if "\\" in text:
        text = _ESCAPE.sub(_unescape_one, text)
        text = _SURROGATES.sub(
            lambda match: match[0].encode("utf-16", "surrogatepass").decode("utf-16", "replace"),
            text,
        )
    return text


def _unescape_one(match: re.Match[str]) -> str:
    four, two, letter = match.groups()
    return chr(int(four or two, 16)) if letter is None else _SIMPLE_ESCAPES.get(letter, letter)


class _Resolver:
    """Replaces every ``{"$ref": path}`` by the value at the path, None if the path leads nowhere.

    Values from references count against a budget: a small text must not expand to gigabytes.
    """

    def __init__(self, root: object, values_max: int | None) -> None:
        self._root = root
        self._budget = REFERENCED_VALUES_MAX
        self._values_left = values_max

    def resolve(self, value: object, depth: int, inside: bool) -> object:
        """Return the value with its references replaced.

        `inside`: whether the value comes from a reference. References in it become None, which ends
        chains and cycles.
        """
        if self._values_left is not None:
            self._values_left -= 1
            if self._values_left < 0:
                raise RemoteProtocolError(
                    "JSON with references has too many values",
                    "send it without references, or less of it",
                )
        if inside:
            self._budget -= 1
            if self._budget < 0:
                raise RemoteProtocolError(
                    f"references stand for more than {REFERENCED_VALUES_MAX} values", _FIX
                )
        if isinstance(value, dict):
            path = value.get("$ref")
            if isinstance(path, str) and len(value) == 1:
                return (
                    None
                    if inside or depth == 0
                    else self.resolve(_follow(self._root, path), depth - 1, True)
                )
            return {
                key: self.resolve(member, depth - 1, inside) if depth else None
                for key, member in value.items()
            }
        if isinstance(value, list):
            return [self.resolve(member, depth - 1, inside) if depth else None for member in value]
        return value


def _follow(root: object, path: str) -> object:
    value = root
    if not path.startswith("$"):
        # "@" and ".." refer to enclosing objects: cycles, which no body of the protocol has.
        return None
    for step in re.findall(r"\.([^.\[\]]+)|\[(\d{1,9})\]", path):
        name, index = step
        if name and isinstance(value, dict):
            value = value.get(name)
        elif index and isinstance(value, list) and int(index) < len(value):
            value = value[int(index)]
        else:
            return None
    return value
