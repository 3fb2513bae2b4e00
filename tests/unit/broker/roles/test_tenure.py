"""The begin of a tenure: which epochs the log of a broker still has."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from brokers import broker_config
from stores import tiny_config

from triomq.broker.app import begun
from triomq.broker.replication.confirmed_durability import ConfirmedDurability
from triomq.broker.replication.epoch_file import EpochFile
from triomq.broker.replication.epochs import EpochHistory
from triomq.broker.roles.role import open_role
from triomq.broker.roles.tenure import Tenure
from triomq.broker.store.core.errors import FullAtStart
from triomq.broker.store.core.watermark import Watermark
from triomq.broker.store.io.disk import Disk
from triomq.broker.store.opening import open_store
from triomq.remoting.core.atomic_file import SystemFiles
from triomq.remoting.core.open_files import ConnectionBudget


async def test_a_master_wants_two_copies_until_it_knows_that_it_is_alone(tmp_path: Path) -> None:
    """Its controllers may not answer for a while, and sends come."""
    membership: Any = SimpleNamespace(
        address="127.0.0.1:1", broker_id=1, propose=None, ask_now=lambda: None
    )
    mastership: Any = SimpleNamespace(members=frozenset({1}), set_epoch=1)
    epochs = EpochFile(tmp_path / "epochs", SystemFiles())
    tenure = Tenure(membership=membership, mastership=mastership, epochs=epochs, cut_at=None)
    config = broker_config(tmp_path, brokerRole="SYNC_MASTER", minInSyncReplicas=0)
    async with open_store(tiny_config(tmp_path), holds_tail=True) as store:
        role = open_role(config, store, ConnectionBudget.of_process().slaves, [], tenure=tenure)
        assert isinstance(role.replicated, ConfirmedDurability)
        assert "minInSyncReplicas=2" in role.replicated.refusal()
        membership.on_size(1)
        assert not role.replicated.refusal()


@pytest.mark.parametrize(
    ("cut_at", "left"), [(100, [(1, 0)]), (None, [(1, 0), (2, 100)])], ids=["cut", "crash"]
)
async def test_an_epoch_without_bytes_ends_with_a_cut(
    tmp_path: Path, cut_at: int | None, left: list[tuple[int, int]]
) -> None:
    """After a crash the epoch is that of a master which may be master again."""
    membership: Any = SimpleNamespace(broker_id=2, progress=None)
    mastership: Any = SimpleNamespace(master_id=1)
    store: Any = SimpleNamespace(
        appended=Watermark(100), copyable=Watermark(100), confirmed=Watermark(40)
    )
    epochs = EpochFile(tmp_path / "epochs", SystemFiles())
    epochs.save(EpochHistory.of([(1, 0), (2, 100), (3, 170)]))
    tenure = Tenure(membership=membership, mastership=mastership, epochs=epochs, cut_at=cut_at)
    await tenure.begin(store)
    assert [(epoch.number, epoch.start) for epoch in epochs.history.entries] == left
    assert EpochFile(epochs.path, SystemFiles()).history == epochs.history
    progress = membership.progress()
    assert (progress.epoch, progress.log_end, progress.confirmed) == (left[-1][0], 100, 40)


async def test_a_role_that_begins_on_a_full_disk_ends_the_broker_in_words(tmp_path: Path) -> None:
    """Its controllers then elect another, and a service manager starts it again."""

    class FullDisk(SystemFiles):
        def write_file(self, path: Path, data: bytes) -> None:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))

    epochs = EpochFile(tmp_path / "epochs", SystemFiles())
    epochs.save(EpochHistory.of([(1, 0), (2, 100), (3, 170)]))
    store: Any = SimpleNamespace(appended=Watermark(100))
    tenure = Tenure(
        membership=SimpleNamespace(broker_id=2),  # type: ignore[arg-type]
        mastership=SimpleNamespace(master_id=1),  # type: ignore[arg-type]
        epochs=EpochFile(epochs.path, FullDisk()),
        cut_at=None,
    )
    with pytest.raises(FullAtStart, match="then start the broker again"):
        async with begun(tenure, store, tmp_path, Disk()):
            pass
