"""Declare, fill and print configuration classes: typed settings with Java's property names.

A configuration is a frozen attrs class whose fields are made by ``setting``. ``load`` fills it from
several sources (the environment, a properties file, options), of which the last wins, and refuses
invalid entries with place, cause and fix. ``render`` returns the effective values as texts that
``load`` reads.

This module reads no files; only paths in values use the environment (``~``, ``${user.home}``,
``${NAME}``).
"""

from __future__ import annotations

import enum
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import attrs

from triomq.remoting.core.address import parse_address_list
from triomq.remoting.core.config_error import ConfigError as ConfigError
from triomq.remoting.core.java_keys import KeyRow, KeyTable
from triomq.remoting.core.properties_file import Entry

INT_MAX, LONG_MAX = 2**31 - 1, 2**63 - 1
_Value = TypeVar("_Value")
_Config = TypeVar("_Config")


@attrs.frozen
class Kind(Generic[_Value]):
    """A type of values and its text form; ``read`` raises ValueError("cause" or "cause; fix")."""

    name: str
    read: Callable[[str], _Value]
    write: Callable[[_Value], str]


@attrs.frozen(kw_only=True)
class Setting:
    """The description of one field of a configuration class.

    ``meaning`` is its text on the generated page; if it is empty, the docstring of the class has
    the text, as ``field: text``. ``clamp`` moves a number into its range instead of refusing it,
    for the few keys where Java does. ``step`` rounds a number up to a multiple.
    ``default_text`` describes a default that depends on the machine or on other fields. ``own``:
    Java has no such key. ``secret``: never shown by ``--print-config`` or to requests.
    """

    java: str
    kind: Kind[Any]
    meaning: str = ""
    low: int | None = None
    high: int | None = None
    clamp: bool = False
    step: int = 1
    default_text: str | None = None
    own: bool = False
    secret: bool = False

    def range_text(self) -> str:
        """Return the allowed range in words, or an empty text."""
        if self.low is None and self.high is None:
            return ""
        if self.high is None:
            return f"use {self.low} or more"
        return f"use {self.low or 0} to {self.high}"

    def admit(self, value: Any) -> object:
        """Check a number; move it into its range or up to a multiple of its step where Java does.

        Raises: ValueError.
        """
        if self.clamp:
            return min(max(value, self.low), self.high)
        if (self.low is not None and value < self.low) or (
            self.high is not None and value > self.high
        ):
            raise ValueError(f"out of range; {self.range_text()}")
        return -(-value // self.step) * self.step if self.step > 1 else value


@attrs.frozen
class Source:
    """Where entries come from: a file name, ``environment``, ``option``; empty for a request."""

    name: str
    entries: tuple[Entry, ...]
    open_file: str = ""
    """The path of a file that every user of this machine may read."""

    @classmethod
    def of_file(cls, path: Path, entries: Iterable[Entry]) -> Source:
        """Return the source for a file that was read."""
        is_open = os.name == "posix" and path.stat().st_mode & stat.S_IRWXO
        return cls(path.name, tuple(entries), str(path) if is_open else "")

    def place(self, entry: Entry) -> str:
        """Return the place of an entry: ``broker.conf:12``, or only the name of the source."""
        if not self.name:
            return ""
        return f"{self.name}:{entry.line}" if entry.line else self.name


@attrs.frozen
class Loaded(Generic[_Config]):
    """A filled configuration, its warnings, and the place that each key came from."""

    config: _Config
    warnings: tuple[str, ...]
    origins: Mapping[str, str]


def _read_integer(text: str) -> int:
    if re.fullmatch(r"[+-]?[0-9]+", text) is None:
        raise ValueError("not a whole number")
    return int(text)


def _read_boolean(text: str) -> bool:
    lowered = text.lower()
    if lowered not in ("true", "false"):
        raise ValueError("neither true nor false; write one of the two")
    return lowered == "true"


def _read_text(text: str) -> str:
    if not text:
        raise ValueError("empty")
    return text


def _variable(match: re.Match[str]) -> str:
    name = match.group(1)
    if name == "user.home":
        return os.path.expanduser("~")
    if name not in os.environ:
        raise ValueError(f"using ${{{name}}}, and the environment has no {name}")
    return os.environ[name]


def _read_path(text: str) -> Path:
    if not text:
        raise ValueError("empty")
    if "," in text:
        raise ValueError("several directories; this version keeps one, so name a single one")
    return Path(re.sub(r"\$\{([^}]*)\}", _variable, text)).expanduser()


INTEGER: Kind[int] = Kind("whole number", _read_integer, str)
BOOLEAN: Kind[bool] = Kind("true or false", _read_boolean, lambda value: str(value).lower())
TEXT: Kind[str] = Kind("text", _read_text, str)
OPTIONAL_TEXT: Kind[str] = Kind("text, may be empty", str, str)
PATH: Kind[Path] = Kind("path", _read_path, str)
ADDRESSES: Kind[tuple[str, ...]] = Kind(
    "host:port list, separated by ;", lambda text: tuple(parse_address_list(text)), ";".join
)


def choice(values: type[enum.Enum]) -> Kind[Any]:
    """Return a kind whose texts are the values of an enumeration."""
    by_text = {str(member.value).upper(): member for member in values}

    def read(text: str) -> enum.Enum:
        if text.upper() not in by_text:
            raise ValueError(f"not one of its values; write {' or '.join(by_text)}")
        return by_text[text.upper()]

    return Kind(" | ".join(by_text), read, lambda member: str(member.value))


def setting(
    java: str, kind: Kind[_Value], default: object, meaning: str = "", **details: Any
) -> Any:
    """Declare one field; ``details`` as in ``Setting``."""
    described = Setting(java=java, kind=kind, meaning=meaning, **details)

    def admit(value: Any) -> object:
        try:
            return described.admit(value)
        except ValueError as error:
            raise ConfigError(
                "",
                f"{java}={kind.write(value)}: {str(error).partition(';')[0]}",
                described.range_text(),
            ) from None

    return attrs.field(
        default=default,
        converter=admit if described.range_text() or described.step > 1 else None,
        metadata={"java": java, "setting": described},
    )


def group(cls: type[_Value]) -> _Value:
    """Declare a field that holds a nested configuration class."""
    field: Any = attrs.field(factory=cls, metadata={"group": cls})
    return field  # type: ignore[no-any-return]


def number(
    java: str,
    default: object,
    meaning: str = "",
    *,
    low: int = 1,
    high: int = INT_MAX,
    **details: object,
) -> Any:
    """Declare a whole number; ``details`` as in ``setting``."""
    return setting(java, INTEGER, default, meaning, low=low, high=high, **details)


def flag(java: str, default: bool, meaning: str = "", **details: object) -> Any:
    """Declare a field that is true or false; ``details`` as in ``setting``."""
    return setting(java, BOOLEAN, default, meaning, **details)


def optional_text(java: str, meaning: str = "", *, default: str = "", **details: object) -> Any:
    """Declare a text that may be empty; ``details`` as in ``setting``."""
    return setting(java, OPTIONAL_TEXT, default, meaning, **details)


def settings_of(
    cls: type[Any],
) -> Iterator[tuple[tuple[str, ...], attrs.Attribute[object], Setting]]:
    """Yield (path of field names, attribute, setting) of a class and its groups, in order."""
    for attribute in attrs.fields(cls):
        if "group" in attribute.metadata:
            for path, inner, described in settings_of(attribute.metadata["group"]):
                yield (attribute.name, *path), inner, described
        elif "setting" in attribute.metadata:
            yield (attribute.name,), attribute, attribute.metadata["setting"]


def load(cls: type[_Config], sources: Sequence[Source], known: KeyTable) -> Loaded[_Config]:
    """Fill a configuration class from ``sources``, of which the last wins.

    Keys that are not fields of ``cls`` are looked up in ``known``: meaningless keys, and keys that
    are not offered yet, are collected into one warning each. Unknown keys, and values that must not
    be ignored, are errors.

    Raises: ConfigError for the first invalid entry.
    """
    fields = {described.java: (path, described) for path, _, described in settings_of(cls)}
    values: dict[tuple[str, ...], object] = {}
    origins: dict[str, str] = {}
    ignored: list[tuple[KeyRow, str]] = []
    shown: dict[str, str] = {}
    for source in sources:
        for entry in source.entries:
            place = source.place(entry)
            if entry.key in fields:
                path, described = fields[entry.key]
                values[path] = read_value(described, entry.value, place)
                origins[entry.key] = place
                if described.secret and source.name.startswith("option"):
                    shown[entry.key] = "options in the list of processes: write it into the file"
                elif described.secret and source.open_file and entry.value.strip():
                    file = source.open_file
                    shown[entry.key] = f"{file}: chmod o= {file}"
                continue
            row = known.rows.get(entry.key)
            if row is None:
                raise ConfigError(
                    place, f"unknown key {entry.key}", _nearest_fix(entry.key, fields, known)
                )
            if row.refuses(entry.value):
                problem, fix = known.refusal(row, entry.value)
                raise ConfigError(place, problem, fix)
            ignored.append((row, entry.value))
    warnings = [
        f"{key} is a secret, and every user of this machine can read {where}"
        for key, where in shown.items()
    ]
    return Loaded(_build(cls, values, ()), (*known.warnings(ignored), *warnings), origins)


def read_value(described: Setting, text: str, place: str) -> object:
    """Turn the text of one entry into its value. Raises: ConfigError with place, cause and fix."""
    written = text.strip()
    try:
        return described.admit(described.kind.read(written))
    except ValueError as error:
        reason, _, fix = str(error).partition("; ")
        wanted = fix or described.range_text() or f"give it a {described.kind.name}"
        value = "…" if described.secret else written
        raise ConfigError(place, f"{described.java}={value}: {reason}", wanted) from None


def render(config: object, *, secrets: bool = False) -> dict[str, str]:
    """Return the effective values by Java name, in declared order, as texts for ``load``.

    Secret values are included only with ``secrets``.
    """
    texts: dict[str, str] = {}
    for path, _, described in settings_of(type(config)):
        if described.secret and not secrets:
            continue
        value = config
        for name in path:
            value = getattr(value, name)
        texts[described.java] = described.kind.write(value)
    return texts


def _build(
    cls: type[_Config], values: Mapping[tuple[str, ...], object], prefix: tuple[str, ...]
) -> _Config:
    arguments: dict[str, object] = {}
    for attribute in attrs.fields(cls):  # type: ignore[arg-type]
        path = (*prefix, attribute.name)
        if "group" in attribute.metadata:
            arguments[attribute.name] = _build(attribute.metadata["group"], values, path)
        elif path in values:
            arguments[attribute.name] = values[path]
    return cls(**arguments)


def _nearest_fix(key: str, fields: Mapping[str, object], known: KeyTable) -> str:
    nearest = known.nearest(key, fields)
    page = f"docs/configuration/{known.program}.md"
    if nearest is None:
        return f"remove it; {page} lists every setting"
    return f"did you mean {nearest}? ({page} lists every setting)"
