"""Clusters with one rule broken: the simulation must find each of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from triomq.broker.replicating import Replication
from triomq.broker.replication.slave import ReplicationSlave
from triomq.broker.store.durability import Flusher
from triomq.broker.store.store import MessageStore


def acknowledges_before_its_slave(patch: pytest.MonkeyPatch) -> None:
    """A SYNC_MASTER that asks its own disk only."""
    patch.setattr(Replication, "durability", property(lambda self: self.store))


def acknowledges_before_fsync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Flusher, "durable_now", lambda self, log_end: True)
    patch.setattr(Flusher, "when_durable", lambda self, log_end, told: False)


def slave_acknowledges_before_fsync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ReplicationSlave, "position", property(lambda self: self.store.appended))


def readers_see_what_the_disk_lacks(patch: pytest.MonkeyPatch) -> None:
    """And slaves get it."""
    original = MessageStore.__attrs_post_init__

    def hasty(self: MessageStore) -> None:
        original(self)
        self.indexer.confirmed = self.log.appended

    patch.setattr(MessageStore, "__attrs_post_init__", hasty)


BROKEN: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    broken.__name__: broken
    for broken in (
        acknowledges_before_its_slave,
        acknowledges_before_fsync,
        slave_acknowledges_before_fsync,
        readers_see_what_the_disk_lacks,
    )
}
