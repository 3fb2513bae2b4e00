"""ControllerState: what a controller knows for ever, as a plain value. Pure.

A state is never changed; a command makes another one (``transitions``). Snapshots are JSON, the
same bytes for the same state.
"""

from __future__ import annotations

import attrs
import msgspec

FIRST_ID = 1
"""of a group's first broker; at name servers the master has id 0, whatever its id is here"""


@attrs.frozen(kw_only=True)
class KnownBroker:
    """A broker of a group. ``check_code`` is what it applied for its id with."""

    address: str
    check_code: str


@attrs.frozen(kw_only=True)
class Group:
    """The brokers of one name.

    ``master`` is None before the first election, and from a new start of the master's process to
    the next election. ``sync_set``: the ids of the replicas that have all confirmed messages.
    Epochs only grow.
    """

    cluster: str
    replicas: dict[int, KnownBroker]
    next_id: int
    master: int | None = None
    master_epoch: int = 0
    sync_set: frozenset[int] = frozenset()
    sync_set_epoch: int = 0

    @property
    def never_elected(self) -> bool:
        return self.master_epoch == 0


@attrs.frozen
class ControllerState:
    """All groups by broker name."""

    groups: dict[str, Group] = attrs.field(factory=dict)

    def with_group(self, name: str, group: Group) -> ControllerState:
        """Return this state with one group replaced or added."""
        return ControllerState({**self.groups, name: group})

    def without_group(self, name: str) -> ControllerState:
        """Return this state without one group."""
        return ControllerState({key: group for key, group in self.groups.items() if key != name})

    def snapshot(self) -> bytes:
        """Return the state as JSON."""
        plain = msgspec.to_builtins(self, str_keys=True, order="sorted")
        return msgspec.json.format(msgspec.json.encode(plain), indent=1)


def restore(snapshot: bytes) -> ControllerState:
    """Return the state of a snapshot. Raises: ValueError for other bytes."""
    return msgspec.json.decode(snapshot, type=ControllerState)
