"""What the Spark source raises.  Every message names the cause and the fix, since Spark shows users nothing else.

SourceError
├── OptionError       an option or the schema of the query is wrong; also ValueError
├── OffsetError       offsets that cannot be read or do not fit the query
├── DataLoss          messages that the query was to read are gone
└── Unreachable       no name server, or no broker, answered in time; also TimeoutError
"""

from collections.abc import Sequence


class SourceError(Exception):
    """Base of the source's errors."""


class OptionError(SourceError, ValueError):
    """An option or a column of the query is wrong; raised while the query is planned."""


class OffsetError(SourceError):
    """Offsets of a checkpoint or of `startingOffsets` that cannot be used."""


class DataLoss(SourceError):
    """Messages are gone that the query has not read yet."""


class Unreachable(SourceError, TimeoutError):
    """A server did not answer within the time that the options allow."""


def lost(topic: str, broker: str, queue_id: int, first: int, end: int, reason: str) -> str:
    """One sentence about messages [first, end) of a queue that nobody can read any more."""
    return f"offsets [{first}, {end}) of {topic}/{broker}/{queue_id} are gone ({reason})"


def data_loss(losses: Sequence[str]) -> DataLoss:
    """The error for `failOnDataLoss=true`, with every lost range."""
    return DataLoss(f"{'; '.join(losses)}; set failOnDataLoss=false to skip what is gone and go on")
