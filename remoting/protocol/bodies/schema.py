"""JSON bodies as attrs classes: read as tolerantly as fastjson, written as strictly as Java.

A body class is an ``attrs.frozen(eq=False, repr=False)`` subclass of ``JsonBody``. The JSON name of
a member is its attribute in camel case, or the one that ``named()`` gives. Types are str, int,
float, bool, other body classes, ``list``, ``tuple[T, ...]``, ``frozenset``, ``dict`` (keys str, int
or a body class), ``Any``, and each of these ``| None``.

Reading ignores unknown members, treats null as absent, and converts numbers, texts and bools into
each other as Java does. A missing member without default, or a value of the wrong shape, raises
RemoteProtocolError. Writing leaves out None, sorts members by name, and writes maps with object
keys as Java's readers need them. Source: remoting/…/protocol/RemotingSerializable.java (fastjson
1.2.83).
"""

import math
import re
import types
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, Self, TypeAlias, TypeVar, Union, cast, get_args, get_origin

import attrs

from triomq.remoting.core.errors import LocalProtocolError, RemoteProtocolError
from triomq.remoting.protocol.fastjson import JsonLimits, bare_key_map, dumps, loads, object_key_map
from triomq.remoting.protocol.fields import LIMITS
from triomq.remoting.protocol.short_repr import short_value

Reader: TypeAlias = Callable[[object], Any]
Writer: TypeAlias = Callable[[Any, bool], object]

B = TypeVar("B", bound="JsonBody")

_NAME = "triomq.json"
_FIX = "send the body as a RocketMQ 4.x or 5.x peer would"
_NON_ASCII = re.compile("[^\x00-\x7f]")
_WHOLE = re.compile(r"\s*([+-]?\d{1,20})(?:\.0*)?\s*\Z")


def json_name(name: str) -> dict[str, str]:
    """Return the metadata of a required ``attrs.field`` with another JSON name than in camel case.

    A member with a default is declared by ``named()``: type checkers take it for optional.
    """
    return {_NAME: name}


def named(name: str, **default: Any) -> Any:
    """Declare a member with a JSON name, and its ``default`` or ``factory``."""
    return attrs.field(metadata=json_name(name), **default)


