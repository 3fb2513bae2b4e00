"""``PushedMessage``: a message that a broker pushes to a client outside of any consumption."""

from __future__ import annotations

from triomq.client.receiving.message_view import MessageView
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.record import StoredMessage


class PushedMessage(MessageView):
    """Read-only, and nothing to settle: replies, and messages whose transaction is checked."""

    __slots__ = ("_group", "_queue", "_record")

    def __init__(self, record: StoredMessage, group: str, broker_name: str) -> None:
        self._record = record
        self._group = group
        self._queue = MessageQueue(record.topic, broker_name, record.queue_id)

    @property
    def _stored(self) -> StoredMessage:
        return self._record

    @property
    def group(self) -> str:
        """The producer group."""
        return self._group

    @property
    def queue(self) -> MessageQueue:
        return self._queue

    @property
    def reconsume_times(self) -> int:
        """0: no consumer got the message."""
        return 0

    @property
    def settled(self) -> bool:
        """False: there is nothing to settle."""
        return False

    @property
    def given_back(self) -> bool:
        """False: there is nothing to settle."""
        return False

    @property
    def lost(self) -> bool:
        """False: no consumer has the message."""
        return False
