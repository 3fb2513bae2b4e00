"""The command dumpCompactionLog, without a cluster."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import TYPE_CHECKING

from triomq.client.admin.arguments import Option, UsageError, Values
from triomq.client.admin.documents import body_text
from triomq.client.admin.times import milliseconds_text
from triomq.client.core.errors import SettingsError
from triomq.client.mqadmin.core.command import AdminCommand
from triomq.client.mqadmin.core.result import Result, table_of
from triomq.remoting.protocol.message_document import message_document
from triomq.remoting.protocol.record_reader import read_record

if TYPE_CHECKING:
    from triomq.remoting.protocol.record import StoredMessage

MESSAGES_MAX = 100_000
RECORD_BYTES_MAX = 64 << 20
"""of a file that is no log, no more is read for its first length"""
HEAD_BYTES = 8


async def dump(values: Values) -> Result:
    name = values.maybe_text("file")
    if name is None:
        raise UsageError("-f/--file is missing: a file of a topic's compaction log")
    path = Path(name)
    messages, notes = read_file(path)
    documents: list[dict[str, object]] = [
        {"topic": message.topic, **message_document(message)} for message in messages
    ]
    table = table_of(
        documents,
        {
            "Topic": "topic",
            ">QID": "queueId",
            ">Offset": "queueOffset",
            "Store Time": lambda message: milliseconds_text(message["storeTimestamp"]),
            "Keys": lambda message: " ".join(message["keys"]),
            "MsgId": "msgId",
            "Body": body_text,
        },
    )
    return Result(
        document={"file": str(path), "messages": documents},
        blocks=[table, f"{len(documents)} messages"],
        notes=notes,
    )


def read_file(path: Path) -> tuple[list[StoredMessage], list[str]]:
    """Return the messages of a file, and warnings. Raises: SettingsError."""
    messages: list[StoredMessage] = []
    try:
        with path.open("rb") as file:
            if not path.stat().st_size:
                raise SettingsError(f"{path} is empty; name a file of a compaction log")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                position, end = 0, len(data)
                while position + HEAD_BYTES <= end and len(messages) < MESSAGES_MAX:
                    size = int.from_bytes(data[position : position + 4], "big")
                    if size == 0:
                        return messages, []  # the unused rest of a file with a fixed size
                    record = data[position : position + min(size, RECORD_BYTES_MAX)]
                    found = read_record(record, 0, len(record), True)
                    if isinstance(found, str):
                        if not messages:
                            raise SettingsError(
                                f"{path} is no log of messages: {found}; name a file of a"
                                " compaction log"
                            )
                        return messages, [f"the messages end at byte {position}: {found}"]
                    messages.append(found)
                    position += size
    except OSError as error:
        raise SettingsError(
            f"{path} cannot be read: {error.strerror or error}; name a file of a compaction log"
        ) from None
    if len(messages) == MESSAGES_MAX:
        return messages, [f"the output ends after {MESSAGES_MAX} messages, the limit of one call"]
    return messages, []


COMMANDS = (
    AdminCommand("dumpCompactionLog", local=dump).with_options(
        Option(
            "-f, --file FILE", "a file below the store's compaction folder, or a commit log file"
        )
    ),
)
