"""The tables of docs/pipeline.md are those of the classes of a spec, of the origin columns, of the
commands, and of the exit codes. The names of ``triomq.pipeline`` can be imported.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest

import triomq.pipeline
from triomq.client.pipeline.command_line import COMMANDS, COMMON, EXIT_CODES
from triomq.client.pipeline.core.origin import COLUMNS, DERIVED
from triomq.client.pipeline.core.spec import (
    DecodeSpec,
    JoinSpec,
    Rule,
    RunSpec,
    SourceSpec,
    TableSpec,
    WindowSpec,
)

PAGE = Path(__file__).resolve().parents[4] / "docs" / "pipeline.md"
SECTIONS: dict[str, type[Any]] = {
    "source": SourceSpec,
    "decode": DecodeSpec,
    "rules": Rule,
    "joins": JoinSpec,
    "sink": TableSpec,
    "windows": WindowSpec,
    "run": RunSpec,
}


def kind_text(kind: Any) -> str:
    """How the page names a type."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return ", ".join(f"`{each}`" for each in arguments)
    if origin in (types.UnionType, typing.Union):
        inner = [each for each in arguments if each is not type(None)]
        return kind_text(inner[0])
    if origin is tuple:
        return "list"
    if origin is not None and issubclass(origin, Mapping):
        return "table"
    return {str: "text", int: "number"}[kind]


def default_text(field: Any) -> str:
    if field.default is attrs.NOTHING:
        return "required"
    if isinstance(field.default, tuple) and field.default:
        return ", ".join(f"`{each}`" for each in field.default)
    return f"`{field.default}`" if isinstance(field.default, str) else "–"


def key_rows(kind: type[Any]) -> Iterator[str]:
    """The rows of a section's table."""
    hints = typing.get_type_hints(kind)
    for field in attrs.fields(kind):
        name = "" if field.metadata.get("inline") else f"`{field.name}`"
        meaning = field.metadata["meaning"].replace("|", "\\|")
        if not name:
            yield f"| `path`, `topic`, … | | | {meaning} |"
            continue
        kind_of_value = kind_text(hints[field.name])
        yield f"| {name} | {kind_of_value} | {default_text(field)} | {meaning} |"


def tables() -> dict[str, list[str]]:
    """Heading of the page → the lines of its table."""
    head = ["| Key | Value | Default | Meaning |", "|---|---|---|---|"]
    found = {f"`[{name}]`": [*head, *key_rows(kind)] for name, kind in SECTIONS.items()}
    for name in ("rules", "joins", "windows"):
        found[f"`[[{name}]]`"] = found.pop(f"`[{name}]`")
    found["Columns"] = [
        "| Column | Type | Meaning |",
        "|---|---|---|",
        *(f"| `{each.name}` | {each.type} | {each.meaning} |" for each in COLUMNS),
        *(f"| `{name}` | {kind} | {meaning} |" for name, (kind, meaning) in DERIVED.items()),
    ]
    options = [
        f"| `{name}` | {'; '.join(f'`{o.name}`: {o.meaning}' for o in given) or '–'} | {summary} |"
        for name, (summary, given) in COMMANDS.items()
    ]
    found["Commands"] = [
        "| Command | Options | What it does |",
        "|---|---|---|",
        *(line.replace('…"', '…"') for line in options),
    ]
    return found


@pytest.mark.parametrize("heading", tables())
def test_a_table_of_the_page_is_current(heading: str) -> None:
    (section,) = [
        part for part in PAGE.read_text().split("\n## ") if part.startswith(f"{heading}\n")
    ]
    shown = [line for line in section.splitlines() if line.startswith("|")]
    wanted = tables()[heading]
    assert shown[: len(wanted)] == wanted, "\n".join(wanted)


def test_exit_codes_and_common_options_are_on_the_page() -> None:
    text = PAGE.read_text()
    assert [f"| {code} | {meaning} |" in text for code, meaning in EXIT_CODES.items()] == [True] * 4
    assert all(f"`{option.name}`" in text for option in COMMON)


def test_every_public_name_has_a_home() -> None:
    assert [name for name in triomq.pipeline.__all__ if not hasattr(triomq.pipeline, name)] == []
