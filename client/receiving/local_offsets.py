"""Offsets of a broadcasting consumer: in a file of its machine, where the official client has it.

The file is ``<folder>/<client id>/<group>/offsets.json``, with its previous content in
``offsets.json.bak``; the folder is ``~/.rocketmq_offsets`` unless set. It is JSON except for its
keys, which are objects: ``{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"t"}:5}}``. A Java
consumer with the same client id continues where this one stopped, and vice versa. Unlike Java's,
writing is atomic, and a second consumer that would write the same file is refused.

Source: client/…/consumer/store/LocalFileOffsetStore.java, OffsetSerializeWrapper.java.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import trio

from triomq.client.core.config import ConsumerSettings
from triomq.client.core.errors import SettingsError
from triomq.client.core.namespace import Namespace
from triomq.client.core.session import Session
from triomq.client.receiving.assignment import Assignment
from triomq.client.receiving.offsets import OffsetStore
from triomq.remoting.core.atomic_file import DamagedFile, read_file, replace_file
from triomq.remoting.core.file_lock import try_lock
from triomq.remoting.protocol.bodies.offsets import QueueOffsets
from triomq.remoting.protocol.bodies.route import MessageQueue

DEFAULT_FOLDER = ".rocketmq_offsets"
"""The folder of the offset files in the home directory."""


def offset_file(folder: str | None, client_id: str, group: str) -> Path:
    """Return the path of a consumer's offset file."""
    return (
        (Path(folder) if folder else Path.home() / DEFAULT_FOLDER)
        / client_id
        / group
        / "offsets.json"
    )


def read_offsets(path: Path) -> dict[MessageQueue, int]:
    """Return the stored offsets, the backup's if the file is damaged, none if there is no file.

    Raises: ``SettingsError`` if both are damaged: beginning anew would silently deliver everything,
    or skip messages.
    """
    try:
        return read_file(path, lambda data: dict(QueueOffsets.decode(data).offset_table)) or {}
    except DamagedFile as error:
        raise SettingsError(
            f"the offset file and its backup cannot be used ({error}): correct or remove them"
        ) from error


def write_offsets(path: Path, offsets: Mapping[MessageQueue, int]) -> None:
    """Replace the file and keep the old one as the backup; at any moment one of them is whole.

    Raises: ``OSError``.
    """
    replace_file(path, QueueOffsets(dict(sorted(offsets.items()))).encode())


@attrs.define(eq=False)
class LocalOffsets(OffsetStore):
    """``OffsetStore`` whose offsets are stored in the member's own file."""

    path: Path = attrs.field(kw_only=True)
    known: dict[MessageQueue, int] = attrs.field(kw_only=True)
    namespace: Namespace | None = attrs.field(default=None, kw_only=True)
    """the tenant; the file has the full names"""
    _writing: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    """one write at a time, so that an older state never replaces a newer one"""

    async def stored(self, queue: MessageQueue, *, exactly: bool = False) -> int:
        """Return the offset in the file, or -1 if the member has to begin in the queue.

        A queue without an offset whose topic has others was added after the member began, so it
        begins at 0, unless ``exactly`` is set.
        """
        await trio.lowlevel.checkpoint()
        later = not exactly and any(known.topic == queue.topic for known in self.known)
        return self.known.get(queue, 0 if later else -1)

    async def _keep_begins(self, ends: Mapping[MessageQueue, int]) -> None:
        """Do nothing: all queues are this member's, which stores their offsets as it gains them."""
        await trio.lowlevel.checkpoint()

    async def store(self, assignments: Iterable[Assignment]) -> None:
        """Write the offsets that are new; a failure is logged and retried next time."""
        fresh = {
            assignment: assignment.to_store
            for assignment in assignments
            if assignment.to_store >= 0 and assignment.to_store != assignment.stored
        }
        if not fresh:
            await trio.lowlevel.checkpoint()
            return
        what = f"writing {self.path}"
        try:
            await self._write(fresh)
        except OSError as error:
            self._failures.failed(what, error)
        else:
            self._failures.worked(what)

    async def _write(self, fresh: Mapping[Assignment, int]) -> None:
        self.known.update((assignment.queue, offset) for assignment, offset in fresh.items())
        async with self._writing:
            space = self.namespace
            written = {
                (space.full_queue(queue) if space is not None else queue): offset
                for queue, offset in self.known.items()
            }
            await trio.to_thread.run_sync(write_offsets, self.path, written)
        for assignment, offset in fresh.items():
            assignment.stored = offset


@asynccontextmanager
async def open_local_offsets(
    group: str, session: Session, settings: ConsumerSettings
) -> AsyncIterator[LocalOffsets]:
    """Read the file and lock it for this consumer, for the length of the block.

    Raises: ``SettingsError`` if another consumer has the file, or it cannot be used.
    """
    space = session.namespace
    path = offset_file(
        settings.offset_dir, session.client_id, space.full(group) if space is not None else group
    )
    lock = path.with_name(path.name + ".lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise SettingsError(
            f"offsets cannot be kept in {path.parent}: {error.strerror}; choose another"
            " `offset_dir`"
        ) from error
    try:
        if not try_lock(descriptor):
            raise SettingsError(
                f"another broadcasting consumer of group {group} with client id {session.client_id}"
                f" runs on this machine, and both would write {path}: give each its own name,"
                " ClientSettings(instance_name=…), or its own `offset_dir`"
            )
        known = await trio.to_thread.run_sync(read_offsets, path)
        if space is not None:  # the file has the full names, as Java's
            known = {space.own_queue(queue): offset for queue, offset in known.items()}
        yield LocalOffsets(
            group, session, settings.offset_timeout, path=path, known=known, namespace=space
        )
    finally:
        os.close(descriptor)
