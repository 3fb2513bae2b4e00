"""Declare the options of a command, and parse an argument list into values. Pure.

The names are those of RocketMQ's mqadmin: one letter and one long name. The rules are getopt's: an
option with a value always takes the next argument, even if it begins with a dash (``-a
-message.type`` removes an attribute); ``-tValue``, ``--topic=Value`` and ``-t=Value`` work too, and
letters without value may be joined. Long names match without regard to case and inner dashes, so
``--brokerAddr`` and ``--broker-addr`` are the same.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from triomq.client.core.errors import TrioMQError
from triomq.remoting.core.address import parse_address


class UsageError(TrioMQError, ValueError):
    """The command line cannot be understood; nothing was done."""


# --- kinds


def truth(text: str) -> bool:
    """Read ``true`` or ``false``."""
    match text.strip().lower():
        case "true":
            return True
        case "false":
            return False
    raise ValueError("use true or false")


def whole(minimum: int, maximum: int | None = None) -> Callable[[str], int]:
    """Return a reader of whole numbers within a range."""
    limits = f"from {minimum} up" if maximum is None else f"from {minimum} to {maximum}"

    def whole_number(text: str) -> int:
        try:
            value = int(text.strip())
        except ValueError:
            raise ValueError(f"use a whole number {limits}") from None
        if value < minimum or (maximum is not None and value > maximum):
            raise ValueError(f"use a whole number {limits}")
        return value

    return whole_number


def filled(text: str) -> str:
    """Read a text that must not be blank; blanks around it are dropped."""
    if not (stripped := text.strip()):
        raise ValueError("it is empty")
    return stripped


def address(text: str) -> str:
    """Read ``host:port``."""
    parse_address(text)
    return text.strip()


def one_of_words(*words: str) -> Callable[[str], str]:
    """Return a reader that takes one of the words, in any case."""

    def known_word(text: str) -> str:
        for word in words:
            if text.strip().lower() == word.lower():
                return word
        raise ValueError(f"use {' or '.join(words)}")

    return known_word


def attribute_changes(text: str) -> str:
    """Check ``+key=value,-key`` before any broker sees it."""
    keys = []
    for part in filled(text).split(","):
        sign, (key, _, value) = part.strip()[:1], part.strip()[1:].partition("=")
        if not key or (sign, bool(value)) not in (("+", True), ("-", False)):
            raise ValueError(f"{part!r} is neither +key=value nor -key")
        keys.append(key)
    if twice := sorted({key for key in keys if keys.count(key) > 1}):
        raise ValueError(f"{twice[0]!r} occurs twice")
    return text.replace(" ", "")


# --- options


@attrs.frozen
class Option:
    """One option of a command."""

    spelling: str
    """as help shows it: ``-t, --topic TOPIC``, ``--dir FOLDER``; ``--json`` is a flag, and ``NAME``
    without dashes an argument, which needs no option before it
    """
    meaning: str
    kind: Callable[[str], object] = attrs.field(
        default=attrs.Factory(
            lambda self: address if self.placeholder == "ADDRESS" else filled, takes_self=True
        )
    )
    """parser of the value, which raises ValueError with the reason; unused by a flag"""
    required: bool = attrs.field(default=False, kw_only=True)
    default: object = attrs.field(default=None, kw_only=True)

    @property
    def is_argument(self) -> bool:
        return not self.spelling.startswith("-")

    @property
    def letter(self) -> str:
        """Return the short form without its dash, which is a letter or, for Java's ``-bn``, two;
        empty if there is only a long form.
        """
        if self.is_argument or self.spelling.startswith("--"):
            return ""
        return self.spelling[1:].partition(",")[0]

    @property
    def name(self) -> str:
        """Return the long form without its dashes, as Java spells it; ``name`` for ``NAME``."""
        if self.is_argument:
            return self.spelling.lower()
        return self.spelling.partition("--")[2].partition(" ")[0]

    @property
    def placeholder(self) -> str:
        """Return the word for the value; empty for a flag, which takes no value."""
        if self.is_argument:
            return self.spelling
        return self.spelling.partition("--")[2].partition(" ")[2]

    @property
    def title(self) -> str:
        """Return the option as messages name it, ``-t/--topic``."""
        if self.is_argument:
            return self.spelling
        return f"-{self.letter}/--{self.name}" if self.letter else f"--{self.name}"


class Values:
    """The options of one call, by long name. An unknown name is a bug (KeyError)."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)

    def replaced(self, **values: object) -> Values:
        """Return the same options with other values for some."""
        return Values({**self._values, **values})

    def __contains__(self, name: str) -> bool:
        """Return whether the option was given or has a default."""
        return self._values[name] is not None

    def text(self, name: str) -> str:
        """Return a required or defaulted text."""
        value: str = self._values[name]
        assert value is not None, name
        return value

    def maybe_text(self, name: str) -> str | None:
        value: str | None = self._values[name]
        return value

    def number(self, name: str) -> int:
        """Return a required or defaulted whole number."""
        value: int = self._values[name]
        assert value is not None, name
        return value

    def maybe_number(self, name: str) -> int | None:
        value: int | None = self._values[name]
        return value

    def maybe_flag(self, name: str) -> bool | None:
        """Return True, False, or None for a true|false option that was not given."""
        value: bool | None = self._values[name]
        return value

    def flag(self, name: str) -> bool:
        return bool(self._values[name])

    def value(self, name: str) -> Any:
        """Return the value of an option with a kind of its own."""
        return self._values[name]


