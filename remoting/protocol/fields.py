"""How a header class declares its wire form, and the codecs made from the declaration.

A custom header is nothing but entries of the string map ``extFields``. A class names them once::

    @header
    class GetMinOffsetHeader:
        topic: str = wire("topic")
        queue_id: int = wire("queueId")
        broker_name: str | None = wire("bname", default=None)

Attribute types are ``str``, ``int``, ``bool`` and ``float``, each also ``| None``. A field without default is required.
None is never sent; bools are ``"true"`` and ``"false"``; numbers are decimal text. Integers are 32 bits wide unless the
declaration says ``bits=64``: a value that the receiver's Java field could not hold is refused here, not later.
Source: remoting/…/protocol/RemotingCommand.java (makeCustomHeaderToNet, decodeCommandCustomHeader).

Reading is lax in one place only: an optional field that is not text and arrives as ``""`` counts as absent. Unknown
entries are ignored. All conversion code is generated at the first use of a class, so that declaring it costs little.
"""

import types
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Generic, TypeVar, Union, cast, dataclass_transform, get_args, get_origin

import attrs
import msgspec

from triomq.remoting.errors import HeaderFieldError, LocalProtocolError

H = TypeVar("H")

COMMON_EXT_FIELDS = frozenset(
    {"bname", "ns", "nsd", "oway", "lo", "AccessKey", "SecurityToken", "Signature", "ReqT", "__ZONE_NAME", "__ZONE_MODE"}
)
"""Entries that any request may carry besides those of its header class."""

LIMITS = {bits: (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) for bits in (32, 64)}
I32 = Annotated[int, msgspec.Meta(ge=LIMITS[32][0], le=LIMITS[32][1])]
I64 = Annotated[int, msgspec.Meta(ge=LIMITS[64][0], le=LIMITS[64][1])]

_METADATA_KEY = "triomq.wire"


@attrs.frozen
class WireName:
    """What ``wire()`` was told."""

    name: str
    short: str | None
    bits: int
    varies: bool


@attrs.frozen
class WireField:
    """One field of a header class, ready for code generation."""

    attribute: str
    name: str
    short: str
    kind: type  # str, int, bool or float
    optional: bool  # None is a legal value
    required: bool  # has no default
    default: Any
    bits: int
    varies: bool

    def wire_name(self, short: bool) -> str:
        return self.short if short else self.name


def wire(name: str, *, short: str | None = None, default: Any = attrs.NOTHING, bits: int = 32, varies: bool = False) -> Any:
    """Declare a header field: its name in ``extFields``, its one-letter name in V2 headers, its width if an int.

    *varies*: an int or a text that differs from one request of a client to the next, while the other fields stay what they are. It changes how fast
    headers are read, not what is read.
    """
    return attrs.field(default=default, metadata={_METADATA_KEY: WireName(name, short, bits, varies)})


@dataclass_transform(field_specifiers=(wire,))
def header(cls: type[H]) -> type[H]:
    """Make a header class: ``attrs.define`` with equality by value, plus an entry in the table of codecs.

    Equality and repr are shared functions: letting attrs generate them for a hundred classes would double the time that
    importing them takes (0.5 ms each), which a server pays at every start.
    """
    for name, method in (("__eq__", _equal), ("__repr__", _show), ("__hash__", None)):
        setattr(cls, name, method)
    made = attrs.define(eq=False, repr=False, slots=True)(cls)
    _CODECS[made] = HeaderCodec(made)
    return made


def _equal(self: object, other: object) -> Any:
    if type(other) is not type(self):
        return NotImplemented
    names = [field.attribute for field in _CODECS[self.__class__].fields]
    return all(getattr(self, name) == getattr(other, name) for name in names)


def _show(self: object) -> str:
    names = [field.attribute for field in _CODECS[self.__class__].fields]
    return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"


_CODECS: dict[type, "HeaderCodec[Any]"] = {}


def codec_of(cls: type[H]) -> "HeaderCodec[H]":
    """The codec of a class made by ``@header``; TypeError for any other."""
    codec = _CODECS.get(cls)
    if codec is None:
        raise TypeError(f"{cls.__name__} is not a header class; declare it with @header")
    return codec


