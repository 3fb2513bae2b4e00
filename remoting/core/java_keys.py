"""Keys of Java's configuration classes that have no field here, and the message for each.

The table is data (``java_keys.tsv`` beside the configuration that uses it), read only for a key
that is not a field. Columns: key, Java type, default of 5.5.0, default of 4.9.4, class, status,
reason, values.

A key is *honoured* (it is a field), *meaningless* (it tunes something that does not exist here) or
*not yet* (it has an effect in Java that this version does not offer). For *not yet* keys the values
column lists values without effect in Java (``ok=false``) and values that must not be ignored
(``refuse=true``, ``*`` for any), because data or access would be less safe than the operator
expects.
"""

from __future__ import annotations

import difflib
import enum
from collections.abc import Iterable, Mapping
from pathlib import Path

import attrs

HARMLESS = "ok"
REFUSED = "refuse"


class Status(enum.Enum):
    """What this version does with a key."""

    HONOURED = "honoured"
    MEANINGLESS = "meaningless"
    NOT_YET = "not yet"


@attrs.frozen
class KeyRow:
    """One key of a Java configuration class."""

    key: str
    java_type: str
    default: str
    default_494: str
    owner: str
    status: Status
    reason: str
    harmless: frozenset[str]
    refused: frozenset[str]

    def refuses(self, value: str) -> bool:
        """Return whether a start with this value would promise something that is not kept."""
        return "*" in self.refused or value.strip().lower() in self.refused

    def missed(self, value: str) -> bool:
        """Return whether this value has an effect in Java that is missing here."""
        return self.status is Status.NOT_YET and value.strip().lower() not in self.harmless


@attrs.frozen
class Reason:
    """Why a group of keys is not honoured; ``fix`` is for refused values."""

    text: str
    fix: str = ""


@attrs.define(eq=False)
class KeyTable:
    """All keys of the Java configuration classes that a program may find in its file."""

    program: str
    path: Path
    reasons: Mapping[str, Reason]
    _rows: dict[str, KeyRow] | None = None

    @property
    def rows(self) -> Mapping[str, KeyRow]:
        """Every row by key; the file is read at the first use."""
        if self._rows is None:
            lines = self.path.read_text(encoding="utf-8").splitlines()[1:]
            self._rows = {row.key: row for row in map(_row, lines)}
        return self._rows

    def nearest(self, key: str, fields: Iterable[str]) -> str | None:
        """Return the known key that is most similar to ``key``, or None."""
        by_lower = {name.lower(): name for name in (*self.rows, *fields)}
        matches = difflib.get_close_matches(key.lower(), by_lower, n=1, cutoff=0.6)
        return by_lower[matches[0]] if matches else None

    def refusal(self, row: KeyRow, value: str) -> tuple[str, str]:
        """Return (problem, fix) for a value that must not be ignored."""
        reason = self.reasons[row.reason]
        return (
            f"{row.key}={value.strip()} is not offered by this version ({reason.text})",
            reason.fix,
        )

    def warnings(self, ignored: Iterable[tuple[KeyRow, str]]) -> tuple[str, ...]:
        """Return none, one or two warnings about rows and values that are not honoured."""
        meaningless: set[str] = set()
        missed: dict[str, set[str]] = {}
        for row, value in ignored:
            if row.status is Status.MEANINGLESS:
                meaningless.add(row.key)
            elif row.missed(value):
                missed.setdefault(row.reason, set()).add(row.key)
        texts = []
        if meaningless:
            texts.append(
                f"ignored, no meaning here: {', '.join(sorted(meaningless))}"
                f" (docs/configuration/java-keys-{self.program}.md says why)"
            )
        if missed:
            parts = [
                f"{', '.join(sorted(keys))} ({self.reasons[reason].text})"
                for reason, keys in sorted(missed.items())
            ]
            texts.append(
                "known to Java but not offered by this version, so without effect:"
                f" {'; '.join(parts)}"
            )
        return tuple(texts)


def _row(line: str) -> KeyRow:
    key, java_type, default, default_494, owner, status, reason, values = line.split("\t")
    named = dict(part.split("=", 1) for part in values.split(" ") if part)
    harmless = frozenset(named.get(HARMLESS, "false" if java_type == "boolean" else "").split(","))
    refused = frozenset(named[REFUSED].split(",")) if REFUSED in named else frozenset()
    return KeyRow(
        key, java_type, default, default_494, owner, Status(status), reason, harmless, refused
    )
