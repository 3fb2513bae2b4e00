"""The part of msgspec that the protocol uses, in plain Python: several times slower, same results.

For Spark's executors, to which code travels as one zip without compiled modules. ``structs`` takes
it where msgspec is not installed. A test compares both with each other. Texts of integers with an
exponent (``1e3``), which no peer writes, are refused here.
"""

import json as _json
import re
import types
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Never, Union, cast, dataclass_transform, get_args, get_origin

import attrs

_WHOLE = re.compile(r"(-?(?:0|[1-9][0-9]{0,24}))(?:\.0+)?")
_NUMBER = re.compile(
    r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?|[+-]?(?:nan|inf|infinity)", re.IGNORECASE
)
_BOOLS = {"true": True, "1": True, "false": False, "0": False}
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_BOM = "\ufeff"


class DecodeError(ValueError):
    """The input cannot be decoded."""


class ValidationError(DecodeError):
    """The input has another shape than the type."""


class Raw(bytes):
    """JSON inside of values to encode. Nothing that runs without msgspec writes any."""


@attrs.frozen
class Meta:
    """The range of an integer."""

    ge: int
    le: int


def field(*, name: str | None = None, **default: Any) -> object:
    """Declare a member with its name in JSON; ``default`` or ``default_factory``."""
    if "default_factory" in default:
        default["factory"] = default.pop("default_factory")
    return attrs.field(metadata={} if name is None else {"name": name}, **default)


@dataclass_transform(field_specifiers=(field,))
class Struct:
    """The base of classes whose annotations are their members: made by attrs."""

    __struct_fields__: tuple[str, ...]

    def __init_subclass__(
        cls, *, eq: bool = True, frozen: bool = False, gc: bool = True, kw_only: bool = False
    ) -> None:
        super().__init_subclass__()
        attrs.define(cls, slots=False, eq=eq, frozen=frozen, kw_only=kw_only)
        cls.__struct_fields__ = tuple(member.name for member in attrs.fields(cast("Any", cls)))


def defstruct(
    name: str,
    members: list[Any],
    *,
    rename: Mapping[str, str] = types.MappingProxyType({}),
    module: str = __name__,
    namespace: Mapping[str, object] = types.MappingProxyType({}),
    **options: bool,
) -> type[Struct]:
    """Return a struct class. ``members``: (attribute, type) or (attribute, type, default)."""
    body: dict[str, Any] = {**namespace, "__module__": module, "__annotations__": {}}
    for attribute, kind, *default in members:
        body["__annotations__"][attribute] = kind
        declared = field(
            name=rename.get(attribute, attribute), default=(*default, attrs.NOTHING)[0]
        )
        body[attribute] = declared
    made: type[Struct] = type(name, (Struct,), body, **options)
    return made


def convert(value: object, kind: type[Struct], *, strict: bool = False) -> object:
    """Return a struct of a mapping; numbers and bools may be texts. Raises: ValidationError."""
    if not isinstance(value, Mapping):
        raise ValidationError(f"Expected `object`, got `{type(value).__name__}`")
    made = {}
    for member in attrs.fields(cast("Any", kind)):
        name = member.metadata.get("name", member.name)
        if name in value:
            made[member.name] = _cast(value[name], member.type, name)
        elif member.default is attrs.NOTHING:
            raise ValidationError(f"Object missing required field `{name}`")
    return kind(**made)


def _cast(value: object, kind: object, name: str) -> object:
    if kind is str and isinstance(value, str):
        return value
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (types.UnionType, Union):
        return _cast_to_one_of(value, arguments, name)
    if origin is dict and isinstance(value, dict):
        return {key: _cast(member, arguments[1], name) for key, member in value.items()}
    if origin is Annotated:
        number = _cast(value, arguments[0], name)
        if arguments[1].ge <= number <= arguments[1].le:
            return number
    text = value if isinstance(value, str) else repr(value).lower()
    text = "0" if text == "-0" else text  # msgspec reads an integer first
    if kind is int and (match := _WHOLE.fullmatch(text)):
        return int(match[1])
    if kind is bool and text.lower() in _BOOLS:
        return _BOOLS[text.lower()]
    if kind is float and _NUMBER.fullmatch(text):
        return float(text)
    raise ValidationError(f"Expected `{kind}`, got `{value!r:.40}` - at `$.{name}`")


def _cast_to_one_of(value: object, kinds: tuple[object, ...], name: str) -> object:
    if type(None) in kinds and (
        value is None or (str not in kinds and str(value).lower() == "null")
    ):
        return None
    for kind in kinds:
        if kind is not type(None):
            try:
                return _cast(value, kind, name)
            except ValidationError:
                continue
    raise ValidationError(f"Expected `{kinds}`, got `{value!r:.40}` - at `$.{name}`")


def _no_constant(name: str) -> Never:
    raise DecodeError(f"{name} is not JSON")


def _decode(data: bytes | bytearray | memoryview | str) -> object:
    text = data if isinstance(data, str) else str(data, "utf-8")
    if text.startswith(_BOM) or _SURROGATE.search(text):
        raise DecodeError("not the plainest JSON")  # the loose parser reads it
    try:
        return _json.loads(text, parse_constant=_no_constant)
    except _json.JSONDecodeError as error:
        raise DecodeError(str(error)) from None


def _encode(value: object, *, order: str | None = None) -> bytes:
    text = _json.dumps(
        value, ensure_ascii=False, separators=(",", ":"), sort_keys=order == "sorted"
    )
    return text.encode()


class _Decoder:
    def __init__(
        self,
        kind: type[Struct] | None = None,
        *,
        strict: bool = True,
        float_hook: Callable[[str], object] = float,
    ) -> None:
        self._kind = kind

    def decode(self, data: bytes | bytearray | memoryview | str) -> object:
        value = _decode(data)
        return value if self._kind is None else convert(value, self._kind)


class _Encoder:
    encode = staticmethod(_encode)


class json:  # noqa: N801 - a module of msgspec
    """``msgspec.json``."""

    Decoder = _Decoder
    Encoder = _Encoder
    decode = staticmethod(_decode)
    encode = staticmethod(_encode)
