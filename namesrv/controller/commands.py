"""The commands that change a ControllerState.

A command carries what its maker saw (epochs), so that it is refused if that is no longer so. It
has no time and no chance in it: the same commands make the same state everywhere. Commands are
tagged, so that msgspec writes and reads any of them.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec


class ApplyId(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A broker takes an id for ever; again with the same check code, it has it already."""

    cluster: str
    broker_name: str
    broker_id: int
    check_code: str


class Register(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A broker's process has started: from now on it has this address, and it is no master."""

    broker_name: str
    broker_id: int
    address: str


class Elect(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Make a broker the master. ``master_epoch``: the epoch before, as its maker saw it.

    ``unclean``: it need not be in the sync state set, so that messages may be lost.
    """

    broker_name: str
    broker_id: int
    master_epoch: int
    unclean: bool = False


class AlterSet(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The master proposes another sync state set. Both epochs are the present ones."""

    broker_name: str
    master: int
    master_epoch: int
    ids: frozenset[int]
    sync_set_epoch: int


class Clean(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Forget brokers of a group; None: all, and the group."""

    broker_name: str
    ids: frozenset[int] | None = None


Command: TypeAlias = ApplyId | Register | Elect | AlterSet | Clean
