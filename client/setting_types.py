"""Checks the types of settings: a wrong one fails when the settings are built, and names the field.

    @attrs.frozen(kw_only=True, field_transformer=typed)

Annotations of a class decorated so name only what its module has by then.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable
from typing import Any, cast

import attrs

from triomq.client.arguments import shown
from triomq.client.errors import SettingsError

_Check = Callable[[Any, "attrs.Attribute[Any]", Any], object]
_NAMES = {int: "a whole number", float: "a number", str: "a text", bool: "True or False", tuple: "a list", frozenset: "a set"}


def typed(cls: type, fields: list[attrs.Attribute[Any]]) -> list[attrs.Attribute[Any]]:
    """Put a check of its type before each field's own converter and validator; for attrs' `field_transformer`."""
    wanted = typing.get_type_hints(cls)
    return [_typed(field, wanted[field.name]) for field in fields]


def _typed(field: attrs.Attribute[Any], wanted: Any) -> attrs.Attribute[Any]:
    kinds = _kinds(wanted)
    inner: _Check | None = field.validator

    def check(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
        if not _is_one_of(value, kinds):
            raise SettingsError(f"{attribute.name} must be {_described(kinds)}, not {shown(value)}")
        if inner is not None:
            inner(instance, attribute, value)

    converter = field.converter
    return field.evolve(validator=check, converter=None if converter is None else _named(field.name, kinds, cast("Callable[[Any], Any]", converter)))


def _named(name: str, kinds: tuple[type, ...], converter: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Let a converter's TypeError name the field."""

    def convert(value: Any) -> Any:
        try:
            return converter(value)
        except TypeError:
            raise SettingsError(f"{name} must be {_described(kinds)}, not {shown(value)}") from None

    return convert


def _kinds(wanted: Any) -> tuple[type, ...]:
    """The classes that an annotation stands for: `int | None` -> int and NoneType, `tuple[X, ...]` -> tuple."""
    origin = typing.get_origin(wanted)
    if origin in (types.UnionType, typing.Union):
        return tuple(kind for part in typing.get_args(wanted) for kind in _kinds(part))
    if wanted is None:
        return (type(None),)
    return (origin or wanted,)


def _is_one_of(value: Any, kinds: tuple[type, ...]) -> bool:
    if isinstance(value, bool):
        return bool in kinds
    if isinstance(value, int) and float in kinds:
        return True
    return isinstance(value, kinds)


def _described(kinds: tuple[type, ...]) -> str:
    return " or ".join("None" if kind is type(None) else _NAMES.get(kind, kind.__name__) for kind in kinds)