def parse(
    options: Sequence[Option],
    arguments: Sequence[str],
    one_of: Sequence[Sequence[str]] = (),
    subject: Option | None = None,
) -> Values:
    """Read an argument list.

    ``one_of``: groups of long names of which exactly one must be given. ``subject``: the option
    whose value may also stand without it.

    Raises: UsageError.
    """
    found: dict[str, object] = {option.name: option.default for option in options}
    given: set[str] = set()
    rest = list(arguments)
    bare = False
    unfilled = [option for option in options if option.is_argument]
    named = [option for option in options if not option.is_argument]
    while rest:
        token = rest.pop(0)
        if unfilled and not token.startswith("-"):
            option, text = unfilled.pop(0), token
        elif subject is not None and subject.name not in given and not token.startswith("-"):
            option, text, bare = subject, token, True
        else:
            option, text = _match(named, token, rest)
            if bare and option is subject:
                raise UsageError(f"{option.title} is given twice, with and without its option")
        given.add(option.name)
        found[option.name] = _convert(option, text) if option.placeholder else True
    for names in one_of:
        _check_one_of(options, names, given)
    for option in options:
        if option.required and option.name not in given:
            raise UsageError(f"{option.title} is missing: {option.meaning}")
    return Values(found)


def _match(options: Sequence[Option], token: str, rest: list[str]) -> tuple[Option, str]:
    """Find the option that ``token`` names and take its text from ``token`` or from ``rest``."""
    if not token.startswith("-") or token == "-":
        raise UsageError(
            f"{token!r} does not belong to an option: put a text with blanks in quotes, and give"
            " each value right after its option"
        )
    option, has_value = matching(options, token)
    if option is None:
        raise UsageError(_unknown(options, token.partition("=")[0]))
    long = token.startswith("--")
    text = token.partition("=")[2] if long else token[2:]
    if option.placeholder:
        if has_value:
            return option, text if long else text.removeprefix("=")
        return option, _next(option, rest)
    if has_value and long:
        raise UsageError(f"{option.title} takes no value")
    if has_value:
        rest.insert(0, f"-{text}")
    return option, ""


def matching(options: Sequence[Option], token: str) -> tuple[Option | None, bool]:
    """Return the option that a word names, None for no option; and whether more follows in it."""
    if token.startswith("--"):
        name, equals, _ = token[2:].partition("=")
        found = (option for option in options if _folded(option.name) == _folded(name))
        return next(found, None), bool(equals)
    for option in options:
        if option.letter == token[1:] and len(token) > 2:
            return option, False
    found = (option for option in options if option.letter and option.letter == token[1:2])
    return next(found, None), len(token) > 2


def _next(option: Option, rest: list[str]) -> str:
    if not rest:
        raise UsageError(f"{option.title} needs a value: {option.meaning}")
    return rest.pop(0)


def _convert(option: Option, text: str) -> object:
    try:
        return option.kind(text)
    except ValueError as error:
        raise UsageError(f"{option.title} cannot be {text!r}: {error}") from None


def _check_one_of(options: Sequence[Option], names: Sequence[str], given: set[str]) -> None:
    titles = [option.title for option in options if option.name in names]
    count = len(given.intersection(names))
    if count == 0:
        raise UsageError(f"one of {' and '.join(titles)} is needed")
    if count > 1:
        raise UsageError(f"give only one of {' and '.join(titles)}")


def _unknown(options: Sequence[Option], token: str) -> str:
    folded = {_folded(option.name): option.title for option in options}
    near = difflib.get_close_matches(_folded(token), folded, n=1, cutoff=0.5)
    if near:
        return f"there is no option {token}; the nearest is {folded[near[0]]}"
    return f"there is no option {token}; --help lists those that exist"


def _folded(name: str) -> str:
    return name.replace("-", "").lower()
