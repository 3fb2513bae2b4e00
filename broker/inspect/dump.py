"""``dump``: the messages of a topic, by its consume queues, or from the log if it has none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import attrs

from triomq.broker.inspect.batch_cursor import BatchCursor
from triomq.broker.inspect.layout import StoreFiles
from triomq.broker.inspect.log_check import LogCheck
from triomq.broker.inspect.queue_cursor import QueueCursor
from triomq.broker.inspect.report import Report
from triomq.broker.store.core.draft import UNQUEUED
from triomq.broker.store.queues.search import FILLER_SIZE
from triomq.remoting.core.errors import RemotingError
from triomq.remoting.core.printable import printable
from triomq.remoting.protocol.inner_batch import unwrapped
from triomq.remoting.protocol.message_document import message_document
from triomq.remoting.protocol.message_properties import UNIQ_KEY
from triomq.remoting.protocol.record import HEAD_V4, StoredMessage
from triomq.remoting.protocol.record_reader import read_record
from triomq.remoting.protocol.sys_flags import INNER_BATCH, TRANSACTION_MASK

BLOCK_ENTRIES = 3_276


@attrs.frozen(kw_only=True)
class Wanted:
    """The messages to read."""

    topic: str
    queue_id: int | None = None
    """None: all queues, one after the other"""
    start: int = 0
    """first queue offset, in each queue"""
    key: str | None = None
    """a unique id, or one of the words of KEYS"""
    by_log: bool = False
    """read the log, not the queues"""

    def has_key(self, message: StoredMessage) -> bool:
        return (
            self.key is None
            or self.key in message.keys
            or self.key == message.properties.get(UNIQ_KEY)
        )


@attrs.define(eq=False)
class Dump:
    """Iterate ``messages``. What cannot be read is skipped, with a line to ``complain``."""

    files: StoreFiles
    wanted: Wanted
    complain: Callable[[str], None]
    known: bool = attrs.field(default=False, init=False)
    """whether the store has the topic (and queue)"""

    def messages(self) -> Iterator[StoredMessage]:
        """Yield the messages queue by queue, by offset; without queues in the order of the log.

        Raises: OSError.
        """
        wanted = self.wanted
        silent = Report()
        log = LogCheck(self.files, silent)
        cursors = [
            kind(self.files, log, silent, wanted.topic, queue_id, BLOCK_ENTRIES)
            for kind in (QueueCursor, BatchCursor)
            for queue_id in self._queue_ids(kind.folder)
        ]
        if not cursors or wanted.by_log:
            yield from self._by_log()
            return
        self.known = True
        for cursor in cursors:
            cursor.find_files()
            yield from self._by_queue(cursor)

    def _queue_ids(self, folder: str) -> list[int]:
        wanted = self.wanted
        return sorted(
            queue_id
            for topic, queue_id, directory in self.files.queues(folder)
            if topic == wanted.topic
            and wanted.queue_id in (None, queue_id)
            and any(directory.iterdir())
        )

    def _by_queue(self, cursor: QueueCursor) -> Iterator[StoredMessage]:
        batches = cursor if isinstance(cursor, BatchCursor) else None
        number = cursor.first if batches is not None else max(cursor.first, self.wanted.start)
        while (entry := cursor.entry(number)) is not None and entry[1] > 0:
            log_offset, size, _ = entry
            queue_offset = batches.batch(number).base if batches is not None else number
            number += 1
            if size == FILLER_SIZE or log_offset < self.files.log_start:
                continue
            message = self._message_at(log_offset, size)
            place = f"message {queue_offset} of queue {cursor.queue_id} should be at {log_offset}"
            if isinstance(message, str):
                self.complain(f"{place}, but the record cannot be read: {message}")
            elif (message.log_offset, message.queue_offset) != (log_offset, queue_offset) and (
                batches is not None or message.topic == cursor.topic
            ):
                self.complain(f"{place}, but message {message.queue_offset} is there")
            elif batches is not None:
                yield from self._unwrapped(message)
            elif self.wanted.has_key(message):
                yield message

    def _unwrapped(self, message: StoredMessage) -> Iterator[StoredMessage]:
        """Yield the wanted messages of a record: one, or those of an inner batch."""
        try:
            messages = unwrapped([message])
        except RemotingError as error:
            self.complain(
                f"the record at {message.log_offset} is marked as several messages, but it is"
                f" not: {error}"
            )
            messages = [message]
        yield from (
            inner
            for inner in messages
            if inner.queue_offset >= self.wanted.start and self.wanted.has_key(inner)
        )

    def _by_log(self) -> Iterator[StoredMessage]:
        wanted = self.wanted
        report = Report()
        for batch in LogCheck(self.files, report).batches():
            for draft, place in zip(batch.drafts, batch.places):
                if (
                    draft.topic != wanted.topic
                    or wanted.queue_id not in (None, draft.queue_id)
                    or draft.sys_flag & TRANSACTION_MASK in UNQUEUED
                ):
                    continue
                self.known = True
                if place.queue_offset < wanted.start and not draft.sys_flag & INNER_BATCH:
                    continue
                message = self._message_at(place.log_offset, place.size)
                if isinstance(message, str):
                    self.complain(f"the message at {place.log_offset} cannot be read: {message}")
                else:
                    yield from self._unwrapped(message)
        if report.damaged:
            self.complain(
                "parts of the log are damaged and have been skipped; `mqstore verify` names them"
            )

    def _message_at(self, log_offset: int, size: int) -> StoredMessage | str:
        """Return the message, or the reason why it cannot be read."""
        segment = next(
            (found for run in self.files.runs if (found := run.find(log_offset)) is not None), None
        )
        if segment is None or not HEAD_V4.size <= size <= segment.end - log_offset:
            return "no segment holds it"
        try:
            data = self.files.disk.read_path(segment.path, size, log_offset - segment.base)
        except OSError as error:
            return str(error.strerror or error)
        return read_record(data, 0, len(data))


def record_document(message: StoredMessage) -> dict[str, object]:
    """Return the JSON form of a message, with the fields that only its record has."""
    return {
        **message_document(message),
        "bodyCRC": message.body_crc,
        "preparedTransactionOffset": message.prepared_transaction_offset,
    }


def message_text(message: StoredMessage) -> str:
    """Return the text form: at most four lines, control characters escaped."""
    document = message_document(message)
    stored = _time_text(message.store_timestamp)
    lines = [
        (
            f"{message.topic} queue {message.queue_id} offset {message.queue_offset}"
            f"  stored {stored}  at {message.log_offset} ({message.size} bytes)"
        )
    ]
    lines.append(
        f"  id {message.message_id}"
        + (f"  tags {message.tag}" if message.tag else "")
        + (f"  keys {' '.join(message.keys)}" if message.keys else "")
    )
    others = {
        name: value
        for name, value in message.properties.items()
        if name not in ("UNIQ_KEY", "TAGS", "KEYS")
    }
    if others:
        lines.append("  " + " ".join(f"{name}={value}" for name, value in others.items()))
    lines.append(
        "  "
        + (document["body"] if document["body"] is not None else f"base64:{document['bodyBase64']}")
    )
    return "\n".join(printable(line) for line in lines)


def _time_text(milliseconds: int) -> str:
    try:
        return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)).isoformat(
            timespec="milliseconds"
        )
    except OverflowError:
        return f"{milliseconds} ms"
