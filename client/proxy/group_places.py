"""Which connection to a broker each group is on. PURE.

A broker bounds the groups of one connection (``groupsPerConnectionMax``), so the groups of many
clients need several. A group stays where it is for as long as it exists.
"""

from __future__ import annotations

from collections.abc import Collection

import attrs

from triomq.client.proxy.joined_clients import GroupKey


@attrs.define(eq=False)
class GroupPlaces:
    """The places. Connections have numbers from 0; the first one with room takes a new group."""

    groups_per_connection: int
    _number: dict[GroupKey, int] = attrs.field(factory=dict, init=False)
    _groups: list[dict[GroupKey, None]] = attrs.field(factory=list, init=False)
    """By connection."""

    @property
    def count(self) -> int:
        """Connections that have had groups."""
        return len(self._groups)

    def groups(self, number: int) -> Collection[GroupKey]:
        """Return the groups of a connection."""
        return self._groups[number].keys()

    def take(self, group: GroupKey) -> int:
        """Return the connection of a group, after giving it a place if it has none."""
        number = self._number.get(group)
        if number is None:
            number = next(
                (
                    index
                    for index, groups in enumerate(self._groups)
                    if len(groups) < self.groups_per_connection
                ),
                len(self._groups),
            )
            if number == len(self._groups):
                self._groups.append({})
            self._number[group] = number
            self._groups[number][group] = None
        return number

    def leave(self, group: GroupKey) -> int | None:
        """Free the place of a group; return its connection, None if it had none."""
        number = self._number.pop(group, None)
        if number is not None:
            del self._groups[number][group]
        return number
