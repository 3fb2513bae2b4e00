"""Headers of transactions: 37, 39 and 323.

Source: remoting/…/header/EndTransactionRequestHeader.java, CheckTransactionStateRequestHeader.java.
"""

from triomq.remoting.protocol.fields import header, wire

COMMIT = 8
ROLLBACK = 12
UNDECIDED = 0


@header
class EndTransactionHeader:
    """The producer commits or rolls back a half message (37, one-way)."""

    producer_group: str = wire("producerGroup")
    half_queue_offset: int = wire("tranStateTableOffset", bits=64)
    log_offset: int = wire("commitLogOffset", bits=64)
    verdict: int = wire("commitOrRollback")
    message_id: str = wire("msgId")
    from_check: bool = wire("fromTransactionCheck", default=False)
    transaction_id: str | None = wire("transactionId", default=None)
    topic: str | None = wire("topic", default=None)
    broker_name: str | None = wire("bname", default=None)


@header
class CheckTransactionHeader:
    """The broker asks about a half message (39, one-way), which is the body."""

    half_queue_offset: int = wire("tranStateTableOffset", bits=64)
    log_offset: int = wire("commitLogOffset", bits=64)
    message_id: str | None = wire("msgId", default=None)
    transaction_id: str | None = wire("transactionId", default=None)
    offset_message_id: str | None = wire("offsetMsgId", default=None)
    topic: str | None = wire("topic", default=None)
    broker_name: str | None = wire("bname", default=None)


@header
class ResumeCheckHeader:
    """Put an abandoned half message back (323)."""

    topic: str | None = wire("topic", default=None)
    message_id: str | None = wire("msgId", default=None)
