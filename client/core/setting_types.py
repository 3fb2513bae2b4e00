"""Check the types of settings: a value of a wrong type fails at construction, naming its field.

    @attrs.frozen(kw_only=True, field_transformer=typed)

The annotations of such a class may only use names that its module defines above the class.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable
from typing import Any, cast

import attrs

from triomq.client.core.arguments import shown
from triomq.client.core.errors import SettingsError

_Check = Callable[[object, "attrs.Attribute[object]", object], object]
_NAMES = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "True or False",
    tuple: "a list",
    frozenset: "a set",
}


def typed(cls: type, fields: list[attrs.Attribute[object]]) -> list[attrs.Attribute[object]]:
    """Put a type check before each field's converter and validator; a ``field_transformer``."""
    wanted = typing.get_type_hints(cls)
    return [_typed(field, wanted[field.name]) for field in fields]


def _typed(field: attrs.Attribute[object], wanted: object) -> attrs.Attribute[object]:
    kinds = _kinds(wanted)
    inner: _Check | None = field.validator

    def check(instance: object, attribute: attrs.Attribute[object], value: object) -> None:
        if not _is_one_of(value, kinds):
            raise SettingsError(f"{attribute.name} must be {_described(kinds)}, not {shown(value)}")
        if inner is not None:
            inner(instance, attribute, value)

    converter = field.converter
    return field.evolve(
        validator=check,
        converter=None
        if converter is None
        else _named(field.name, kinds, cast("Callable[[object], object]", converter)),
    )


def _named(
    name: str, kinds: tuple[type, ...], converter: Callable[[object], object]
) -> Callable[[object], object]:
    """Return the converter with a ``TypeError`` replaced by an error that names the field."""

    def convert(value: object) -> object:
        try:
            return converter(value)
        except TypeError:
            raise SettingsError(f"{name} must be {_described(kinds)}, not {shown(value)}") from None

    return convert


def _kinds(wanted: Any) -> tuple[type, ...]:
    """Return an annotation's classes: ``int | None`` gives two, ``tuple[X, ...]`` gives tuple."""
    origin = typing.get_origin(wanted)
    if origin in (types.UnionType, typing.Union):
        return tuple(kind for part in typing.get_args(wanted) for kind in _kinds(part))
    if wanted is None:
        return (type(None),)
    return (origin or wanted,)


def _is_one_of(value: object, kinds: tuple[type, ...]) -> bool:
    if isinstance(value, bool):
        return bool in kinds
    if isinstance(value, int) and float in kinds:
        return True
    return isinstance(value, kinds)


def _described(kinds: tuple[type, ...]) -> str:
    return " or ".join(
        "None" if kind is type(None) else _NAMES.get(kind, kind.__name__) for kind in kinds
    )