class HeaderCodec(Generic[H]):
    """Header object <-> ``extFields``, by functions generated from the class's declaration."""

    __slots__ = ("_readers", "_structs", "_writers", "cls", "fields")

    def __init__(self, cls: type[H]) -> None:
        self.cls = cls
        self.fields = tuple(_wire_field(field, cls) for field in attrs.fields(cast("Any", cls)))
        self._writers: dict[bool, Callable[[H], dict[str, str]]] = {}
        self._readers: dict[bool, Callable[[Any], H]] = {}
        self._structs: dict[bool, type[msgspec.Struct]] = {}

    def names(self, *, short: bool = False) -> frozenset[str]:
        """The wire names of all fields."""
        return frozenset(field.wire_name(short) for field in self.fields)

    def to_ext(self, value: H, *, short: bool = False) -> dict[str, str]:
        """The header as text entries; None left out."""
        writer = self._writers.get(short)
        if writer is None:
            writer = self._writers[short] = _generate_writer(self, short)
        return writer(value)

    def from_ext(self, ext: Mapping[str, str] | None, *, short: bool = False) -> H:
        """The header object from text entries; HeaderFieldError for a missing or unreadable field."""
        struct = self.struct(short)
        try:
            raw = msgspec.convert(ext or {}, struct, strict=False)
        except msgspec.ValidationError as error:
            kept = self._without_blank_options(ext or {}, short)
            if kept == ext:
                raise self._complaint(error) from None
            try:
                raw = msgspec.convert(kept, struct, strict=False)
            except msgspec.ValidationError as second:
                raise self._complaint(second) from None
        return self.reader(short)(raw)

    def struct(self, short: bool) -> type[msgspec.Struct]:
        """The header class's twin: a msgspec class with the same attributes, which decodes ``extFields`` in one go.

        A server hands the twin to its handlers: copying it into the header class would cost as much as all of the decoding. They are equal if
        their attributes are, and both can be sent.
        """
        struct = self._structs.get(short)
        if struct is None:
            struct = self._structs[short] = _generate_struct(self, short)
        return struct

    def reader(self, short: bool) -> Callable[[Any], H]:
        """The function from an instance of ``struct(short)`` to the header object."""
        reader = self._readers.get(short)
        if reader is None:
            arguments = ", ".join(f"raw.{field.attribute}" for field in self.fields)
            source = f"def read(raw):\n    return cls({arguments})\n"
            reader = self._readers[short] = compile_function(source, "read", {"cls": self.cls})
        return reader

    def _without_blank_options(self, ext: Mapping[str, str], short: bool) -> dict[str, str]:
        droppable = {field.wire_name(short) for field in self.fields if field.kind is not str and not field.required}
        return {name: text for name, text in ext.items() if text != "" or name not in droppable}

    def _complaint(self, error: msgspec.ValidationError) -> HeaderFieldError:
        return HeaderFieldError(
            f"{self.cls.__name__}: {error}", "send every required header field, numbers as decimal text"
        )


def compile_function(source: str, name: str, namespace: dict[str, Any]) -> Any:
    """Run generated source and return the function it defines."""
    exec(compile(source, f"<generated {name}>", "exec"), namespace)
    return namespace[name]


def _wire_field(field: "attrs.Attribute[Any]", cls: type) -> WireField:
    declared: WireName | None = field.metadata.get(_METADATA_KEY)
    if declared is None:
        raise TypeError(f"{cls.__name__}.{field.name} must be declared with wire()")
    for name in (declared.name, declared.short):
        if name is not None and not (name.isascii() and name.isidentifier()):
            raise TypeError(f"{cls.__name__}.{field.name}: {name!r} is no wire name")  # it becomes part of source text
    kind, optional = _kind_of(field.type, cls, field.name)
    return WireField(
        attribute=field.name,
        name=declared.name,
        short=declared.short or declared.name,
        kind=kind,
        optional=optional,
        required=field.default is attrs.NOTHING,
        default=field.default,
        bits=declared.bits,
        varies=declared.varies and kind in (int, str),
    )


def _kind_of(annotation: Any, cls: type, attribute: str) -> tuple[type, bool]:
    optional = False
    if get_origin(annotation) in (types.UnionType, Union):
        members = [member for member in get_args(annotation) if member is not type(None)]
        optional = len(members) != len(get_args(annotation))
        annotation = members[0] if len(members) == 1 else None
    if annotation not in (str, int, bool, float):
        raise TypeError(f"{cls.__name__}.{attribute}: header fields are str, int, bool or float, or one of them | None")
    return annotation, optional


def _generate_writer(codec: HeaderCodec[H], short: bool) -> Callable[[H], dict[str, str]]:
    always, sometimes = [], []
    for field in codec.fields:
        name = field.wire_name(short)
        text = {
            str: "value.{0}",
            bool: "'true' if value.{0} else 'false'",
            int: "'%d' % value.{0}",
            float: "repr(value.{0})",
        }[field.kind].format(field.attribute)
        if field.optional:
            sometimes.append(f"    if value.{field.attribute} is not None:\n        ext[{name!r}] = {text}\n")
        else:
            always.append(f"{name!r}: {text}")
    source = f"def write(value):\n    ext = {{{', '.join(always)}}}\n{''.join(sometimes)}    return ext\n"
    plain: Callable[[H], dict[str, str]] = compile_function(source, "write", {})

    def write(value: H) -> dict[str, str]:
        try:
            return plain(value)
        except (TypeError, AttributeError) as error:
            raise LocalProtocolError(f"cannot write {value!r} as {codec.cls.__name__}: {error}") from error

    return write


def _generate_struct(codec: HeaderCodec[Any], short: bool) -> type[msgspec.Struct]:
    members: list[Any] = []
    for field in codec.fields:
        kind: Any = field.kind
        if kind is int:
            kind = I32 if field.bits == 32 else I64
        if field.optional:
            kind = kind | None
        members.append((field.attribute, kind) if field.required else (field.attribute, kind, field.default))
    rename = {field.attribute: field.wire_name(short) for field in codec.fields}
    names = [field.attribute for field in codec.fields]

    def equal(self: object, other: object) -> Any:
        if type(other) not in (codec.cls, type(self)):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in names)

    # For isinstance, for attrs.evolve and for the encoders it is what it stands for.
    namespace = {"__eq__": equal, "__hash__": None, "__class__": property(lambda self: codec.cls)}
    twin = msgspec.defstruct(codec.cls.__name__, members, rename=rename, kw_only=True, eq=False, gc=False, module=codec.cls.__module__, namespace=namespace)
    _CODECS[twin] = codec
    return twin
