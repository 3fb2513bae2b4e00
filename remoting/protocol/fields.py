"""Header classes: how they declare their wire form, and the codecs made from the declaration.

A header is a set of entries in the string map ``extFields``. A class declares them once::

    @header
    class GetMinOffsetHeader:
        topic: str = wire("topic")
        queue_id: int = wire("queueId")
        broker_name: str | None = wire("bname", default=None)

Attribute types are ``str``, ``int``, ``bool`` and ``float``, each also ``| None``. A field without
default is required. None is never sent; bools are ``"true"`` and ``"false"``; numbers are decimal
text. Integers have 32 bits unless the declaration says ``bits=64``: reading refuses a value that
the receiver's Java field could not hold. An optional field that is not a text counts as absent if
its value is ``""``. Unknown entries are ignored. Source: remoting/…/protocol/RemotingCommand.java
#makeCustomHeaderToNet, #decodeCommandCustomHeader.

All conversion code is generated at the first use of a class, so that declaring it costs little.
"""

import types
from collections.abc import Callable, Mapping
from typing import (
    Annotated,
    Any,
    Generic,
    TypeVar,
    Union,
    cast,
    dataclass_transform,
    get_args,
    get_origin,
)

import attrs

from triomq.remoting.core.errors import HeaderFieldError, LocalProtocolError
from triomq.remoting.protocol.structs import msgspec

H = TypeVar("H")

LIMITS = {bits: (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) for bits in (32, 64)}
I32 = Annotated[int, msgspec.Meta(ge=LIMITS[32][0], le=LIMITS[32][1])]
I64 = Annotated[int, msgspec.Meta(ge=LIMITS[64][0], le=LIMITS[64][1])]

_METADATA_KEY = "triomq.wire"


@attrs.frozen
class WireField:
    """One field of a header class, ready for code generation."""

    attribute: str
    name: str
    short: str
    kind: type  # str, int, bool or float
    optional: bool  # None is a legal value
    required: bool  # has no default
    default: object
    bits: int
    varies: bool

    def wire_name(self, short: bool) -> str:
        return self.short if short else self.name


def wire(
    name: str,
    *,
    short: str | None = None,
    default: object = attrs.NOTHING,
    bits: int = 32,
    varies: bool = False,
) -> Any:
    """Declare a header field with its name in ``extFields``.

    `short`: its one-letter name in V2 headers. `bits`: its width if it is an int.
    `varies`: whether this int or text differs between the requests of one client. This changes how
    fast binary headers are read, not the result.
    """
    return attrs.field(default=default, metadata={_METADATA_KEY: (name, short, bits, varies)})


@dataclass_transform(field_specifiers=(wire,))
def header(cls: type[H]) -> type[H]:
    """Make a header class: ``attrs.define`` with equality by value, and with a codec.

    Equality and repr are shared functions. Generating them for a hundred classes would double the
    time of their import (0.5 ms each), which a server pays at every start.
    """
    for name, method in (("__eq__", _equal), ("__repr__", _show), ("__hash__", None)):
        setattr(cls, name, method)
    made = attrs.define(eq=False, repr=False, slots=True)(cls)
    _CODECS[made] = HeaderCodec(made)
    return made


def _equal(self: object, other: object) -> object:
    codec = _CODECS[type(self)]
    if _CODECS.get(type(other)) is not codec:
        return NotImplemented
    names = [field.attribute for field in codec.fields]
    return all(getattr(self, name) == getattr(other, name) for name in names)


def _show(self: object) -> str:
    names = [field.attribute for field in _CODECS[self.__class__].fields]
    return (
        f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"
    )


_CODECS: dict[type, "HeaderCodec[Any]"] = {}


def codec_of(cls: type[H]) -> "HeaderCodec[H]":
    """Return the codec of a class made by ``@header``.

    Raises: TypeError for any other class.
    """
    codec = _CODECS.get(cls)
    if codec is None:
        raise TypeError(f"{cls.__name__} is not a header class; declare it with @header")
    return codec


