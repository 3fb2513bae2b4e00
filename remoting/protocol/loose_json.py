"""JSON as fastjson writes it, which is not always JSON, and the two liberties we need when writing.

Reading accepts, besides the standard: bare keys (``{0:"a"}``), objects as keys (``{{"topic":"T"}:1}``), single quotes,
and resolves ``{"$ref":"$.path"}`` where the path can be followed (None otherwise). Bytes that are no UTF-8 become U+FFFD,
as in Java. Numbers may have any length, as the strict reader passes over those that nobody asks for. An object used as a key becomes a
string: its compact JSON text with sorted members.
Source: remoting/…/protocol/RemotingSerializable.java (fastjson 1.2.83).
"""

import re
import sys
from collections.abc import Iterable
from typing import Any

import msgspec

from triomq.remoting.errors import LocalProtocolError, RemoteProtocolError

DEPTH_MAX = 64
REFERENCED_VALUES_MAX = 20_000
LOOSE_BYTES_MAX = 65_536
"""The limit for requests to a server.  Loose parsing takes up to 1 µs a byte, and the loop serves no other request meanwhile."""
_FIX = "send JSON as a RocketMQ peer would"
_TOKEN = re.compile(
    r'[ \t\r\n]*(?:([{}\[\]:,])|"((?:[^"\\]|\\.)*)"|\'((?:[^\'\\]|\\.)*)\'|([^\s{}\[\]:,"\']+))', re.DOTALL
)
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_SIMPLE_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "0": "\0"}
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?\Z")
_DIGITS_MAX = sys.int_info.str_digits_check_threshold  # Python reads ints up to here whatever its settings; a longer one becomes an infinite float
_LITERALS: dict[str, Any] = {"true": True, "false": False, "null": None, "NaN": None}
_SURROGATES = re.compile("[\ud800-\udfff]+")

_END = ("end", "")
_Token = tuple[str, str]


def loads(data: bytes | bytearray | memoryview | str, loose_bytes_max: int | None = None) -> Any:
    """Parse strictly if possible, loosely if not; RemoteProtocolError if neither works.

    *loose_bytes_max*: the longest text that is parsed loosely, and the most values that a text with references may have; other standard JSON may have any length.
    """
    try:
        value = msgspec.json.decode(data)
    except (ValueError, RecursionError):  # DecodeError and UnicodeDecodeError are ValueErrors
        if loose_bytes_max is not None and len(data) > loose_bytes_max:
            raise RemoteProtocolError(
                f"{len(data):,} bytes that are not standard JSON, where {loose_bytes_max:,} is the most", "send standard JSON in UTF-8, or less of it"
            ) from None
        value = _loads_loosely(data)
    if '"$ref"' in data if isinstance(data, str) else b'"$ref"' in bytes(data):
        value = _Resolver(value, loose_bytes_max).resolve(value, DEPTH_MAX, False)
    return value


def key_text(value: Any) -> str:
    """The text that stands for an object used as a map key: compact, members sorted."""
    return msgspec.json.encode(value, order="sorted").decode()


def object_key_map(entries: Iterable[tuple[Any, Any]]) -> msgspec.Raw:
    """A JSON object whose keys are themselves objects, as Java's readers want it; put it into a value for ``dumps``."""
    encode = msgspec.json.encode
    return msgspec.Raw(b"{" + b",".join(encode(key) + b":" + encode(value) for key, value in entries) + b"}")


def bare_key_map(entries: Iterable[tuple[int, Any]]) -> msgspec.Raw:
    """A JSON object whose numeric keys stand without quotes, as fastjson writes them."""
    encode = msgspec.json.encode
    return msgspec.Raw(b"{" + b",".join(b"%d:" % key + encode(value) for key, value in entries) + b"}")


def dumps(value: Any) -> bytes:
    """Compact JSON; LocalProtocolError for what JSON cannot carry."""
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise LocalProtocolError(f"cannot write as JSON: {error}") from error


def dumps_object_keys(member: str, entries: Iterable[tuple[Any, Any]], **others: Any) -> bytes:
    """A document with one member that is a map with object keys, and *others* beside it."""
    return dumps({member: object_key_map(entries), **others})


def _loads_loosely(data: bytes | bytearray | memoryview | str) -> Any:
    reader = _Reader(data if isinstance(data, str) else str(data, "utf-8", "replace"))
    value = reader.value(DEPTH_MAX)
    if reader.next() != _END:
        raise reader.complaint("text after the end of the value")
    return value


class _Reader:
    """Recursive descent over regular-expression tokens: (kind, text) with kind in punct, string, bare, end."""

    __slots__ = ("_peeked", "_position", "_text")

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

    def value(self, depth: int) -> Any:
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

    def _literal(self, text: str) -> Any:
        if text in _LITERALS:
            return _LITERALS[text]
        match = _NUMBER.match(text)
        if match is None:
            raise self.complaint(f"unknown word {text[:40]!r}")
        return float(text) if match[1] or match[2] or len(text) > _DIGITS_MAX else int(text)

    def _array(self, depth: int) -> list[Any]:
        values: list[Any] = []
        while self.peek() != ("punct", "]"):
            values.append(self.value(depth - 1))
            if self.peek() == ("punct", ","):
                self.next()
            elif self.peek() != ("punct", "]"):
                raise self.complaint("',' or ']' expected")
        self.next()
        return values

    def _object(self, depth: int) -> dict[str, Any]:
        members: dict[str, Any] = {}
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
        text = _SURROGATES.sub(lambda match: match[0].encode("utf-16", "surrogatepass").decode("utf-16", "replace"), text)
    return text


def _unescape_one(match: re.Match[str]) -> str:
    four, two, letter = match.groups()
    return chr(int(four or two, 16)) if letter is None else _SIMPLE_ESCAPES.get(letter, letter)


class _Resolver:
    """Replaces every ``{"$ref": path}`` by what it means; a path that cannot be followed gives None.

    What a reference brings in counts against a budget: a small text must not stand for gigabytes.
    """

    def __init__(self, root: Any, values_max: int | None) -> None:
        self._root = root
        self._budget = REFERENCED_VALUES_MAX
        self._values_left = values_max

    def resolve(self, value: Any, depth: int, inside: bool) -> Any:
        """*inside* a reference, further references give None: chains and cycles end there."""
        if self._values_left is not None:
            self._values_left -= 1
            if self._values_left < 0:
                raise RemoteProtocolError("JSON with references has too many values", "send it without references, or less of it")
        if inside:
            self._budget -= 1
            if self._budget < 0:
                raise RemoteProtocolError(f"references stand for more than {REFERENCED_VALUES_MAX} values", _FIX)
        if isinstance(value, dict):
            path = value.get("$ref")
            if isinstance(path, str) and len(value) == 1:
                return None if inside or depth == 0 else self.resolve(_follow(self._root, path), depth - 1, True)
            return {key: self.resolve(member, depth - 1, inside) if depth else None for key, member in value.items()}
        if isinstance(value, list):
            return [self.resolve(member, depth - 1, inside) if depth else None for member in value]
        return value


def _follow(root: Any, path: str) -> Any:
    value = root
    if not path.startswith("$"):
        return None  # "@" and ".." point at enclosing objects: cycles, which our bodies never contain
    for step in re.findall(r"\.([^.\[\]]+)|\[(\d{1,9})\]", path):
        name, index = step
        if name and isinstance(value, dict):
            value = value.get(name)
        elif index and isinstance(value, list) and int(index) < len(value):
            value = value[int(index)]
        else:
            return None
    return value
