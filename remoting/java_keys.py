"""Keys of Java's configuration classes that have no field here: what each one is, and what to say about it.

The table itself is data (``java_keys.tsv`` beside the configuration that uses it), read only when a key outside our own
fields turns up.  Columns: key, Java type, default of 5.5.0, default of 4.9.4, class, status, reason, values.

A key is *honoured* (one of our fields), *meaningless* (it tunes something that does not exist here) or *not yet* (it has
an effect in Java that this version does not offer).  For the last kind the values column says at which values nothing is
missed (``ok=false``) and which ones must not be ignored in silence (``refuse=true``, ``*`` for any), because data or access would be less
safe than the operator believes.
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
    """What becomes of a key."""

    HONOURED = "honoured"
    MEANINGLESS = "meaningless"
    NOT_YET = "not yet"


@attrs.frozen(kw_only=True)
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
        """True when starting with this value would promise something that is not kept."""
        return "*" in self.refused or value.strip().lower() in self.refused

    def missed(self, value: str) -> bool:
        """True when an operator who set this value gets less than from Java."""
        return self.status is Status.NOT_YET and value.strip().lower() not in self.harmless


@attrs.frozen
class Reason:
    """Why a group of keys is not honoured; ``fix`` is for values that are refused."""

    text: str
    fix: str = ""


@attrs.define(eq=False)
class KeyTable:
    """All keys of the Java configuration classes that one of our programs may meet in a file."""

    path: Path
    reasons: Mapping[str, Reason]
    _rows: dict[str, KeyRow] | None = None

    @property
    def rows(self) -> Mapping[str, KeyRow]:
        """Every row by key; the file is read once, on first use."""
        if self._rows is None:
            lines = self.path.read_text(encoding="utf-8").splitlines()[1:]
            self._rows = {row.key: row for row in map(_row, lines)}
        return self._rows

    def find(self, key: str) -> KeyRow | None:
        """The row of a key, or None when no Java class has it."""
        return self.rows.get(key)

    def nearest(self, key: str, fields: Iterable[str]) -> str | None:
        """The known key that looks most like `key`, or None."""
        by_lower = {name.lower(): name for name in (*self.rows, *fields)}
        matches = difflib.get_close_matches(key.lower(), by_lower, n=1, cutoff=0.6)
        return by_lower[matches[0]] if matches else None

    def refusal(self, row: KeyRow, value: str) -> tuple[str, str]:
        """(problem, fix) for a value that must not be ignored."""
        reason = self.reasons[row.reason]
        return f"{row.key}={value.strip()} is not offered by this version ({reason.text})", reason.fix


@attrs.define(eq=False)
class Notices:
    """Collects the keys of a file that are not honoured, and says so in at most two lines."""

    table: KeyTable
    _meaningless: dict[str, None] = attrs.field(factory=dict)
    _missed: dict[str, dict[str, None]] = attrs.field(factory=dict)

    def add(self, row: KeyRow, value: str) -> None:
        """Take note of one entry."""
        if row.status is Status.MEANINGLESS:
            self._meaningless[row.key] = None
        elif row.missed(value):
            self._missed.setdefault(row.reason, {})[row.key] = None

    def texts(self) -> tuple[str, ...]:
        """The summary warnings: none, one or two."""
        texts = []
        if self._meaningless:
            texts.append(f"ignored, no meaning here: {', '.join(sorted(self._meaningless))} (docs/configuration.md says why)")
        if self._missed:
            parts = [f"{', '.join(sorted(keys))} ({self.table.reasons[reason].text})" for reason, keys in sorted(self._missed.items())]
            texts.append(f"known to Java but not offered by this version, so without effect: {'; '.join(parts)}")
        return tuple(texts)


def _row(line: str) -> KeyRow:
    key, java_type, default, default_494, owner, status, reason, values = line.split("\t")
    named = dict(part.split("=", 1) for part in values.split(" ") if part)
    harmless = frozenset(named.get(HARMLESS, "false" if java_type == "boolean" else "").split(","))
    refused = frozenset(named[REFUSED].split(",")) if REFUSED in named else frozenset()
    return KeyRow(
        key=key,
        java_type=java_type,
        default=default,
        default_494=default_494,
        owner=owner,
        status=Status(status),
        reason=reason,
        harmless=harmless,
        refused=refused,
    )
