"""Clusters with one rule broken: the simulation must find each of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs
import pytest
from simulated_disk import SimulatedDisk

from triomq.broker.replicating import Replication
from triomq.broker.replication.slave import ReplicationSlave
from triomq.broker.store import durability
from triomq.broker.store.disk import Disk
from triomq.broker.store.durability import Flusher
from triomq.broker.store.store import MessageStore
from triomq.client import routes
from triomq.client.routes import TopicQueues
from triomq.remoting.protocol.bodies.route import TopicRoute


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


def goes_on_after_a_failed_fsync(patch: pytest.MonkeyPatch) -> None:
    """Says that the disk has what it has refused."""

    def careless(disk: Disk, files: Sequence[Path], directories: Sequence[Path]) -> None:
        for sync, paths in ((disk.sync_path, files), (disk.sync_directory, directories)):
            for path in paths:
                with contextlib.suppress(OSError):
                    sync(path)

    patch.setattr(durability, "sync_files", careless)


def recovery_trusts_the_page_cache(patch: pytest.MonkeyPatch) -> None:
    """After a failed fsync it shows what the disk will never get."""
    patch.setattr(SimulatedDisk, "drop_cache", lambda self, path: None)


def consumers_know_one_broker(patch: pytest.MonkeyPatch) -> None:
    """Queues on all but the first are read by nobody."""
    original = routes.derive_queues

    def narrow(topic: str, route: TopicRoute, *, template: bool = False) -> TopicQueues:
        found = original(topic, route, template=template)
        return attrs.evolve(found, subscribe=tuple(queue for queue in found.subscribe if queue.broker_name == found.subscribe[0].broker_name))

    patch.setattr(routes, "derive_queues", narrow)


BROKEN: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    broken.__name__: broken
    for broken in (
        acknowledges_before_its_slave,
        acknowledges_before_fsync,
        slave_acknowledges_before_fsync,
        readers_see_what_the_disk_lacks,
        goes_on_after_a_failed_fsync,
        recovery_trusts_the_page_cache,
        consumers_know_one_broker,
    )
}