class HeaderCodec(Generic[H]):
    """Header object <-> ``extFields``, by functions generated from the class's declaration."""

    def __init__(self, cls: type[H]) -> None:
        self.cls = cls
        self.fields = tuple(_wire_field(field, cls) for field in attrs.fields(cast("Any", cls)))
        self._writers: dict[bool, Callable[[H], dict[str, str]]] = {}
        self._structs: dict[bool, type[msgspec.Struct]] = {}

    def names(self, *, short: bool = False) -> frozenset[str]:
        """Return the wire names of all fields."""
        return frozenset(field.wire_name(short) for field in self.fields)

    def to_ext(self, value: H, *, short: bool = False) -> dict[str, str]:
        """Return the header as text entries, without those that are None."""
        writer = self._writers.get(short)
        if writer is None:
            writer = self._writers[short] = _generate_writer(self, short)
        return writer(value)

    def from_ext(self, ext: Mapping[str, str] | None, *, short: bool = False) -> H:
        """Return the header object of text entries: a twin.

        Raises: HeaderFieldError for a missing or unreadable field.
        """
        struct = self.struct(short)
        try:
            return cast("H", msgspec.convert(ext or {}, struct, strict=False))
        except msgspec.ValidationError as error:
            kept = self._without_blank_options(ext or {}, short)
            if kept == ext:
                raise self._complaint(error) from None
            try:
                return cast("H", msgspec.convert(kept, struct, strict=False))
            except msgspec.ValidationError as second:
                raise self._complaint(second) from None

    def struct(self, short: bool) -> type[msgspec.Struct]:
        """Return the header class's twin: a msgspec class that decodes ``extFields`` in one call.

        Readers return the twin, as a copy into the header class would cost as much as decoding.
        Twin and header object are equal if their attributes are, and both can be sent.
        """
        struct = self._structs.get(short)
        if struct is None:
            struct = self._structs[short] = _generate_struct(self, short)
        return struct

    def _without_blank_options(self, ext: Mapping[str, str], short: bool) -> dict[str, str]:
        droppable = {
            field.wire_name(short)
            for field in self.fields
            if field.kind is not str and not field.required
        }
        return {name: text for name, text in ext.items() if text != "" or name not in droppable}

    def _complaint(self, error: msgspec.ValidationError) -> HeaderFieldError:
        return HeaderFieldError(
            f"{self.cls.__name__}: {error}",
            "send every required header field, numbers as decimal text",
        )


def compile_function(source: str, name: str, namespace: dict[str, object]) -> Any:
    """Return the function that generated source defines."""
    exec(compile(source, f"<generated {name}>", "exec"), namespace)
    return namespace[name]


def _wire_field(field: "attrs.Attribute[object]", cls: type) -> WireField:
    if _METADATA_KEY not in field.metadata:
        raise TypeError(f"{cls.__name__}.{field.name} must be declared with wire()")
    name, short, bits, varies = field.metadata[_METADATA_KEY]
    for text in (name, short or name):  # names become part of generated code
        if not (text.isascii() and text.isidentifier()):
            raise TypeError(f"{cls.__name__}.{field.name}: {text!r} is not a wire name")
    kind, optional = _kind_of(field.type, cls, field.name)
    return WireField(
        attribute=field.name,
        name=name,
        short=short or name,
        kind=kind,
        optional=optional,
        required=field.default is attrs.NOTHING,
        default=field.default,
        bits=bits,
        varies=varies and kind in (int, str),
    )


def _kind_of(annotation: object, cls: type, attribute: str) -> tuple[type, bool]:
    optional = False
    if get_origin(annotation) in (types.UnionType, Union):
        members = [member for member in get_args(annotation) if member is not type(None)]
        optional = len(members) != len(get_args(annotation))
        annotation = members[0] if len(members) == 1 else None
    if annotation not in (str, int, bool, float):
        raise TypeError(
            f"{cls.__name__}.{attribute}: header fields are str, int, bool or float, or one of them"
            " | None"
        )
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
            sometimes.append(
                f"    if value.{field.attribute} is not None:\n        ext[{name!r}] = {text}\n"
            )
        else:
            always.append(f"{name!r}: {text}")
    source = (
        f"def write(value):\n    ext = {{{', '.join(always)}}}\n{''.join(sometimes)}    return"
        " ext\n"
    )
    plain: Callable[[H], dict[str, str]] = compile_function(source, "write", {})

    def write(value: H) -> dict[str, str]:
        try:
            return plain(value)
        except (TypeError, AttributeError) as error:
            raise LocalProtocolError(
                f"cannot write {value!r} as {codec.cls.__name__}: {error}"
            ) from error

    return write


def _generate_struct(codec: HeaderCodec[Any], short: bool) -> type[msgspec.Struct]:
    members: list[Any] = []
    for field in codec.fields:
        kind: Any = field.kind
        if kind is int:
            kind = I32 if field.bits == 32 else I64
        if field.optional:
            kind = kind | None
        members.append(
            (field.attribute, kind) if field.required else (field.attribute, kind, field.default)
        )
    rename = {field.attribute: field.wire_name(short) for field in codec.fields}
    # For isinstance, attrs.evolve and the encoders, a twin is an instance of the header class.
    namespace = {"__eq__": _equal, "__hash__": None, "__class__": property(lambda self: codec.cls)}
    twin = msgspec.defstruct(
        codec.cls.__name__,
        members,
        rename=rename,
        kw_only=True,
        eq=False,
        gc=False,
        module=codec.cls.__module__,
        namespace=namespace,
    )
    _CODECS[twin] = codec
    return twin
