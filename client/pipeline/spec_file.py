"""How is a TOML or YAML file read into a ``Spec``?

The classes of ``spec`` are the grammar: a key is a field, and the type of the field is the type of
the value. Relative paths are relative to the file.
"""

from __future__ import annotations

import difflib
import json
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from datetime import date, datetime
from pathlib import Path
from typing import Any, Literal, TypeVar

import attrs

from triomq.client.pipeline.core.errors import SpecError
from triomq.client.pipeline.core.spec import (
    DecodeSpec,
    JoinSpec,
    Rule,
    RunSpec,
    SourceSpec,
    Spec,
    TableSpec,
    WindowSpec,
    access_options,
)

FILE_BYTES_MAX = 1 << 20
SHOWN_MAX = 80
"""characters of a wrong value in a message"""
SECTIONS = (
    *("pipeline", "source", "decode", "rules", "joins", "dead_letters", "sink", "windows"),
    "run",
)
REQUIRED = ("pipeline", "source", "decode", "sink", "run")
LISTS: dict[str, type[object]] = {"rules": Rule, "joins": JoinSpec, "windows": WindowSpec}
Section = TypeVar("Section")
LIST_MAX = 1_000
"""entries of ``[[rules]]``, ``[[joins]]`` and ``[[windows]]``"""


class Mistake(Exception):
    """A mistake at a key; ``read_spec`` adds the file."""

    def __init__(self, key: str, cause: str, fix: str) -> None:
        super().__init__(key, cause, fix)
        self.key = key
        self.cause = cause
        self.fix = fix


def read_spec(path: str | Path) -> Spec:
    """Read a pipeline's file. Raises: SpecError."""
    file = Path(path)
    try:
        return spec_of(read_tree(file), file)
    except Mistake as mistake:
        raise SpecError(str(path), mistake.key, mistake.cause, mistake.fix) from None


def read_tree(file: Path) -> Mapping[str, object]:
    """Return the tables of a TOML or YAML file. Raises: Mistake."""
    try:
        if file.stat().st_size > FILE_BYTES_MAX:
            raise Mistake("", f"it is larger than {FILE_BYTES_MAX >> 20} MiB", "name another file")
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise Mistake("", f"it is not UTF-8 ({error.reason})", "save it as UTF-8") from None
    except OSError as error:
        fix = "check the path, or write a file with `mqpipeline init`"
        raise Mistake("", f"it cannot be read: {error.strerror}", fix) from None
    tree = yaml_tree(text) if file.suffix in (".yaml", ".yml") else toml_tree(text)
    if not isinstance(tree, Mapping):
        raise Mistake("", "it has no sections", "write a file with `mqpipeline init`")
    return tree


def toml_tree(text: str) -> object:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise Mistake("", f"it is not TOML: {error}", "correct that line") from None


