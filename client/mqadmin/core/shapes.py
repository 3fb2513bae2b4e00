"""Read the notation in which a command declares its JSON document. Pure.

``{"group", "queues": [{"queueId", "offset"}], "failures": {broker: reason}}``: a name in quotes is
a key of the document; a word without quotes before a colon stands for the keys of a map; text
before a key (``with -d "consumed"``) says when the key is there; the word ``JSON`` stands for any
value. Text between two shapes says when which one is printed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TypeAlias

import attrs


@attrs.frozen
class Fields:
    """An object with these keys; those in ``optional`` may be missing."""

    shapes: Mapping[str, Shape]
    optional: frozenset[str] = frozenset()


@attrs.frozen
class MapOf:
    """An object whose keys are data; ``key`` is the word for them."""

    key: str
    value: Shape


@attrs.frozen
class ListOf:
    item: Shape


@attrs.frozen
class AnyJson:
    """A value whose parts another document defines."""


Shape: TypeAlias = Fields | MapOf | ListOf | AnyJson | None
"""None: a text, number, truth value or null"""

_TOKENS = re.compile(r'[{}\[\],:]|"[^"]*"|[^{}\[\],:"]+')


def shapes_of(notation: str) -> list[Fields]:
    """Return the shapes of a command's documents, in the order of the notation.

    Raises: ValueError if the notation is not closed.
    """
    tokens = [token for token in map(str.strip, _TOKENS.findall(notation)) if token]
    found = []
    while "{" in tokens:
        del tokens[: tokens.index("{")]
        shape = _object(tokens)
        if isinstance(shape, Fields):
            found.append(shape)
    return found


def _value(tokens: list[str]) -> Shape:
    if _first(tokens) == "{":
        return _object(tokens)
    if _first(tokens) == "[":
        tokens.pop(0)
        item = _value(tokens)
        while _first(tokens) != "]":
            tokens.pop(0)
        tokens.pop(0)
        return ListOf(item)
    words = []
    while _first(tokens) not in (",", "]", "}"):
        words.append(tokens.pop(0))
    return AnyJson() if words == ["JSON"] else None


def _object(tokens: list[str]) -> Fields | MapOf:
    tokens.pop(0)
    shapes: dict[str, Shape] = {}
    optional = set()
    words = ""
    while (token := _first(tokens)) != "}":
        tokens.pop(0)
        if token.startswith('"'):
            name = token.strip('"')
            if words:
                optional.add(name)
            shapes[name] = None
            if _first(tokens) == ":":
                tokens.pop(0)
                shapes[name] = _value(tokens)
        elif token == ":":
            value = _value(tokens)
            tokens.pop(0)
            return MapOf(words, value)
        words = "" if token == "," or token.startswith('"') else token
    tokens.pop(0)
    return Fields(shapes, frozenset(optional))


def _first(tokens: list[str]) -> str:
    if not tokens:
        raise ValueError("a bracket of the notation is not closed")
    return tokens[0]


def fitting(notation: str, document: Mapping[str, object]) -> Fields:
    """Return the shape of ``notation`` that fits a document best."""
    return min(shapes_of(notation), key=lambda shape: len(list(differences(shape, document))))


def differences(shape: Shape, value: object, place: str = "") -> Iterator[str]:
    """Yield what of a value is not as its shape says."""
    match shape, value:
        case (_, None) | (AnyJson(), _):
            return
        case Fields(), dict():
            missing = shape.shapes.keys() - shape.optional - value.keys()
            yield from (f"{place}/{name} is missing" for name in sorted(missing))
            for name, part in value.items():
                if name in shape.shapes:
                    yield from differences(shape.shapes[name], part, f"{place}/{name}")
                else:
                    yield f"{place}/{name} is not documented"
        case MapOf(), dict():
            for name, part in value.items():
                yield from differences(shape.value, part, f"{place}/{name}")
        case ListOf(), list():
            for part in value:
                yield from differences(shape.item, part, f"{place}[]")
        case None, dict() | list():
            yield f"{place} has parts that are not documented"
        case None, _:
            return
        case _:
            yield f"{place} is a {type(value).__name__}"
