"""Hypothesis strategies made from the classes themselves: a new header or body class is tested
without writing a line.
"""

from __future__ import annotations

import types
from typing import Any, Union, get_args, get_origin

import attrs
from hypothesis import strategies as st

from triomq.remoting.protocol.fields import LIMITS, codec_of

TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
NAMES = st.text("abcXYZ012_%|-", min_size=1, max_size=12)
WHOLE_NUMBERS = st.integers(*LIMITS[64])


def headers(cls: type) -> st.SearchStrategy[Any]:
    """Any legal instance of a header class."""
    kinds: dict[type, st.SearchStrategy[Any]] = {
        str: TEXT,
        bool: st.booleans(),
        float: st.floats(allow_nan=False),
    }
    members = {}
    for field in codec_of(cls).fields:
        member = st.integers(*LIMITS[field.bits]) if field.kind is int else kinds[field.kind]
        members[field.attribute] = st.none() | member if field.optional else member
    return st.builds(cls, **members)


def bodies(cls: type) -> st.SearchStrategy[Any]:
    """Any legal instance of a JSON body class."""
    members = {field.alias: _values(field.type) for field in attrs.fields(cls)}
    return st.builds(cls, **members)


def _values(annotation: Any) -> st.SearchStrategy[Any]:
    scalars = {
        str: TEXT,
        int: WHOLE_NUMBERS,
        float: st.floats(allow_nan=False, allow_infinity=False),
        bool: st.booleans(),
    }
    if annotation in scalars:
        return scalars[annotation]
    if annotation is Any:
        return TEXT | st.lists(st.integers(0, 9), max_size=2)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (types.UnionType, Union):
        (inner,) = (argument for argument in arguments if argument is not type(None))
        return st.none() | _values(inner)
    if origin is list:
        return st.lists(_values(arguments[0]), max_size=3)
    if origin is frozenset:
        return st.frozensets(_values(arguments[0]), max_size=3)
    if origin is dict:
        return st.dictionaries(_values(arguments[0]), _values(arguments[1]), max_size=3)
    return bodies(annotation)
