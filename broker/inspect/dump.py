"""``dump``: the messages of a topic, by its consume queues, or from the log where there are none."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import attrs

from triomq.broker.inspect.batch_cursor import BatchCursor
from triomq.broker.inspect.findings import Report
from triomq.broker.inspect.layout import StoreFiles
from triomq.broker.inspect.log_check import LogCheck
from triomq.broker.inspect.queue_cursor import QueueCursor
from triomq.broker.store.draft import UNQUEUED
from triomq.broker.store.queue_search import FILLER_SIZE
from triomq.remoting.address import format_address
from triomq.remoting.errors import RemotingError
from triomq.remoting.protocol.compression import plain_body
from triomq.remoting.protocol.inner_batch import unwrapped
from triomq.remoting.protocol.message import INNER_BATCH, TRANSACTION_MASK, UNIQ_KEY
from triomq.remoting.protocol.record import HEAD_V4, StoredMessage, decode_record

BLOCK_ENTRIES = 3_276


@attrs.frozen(kw_only=True)
class Wanted:
    """Which messages to read."""

    topic: str
    queue_id: int | None = None
    """None = all queues, one after the other."""
    start: int = 0
    """The first queue offset, in each queue."""
    key: str | None = None
    """A unique key, or one of the words of KEYS."""
    by_log: bool = False
    """Read the log, not the queues."""

    def has_key(self, message: StoredMessage) -> bool:
        return self.key is None or self.key in message.keys or self.key == message.properties.get(UNIQ_KEY)


@attrs.define(eq=False)
class Dump:
    """Iterate ``messages``. What cannot be read is told to ``complain`` and passed over."""

    files: StoreFiles
    wanted: Wanted
    complain: Callable[[str], None]
    known: bool = attrs.field(default=False, init=False)
    """Whether the topic (and queue) has been seen at all."""

    def messages(self) -> Iterator[StoredMessage]:
        """Queue by queue in the order of their offsets; without queues in the order of the log. Raises OSError."""
        wanted = self.wanted
        found = [self._wanted(self.files.queue_directories()), self._wanted(self.files.batch_queue_directories())]
        if not any(found) or wanted.by_log:
            yield from self._by_log()
            return
        self.known = True
        silent = Report()
        log = LogCheck(self.files, silent)
        for queue_id, directory in found[0]:
            cursor = QueueCursor(
                wanted.topic, queue_id, directory, self.files.disk, silent, log, self.files.log_start, self.files.queue_file_size, BLOCK_ENTRIES
            )
            cursor.find_files()
            yield from self._by_queue(cursor)
        for queue_id, directory in found[1]:
            batches = BatchCursor(
                wanted.topic, queue_id, directory, self.files.disk, silent, log, self.files.log_start, self.files.batch_queue_file_size, BLOCK_ENTRIES
            )
            batches.find_files()
            yield from self._by_batch_queue(batches)

    def _wanted(self, directories: Iterable[tuple[str, int, Path]]) -> list[tuple[int, Path]]:
        wanted = self.wanted
        return sorted(
            (queue_id, directory)
            for topic, queue_id, directory in directories
            if topic == wanted.topic and wanted.queue_id in (None, queue_id) and any(directory.iterdir())
        )

    def _by_batch_queue(self, cursor: BatchCursor) -> Iterator[StoredMessage]:
        number = cursor.first
        while (entry := cursor.entry(number)) is not None and entry[1] > 0:
            log_offset, size, _ = entry
            base = cursor.batch(number).base
            if log_offset >= self.files.log_start:
                message = self._read(log_offset, size)
                if isinstance(message, str):
                    self.complain(f"the record of messages {base} and following of queue {cursor.queue_id}, which should lie at {log_offset}, cannot be read: {message}")
                elif message.queue_offset != base:
                    self.complain(f"message {base} of queue {cursor.queue_id} should lie at {log_offset}, where message {message.queue_offset} lies")
                else:
                    yield from self._taken_apart(message)
            number += 1

    def _taken_apart(self, message: StoredMessage) -> Iterator[StoredMessage]:
        """The wanted messages of a record: one, or those of an inner batch."""
        try:
            messages = unwrapped([message])
        except RemotingError as error:
            self.complain(f"the record at {message.log_offset} says that it holds several messages, but does not: {error}")
            messages = [message]
        yield from (inner for inner in messages if inner.queue_offset >= self.wanted.start and self.wanted.has_key(inner))

    def _by_queue(self, cursor: QueueCursor) -> Iterator[StoredMessage]:
        number = max(cursor.first, self.wanted.start)
        while (entry := cursor.entry(number)) is not None and entry[1] > 0:
            log_offset, size, _ = entry
            if size != FILLER_SIZE and log_offset >= self.files.log_start:
                message = self._read(log_offset, size)
                if isinstance(message, str):
                    self.complain(f"message {number} of queue {cursor.queue_id}, which should lie at {log_offset}, cannot be read: {message}")
                elif (message.log_offset, message.queue_offset) != (log_offset, number) and message.topic == cursor.topic:
                    self.complain(f"message {number} of queue {cursor.queue_id} should lie at {log_offset}, where message {message.queue_offset} lies")
                elif self.wanted.has_key(message):
                    yield message
            number += 1

    def _by_log(self) -> Iterator[StoredMessage]:
        wanted = self.wanted
        report = Report()
        for batch in LogCheck(self.files, report).batches():
            for draft, place in zip(batch.drafts, batch.places):
                if draft.topic != wanted.topic or wanted.queue_id not in (None, draft.queue_id) or draft.sys_flag & TRANSACTION_MASK in UNQUEUED:
                    continue
                self.known = True
                if place.queue_offset < wanted.start and not draft.sys_flag & INNER_BATCH:
                    continue
                message = self._read(place.log_offset, place.size)
                if isinstance(message, str):
                    self.complain(f"the message at {place.log_offset} cannot be read: {message}")
                else:
                    yield from self._taken_apart(message)
        if report.damaged:
            self.complain("parts of the log are damaged and have been passed over; `mqstore verify` tells which")

    def _read(self, log_offset: int, size: int) -> StoredMessage | str:
        """The message, or why there is none."""
        segment = next((found for run in self.files.runs if (found := run.find(log_offset)) is not None), None)
        if segment is None or not HEAD_V4.size <= size <= segment.end - log_offset:
            return "no segment holds it"
        try:
            return decode_record(self.files.disk.read_path(segment.path, size, log_offset - segment.base), check_crc=True)
        except OSError as error:
            return str(error.strerror or error)
        except RemotingError as error:
            return str(error).replace(" at byte 0", "")


def message_document(message: StoredMessage) -> dict[str, Any]:
    """The JSON form, with mqadmin's names: the body as text if it is UTF-8, else in base64."""
    try:
        body = plain_body(message.body, message.sys_flag)
    except RemotingError:
        body = message.body  # compressed in a way that we cannot undo; shown as it is stored
    try:
        text, encoded = body.decode(), None
    except UnicodeDecodeError:
        text, encoded = None, base64.b64encode(body).decode()
    return {
        "topic": message.topic,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "msgId": message.message_id,
        "offsetMsgId": message.offset_message_id,
        "tags": message.tag,
        "keys": list(message.keys),
        "properties": dict(message.properties),
        "body": text,
        "bodyBase64": encoded,
        "bodyCRC": message.body_crc,
        "bornTimestamp": message.born_timestamp,
        "bornHost": format_address(*message.born_host),
        "storeTimestamp": message.store_timestamp,
        "storeHost": format_address(*message.store_host),
        "commitLogOffset": message.log_offset,
        "storeSize": message.size,
        "sysFlag": message.sys_flag,
        "flag": message.flag,
        "reconsumeTimes": message.reconsume_times,
        "preparedTransactionOffset": message.prepared_transaction_offset,
    }


def message_text(message: StoredMessage) -> str:
    """The form for people: four lines or less, control characters escaped."""
    document = message_document(message)
    stored = _time_text(message.store_timestamp)
    lines = [f"{message.topic} queue {message.queue_id} offset {message.queue_offset}  stored {stored}  at {message.log_offset} ({message.size} bytes)"]
    lines.append(f"  id {message.message_id}" + (f"  tags {message.tag}" if message.tag else "") + (f"  keys {' '.join(message.keys)}" if message.keys else ""))
    others = {name: value for name, value in message.properties.items() if name not in ("UNIQ_KEY", "TAGS", "KEYS")}
    if others:
        lines.append("  " + " ".join(f"{name}={value}" for name, value in others.items()))
    lines.append("  " + (document["body"] if document["body"] is not None else f"base64:{document['bodyBase64']}"))
    return "\n".join(_printable(line) for line in lines)


def _time_text(milliseconds: int) -> str:
    try:
        return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)).isoformat(timespec="milliseconds")
    except OverflowError:
        return f"{milliseconds} ms"


def _printable(line: str) -> str:
    if line.isprintable():
        return line
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in line)
