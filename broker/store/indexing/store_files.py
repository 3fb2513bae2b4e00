"""OpenStoreFiles: what a store keeps on the disk, open."""

from __future__ import annotations

import attrs

from triomq.broker.store.core.config import StoreConfig
from triomq.broker.store.io.disk import Disk
from triomq.broker.store.keys.index import KeyIndex
from triomq.broker.store.log.commit_log import CommitLog
from triomq.broker.store.queues.table import QueueTable


@attrs.define(eq=False)
class OpenStoreFiles:
    """The log, what is derived from it, and the settings of all three."""

    config: StoreConfig
    """Replaced when settings of a running broker change."""
    disk: Disk
    log: CommitLog
    queues: QueueTable
    key_index: KeyIndex