def yaml_tree(text: str) -> object:
    try:
        import yaml  # not for TOML: start-up time, and an optional extra
    except ImportError:
        fix = "pip install 'triomq[pipeline]', or write TOML"
        raise Mistake("", "YAML needs the package pyyaml", fix) from None

    class Loader(yaml.SafeLoader):
        """Takes ``on`` for a word, as YAML 1.2 does: it is a key of joins."""

    Loader.yaml_implicit_resolvers = {
        first: [
            (tag, pattern)
            for tag, pattern in found
            if first in "tTfF" or tag != "tag:yaml.org,2002:bool"
        ]
        for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError as error:
        cause = " ".join(str(error).split())
        raise Mistake("", f"it is not YAML: {cause}", "correct that line") from None
    except RecursionError:
        raise Mistake("", "it is nested too deeply", "write the sections flat") from None


def spec_of(tree: Mapping[str, Any], file: Path) -> Spec:
    """Return the pipeline of a file's tables. Raises: Mistake."""
    check_keys(tree, SECTIONS, "", "section")
    for section in REQUIRED:
        if section not in tree:
            raise Mistake(section, "the section is missing", f"add [{section}]")
    folder = file.resolve().parent
    names = table_at(tree["pipeline"], "pipeline")
    check_keys(names, ("name",), "pipeline", "key")
    source = made(SourceSpec, tree["source"], "source", folder)
    check_source(source)
    parts: dict[str, Any] = {
        "name": names.get("name"),
        "source": source,
        "decode": made(DecodeSpec, tree["decode"], "decode", folder),
        "run": made(RunSpec, tree["run"], "run", folder),
        "sink": table_spec(tree["sink"], "sink", folder, source),
    }
    if not isinstance(parts["name"], str):
        raise wrong("pipeline.name", parts["name"], "a text")
    if "dead_letters" in tree:
        parts["dead_letters"] = table_spec(tree["dead_letters"], "dead_letters", folder, source)
    for section, kind in LISTS.items():
        entries = tree.get(section, [])
        if not isinstance(entries, list) or len(entries) > LIST_MAX:
            raise wrong(section, entries, f"at most {LIST_MAX} tables, as [[{section}]]")
        parts[section] = tuple(
            window_spec(entry, f"{section}[{number}]", folder, source)
            if kind is WindowSpec
            else made(kind, entry, f"{section}[{number}]", folder)
            for number, entry in enumerate(entries, 1)
        )
    try:
        return Spec(**parts, path=str(file))
    except ValueError as error:
        raise wrong("pipeline.name", parts["name"], str(error)) from None


def check_source(source: SourceSpec) -> None:
    """Check what a source's keys say together. Raises: Mistake."""
    if bool(source.topics) == (source.pattern is not None):
        raise Mistake(
            "source", "it needs topics or a pattern, and not both", 'add topics = ["orders"]'
        )
    if not isinstance(source.start, Mapping):
        try:
            source.start_options()
        except ValueError as error:
            raise wrong("source.start", source.start, str(error)) from None


def table_spec(value: object, key: str, folder: Path, source: SourceSpec) -> TableSpec:
    """Return a table; a topic takes name servers and access from the source. Raises: Mistake."""
    given = dict(table_at(value, key))
    if "topic" in given:
        given.setdefault("kind", "topic")
    table = made(TableSpec, given, key, folder)
    if (table.kind == "topic") != (table.topic is not None) or (
        (table.kind == "topic") == (table.path is not None)
    ):
        raise Mistake(
            key,
            "a table needs exactly one of path and topic",
            'write path = "lake/orders" for a table, or topic = "orders-clean" for a topic',
        )
    if table.kind != "topic":
        return table
    if table.name_server is None:
        options = {**access_options(source.options), **table.options}
        table = attrs.evolve(table, options=options)
    return attrs.evolve(table, name_server=table.name_server or source.name_server)


def window_spec(value: object, key: str, folder: Path, source: SourceSpec) -> WindowSpec:
    """Return a window; the keys of its table stand beside its own. Raises: Mistake."""
    given = table_at(value, key)
    own = [name for name in keys_of(WindowSpec) if name != "table"]
    check_keys(given, (*own, *WINDOW_TABLE_KEYS), key, "key")
    table = {name: given[name] for name in WINDOW_TABLE_KEYS if name in given}
    rest = {name: given[name] for name in own if name in given}
    totals = table_spec(table, key, folder, source)
    return made(WindowSpec, rest, key, folder, table=totals)


WINDOW_TABLE_KEYS = ("kind", "path", "topic", "name_server", "keep_days", "options")
"""the keys of a table that a window has"""


# --- from values to classes


def made(kind: type[Section], value: Any, key: str, folder: Path, **ready: Any) -> Section:
    """Return an object of an attrs class. Raises: Mistake."""
    given = table_at(value, key)
    fields = keys_of(kind)
    check_keys(given, [name for name in fields if name not in ready], key, "key")
    values = dict(ready)
    for name, field in fields.items():
        place = f"{key}.{name}"
        if name in ready:
            continue
        if name not in given:
            if field.default is attrs.NOTHING:
                raise Mistake(place, "the key is missing", f"add it: {field.metadata['meaning']}")
            continue
        values[name] = read_value(types_of(kind)[name], given[name], place)
        if field.metadata.get("file"):
            values[name] = all_placed(values[name], folder)
        if field.validator is not None:
            try:
                field.validator(None, field, values[name])
            except ValueError as error:
                raise wrong(place, given[name], str(error)) from None
    return kind(**values)


def all_placed(value: Any, folder: Path) -> Any:
    """Return a path, or a table of paths, from the file's folder."""
    if isinstance(value, Mapping):
        return {name: placed(path, folder) for name, path in value.items()}
    return placed(value, folder)


def placed(path: str, folder: Path) -> str:
    """Return a path of the file: relative ones begin at the file's folder, URIs stay."""
    return path if "://" in path else str(folder / path)


def keys_of(kind: type[Any]) -> dict[str, Any]:
    """Return the keys of a section: name → attrs field."""
    return {field.name: field for field in attrs.fields(kind)}


def types_of(kind: type[object]) -> dict[str, object]:
    """Return the types of a section's keys."""
    return typing.get_type_hints(kind)


def read_value(kind: Any, value: Any, key: str) -> Any:
    """Return a value of the file as the type of its field. Raises: Mistake."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        if datetime in arguments:
            return start_of(value, key)
        (kind,) = (each for each in arguments if each is not type(None))
        return read_value(kind, value, key)
    if origin is Literal:
        if value not in arguments or not isinstance(value, str):
            near = difflib.get_close_matches(str(value), arguments, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise wrong(key, value, f"one of {', '.join(arguments)}{hint}")
        return value
    if origin is tuple:
        entries = [value] if isinstance(value, str) else value
        if not isinstance(entries, list) or not all(isinstance(each, str) for each in entries):
            raise wrong(key, value, "a list of texts")
        return tuple(entries)
    if origin is not None and issubclass(origin, Mapping):
        return {
            name: scalar_text(each, f"{key}.{name}") for name, each in table_at(value, key).items()
        }
    if type(value) is not kind:
        raise wrong(key, value, {str: "a text", int: "a whole number"}[kind])
    return value


def start_of(value: object, key: str) -> str | datetime | dict[str, object]:
    """Return ``source.start``. Raises: Mistake."""
    if isinstance(value, str | datetime):
        return value
    if isinstance(value, Mapping):
        return {str(name): offsets(each) for name, each in value.items()}
    raise wrong(key, value, "earliest, latest, group, a time with zone, or a table of offsets")


def offsets(value: object) -> object:
    """Return offsets with names as texts: YAML has numbers as keys."""
    if isinstance(value, Mapping):
        return {str(name): offsets(each) for name, each in value.items()}
    return value


def scalar_text(value: object, key: str) -> str:
    """Return a text, number or truth as options are written. Raises: Mistake."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    raise wrong(key, value, "a text, a number, true or false")


def table_at(value: object, key: str) -> Mapping[str, object]:
    """Return a table, its keys as texts. Raises: Mistake."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str | int) for name in value):
        raise wrong(key, value, "a table of keys and values")
    return {str(name): each for name, each in value.items()}  # YAML has numbers as keys


def check_keys(given: Mapping[str, object], known: Iterable[str], key: str, what: str) -> None:
    """Check that all keys are known. Raises: Mistake with the nearest name."""
    names = list(known)
    for name in given:
        if name not in names:
            near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
            fix = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(names)}"
            place = f"{key}.{name}" if key else str(name)
            raise Mistake(place, f"there is no such {what}", fix)


def wrong(key: str, value: object, expected: str) -> Mistake:
    """Return the mistake of a value that its key cannot have."""
    return Mistake(key, f"{shown(value)} is not valid here", f"expected {expected}")


def shown(value: object) -> str:
    """Return a value for a message, cut if it is long."""
    if isinstance(value, date):
        return value.isoformat()
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= SHOWN_MAX else text[: SHOWN_MAX - 1] + "…"