class JsonBody:
    """The base class of all body classes; it has no state.

    Equality, hash and repr are here, and body classes say ``eq=False, repr=False``: generating them
    for sixty classes would take 20 ms of every start. A class whose instances are keys of large
    maps lets attrs generate them.
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._values() == other._values()

    def __hash__(self) -> int:
        return hash((type(self), self._values()))

    def __repr__(self) -> str:
        names = [field.name for field in attrs.fields(cast("Any", type(self)))]
        shown = ", ".join(
            f"{name}={short_value(value)}"
            for name, value in zip(names, self._values(), strict=True)
        )
        return f"{type(self).__name__}({shown})"

    def _values(self) -> tuple[object, ...]:
        return tuple(getattr(self, field.name) for field in attrs.fields(cast("Any", type(self))))

    def encode(self, *, bare_keys: bool = False) -> bytes:
        """Return the body as JSON.

        `bare_keys`: whether to write numeric map keys without quotes, as fastjson does.
        """
        return dumps(write_plain(self, bare_keys=bare_keys))

    @classmethod
    def decode(cls, data: bytes | memoryview, limits: JsonLimits | None = None) -> Self:
        """Return the object in a body.

        Raises: RemoteProtocolError if the body is empty, not JSON, beyond the limits, or of another
        shape.
        """
        if not data:
            raise RemoteProtocolError(f"the body should be a {cls.__name__} but is empty", _FIX)
        return cls.from_plain(loads(data, limits))

    @classmethod
    def from_plain(cls, plain: object) -> Self:
        """Return the object of a value that ``fastjson.loads`` returned."""
        value: Self = _reader(cast("Any", cls))(plain)
        return value


def decode_array(cls: type[B], data: bytes | memoryview) -> list[B]:
    """Return the objects of a JSON array; an empty body is an empty array.

    Raises: RemoteProtocolError for any other body.
    """
    plain = loads(data) if data else []
    if not isinstance(plain, list):
        raise _complaint(f"should be a JSON array of {cls.__name__}, not {_shown(plain)}")
    return [cls.from_plain(member) for member in plain]


def encode_array(values: Iterable[JsonBody]) -> bytes:
    """Return the objects as a JSON array."""
    return dumps([write_plain(value) for value in values])


def write_plain(value: JsonBody, *, bare_keys: bool = False) -> Any:
    """Return a body as dicts, lists, scalars and raw JSON (maps with object keys)."""
    return _writer(cast("Any", type(value)))(value, bare_keys)


def escape_non_ascii(text: bytes) -> bytes:
    """Return JSON in ASCII: other characters as ``\\u`` and four upper-case hex digits.

    Standard answers with routes are written so.
    """
    if text.isascii():
        return text
    return _NON_ASCII.sub(_escape_character, text.decode()).encode()


def _escape_character(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be")
    return "".join(
        f"\\u{units[place : place + 2].hex().upper()}" for place in range(0, len(units), 2)
    )


def wire_name(field: "attrs.Attribute[object]") -> str:
    """Return the JSON name of a member."""
    name: str | None = field.metadata.get(_NAME)
    if name is None:
        first, *rest = field.name.split("_")
        name = first + "".join(word.capitalize() for word in rest)
    return name


def _complaint(what: str) -> RemoteProtocolError:
    return RemoteProtocolError(what, _FIX)


# ------------------------------------------------------------------------------------------------
# reading


@cache
def _reader(annotation: Any) -> Reader:
    scalar = _SCALARS.get(annotation)
    if scalar is not None:
        return scalar
    if annotation is Any:
        return lambda value: value
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (types.UnionType, Union):
        (inner,) = (argument for argument in arguments if argument is not type(None))
        read = _reader(inner)
        return lambda value: None if value is None else read(value)
    if origin in (list, tuple, frozenset):
        return _collection_reader(origin, _reader(arguments[0]))
    if origin is dict:
        return _map_reader(arguments[0], _reader(arguments[1]))
    if attrs.has(annotation):
        return _class_reader(annotation)
    raise TypeError(f"body members cannot be {annotation}")


def _class_reader(cls: Any) -> Reader:
    members: list[tuple[str, str, Reader, bool]] = []

    def read(value: object) -> object:
        if not members:  # Filled at first use: a class may name another one that is defined later.
            members.extend(
                (field.name, wire_name(field), _reader(field.type), field.default is attrs.NOTHING)
                for field in attrs.fields(cls)
            )
        if not isinstance(value, dict):
            raise _complaint(f"{cls.__name__} should be a JSON object, not {_shown(value)}")
        made = {}
        for attribute, name, read_member, required in members:
            member = value.get(name)
            if member is not None:
                try:
                    made[attribute] = read_member(member)
                except RemoteProtocolError as error:
                    raise _complaint(f"{name}: {error.reason}") from None
            elif required:
                raise _complaint(f"{cls.__name__} lacks {name}")
        return cls(**made)

    return read


def _collection_reader(kind: Any, read: Reader) -> Reader:
    def read_all(value: object) -> object:
        if not isinstance(value, list):
            raise _complaint(f"should be a JSON array, not {_shown(value)}")
        return kind([read(member) for member in value])

    return read_all


def _map_reader(key_kind: object, read: Reader) -> Reader:
    if key_kind in (str, int):
        read_key = _SCALARS[key_kind]
    else:
        read_object = _reader(key_kind)

        def read_key(text: Any) -> object:
            return read_object(loads(text))

    def read_all(value: object) -> object:
        if not isinstance(value, dict):
            raise _complaint(f"should be a JSON object, not {_shown(value)}")
        return {read_key(key): read(member) for key, member in value.items()}

    return read_all


def _read_text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    return dumps(value).decode()


def _read_whole(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        number = value
    else:
        match = _WHOLE.match(value if isinstance(value, str) else repr(value))
        if match is None:
            raise _complaint(f"should be a whole number, not {_shown(value)}")
        number = int(match[1])
    low, high = LIMITS[64]
    if not low <= number <= high:
        raise _complaint(f"{_shown(value)} does not fit 64 bits")
    return number


def _read_float(value: object) -> float:
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        try:
            number = float(value)
        except (ValueError, OverflowError):
            number = math.nan
        if math.isfinite(number):  # JSON has no other numbers: Java writes them as null.
            return number
    raise _complaint(f"should be a finite number, not {_shown(value)}")


def _read_bool(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false", "1", "0"):
        return value.lower() in ("true", "1")
    if isinstance(value, int) and value in (0, 1):
        return value == 1
    raise _complaint(f"should be true or false, not {_shown(value)}")


_SCALARS: dict[object, Reader] = {
    str: _read_text,
    int: _read_whole,
    float: _read_float,
    bool: _read_bool,
}


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


# ------------------------------------------------------------------------------------------------
# writing


@cache
def _writer(annotation: object) -> Writer:
    if annotation in _SCALARS or annotation is Any:
        return lambda value, bare_keys: value
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (types.UnionType, Union):
        (inner,) = (argument for argument in arguments if argument is not type(None))
        return _writer(inner)
    if origin in (list, tuple):
        write = _writer(arguments[0])
        return lambda value, bare_keys: [write(member, bare_keys) for member in value]
    if origin is frozenset:
        return lambda value, bare_keys: sorted(value)
    if origin is dict:
        return _map_writer(arguments[0], _writer(arguments[1]))
    return _class_writer(annotation)


def _class_writer(cls: Any) -> Writer:
    members: list[tuple[str, str, Writer]] = []

    def write(value: object, bare_keys: bool) -> object:
        if not members:
            ordered = sorted(attrs.fields(cls), key=wire_name)
            members.extend((wire_name(field), field.name, _writer(field.type)) for field in ordered)
        made = {}
        for name, attribute, write_member in members:
            member = getattr(value, attribute)
            if member is not None:
                made[name] = write_member(member, bare_keys)
        return made

    return write


def _map_writer(key_kind: Any, write: Writer) -> Writer:
    def write_text_keys(value: Mapping[str, object], bare_keys: bool) -> object:
        return {key: write(member, bare_keys) for key, member in value.items()}

    def write_number_keys(value: Mapping[int, object], bare_keys: bool) -> object:
        if bare_keys:
            return bare_key_map((key, write(value[key], True)) for key in sorted(value))
        return {str(key): write(value[key], False) for key in sorted(value)}

    def write_object_keys(value: Mapping[object, object], bare_keys: bool) -> object:
        write_key = _writer(key_kind)
        try:
            return object_key_map(
                (write_key(key, bare_keys), write(member, bare_keys))
                for key, member in value.items()
            )
        except (TypeError, ValueError) as error:
            raise LocalProtocolError(
                f"cannot write a map with {key_kind.__name__} keys: {error}"
            ) from error

    if key_kind is str:
        return write_text_keys
    return write_number_keys if key_kind is int else write_object_keys
