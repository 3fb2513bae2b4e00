"""A cluster file: the tree of its keys, its items, and what each item is at one broker. Pure."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from triomq.client.core.errors import SettingsError

KeyPath = tuple[str, ...]
"""keys from the root of the file to a value"""
ItemSettings = Mapping[str, Any]
"""name of a field → value; None: the field is not there"""
FORMAT = 1
"""version of the file's format"""
FILE_BYTES_MAX = 8 * 1024 * 1024
"""8 MiB: 10,000 topics take 1.2 MB, and YAML of this size is read within ten seconds"""
ITEMS_MAX = 100_000
"""items of a file, each offset of a queue counted as one"""


@attrs.frozen
class FileTree:
    """The maps, lists and values of a file."""

    root: object
    lines: Mapping[KeyPath, int]
    """keys from the root to a key → its line, from 1; of JSON files none are known"""
    name: str
    """of the file, for errors"""

    def wrong(self, path: KeyPath, what: str) -> SettingsError:
        """Return an error that names the file, the line if it is known, and the path."""
        line = next(
            (self.lines[path[:end]] for end in range(len(path), 0, -1) if path[:end] in self.lines),
            None,
        )
        where = f"{self.name} line {line}" if line is not None else self.name
        return SettingsError(f"{where}: {'.'.join(path)}{' ' if path else ''}{what}")


class ItemKind(enum.Enum):
    """A kind of items; the value is the name of its section."""

    USERS = "users"
    RULES = "rules"
    TOPICS = "topics"
    GROUPS = "groups"
    OFFSETS = "offsets"
    """items are named ``topic@group``, and their fields are the numbers of queues"""

    @property
    def word(self) -> str:
        """Return the name of one item in messages."""
        return _WORDS[self]


_WORDS = {
    ItemKind.USERS: "user",
    ItemKind.RULES: "rules of",
    ItemKind.TOPICS: "topic",
    ItemKind.GROUPS: "group",
    ItemKind.OFFSETS: "offsets of",
}
ACCESS = (ItemKind.USERS, ItemKind.RULES)
"""kinds that exist only at brokers with access control, and that slaves keep for themselves"""


@attrs.frozen
class ClusterItem:
    """One topic, group, user, …: its settings, and what is different at some brokers."""

    common: ItemSettings | None
    """at every broker that ``special`` does not name; None: it is not there"""
    special: Mapping[str, ItemSettings | None] = attrs.field(factory=dict)
    """broker → fields that replace the common ones; None: the item is not at that broker"""

    def at(self, place: str) -> ItemSettings | None:
        """Return the settings at a broker, None if the item is not there.

        ``place``: ``broker-a``, or ``broker-a:1`` for a slave, which is as its master unless the
        item names the slave.
        """
        name = place.partition(":")[0]
        chosen = place if place in self.special else name
        if chosen not in self.special:
            return self.common
        own = self.special[chosen]
        if own is None:
            return None
        merged = {**(self.common or {}), **own}
        return {field: value for field, value in merged.items() if value is not None}


@attrs.frozen(kw_only=True)
class ClusterDocument:
    """What a cluster file says."""

    cluster: str
    brokers: Sequence[str] = ()
    """names of the brokers that it was exported from"""
    missing: Sequence[str] = ()
    """brokers that did not answer the export; no command changes them"""
    sections: Mapping[ItemKind, Mapping[str, ClusterItem]] = attrs.field(factory=dict)
    """a kind that is not here is not managed by the file"""

    def without(self, kind: ItemKind) -> ClusterDocument:
        """Return the same document without a section."""
        sections = {one: items for one, items in self.sections.items() if one != kind}
        return attrs.evolve(self, sections=sections)

    def count(self, kind: ItemKind) -> int | None:
        """Return the number of items, None without that section."""
        return None if kind not in self.sections else len(self.sections[kind])

    def special_brokers(self) -> dict[str, str]:
        """Return each broker that an item names, with the first such item."""
        found: dict[str, str] = {}
        for kind, items in self.sections.items():
            for name, item in items.items():
                for place in item.special:
                    found.setdefault(place.partition(":")[0], f"{kind.word} {name}")
        return found

    def renamed(self, names: Mapping[str, str]) -> ClusterDocument:
        """Return the same document with other names for some brokers."""

        def new(place: str) -> str:
            name, colon, number = place.partition(":")
            return f"{names.get(name, name)}{colon}{number}"

        sections = {
            kind: {
                name: attrs.evolve(
                    item, special={new(place): own for place, own in item.special.items()}
                )
                for name, item in items.items()
            }
            for kind, items in self.sections.items()
        }
        brokers, missing = [new(one) for one in self.brokers], [new(one) for one in self.missing]
        return attrs.evolve(self, brokers=brokers, missing=missing, sections=sections)


def item_of(settings: Mapping[str, ItemSettings | None]) -> ClusterItem:
    """Return the item that has these settings: broker → settings, None where it is not.

    The settings that most brokers have become the common ones; of others only what differs is kept.
    """
    known = [own for own in settings.values() if own is not None]
    # Of equally frequent ones the first: brokers come in the order of their names.
    common = max(known, key=known.count)
    special: dict[str, ItemSettings | None] = {}
    for place, own in settings.items():
        if own is None:
            special[place] = None
        elif own != common:
            fields = dict.fromkeys([*common, *own])
            special[place] = {
                field: own.get(field) for field in fields if own.get(field) != common.get(field)
            }
    return ClusterItem(common, special)
