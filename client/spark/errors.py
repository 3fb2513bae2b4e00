"""The errors of the Spark source and sink.

Messages name cause and fix: Spark shows users nothing else.

SourceError
├── OptionError       an option or the schema of the query is wrong; also ValueError
├── OffsetError       offsets cannot be read, or do not fit the query
├── DataLoss          messages that the query had to read are gone
├── RowRefused        a row cannot be sent as a message
├── NotDelivered      messages of a sink's task were not acknowledged
├── StoreFileDamaged  a file of a store directory is not as a broker writes it
├── StoreInUse        a broker may be writing the store directory
└── Unreachable       no name server, or no broker, answered in time; also TimeoutError
"""

from collections.abc import Sequence
from pathlib import Path

from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.command import Command


class SourceError(Exception):
    """Base of the errors of source and sink."""


class OptionError(SourceError, ValueError):
    """An option or a column of the query is wrong; raised while the query is planned."""


class OffsetError(SourceError):
    """Offsets of a checkpoint or of ``startingOffsets`` cannot be used."""


class DataLoss(SourceError):
    """Messages that the query has not read yet are gone."""


class RowRefused(SourceError, ValueError):
    """A row cannot be sent as a message."""


class NotDelivered(SourceError):
    """Messages of a sink's task were not acknowledged. Spark repeats the task."""


class StoreFileDamaged(SourceError):
    """A file of a store directory is cut off, or not as brokers write it."""

    def __init__(self, path: Path, position: int, what: str) -> None:
        super().__init__(
            f"{path} at byte {position}: {what}; check the store with `mqstore verify`, restore the"
            " file from a copy or from a slave, or set failOnDataLoss=false to skip what is damaged"
        )
        self.path = path
        self.position = position
        self.what = what

    def __reduce__(self) -> tuple[type["StoreFileDamaged"], tuple[Path, int, str]]:
        return type(self), (self.path, self.position, self.what)


class StoreInUse(SourceError):
    """A broker may be writing the store directory."""


class Unreachable(SourceError, TimeoutError):
    """A server did not answer within the time that the options allow."""


def lost(topic: str, broker: str, queue_id: int, first: int, end: int, reason: str) -> str:
    """Return a sentence about messages [first, end) of a queue that are gone."""
    return f"offsets [{first}, {end}) of {topic}/{broker}/{queue_id} are gone ({reason})"


def data_loss(losses: Sequence[str]) -> DataLoss:
    """Return the error for ``failOnDataLoss=true``, with every lost range."""
    return DataLoss(f"{'; '.join(losses)}; set failOnDataLoss=false to skip lost messages")


PERMANENT_REFUSALS = {
    ResponseCode.NO_PERMISSION: "check the topic's and the broker's permissions",
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: "correct the option 'tags' or 'filterSql'",
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: (
        "create the group with `mqadmin group create`, or name an existing one in 'groupId'"
    ),
}
"""refusals that a retry does not change → what to do"""


def refused_pull(queue: str, broker: str, response: Command) -> SourceError:
    """Return the error for a permanent refusal."""
    return SourceError(
        f"broker {broker} refuses pulls from {queue}: {response.remark};"
        f" {PERMANENT_REFUSALS[ResponseCode(response.code)]}"
    )
